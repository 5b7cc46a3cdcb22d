#include "backend/products.h"

#include <dlfcn.h>

// Weight rows that a thread takes at a time: long stretches of memory stream faster (docs/performance.md), but every
// thread should get several.
#define LEAST_CHUNK 32
#define MOST_CHUNK 512
#define CHUNKS_PER_THREAD 8

// Weight rows that meet one input after the other while they are in the core's caches; a cache line of results.
#define BLOCK 16

gn_cpu_traits_fn gn_find_cpu_traits(ggml_backend_reg_t cpu) {
    // The library is loaded without its symbols being visible: find it by one of the functions that it gives out.
    void *inside = ggml_backend_reg_get_proc_address(cpu, "ggml_threadpool_new");
    Dl_info info;
    if (!inside || !dladdr(inside, &info)) {
        return NULL;
    }
    void *library = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    if (!library) {
        return NULL;
    }
    gn_cpu_traits_fn traits;
    *(void **)&traits = dlsym(library, "ggml_get_type_traits_cpu");
    dlclose(library); // it was loaded before and stays
    return traits;
}

static void quantise_inputs(struct ggml_tensor *node, int ith, int nth, void *context) {
    (void)node;
    (void)ith;
    (void)nth;
    struct gn_product_job *job = context;
    for (;;) {
        uint32_t i = (uint32_t)atomic_fetch_add_explicit(&job->next_quantise, 1, memory_order_relaxed);
        if (i >= job->n_inputs) {
            return;
        }
        const float *from = (const float *)((const uint8_t *)job->inputs + i * job->input_stride);
        job->quantise(from, job->quantised + i * job->quantised_stride, job->width);
    }
}

// Weight rows begin … end-1 of one expert, with one of its rows.
static void multiply_row(const struct gn_product_job *job, uint32_t p, uint32_t expert, int64_t begin, int64_t end,
                         uint32_t row) {
    size_t stride = job->quantise ? job->quantised_stride : job->input_stride,
           weight_stride = job->product[p].weight_stride;
    const uint8_t *input = (job->quantise ? job->quantised : (const uint8_t *)job->inputs) +
                           (job->input_of ? job->input_of[row] : row) * stride;
    float *out = job->product[p].out + (size_t)row * (size_t)job->product[p].n_out;
    const uint8_t *weight = job->product[p].weights[expert] + (size_t)begin * weight_stride;
    for (int64_t i = begin; i < end; i++, weight += weight_stride) {
        job->product[p].dot((int)job->width, &out[i], 0, weight, 0, input, 0, 1);
    }
}

// One chunk of one expert's weight rows, with all of its rows.
static void multiply_chunk(const struct gn_product_job *job, uint32_t p, uint32_t expert, int64_t chunk) {
    int64_t n_out = job->product[p].n_out, begin = chunk * job->product[p].chunk, end = begin + job->product[p].chunk;
    end = end < n_out ? end : n_out;
    for (int64_t block = begin; block < end; block += BLOCK) {
        for (uint32_t row = job->first[expert]; row < job->first[expert + 1]; row++) {
            multiply_row(job, p, expert, block, block + BLOCK < end ? block + BLOCK : end, row);
        }
    }
}

void gn_do_deferred(struct gn_deferred *deferred) {
    void (*call)(void *) = deferred->call;
    deferred->call = NULL;
    if (call) {
        call(deferred->context);
    }
}

// Makes sure that the weights are in memory. False: they never will be, and the event has failed.
static bool await_weights(const struct gn_product_job *job, uint32_t p, uint32_t expert, int ith) {
    if (!job->stream) {
        return true;
    }
    uint32_t index = job->arriving[expert].index, slice = job->product[p].slice;
    if (ith > 0) {
        return gn_fetch_sleep(job->stream, index, slice);
    }
    if (!gn_fetch_arrived(job->stream, index, slice)) {
        gn_do_deferred(job->deferred);
    }
    return gn_fetch_await(job->stream, index, slice);
}

// Others may wait for weights when the first thread has no more work: it takes in the reads all the same.
static void await_all(const struct gn_product_job *job) {
    for (uint32_t expert = 0; expert < job->n_experts; expert++) {
        for (uint32_t p = 0; p < job->n_products; p++) {
            if (!await_weights(job, p, expert, 0)) {
                return;
            }
        }
    }
}

static void multiply(struct ggml_tensor *node, int ith, int nth, void *context) {
    (void)node;
    (void)nth;
    struct gn_product_job *job = context;
    uint32_t task;
    while ((task = (uint32_t)atomic_fetch_add_explicit(&job->next_product, 1, memory_order_relaxed)) <
           job->n_chunks * job->n_experts) {
        uint32_t chunk = task % job->n_chunks, expert = task / job->n_chunks, p = 0;
        for (; p + 1 < job->n_products && chunk >= job->product[p].n_chunks; p++) {
            chunk -= job->product[p].n_chunks;
        }
        if (job->stream && ith == 0) {
            gn_fetch_poll(job->stream);
            if (gn_fetch_slack(job->stream)) {
                gn_do_deferred(job->deferred);
            }
        }
        if (await_weights(job, p, expert, ith)) {
            multiply_chunk(job, p, expert, chunk);
        }
    }
    if (ith == 0) {
        await_all(job);
    } else { // asleep, not spinning at the barrier, while the first thread waits
        await_weights(job, job->n_products - 1, job->n_experts - 1, ith);
    }
}

static void add_node(struct gn_product_job *job, struct ggml_context *context, struct ggml_cgraph *graph,
                     ggml_custom_op_t function) {
    struct ggml_tensor *node =
        ggml_custom_4d(context, GGML_TYPE_F32, 1, 1, 1, 1, NULL, 0, function, GGML_N_TASKS_MAX, job);
    node->data = job->product[0].out; // never written through the tensor
    ggml_build_forward_expand(graph, node);
}

void gn_product_job_build(struct gn_product_job *job, int n_threads, struct ggml_context *context,
                          struct ggml_cgraph *graph) {
    int64_t weight_rows = 0, rows_each = job->first[job->n_experts] / job->n_experts;
    for (uint32_t p = 0; p < job->n_products; p++) {
        weight_rows += job->product[p].n_out * job->n_experts;
    }
    int64_t wish = weight_rows / ((int64_t)n_threads * CHUNKS_PER_THREAD);
    wish = wish > MOST_CHUNK ? MOST_CHUNK : wish;
    wish /= rows_each > 1 ? rows_each : 1;
    wish = wish < LEAST_CHUNK ? LEAST_CHUNK : wish;
    job->n_chunks = 0;
    for (uint32_t p = 0; p < job->n_products; p++) {
        int64_t n_out = job->product[p].n_out, n = (n_out + wish - 1) / wish,
                chunk = (n_out + n - 1) / n; // nearly alike
        job->product[p].chunk = (chunk + BLOCK - 1) / BLOCK * BLOCK;
        job->product[p].n_chunks = (uint32_t)((n_out + job->product[p].chunk - 1) / job->product[p].chunk);
        job->n_chunks += job->product[p].n_chunks;
    }
    atomic_store_explicit(&job->next_quantise, 0, memory_order_relaxed);
    atomic_store_explicit(&job->next_product, 0, memory_order_relaxed);
    if (job->quantise && !job->quantised_before) {
        add_node(job, context, graph, quantise_inputs);
    }
    add_node(job, context, graph, multiply);
}
