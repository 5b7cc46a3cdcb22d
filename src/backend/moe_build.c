// Builds the graph of a group of experts over compact rows: the second half of moe_run.h.
#include "backend/moe_run.h"
#include "backend/products.h"
#include "backend/rows.h"

#include <string.h>

// With fewer rows than this a barrier costs more than sharing the copying gains.
#define MANY_ROWS 64

void gn_moe_run_scatter(struct gn_moe_run *run, const struct gn_ready *ready, uint32_t n) {
    if (!run->scatters) {
        gn_rows_scatter(&(struct gn_row_copies){.run = run, .ready = ready, .n = n}, 0, 1);
    }
}

// Gives every node and input its compact array for `rows` rows.
static bool place_rows(struct gn_moe_run *run, struct gn_scratch *scratch, size_t rows) {
    size_t spare = ((size_t)run->n_nodes + run->n_inputs) * 64;
    uint8_t *memory = gn_scratch_get(scratch, GN_SCRATCH_ROWS, rows * run->compact_bytes + spare);
    if (!memory) {
        return false;
    }
    for (uint32_t i = 0; i < run->n_nodes + run->n_inputs; i++) {
        bool is_node = i < run->n_nodes;
        if (!is_node && run->inputs[i - run->n_nodes].per_token) {
            continue;
        }
        float **at = is_node ? &run->nodes[i].rows : &run->inputs[i - run->n_nodes].rows;
        const struct ggml_tensor *tensor = is_node ? run->nodes[i].tensor : run->inputs[i - run->n_nodes].tensor;
        *at = (float *)memory;
        memory += (rows * (size_t)tensor->ne[0] * sizeof(float) + 63) / 64 * 64;
    }
    return true;
}

// What a group's graph is built from.
struct builder {
    struct gn_moe_run *run;
    struct gn_scratch *scratch;
    struct ggml_context *context;
    struct ggml_cgraph *graph;
    const struct gn_ready *ready;
    uint32_t n;
    uint32_t n_rows;
    int32_t *zeros, *ids; // [n_rows]
    uint32_t *token;      // [n_rows] whose row it is
    uint32_t *first;      // [n + 1] each expert's first row
};

static struct ggml_tensor *ids_tensor(const struct builder *builder, int32_t *ids, int64_t rows) {
    struct ggml_tensor *tensor = ggml_new_tensor_2d(builder->context, GGML_TYPE_I32, 1, rows);
    tensor->data = ids;
    return tensor;
}

// The compact rows first … first+count-1 of an operand, as a tensor [ne0, 1, count].
static struct ggml_tensor *rows_tensor(const struct builder *builder, const struct gn_operand *operand, uint32_t first,
                                       int64_t count) {
    const struct gn_moe_run *run = builder->run;
    bool is_node = operand->kind == GN_OPERAND_NODE;
    const float *rows = is_node ? run->nodes[operand->index].rows : run->inputs[operand->index].rows;
    int64_t width = is_node ? run->nodes[operand->index].tensor->ne[0] : operand->tensor->ne[0];
    size_t stride = (size_t)width * sizeof(float);
    struct ggml_tensor *tensor = ggml_new_tensor_3d(builder->context, GGML_TYPE_F32, operand->tensor->ne[0], 1, count);
    tensor->data = (uint8_t *)rows + first * stride + operand->column;
    tensor->nb[1] = tensor->nb[2] = stride;
    tensor->nb[3] = stride * (size_t)count;
    return tensor;
}

static void build_products(const struct builder *builder, const struct gn_run_node *node) {
    const struct ggml_tensor *weight = node->tensor->src[0];
    size_t out_bytes = (size_t)node->tensor->ne[0] * sizeof(float);
    uint32_t first = 0;
    for (uint32_t i = 0; i < builder->n; i++) {
        int64_t count = gn_moe_run_rows(builder->run, builder->ready[i].index);
        struct ggml_tensor *expert =
            ggml_new_tensor_3d(builder->context, weight->type, weight->ne[0], weight->ne[1], 1);
        expert->data = (void *)(uintptr_t)builder->ready[i].slice[node->operand[0].index];
        struct ggml_tensor *rows = rows_tensor(builder, &node->operand[1], first, count);
        struct ggml_tensor *product =
            ggml_mul_mat_id(builder->context, expert, rows, ids_tensor(builder, builder->zeros, count));
        memcpy(product->op_params, node->tensor->op_params, sizeof product->op_params);
        product->data = (uint8_t *)node->rows + first * out_bytes;
        ggml_build_forward_expand(builder->graph, product);
        first += (uint32_t)count;
    }
}

static struct ggml_tensor *operand_tensor(const struct builder *builder, const struct gn_operand *operand) {
    switch (operand->kind) {
    case GN_OPERAND_NODE:
    case GN_OPERAND_INPUT:
        return rows_tensor(builder, operand, 0, builder->n_rows);
    case GN_OPERAND_IDS:
        return ids_tensor(builder, builder->ids, builder->n_rows);
    default:
        return operand->tensor;
    }
}

static void build_row_wise(const struct builder *builder, const struct gn_run_node *node) {
    struct ggml_tensor *tensor =
        ggml_new_tensor_3d(builder->context, GGML_TYPE_F32, node->tensor->ne[0], 1, builder->n_rows);
    tensor->op = node->tensor->op;
    memcpy(tensor->op_params, node->tensor->op_params, sizeof tensor->op_params);
    for (int s = 0; s < 3 && node->operand[s].kind != GN_OPERAND_NONE; s++) {
        tensor->src[s] = operand_tensor(builder, &node->operand[s]);
    }
    tensor->data = node->rows;
    ggml_build_forward_expand(builder->graph, tensor);
}

// Where the job takes its inputs from.
static void take_inputs(const struct builder *builder, const struct gn_run_node *node, struct gn_product_job *job,
                        uint8_t **quantised) {
    struct gn_moe_run *run = builder->run;
    if (node->takes_tokens) {
        const struct gn_run_input *input = &run->inputs[node->operand[1].index];
        job->inputs = (const float *)input->data;
        job->input_stride = input->tensor->nb[2];
        job->n_inputs = (uint32_t)run->n_tokens;
        job->input_of = builder->token;
        job->quantised = run->nodes[node->tokens].quantised;
        job->quantised_before = run->nodes[node->tokens].quantised_before;
        run->nodes[node->tokens].quantised_before = true;
        return;
    }
    const struct ggml_tensor *rows = rows_tensor(builder, &node->operand[1], 0, builder->n_rows);
    job->inputs = rows->data;
    job->input_stride = rows->nb[1];
    job->n_inputs = builder->n_rows;
    job->input_of = NULL;
    job->quantised = *quantised;
    job->quantised_before = false;
    *quantised += job->quantised_stride * builder->n_rows;
}

// Builds the job of node i, together with the next node where that takes the same rows. Returns how many nodes it made.
static uint32_t build_job(const struct builder *builder, uint32_t i, struct gn_product_job *job, uint8_t **quantised,
                          const uint8_t ***pointers) {
    struct gn_moe_run *run = builder->run;
    const struct gn_run_node *node = &run->nodes[i];
    enum ggml_type input_type = run->traits(node->tensor->src[0]->type)->vec_dot_type;
    job->width = node->tensor->src[0]->ne[0];
    job->quantise = input_type == GGML_TYPE_F32 ? NULL : run->traits(input_type)->from_float;
    job->quantised_stride = gn_quantised_bytes(run, node);
    take_inputs(builder, node, job, quantised);
    job->n_experts = builder->n;
    job->first = builder->first;
    job->stream = run->arriving ? run->stream : NULL;
    job->arriving = builder->ready;
    job->deferred = &run->deferred;
    job->n_products = 0;
    do {
        const struct ggml_tensor *weight = run->nodes[i].tensor->src[0];
        uint32_t p = job->n_products++;
        job->product[p].weights = *pointers;
        for (uint32_t e = 0; e < builder->n; e++) {
            *(*pointers)++ = builder->ready[e].slice[run->nodes[i].operand[0].index];
        }
        job->product[p].slice = run->nodes[i].operand[0].index;
        job->product[p].weight_stride = weight->nb[1];
        job->product[p].n_out = weight->ne[1];
        job->product[p].out = run->nodes[i].rows;
        job->product[p].dot = run->traits(weight->type)->vec_dot;
        i++;
    } while (job->n_products < GN_JOB_PRODUCTS && i < run->n_nodes && run->nodes[i].job &&
             gn_same_input(run, node, &run->nodes[i]));
    gn_product_job_build(job, run->n_threads, builder->context, builder->graph);
    return job->n_products;
}

// Room for jobs: the structs, their weight pointers, their quantised rows.
static struct gn_product_job *jobs_memory(const struct builder *builder, const uint8_t ***pointers,
                                          uint8_t **quantised) {
    const struct gn_moe_run *run = builder->run;
    size_t jobs = (run->n_nodes * sizeof(struct gn_product_job) + 63) / 64 * 64;
    size_t weights = ((size_t)run->n_nodes * builder->n * sizeof **pointers + 63) / 64 * 64, rows = 0;
    for (uint32_t i = 0; i < run->n_nodes; i++) {
        if (run->nodes[i].job && !run->nodes[i].takes_tokens) {
            rows += gn_quantised_bytes(run, &run->nodes[i]) * builder->n_rows;
        }
    }
    uint8_t *memory = gn_scratch_get(builder->scratch, GN_SCRATCH_JOBS, jobs + weights + rows);
    *pointers = memory ? (const uint8_t **)(memory + jobs) : NULL;
    *quantised = memory ? memory + jobs + weights : NULL;
    return (struct gn_product_job *)memory;
}

static bool build_nodes(const struct builder *builder) {
    struct gn_moe_run *run = builder->run;
    const uint8_t **pointers;
    uint8_t *quantised;
    struct gn_product_job *jobs = jobs_memory(builder, &pointers, &quantised);
    if (!jobs) {
        return false;
    }
    for (uint32_t i = 0; i < run->n_nodes;) {
        const struct gn_run_node *node = &run->nodes[i];
        if (node->operand[0].kind != GN_OPERAND_WEIGHT) {
            build_row_wise(builder, node);
            i++;
        } else if (node->job) {
            i += build_job(builder, i, jobs++, &quantised, &pointers);
        } else {
            build_products(builder, node);
            i++;
        }
    }
    return true;
}

// Counts the group's rows and notes whose they are.
static bool number_rows(struct builder *builder) {
    const struct gn_moe_run *run = builder->run;
    for (uint32_t i = 0; i < builder->n; i++) {
        builder->n_rows += gn_moe_run_rows(run, builder->ready[i].index);
    }
    size_t bytes = (3 * (size_t)builder->n_rows + builder->n + 1) * sizeof(int32_t);
    builder->zeros = gn_scratch_get(builder->scratch, GN_SCRATCH_IDS, bytes);
    if (!builder->zeros) {
        return false;
    }
    builder->ids = builder->zeros + builder->n_rows;
    builder->token = (uint32_t *)(builder->ids + builder->n_rows);
    builder->first = builder->token + builder->n_rows;
    memset(builder->zeros, 0, builder->n_rows * sizeof *builder->zeros);
    uint32_t at = 0;
    for (uint32_t i = 0; i < builder->n; i++) {
        builder->first[i] = at;
        uint32_t expert = builder->ready[i].index;
        for (uint32_t r = run->row_start[expert]; r < run->row_start[expert + 1]; r++, at++) {
            builder->ids[at] = (int32_t)run->experts[expert];
            builder->token[at] = run->rows[r] / (uint32_t)run->n_used;
        }
    }
    builder->first[builder->n] = at;
    return true;
}

struct ggml_cgraph *gn_moe_run_build(struct gn_moe_run *run, struct gn_scratch *scratch, const struct gn_ready *ready,
                                     uint32_t n) {
    struct builder builder = {.run = run, .scratch = scratch, .ready = ready, .n = n};
    builder.graph = gn_scratch_graph(scratch, (size_t)run->n_nodes * n + run->n_nodes + 2);
    builder.context = scratch->context;
    if (!builder.graph || !number_rows(&builder) || !place_rows(run, scratch, builder.n_rows)) {
        return NULL;
    }
    struct gn_row_copies *copies = gn_scratch_get(scratch, GN_SCRATCH_COPY_JOB, sizeof *copies);
    if (!copies) {
        return NULL;
    }
    *copies = (struct gn_row_copies){.run = run, .ready = ready, .n = n};
    run->scatters = builder.n_rows >= MANY_ROWS;
    if (!run->gathers) {
        // jobs take all inputs where they lie
    } else if (run->scatters) {
        gn_rows_gather_node(copies, builder.context, builder.graph);
    } else {
        gn_rows_gather(copies, 0, 1);
    }
    if (!build_nodes(&builder)) {
        return NULL;
    }
    if (run->scatters) {
        gn_rows_scatter_node(copies, builder.context, builder.graph);
    }
    return builder.graph;
}
