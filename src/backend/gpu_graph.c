#include "backend/gpu_graph.h"

#include <stdlib.h>
#include <string.h>

// Up to so many rows are computed as if one token had chosen as many experts: devices multiply those row by row, which
// suits few rows best. More are so many tokens with one expert each.
#define FEW_ROWS 64

#define MOST_TENSORS (GN_RUN_NODES * 6 + GN_RUN_INPUTS + 8)

// ------------------------------------------------------------------------------------------------- shapes

static bool is_part(const struct gn_run_node *node) {
    return gn_op_of(node->tensor) == GN_OP_MUL_MAT_ID || gn_op_of(node->tensor) == GN_OP_ADD_ID;
}

bool gn_gpu_shape_of(const struct gn_moe_run *run, struct gn_gpu_shape *shape) {
    *shape = (struct gn_gpu_shape){0};
    for (uint32_t i = 0; i < run->n_nodes; i++) {
        const struct gn_run_node *node = &run->nodes[i];
        if (!is_part(node)) {
            continue;
        }
        if (shape->n_parts == GN_GPU_PARTS) {
            return false;
        }
        struct gn_gpu_part *part = &shape->part[shape->n_parts++];
        if (gn_op_of(node->tensor) == GN_OP_MUL_MAT_ID) {
            const struct ggml_tensor *weight = node->tensor->src[0];
            *part = (struct gn_gpu_part){weight->type, weight->ne[0], weight->ne[1]};
        } else {
            const struct ggml_tensor *bias = node->operand[1].tensor;
            bool rows = bias->type == GGML_TYPE_F32 && bias->nb[0] == sizeof(float) && bias->ne[2] == 1;
            if (!rows || bias->ne[1] != run->layer->n_experts) {
                return false;
            }
            *part = (struct gn_gpu_part){bias->type, bias->ne[0], 0};
        }
    }
    return shape->n_parts > 0;
}

void gn_gpu_parts_of(const struct gn_moe_run *run, uint32_t expert, const uint8_t *const *slices, const void **parts) {
    uint32_t p = 0;
    for (uint32_t i = 0; i < run->n_nodes; i++) {
        const struct gn_run_node *node = &run->nodes[i];
        if (gn_op_of(node->tensor) == GN_OP_MUL_MAT_ID) {
            parts[p++] = slices[node->operand[0].index];
        } else if (gn_op_of(node->tensor) == GN_OP_ADD_ID) {
            const struct ggml_tensor *bias = node->operand[1].tensor;
            parts[p++] = (const uint8_t *)bias->data + expert * bias->nb[1];
        }
    }
}

static void mix(uint64_t *hash, uint64_t value) {
    *hash = (*hash ^ value) * 0x100000001b3u;
}

uint64_t gn_gpu_signature(const struct gn_moe_run *run) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (uint32_t i = 0; i < run->n_nodes; i++) {
        const struct gn_run_node *node = &run->nodes[i];
        mix(&hash, node->tensor->op);
        mix(&hash, (uint64_t)node->tensor->ne[0]);
        for (size_t p = 0; p < sizeof node->tensor->op_params / sizeof *node->tensor->op_params; p++) {
            mix(&hash, (uint32_t)node->tensor->op_params[p]);
        }
        for (int s = 0; s < 3; s++) {
            const struct gn_operand *operand = &node->operand[s];
            mix(&hash, (uint64_t)operand->kind << 8 | operand->index);
            mix(&hash, operand->column);
            if (operand->kind == GN_OPERAND_INPUT || operand->kind == GN_OPERAND_WHOLE) {
                mix(&hash, (uint64_t)operand->tensor->ne[0]);
            }
        }
    }
    return hash;
}

// ------------------------------------------------------------------------------------------------- building

bool gn_gpu_graph_open(struct gn_gpu_graph *graph, ggml_backend_buffer_type_t type) {
    size_t bytes = ggml_tensor_overhead() * MOST_TENSORS + ggml_graph_overhead_custom(MOST_TENSORS, false);
    *graph = (struct gn_gpu_graph){.memory = malloc(bytes)};
    graph->context = graph->memory ? ggml_init((struct ggml_init_params){bytes, graph->memory, true}) : NULL;
    graph->allocator = graph->context ? ggml_gallocr_new(type) : NULL;
    return graph->allocator != NULL;
}

static void free_rows(struct gn_gpu_graph *graph) {
    graph->rows_buffer ? ggml_backend_buffer_free(graph->rows_buffer) : free(graph->rows);
    graph->rows_buffer = NULL;
    graph->rows = NULL;
    graph->rows_bytes = 0;
}

void gn_gpu_graph_close(struct gn_gpu_graph *graph) {
    free_rows(graph);
    ggml_gallocr_free(graph->allocator);
    ggml_free(graph->context);
    free(graph->memory);
    *graph = (struct gn_gpu_graph){0};
}

// [ne0] of each row.
static struct ggml_tensor *new_rows(const struct gn_gpu_graph *graph, int64_t ne0, uint32_t n_rows) {
    return n_rows <= FEW_ROWS ? ggml_new_tensor_3d(graph->context, GGML_TYPE_F32, ne0, n_rows, 1)
                              : ggml_new_tensor_3d(graph->context, GGML_TYPE_F32, ne0, 1, n_rows);
}

// Whether all rows have the same row of an input.
static bool is_one_row(const struct gn_moe_run *run, const struct ggml_tensor *input, uint32_t n_rows) {
    return run->n_tokens == 1 && input->ne[1] == 1 && n_rows <= FEW_ROWS;
}

static struct ggml_tensor *whole(struct gn_gpu_graph *graph, const struct ggml_tensor *source) {
    for (uint32_t i = 0; i < graph->n_whole; i++) {
        if (graph->whole[i].source == source) {
            return graph->whole[i].tensor;
        }
    }
    struct ggml_tensor *tensor = ggml_new_tensor_1d(graph->context, GGML_TYPE_F32, source->ne[0]);
    ggml_set_input(tensor);
    graph->whole[graph->n_whole].source = source;
    graph->whole[graph->n_whole++].tensor = tensor;
    return tensor;
}

static struct ggml_tensor *operand(struct gn_gpu_graph *graph, const struct gn_operand *from) {
    struct ggml_tensor *node;
    switch (from->kind) {
    case GN_OPERAND_NODE:
        node = graph->nodes[from->index];
        if (from->tensor->ne[0] == node->ne[0]) {
            return node;
        }
        return ggml_view_3d(graph->context, node, from->tensor->ne[0], node->ne[1], node->ne[2], node->nb[1],
                            node->nb[2], from->column);
    case GN_OPERAND_INPUT:
        return graph->inputs[from->index];
    case GN_OPERAND_IDS:
        return graph->ids;
    case GN_OPERAND_WHOLE:
        return whole(graph, from->tensor);
    default:
        return NULL;
    }
}

// Builds the graph for n_rows rows; parts: the pool's, or what stands for them.
static void build(struct gn_gpu_graph *graph, const struct gn_moe_run *run, uint32_t n_rows,
                  struct ggml_tensor *const *parts) {
    ggml_reset(graph->context);
    graph->n_whole = 0;
    graph->graph = ggml_new_graph_custom(graph->context, MOST_TENSORS, false);
    graph->ids = n_rows <= FEW_ROWS ? ggml_new_tensor_2d(graph->context, GGML_TYPE_I32, n_rows, 1)
                                    : ggml_new_tensor_2d(graph->context, GGML_TYPE_I32, 1, n_rows);
    ggml_set_input(graph->ids);
    for (uint32_t i = 0; i < run->n_inputs; i++) {
        const struct ggml_tensor *input = run->inputs[i].tensor;
        graph->inputs[i] = new_rows(graph, input->ne[0], is_one_row(run, input, n_rows) ? 1 : n_rows);
        ggml_set_input(graph->inputs[i]);
    }
    uint32_t part = 0;
    for (uint32_t i = 0; i < run->n_nodes; i++) {
        const struct gn_run_node *node = &run->nodes[i];
        struct ggml_tensor *tensor = new_rows(graph, node->tensor->ne[0], n_rows);
        tensor->op = node->tensor->op;
        memcpy(tensor->op_params, node->tensor->op_params, sizeof tensor->op_params);
        int held = !is_part(node) ? -1 : gn_op_of(node->tensor) == GN_OP_MUL_MAT_ID ? 0 : 1; // operand in the pool
        for (int s = 0; s < 3 && node->operand[s].kind != GN_OPERAND_NONE; s++) {
            tensor->src[s] = s == held ? parts[part++] : operand(graph, &node->operand[s]);
        }
        graph->nodes[i] = tensor;
        if (node->scatter) {
            ggml_set_output(tensor);
        }
        ggml_build_forward_expand(graph->graph, tensor);
    }
}

// Tensors of the shape without bytes, as a loader would ask about.
static bool stand_in(const struct gn_gpu_shape *shape, uint32_t n_slots, struct ggml_context **context,
                     struct ggml_tensor **parts) {
    *context = ggml_init((struct ggml_init_params){ggml_tensor_overhead() * GN_GPU_PARTS, NULL, true});
    if (*context) {
        gn_gpu_shape_tensors(shape, n_slots, *context, parts);
    }
    return *context != NULL;
}

bool gn_gpu_graph_supported(const struct gn_moe_run *run, ggml_backend_dev_t device, const struct gn_gpu_shape *shape) {
    struct ggml_tensor *parts[GN_GPU_PARTS];
    struct ggml_context *context;
    struct gn_gpu_graph graph;
    if (!stand_in(shape, 8, &context, parts)) {
        return false;
    }
    bool can = gn_gpu_graph_open(&graph, ggml_backend_dev_buffer_type(device));
    for (int form = 0; can && form < 2; form++) {
        build(&graph, run, form == 0 ? FEW_ROWS : FEW_ROWS + 1, parts);
        for (int i = 0; can && i < ggml_graph_n_nodes(graph.graph); i++) {
            struct ggml_tensor *node = ggml_graph_node(graph.graph, i);
            can = gn_is_view(node) || ggml_backend_dev_supports_op(device, node);
        }
    }
    gn_gpu_graph_close(&graph);
    ggml_free(context);
    return can;
}

// Bytes of host memory for the rows of a graph that has been built.
static size_t host_bytes(const struct gn_gpu_graph *graph, const struct gn_moe_run *run, uint32_t n_rows) {
    size_t bytes = ggml_nbytes(graph->ids) + 64;
    for (uint32_t i = 0; i < run->n_inputs; i++) {
        bytes += (size_t)run->inputs[i].tensor->ne[0] * sizeof(float) * n_rows + 64;
    }
    for (uint32_t i = 0; i < run->n_nodes; i++) {
        bytes += ggml_nbytes(graph->nodes[i]) + 64;
    }
    return bytes;
}

static bool take_rows(struct gn_gpu_graph *graph, struct gn_gpu_device *gpu, size_t bytes) {
    if (bytes > graph->rows_bytes) {
        free_rows(graph);
        ggml_backend_buffer_type_t host = ggml_backend_dev_host_buffer_type(gpu->device);
        graph->rows_buffer = host ? ggml_backend_buft_alloc_buffer(host, bytes) : NULL;
        graph->rows = graph->rows_buffer ? ggml_backend_buffer_get_base(graph->rows_buffer) : malloc(bytes);
        graph->rows_bytes = graph->rows ? bytes : 0;
    }
    return graph->rows && !gn_gpu_faults(gpu);
}

bool gn_gpu_graph_reserve(struct gn_gpu_graph *graph, const struct gn_moe_run *run, struct gn_gpu_device *gpu,
                          const struct gn_gpu_shape *shape, uint32_t n_rows) {
    struct ggml_tensor *parts[GN_GPU_PARTS];
    struct ggml_context *context;
    if (!stand_in(shape, 1, &context, parts)) {
        return false;
    }
    for (uint32_t p = 0; p < shape->n_parts; p++) {
        ggml_set_input(parts[p]);
        parts[p]->data = parts[p]; // not the allocator's to place
    }
    build(graph, run, n_rows, parts);
    bool done = !gn_gpu_faults(gpu) && ggml_gallocr_reserve(graph->allocator, graph->graph) &&
                take_rows(graph, gpu, host_bytes(graph, run, n_rows));
    ggml_free(context);
    return done;
}

size_t gn_gpu_graph_bytes(const struct gn_gpu_graph *graph) {
    return ggml_gallocr_get_buffer_size(graph->allocator, 0);
}

// ------------------------------------------------------------------------------------------------- running

static uint8_t *after(uint8_t *at, size_t bytes) {
    return at + (bytes + 63) / 64 * 64;
}

// The experts first … n_experts-1, as those that copy rows want them.
static bool list_ready(struct gn_row_copies *copies, struct gn_moe_run *run, struct gn_scratch *scratch,
                       uint32_t first) {
    uint32_t n = run->n_experts - first;
    struct gn_ready *ready = gn_scratch_get(scratch, GN_SCRATCH_GPU, n * sizeof *ready);
    if (!ready) {
        return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        ready[i] = (struct gn_ready){.index = first + i};
    }
    *copies = (struct gn_row_copies){.run = run, .ready = ready, .n = n};
    return true;
}

enum ggml_status gn_gpu_graph_start(struct gn_gpu_graph *graph, struct gn_moe_run *run, struct gn_scratch *scratch,
                                    struct gn_gpu_device *gpu, const struct gn_gpu_pool *pool) {
    uint32_t first = run->n_cpu;
    uint32_t n_rows = run->row_start[run->n_experts] - run->row_start[first];
    build(graph, run, n_rows, pool->part);
    if (!list_ready(&graph->copies, run, scratch, first) || !take_rows(graph, gpu, host_bytes(graph, run, n_rows)) ||
        !ggml_gallocr_alloc_graph(graph->allocator, graph->graph)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    int32_t *ids = (int32_t *)graph->rows;
    for (uint32_t e = first, at = 0; e < run->n_experts; e++) {
        gn_gpu_pool_wait(pool, gpu, run->slots[e]);
        for (uint32_t r = gn_moe_run_rows(run, e); r > 0; r--) {
            ids[at++] = (int32_t)run->slots[e];
        }
    }
    uint8_t *at = after(graph->rows, ggml_nbytes(graph->ids));
    for (uint32_t i = 0; i < run->n_inputs; i++) {
        run->inputs[i].rows = (float *)at;
        at = after(at, (size_t)run->inputs[i].tensor->ne[0] * sizeof(float) * n_rows);
    }
    graph->results = at;
    gn_rows_gather(&graph->copies, 0, 1);
    ggml_backend_tensor_set_async(gpu->compute, graph->ids, ids, 0, ggml_nbytes(graph->ids));
    for (uint32_t i = 0; i < run->n_inputs; i++) {
        ggml_backend_tensor_set_async(gpu->compute, graph->inputs[i], run->inputs[i].rows, 0,
                                      ggml_nbytes(graph->inputs[i]));
    }
    for (uint32_t i = 0; i < graph->n_whole; i++) {
        ggml_backend_tensor_set_async(gpu->compute, graph->whole[i].tensor, graph->whole[i].source->data, 0,
                                      ggml_nbytes(graph->whole[i].tensor));
    }
    enum ggml_status status =
        gn_gpu_faults(gpu) ? GGML_STATUS_FAILED : ggml_backend_graph_compute_async(gpu->compute, graph->graph);
    for (uint32_t i = 0; i < run->n_nodes && status == GGML_STATUS_SUCCESS; i++) {
        if (run->nodes[i].scatter) {
            ggml_backend_tensor_get_async(gpu->compute, graph->nodes[i], at, 0, ggml_nbytes(graph->nodes[i]));
            at = after(at, ggml_nbytes(graph->nodes[i]));
        }
    }
    return status;
}

void gn_gpu_graph_finish(struct gn_gpu_graph *graph, struct gn_moe_run *run, struct gn_gpu_device *gpu) {
    ggml_backend_synchronize(gpu->compute);
    uint8_t *at = graph->results;
    for (uint32_t i = 0; i < run->n_nodes; i++) {
        if (run->nodes[i].scatter) {
            run->nodes[i].rows = (float *)at;
            at = after(at, ggml_nbytes(graph->nodes[i]));
        }
    }
    gn_rows_scatter(&graph->copies, 0, 1);
}
