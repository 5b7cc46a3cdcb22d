// Runs the graphs that ggml hands us: a MoE layer's products and what lies between them, expert by expert as they
// arrive, and anything else node by node through the CPU backend.
//
// The rows of a batch are sorted by expert. For a group of experts that are in memory, the products become jobs of ours
// (products.h), each operation between products one operation over the rows of the whole group in compact arrays, and
// the results are scattered to where ggml expects them. With that, decode and prefill are the same code, a layer needs
// no more memory than one expert and its rows, and the results have stock's bits: the same kernels see the same rows.
#include "backend/gpu.h"
#include "backend/lookahead.h"
#include "backend/moe_run.h"
#include "backend/start.h"

#include "config/log.h"
#include "exec/fetch.h"
#include "exec/models.h"
#include "stats/stats.h"

#include "ggml-cpu.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define READY_AT_ONCE 64u
#define GROUP_BYTES ((size_t)8 << 20) // compact rows of one group, unless a single expert needs more

struct gn_compute {
    const struct gn_knobs *knobs;
    ggml_backend_t cpu;
    ggml_backend_reg_t cpu_registry;
    uint32_t forks; // gn_models_forks() when the CPU backend and the pool were made
    int n_threads;
    struct ggml_threadpool *own_pool;
    struct ggml_threadpool *used_pool;
    ggml_abort_callback abort;
    void *abort_context;
    struct gn_moe_run run;
    struct gn_scratch scratch;
    uint32_t layer;                 // of the last event
    bool measured;                  // what the program has reserved for this context
    bool prefill;                   // the batch that runs is a prompt
    bool left_out;                  // since the last event a layer has come with no tokens to compute
    struct gn_lookahead *lookahead; // of the stream computed last; NULL before, or without prefetching
    uint64_t looked_at;             // that stream's serial number
};

static _Atomic(struct ggml_threadpool *) shared_pool;

void gn_compute_share_pool(struct ggml_threadpool *pool) {
    atomic_store(&shared_pool, pool);
}

struct gn_compute *gn_compute_open(const struct gn_knobs *knobs) {
    ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    struct gn_compute *compute = device ? calloc(1, sizeof *compute) : NULL;
    if (!compute) {
        return NULL;
    }
    compute->knobs = knobs;
    compute->cpu = ggml_backend_dev_init(device, NULL);
    compute->cpu_registry = ggml_backend_dev_backend_reg(device);
    if (!compute->cpu) {
        free(compute);
        return NULL;
    }
    compute->forks = gn_models_forks();
    compute->run.n_threads = 1;
    compute->run.cpu = compute->cpu;
    compute->run.traits = gn_find_cpu_traits(compute->cpu_registry);
    return compute;
}

static void *cpu_function(const struct gn_compute *compute, const char *name) {
    return ggml_backend_reg_get_proc_address(compute->cpu_registry, name);
}

static void use_pool(struct gn_compute *compute, struct ggml_threadpool *pool) {
    void (*set)(ggml_backend_t, ggml_threadpool_t);
    *(void **)&set = cpu_function(compute, "ggml_backend_cpu_set_threadpool");
    if (set && pool != compute->used_pool) {
        set(compute->cpu, pool);
        compute->used_pool = pool;
    }
}

static void free_own_pool(struct gn_compute *compute) {
    if (compute->own_pool) {
        void (*destroy)(struct ggml_threadpool *);
        *(void **)&destroy = cpu_function(compute, "ggml_threadpool_free");
        use_pool(compute, NULL);
        destroy(compute->own_pool);
        compute->own_pool = NULL;
    }
}

static void tell_n_threads(const struct gn_compute *compute) {
    ggml_backend_set_n_threads_t set;
    *(void **)&set = cpu_function(compute, "ggml_backend_set_n_threads");
    if (set) {
        set(compute->cpu, compute->n_threads);
    }
}

static void tell_abort(const struct gn_compute *compute) {
    ggml_backend_set_abort_callback_t set;
    *(void **)&set = cpu_function(compute, "ggml_backend_set_abort_callback");
    if (set) {
        set(compute->cpu, compute->abort, compute->abort_context);
    }
}

void gn_compute_forked(void) {
    atomic_store(&shared_pool, NULL);
}

// In a child process after fork() the pool has no threads: not even freeing it would end. Takes a CPU backend that
// knows nothing of it; what is left of the pool is never touched again. Returns whether there is one.
static bool leave_parent(struct gn_compute *compute) {
    if (compute->forks == gn_models_forks()) {
        return true;
    }
    ggml_backend_t cpu = ggml_backend_dev_init(ggml_backend_get_device(compute->cpu), NULL);
    if (!cpu) {
        return false;
    }
    ggml_backend_free(compute->cpu);
    compute->cpu = compute->run.cpu = cpu;
    compute->own_pool = compute->used_pool = NULL;
    compute->forks = gn_models_forks();
    tell_n_threads(compute);
    tell_abort(compute);
    return true;
}

void gn_compute_close(struct gn_compute *compute) {
    if (compute) {
        if (compute->forks == gn_models_forks()) {
            free_own_pool(compute);
        }
        ggml_backend_free(compute->cpu);
        gn_scratch_free(&compute->scratch);
        gn_lookahead_close(compute->lookahead);
        free(compute);
    }
}

void gn_compute_set_threads(struct gn_compute *compute, int n_threads) {
    if (n_threads == compute->n_threads || !leave_parent(compute)) {
        return;
    }
    free_own_pool(compute);
    compute->n_threads = compute->run.n_threads = n_threads;
    tell_n_threads(compute);
}

void gn_compute_set_abort(struct gn_compute *compute, ggml_abort_callback callback, void *context) {
    compute->abort = callback;
    compute->abort_context = context;
    tell_abort(compute);
}

// Uses the program's pool, or one of our own that sleeps as soon as it has nothing to do: without any, ggml would start
// new threads for every graph.
static void choose_pool(struct gn_compute *compute) {
    struct ggml_threadpool *pool = atomic_load(&shared_pool);
    if (pool || compute->n_threads < 2) {
        use_pool(compute, pool);
        return;
    }
    if (!compute->own_pool) {
        struct ggml_threadpool *(*create)(struct ggml_threadpool_params *);
        *(void **)&create = cpu_function(compute, "ggml_threadpool_new");
        struct ggml_threadpool_params params = ggml_threadpool_params_default(compute->n_threads);
        params.poll = 0;
        compute->own_pool = create ? create(&params) : NULL;
    }
    use_pool(compute, compute->own_pool);
}

// Runs one node as it is. Streamed weights have no bytes in memory: a node that reads them otherwise than by our own
// way must not run.
static enum ggml_status run_node(struct gn_compute *compute, struct ggml_tensor *node) {
    for (int s = 0; s < GGML_MAX_SRC && node->src[s]; s++) {
        if (gn_streamed_weight(node->src[s])) {
            gn_fail("operation %s reads expert weights %s in a way that cannot be streamed", ggml_op_name(node->op),
                    node->src[s]->name);
            return GGML_STATUS_FAILED;
        }
    }
    struct ggml_cgraph *graph = gn_scratch_graph(&compute->scratch, 1);
    if (!graph) {
        gn_fail("no memory for a graph");
        return GGML_STATUS_ALLOC_FAILED;
    }
    ggml_graph_add_node(graph, node);
    return ggml_backend_graph_compute(compute->cpu, graph);
}

// Computes ready[0 … n-1], whose rows fit into the scratch memory together.
static enum ggml_status compute_group(struct gn_compute *compute, const struct gn_ready *ready, uint32_t n) {
    struct gn_moe_run *run = &compute->run;
    struct ggml_cgraph *graph = gn_moe_run_build(run, &compute->scratch, ready, n);
    if (!graph) {
        gn_fail("no memory to compute a MoE layer");
        return GGML_STATUS_ALLOC_FAILED;
    }
    _Atomic uint64_t *waits = &run->stream->counts.io_wait_ns;
    uint64_t start = gn_now_ns(), waited = atomic_load_explicit(waits, memory_order_relaxed);
    enum ggml_status status = ggml_backend_graph_compute(compute->cpu, graph);
    waited = atomic_load_explicit(waits, memory_order_relaxed) - waited;
    uint64_t elapsed = gn_now_ns() - start;
    gn_count_of(run->stream, compute_ns, elapsed > waited ? elapsed - waited : 0);
    if (status == GGML_STATUS_SUCCESS) {
        gn_moe_run_scatter(run, ready, n);
    }
    return status;
}

// Computes ready experts in as few groups as the scratch memory's limit makes.
static enum ggml_status compute_ready(struct gn_compute *compute, const struct gn_ready *ready, uint32_t n) {
    const struct gn_moe_run *run = &compute->run;
    enum ggml_status status = GGML_STATUS_SUCCESS;
    for (uint32_t i = 0; i < n && status == GGML_STATUS_SUCCESS;) {
        uint32_t first = i;
        size_t rows = 0;
        do {
            rows += gn_moe_run_rows(run, ready[i++].index);
        } while (i < n && (rows + gn_moe_run_rows(run, ready[i].index)) * run->compact_bytes <= GROUP_BYTES);
        if (compute->abort && compute->abort(compute->abort_context)) {
            return GGML_STATUS_ABORTED;
        }
        status = compute_group(compute, ready + first, i - first);
    }
    return status;
}

// Whether the batch is a prompt. It shows in its first layer: the last one may be run for the tokens alone whose logits
// are wanted.
static bool is_prefill(struct gn_compute *compute) {
    const struct gn_moe_run *run = &compute->run;
    if (run->layer->index <= compute->layer) {
        compute->prefill = false;
    }
    compute->layer = run->layer->index;
    compute->prefill |= run->n_tokens >= compute->knobs->value[GN_PREFILL_TOKENS];
    return compute->prefill;
}

static void trace_event(const struct gn_moe_run *run, const struct gn_stream *stream, bool prefill) {
    struct gn_routing routing = {
        .layer = run->layer,
        .ids = run->ids->data,
        .choice_stride = run->ids->nb[0],
        .token_stride = run->ids->nb[1],
        .n_used = (uint32_t)run->n_used,
        .n_tokens = (uint32_t)run->n_tokens,
        .prefill = prefill,
    };
    gn_tracer_add(stream->tracer, stream->cache, &routing);
}

static void plan_ahead(void *context) {
    struct gn_compute *compute = context;
    gn_lookahead_plan(compute->lookahead, &compute->run, &compute->scratch);
    gn_fetch_poll(compute->run.stream);
}

// Has the next layer's experts read ahead, as far as they can be guessed: now, or, if the drive has enough to do, when
// computing waits for it. A prompt teaches only what goes with what.
static void look_ahead(struct gn_compute *compute, struct gn_stream *stream, bool prefill) {
    if (stream->prefetch == GN_PREFETCH_OFF) {
        return;
    }
    if (compute->looked_at != stream->serial) {
        gn_lookahead_close(compute->lookahead);
        compute->lookahead = gn_lookahead_open(stream);
        compute->looked_at = stream->serial;
        if (!compute->lookahead) {
            gn_warn("no memory to guess which experts come next: none are read ahead in this context");
        }
    }
    if (compute->lookahead) {
        gn_lookahead_learn(compute->lookahead, &compute->run, gn_fetch_misses(stream), prefill);
    }
    if (compute->lookahead && !prefill) {
        compute->run.deferred = (struct gn_deferred){plan_ahead, compute};
        if (gn_fetch_slack(stream)) {
            gn_do_deferred(&compute->run.deferred);
        }
    }
}

// Computes experts as they arrive.
static enum ggml_status run_arriving(struct gn_compute *compute, struct gn_stream *stream, struct gn_ready *ready) {
    enum ggml_status status = GGML_STATUS_SUCCESS;
    compute->run.arriving = false;
    while (status == GGML_STATUS_SUCCESS) {
        int n = gn_fetch_next(stream, ready, READY_AT_ONCE);
        if (n == 0) {
            break;
        }
        if (n < 0) {
            gn_fail("%s", stream->error);
            return GGML_STATUS_FAILED;
        }
        status = compute_ready(compute, ready, (uint32_t)n);
        gn_fetch_release(stream, ready, (uint32_t)n);
    }
    return status;
}

// Computes all experts at once; the graph waits for those that are on their way.
static enum ggml_status run_placed(struct gn_compute *compute, struct gn_stream *stream, const struct gn_ready *ready,
                                   uint32_t n) {
    compute->run.arriving = true;
    enum ggml_status status = compute_ready(compute, ready, n);
    if (gn_fetch_settle(stream)) {
        gn_fail("%s", stream->error);
        return GGML_STATUS_FAILED;
    }
    return status;
}

// The CPU's part of a layer.
static enum ggml_status run_experts(struct gn_compute *compute, struct gn_stream *stream,
                                    const struct gn_fetch_request *request) {
    struct gn_ready ready[READY_AT_ONCE];
    uint32_t placed = 0;
    if (gn_moe_run_plan(&compute->run, &compute->scratch)) {
        gn_fail("%s", compute->run.error);
        return GGML_STATUS_ALLOC_FAILED;
    }
    if (!request->prefill && gn_moe_run_can_wait(&compute->run)) {
        placed = gn_fetch_placed(stream, ready, READY_AT_ONCE);
    }
    if (placed == 0) {
        gn_do_deferred(&compute->run.deferred);
    }
    return placed > 0 ? run_placed(compute, stream, ready, placed) : run_arriving(compute, stream, ready);
}

// Has a device compute what it holds of the layer, if it does, and sorts the rows.
static enum ggml_status start_device(struct gn_compute *compute, struct gn_gpu **gpu, bool prefill) {
    struct gn_moe_run *run = &compute->run;
    *gpu = *gpu && gn_gpu_begin(*gpu, run, prefill, compute->left_out) ? *gpu : NULL;
    compute->left_out = false;
    if (gn_moe_run_sort(run, &compute->scratch)) {
        gn_fail("%s", run->error);
        return GGML_STATUS_ALLOC_FAILED;
    }
    enum ggml_status status = *gpu ? gn_gpu_start(*gpu, run, &compute->scratch) : GGML_STATUS_SUCCESS;
    if (status != GGML_STATUS_ALLOC_FAILED) {
        return status;
    }
    *gpu = NULL;
    if (gn_moe_run_count(run, &compute->scratch) || gn_moe_run_sort(run, &compute->scratch)) {
        gn_fail("%s", run->error);
        return GGML_STATUS_ALLOC_FAILED;
    }
    return GGML_STATUS_SUCCESS;
}

static enum ggml_status run_event(struct gn_compute *compute, struct gn_stream *stream) {
    struct gn_moe_run *run = &compute->run;
    bool warm_up = run->n_used >= run->layer->n_experts; // llama.cpp's warm-up uses every expert once
    bool prefill = is_prefill(compute) || warm_up;
    if (!warm_up) {
        gn_stream_advise(stream, (uint32_t)run->n_used);
    }
    trace_event(run, stream, prefill);
    struct gn_gpu *gpu = warm_up ? NULL : gn_gpu_of(stream, compute->knobs);
    enum ggml_status status = start_device(compute, &gpu, prefill);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    struct gn_fetch_request request = {
        .layer = run->layer,
        .experts = run->experts,
        .n = run->n_cpu,
        .slices = run->slices,
        .prefill = prefill,
    };
    gn_fetch_begin(stream, &request);
    if (!warm_up) {
        look_ahead(compute, stream, prefill);
    }
    status = run_experts(compute, stream, &request);
    if (status == GGML_STATUS_SUCCESS) { // never waited: there is time until the next layer
        gn_do_deferred(&run->deferred);
    }
    run->deferred.call = NULL; // an event that failed is not read ahead from
    if (gpu) {
        gn_gpu_finish(gpu, run);
        gn_gpu_end(gpu, run, status == GGML_STATUS_SUCCESS);
    }
    gn_fetch_end(stream);
    const char *nonsense = gn_cache_error(stream->cache);
    if (nonsense) { // what it holds is right, but not what it will do next
        gn_stream_break(stream, "the eviction policy %s cannot be used: %s", stream->policy->name, nonsense);
        gn_fail("%s", stream->error);
        return GGML_STATUS_FAILED;
    }
    return status;
}

// Computes what has been collected in the run, if anything.
static enum ggml_status flush(struct gn_compute *compute) {
    struct gn_moe_run *run = &compute->run;
    struct gn_stream *stream = run->stream;
    if (!stream || run->n_nodes == 0) {
        return GGML_STATUS_SUCCESS;
    }
    enum ggml_status status = GGML_STATUS_FAILED;
    pthread_mutex_lock(&stream->lock);
    if (!gn_ready_stream(stream, compute->knobs)) {
        if (gn_moe_run_count(run, &compute->scratch)) {
            gn_fail("%s", run->error);
        } else {
            status = run_event(compute, stream);
        }
    }
    pthread_mutex_unlock(&stream->lock);
    gn_moe_run_clear(run);
    return status;
}

static enum ggml_status run_graph(struct gn_compute *compute, struct ggml_cgraph *graph) {
    struct gn_moe_run *run = &compute->run;
    enum ggml_status status = GGML_STATUS_SUCCESS;
    int n = ggml_graph_n_nodes(graph);
    for (int i = 0; i < n && status == GGML_STATUS_SUCCESS; i++) {
        struct ggml_tensor *node = ggml_graph_node(graph, i);
        // Where no output of a micro-batch is wanted, its last layer has no tokens.
        compute->left_out |= ggml_is_empty(node) && gn_op_of(node) == GN_OP_MUL_MAT_ID;
        bool skipped = gn_is_view(node) || ggml_is_empty(node) || !(node->flags & GGML_TENSOR_FLAG_COMPUTE);
        if (skipped || gn_moe_run_add(run, node)) {
            continue;
        }
        status = flush(compute);
        if (status == GGML_STATUS_SUCCESS && !gn_moe_run_add(run, node)) {
            status = run_node(compute, node);
        }
    }
    return status == GGML_STATUS_SUCCESS ? flush(compute) : status;
}

enum ggml_status gn_compute_graph(struct gn_compute *compute, struct ggml_cgraph *graph) {
    uint64_t start = gn_now_ns();
    if (!leave_parent(compute)) {
        gn_fail("no CPU backend can be made in a forked process");
        return GGML_STATUS_FAILED;
    }
    choose_pool(compute);
    if (!compute->measured) {
        compute->measured = gn_measure_program(compute->knobs);
    }
    gn_moe_run_clear(&compute->run);
    compute->run.stream = NULL; // the last graph's may be gone
    enum ggml_status status = run_graph(compute, graph);
    if (compute->run.stream) {
        gn_count_of(compute->run.stream, total_ns, gn_now_ns() - start);
    } else {
        gn_count(total_ns, gn_now_ns() - start);
    }
    return status;
}
