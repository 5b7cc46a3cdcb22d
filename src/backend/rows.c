#include "backend/rows.h"

#include <string.h>

// Copies one array's rows. `strided` is [n_used or 1, n_tokens] rows of ggml's, compact ones lie one after another.
static void copy(const struct gn_row_copies *copies, const struct ggml_tensor *tensor, uint8_t *strided, float *compact,
                 bool gather, int ith, int nth) {
    const struct gn_moe_run *run = copies->run;
    size_t bytes = (size_t)tensor->ne[0] * sizeof(float), n_used = (size_t)run->n_used;
    size_t step_k = tensor->ne[1] == 1 ? 0 : tensor->nb[1];
    size_t at = 0;
    for (uint32_t i = 0; i < copies->n; i++) {
        uint32_t expert = copies->ready[i].index;
        for (uint32_t r = run->row_start[expert]; r < run->row_start[expert + 1]; r++, at++) {
            if (at % (size_t)nth != (size_t)ith) {
                continue;
            }
            size_t row = run->rows[r];
            uint8_t *there = strided + row % n_used * step_k + row / n_used * tensor->nb[2];
            uint8_t *here = (uint8_t *)compact + at * bytes;
            gather ? memcpy(here, there, bytes) : memcpy(there, here, bytes);
        }
    }
}

void gn_rows_gather(const struct gn_row_copies *copies, int ith, int nth) {
    for (uint32_t i = 0; i < copies->run->n_inputs; i++) {
        const struct gn_run_input *input = &copies->run->inputs[i];
        if (!input->per_token) {
            copy(copies, input->tensor, (uint8_t *)(uintptr_t)input->data, input->rows, true, ith, nth);
        }
    }
}

void gn_rows_scatter(const struct gn_row_copies *copies, int ith, int nth) {
    for (uint32_t i = 0; i < copies->run->n_nodes; i++) {
        const struct gn_run_node *node = &copies->run->nodes[i];
        if (node->scatter) {
            copy(copies, node->tensor, node->tensor->data, node->rows, false, ith, nth);
        }
    }
}

static void gather_share(struct ggml_tensor *node, int ith, int nth, void *copies) {
    (void)node;
    gn_rows_gather(copies, ith, nth);
}

static void scatter_share(struct ggml_tensor *node, int ith, int nth, void *copies) {
    (void)node;
    gn_rows_scatter(copies, ith, nth);
}

static void add_node(struct gn_row_copies *copies, struct ggml_context *context, struct ggml_cgraph *graph,
                     ggml_custom_op_t function) {
    struct ggml_tensor *node =
        ggml_custom_4d(context, GGML_TYPE_F32, 1, 1, 1, 1, NULL, 0, function, GGML_N_TASKS_MAX, copies);
    node->data = copies->run->nodes[0].rows; // never written through the tensor
    ggml_build_forward_expand(graph, node);
}

void gn_rows_gather_node(struct gn_row_copies *copies, struct ggml_context *context, struct ggml_cgraph *graph) {
    add_node(copies, context, graph, gather_share);
}

void gn_rows_scatter_node(struct gn_row_copies *copies, struct ggml_context *context, struct ggml_cgraph *graph) {
    add_node(copies, context, graph, scatter_share);
}
