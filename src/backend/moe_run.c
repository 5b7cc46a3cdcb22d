#include "backend/moe_run.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

void gn_moe_run_clear(struct gn_moe_run *run) {
    run->n_nodes = run->n_inputs = 0;
    run->slices = 0;
    run->row_bytes = 0;
}

static bool same_rows(const struct gn_moe_run *run, const struct ggml_tensor *tensor) {
    return tensor->ne[1] == run->n_used && tensor->ne[2] == run->n_tokens && tensor->ne[3] == 1;
}

static int find_node(const struct gn_moe_run *run, const struct ggml_tensor *tensor) {
    for (uint32_t i = 0; i < run->n_nodes; i++) {
        if (run->nodes[i].tensor == tensor) {
            return (int)i;
        }
    }
    return -1;
}

// A view of a node's rows that takes some columns of each (the halves of gate_up).
static bool is_column_view(const struct ggml_tensor *view, const struct ggml_tensor *base) {
    return view->type == base->type && view->ne[1] == base->ne[1] && view->ne[2] == base->ne[2] && view->ne[3] == 1 &&
           view->nb[0] == base->nb[0] && view->nb[1] == base->nb[1] && view->nb[2] == base->nb[2] &&
           view->view_offs + (size_t)view->ne[0] * view->nb[0] <= base->nb[1];
}

static bool add_input(struct gn_moe_run *run, struct ggml_tensor *tensor, struct gn_operand *operand) {
    uint32_t i = 0;
    while (i < run->n_inputs && run->inputs[i].tensor != tensor) {
        i++;
    }
    if (i == GN_RUN_INPUTS) {
        return false;
    }
    if (i == run->n_inputs) {
        run->inputs[run->n_inputs++] = (struct gn_run_input){.tensor = tensor};
        run->row_bytes += (size_t)tensor->ne[0] * sizeof(float);
    }
    *operand = (struct gn_operand){.kind = GN_OPERAND_INPUT, .index = (uint8_t)i, .tensor = tensor};
    return true;
}

// Finds out where an operand's rows come from. False: it cannot be taken apart into rows.
static bool resolve(struct gn_moe_run *run, struct ggml_tensor *tensor, struct gn_operand *operand) {
    int node = find_node(run, tensor);
    if (node >= 0) {
        *operand = (struct gn_operand){.kind = GN_OPERAND_NODE, .index = (uint8_t)node, .tensor = tensor};
        return true;
    }
    if (tensor->type != GGML_TYPE_F32 || tensor->nb[0] != sizeof(float)) {
        return false;
    }
    node = tensor->view_src ? find_node(run, tensor->view_src) : -1;
    if (node >= 0) {
        *operand = (struct gn_operand){
            .kind = GN_OPERAND_NODE, .index = (uint8_t)node, .column = tensor->view_offs, .tensor = tensor};
        return is_column_view(tensor, tensor->view_src);
    }
    bool per_row = tensor->ne[2] == run->n_tokens && (tensor->ne[1] == 1 || tensor->ne[1] == run->n_used);
    if (per_row && tensor->ne[3] == 1) {
        return add_input(run, tensor, operand);
    }
    *operand = (struct gn_operand){.kind = GN_OPERAND_WHOLE, .tensor = tensor};
    return gn_op_of(tensor) == GN_OP_NONE && tensor->ne[1] == 1 && tensor->ne[2] == 1 && tensor->ne[3] == 1;
}

static bool same_ids(const struct gn_moe_run *run, const struct ggml_tensor *ids) {
    return ids && ids->data == run->ids->data && ids->ne[0] == run->n_used && ids->ne[1] == run->n_tokens &&
           ids->nb[0] == run->ids->nb[0] && ids->nb[1] == run->ids->nb[1];
}

static bool overlaps(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return x < y + b_bytes && y < x + a_bytes;
}

// ggml gives the memory of values that nobody needs any more to later ones: those are not written.
static void push_node(struct gn_moe_run *run, const struct gn_run_node *node) {
    struct ggml_tensor *tensor = node->tensor;
    for (uint32_t i = 0; i < run->n_nodes; i++) {
        const struct ggml_tensor *earlier = run->nodes[i].tensor;
        if (overlaps(earlier->data, ggml_nbytes(earlier), tensor->data, ggml_nbytes(tensor))) {
            run->nodes[i].scatter = false;
        }
    }
    run->nodes[run->n_nodes] = *node;
    run->nodes[run->n_nodes++].scatter = true;
    run->row_bytes += (size_t)tensor->ne[0] * sizeof(float);
}

static bool add_product(struct gn_moe_run *run, struct ggml_tensor *tensor, const struct gn_weight *weight) {
    struct ggml_tensor *ids = tensor->src[2];
    if (run->n_nodes == 0) {
        run->stream = weight->stream;
        run->layer = weight->layer;
        run->ids = ids;
        run->n_used = ids->ne[0];
        run->n_tokens = ids->ne[1];
    } else if (run->layer != weight->layer || !same_ids(run, ids)) {
        return false;
    }
    struct gn_run_node node = {.tensor = tensor};
    if (tensor->view_src || !same_rows(run, tensor) || !resolve(run, tensor->src[1], &node.operand[1]) ||
        node.operand[1].kind == GN_OPERAND_WHOLE) {
        return false;
    }
    node.operand[0] = (struct gn_operand){.kind = GN_OPERAND_WEIGHT, .index = (uint8_t)weight->slice};
    node.operand[2].kind = GN_OPERAND_IDS;
    run->slices |= 1u << weight->slice;
    push_node(run, &node);
    return true;
}

static bool add_row_wise(struct gn_moe_run *run, struct ggml_tensor *tensor) {
    struct gn_run_node node = {.tensor = tensor};
    if (tensor->view_src || !same_rows(run, tensor) || tensor->nb[0] != sizeof(float) || !tensor->src[0] ||
        !resolve(run, tensor->src[0], &node.operand[0])) {
        return false;
    }
    bool ours = node.operand[0].kind == GN_OPERAND_NODE;
    if (gn_op_of(tensor) == GN_OP_ADD_ID) {
        if (!same_ids(run, tensor->src[2]) || gn_op_of(tensor->src[1]) != GN_OP_NONE) {
            return false;
        }
        node.operand[1] = (struct gn_operand){.kind = GN_OPERAND_WHOLE, .tensor = tensor->src[1]};
        node.operand[2].kind = GN_OPERAND_IDS;
    } else if (tensor->src[1]) {
        if (tensor->src[2] || !resolve(run, tensor->src[1], &node.operand[1])) {
            return false;
        }
        ours = ours || node.operand[1].kind == GN_OPERAND_NODE;
    }
    if (!ours) {
        return false;
    }
    push_node(run, &node);
    return true;
}

bool gn_moe_run_add(struct gn_moe_run *run, struct ggml_tensor *node) {
    if (run->n_nodes == GN_RUN_NODES) {
        return false;
    }
    uint32_t n_inputs = run->n_inputs;
    size_t row_bytes = run->row_bytes;
    bool added = false;
    if (gn_op_of(node) == GN_OP_MUL_MAT_ID) {
        const struct gn_weight *weight = gn_streamed_weight(node->src[0]);
        added = weight && gn_is_whole_weight(node->src[0]) && add_product(run, node, weight);
    } else if (run->n_nodes > 0 && gn_is_row_wise(node)) {
        added = add_row_wise(run, node);
    }
    if (!added) { // inputs noted on the way are not needed
        run->n_inputs = n_inputs;
        run->row_bytes = row_bytes;
    }
    return added;
}

static int32_t id_at(const struct ggml_tensor *ids, int64_t k, int64_t token) {
    int32_t id;
    memcpy(&id, (const char *)ids->data + (size_t)k * ids->nb[0] + (size_t)token * ids->nb[1], sizeof id);
    return id;
}

// Counts the rows of each expert. Returns -EINVAL when the router names an expert that is not there.
static int count_rows(struct gn_moe_run *run, uint32_t *count) {
    for (int64_t token = 0; token < run->n_tokens; token++) {
        for (int64_t k = 0; k < run->n_used; k++) {
            int32_t id = id_at(run->ids, k, token);
            if (id < 0 || (uint32_t)id >= run->layer->n_experts) {
                snprintf(run->error, sizeof run->error, "the router of block %u chose expert %d of %u",
                         run->layer->block, id, run->layer->n_experts);
                return -EINVAL;
            }
            count[id]++;
        }
    }
    return 0;
}

// Copies the inputs that a result will be written over: ggml thinks them dead once the layer's first products have run.
static int save_inputs(struct gn_moe_run *run, struct gn_scratch *scratch) {
    size_t bytes = 0;
    for (uint32_t i = 0; i < run->n_inputs; i++) {
        struct gn_run_input *input = &run->inputs[i];
        input->data = input->tensor->data;
        input->saved = false;
        for (uint32_t n = 0; n < run->n_nodes; n++) {
            const struct ggml_tensor *node = run->nodes[n].tensor;
            if (run->nodes[n].scatter &&
                overlaps(input->data, ggml_nbytes(input->tensor), node->data, ggml_nbytes(node))) {
                input->saved = true;
                bytes += ggml_nbytes(input->tensor);
                break;
            }
        }
    }
    uint8_t *copies = bytes ? gn_scratch_get(scratch, GN_SCRATCH_COPIES, bytes) : NULL;
    if (bytes && !copies) {
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < run->n_inputs; i++) {
        struct gn_run_input *input = &run->inputs[i];
        if (input->saved && copies) {
            memcpy(copies, input->tensor->data, ggml_nbytes(input->tensor));
            input->data = copies;
            copies += ggml_nbytes(input->tensor);
        }
    }
    return 0;
}

int gn_moe_run_count(struct gn_moe_run *run, struct gn_scratch *scratch) {
    size_t all = run->layer->n_experts, n_rows = (size_t)(run->n_used * run->n_tokens);
    uint32_t *memory = gn_scratch_get(scratch, GN_SCRATCH_SORT, (6 * all + 1 + n_rows) * sizeof *memory);
    if (!memory) {
        snprintf(run->error, sizeof run->error, "no memory to sort a batch by expert");
        return -ENOMEM;
    }
    run->count = memory;
    run->experts = run->count + all;
    run->slots = run->experts + all;
    run->held = run->slots + all;
    run->next = run->held + all;
    run->row_start = run->next + all;
    run->rows = run->row_start + all + 1;
    memset(run->count, 0, all * sizeof *run->count);
    int failed = count_rows(run, run->count);
    if (failed) {
        return failed;
    }
    run->n_experts = 0;
    for (uint32_t e = 0; e < all; e++) {
        if (run->count[e] > 0) {
            run->experts[run->n_experts++] = e;
        }
    }
    run->n_cpu = run->n_experts;
    return 0;
}

int gn_moe_run_sort(struct gn_moe_run *run, struct gn_scratch *scratch) {
    if (save_inputs(run, scratch)) {
        snprintf(run->error, sizeof run->error, "no memory to sort a batch by expert");
        return -ENOMEM;
    }
    uint32_t start = 0;
    for (uint32_t i = 0; i < run->n_experts; i++) {
        uint32_t expert = run->experts[i];
        run->row_start[i] = run->next[expert] = start;
        start += run->count[expert];
    }
    run->row_start[run->n_experts] = start;
    for (int64_t token = 0; token < run->n_tokens; token++) {
        for (int64_t k = 0; k < run->n_used; k++) {
            run->rows[run->next[id_at(run->ids, k, token)]++] = (uint32_t)(token * run->n_used + k);
        }
    }
    return 0;
}
