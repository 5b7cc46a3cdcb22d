// Decides how the CPU makes the products of a MoE layer: by jobs of ours where those have ggml's bits, from inputs that
// lie where ggml has them where possible. A part of moe_run.h.
#include "backend/moe_run.h"
#include "backend/product_check.h"

#include <errno.h>
#include <stdio.h>

size_t gn_quantised_bytes(const struct gn_moe_run *run, const struct gn_run_node *node) {
    const struct ggml_tensor *weight = node->tensor->src[0];
    enum ggml_type type = run->traits(weight->type)->vec_dot_type;
    return type == GGML_TYPE_F32 ? 0 : (ggml_row_size(type, weight->ne[0]) + 63) / 64 * 64;
}

bool gn_same_input(const struct gn_moe_run *run, const struct gn_run_node *a, const struct gn_run_node *b) {
    const struct gn_operand *x = &a->operand[1], *y = &b->operand[1];
    return x->kind == y->kind && x->index == y->index && x->column == y->column &&
           run->traits(a->tensor->src[0]->type)->vec_dot_type == run->traits(b->tensor->src[0]->type)->vec_dot_type;
}

static void choose_jobs(struct gn_moe_run *run) {
    uint32_t most_rows = 0;
    for (uint32_t i = 0; i < run->n_cpu; i++) {
        uint32_t rows = gn_moe_run_rows(run, i);
        most_rows = rows > most_rows ? rows : most_rows;
    }
    for (uint32_t i = 0; i < run->n_nodes; i++) {
        struct gn_run_node *node = &run->nodes[i];
        node->job = node->operand[0].kind == GN_OPERAND_WEIGHT &&
                    most_rows <= gn_product_rows(run->cpu, run->traits, node->tensor->src[0]->type);
        node->quantised = NULL;
        node->quantised_before = false;
    }
}

// Finds the inputs that have one row for all experts of a token, and that only jobs take.
static void find_per_token(struct gn_moe_run *run) {
    for (uint32_t i = 0; i < run->n_inputs; i++) {
        run->inputs[i].per_token = run->inputs[i].tensor->ne[1] == 1;
    }
    for (uint32_t i = 0; i < run->n_nodes; i++) {
        const struct gn_run_node *node = &run->nodes[i];
        for (int s = 0; s < 3; s++) {
            if (node->operand[s].kind == GN_OPERAND_INPUT && !(node->job && s == 1)) {
                run->inputs[node->operand[s].index].per_token = false;
            }
        }
    }
}

static void count_bytes(struct gn_moe_run *run) {
    run->compact_bytes = run->row_bytes;
    run->gathers = false;
    for (uint32_t i = 0; i < run->n_inputs; i++) {
        if (run->inputs[i].per_token) {
            run->compact_bytes -= (size_t)run->inputs[i].tensor->ne[0] * sizeof(float);
        } else {
            run->gathers = true;
        }
    }
}

// Makes room for a batch's tokens, quantised as each job wants them.
static bool place_tokens(struct gn_moe_run *run, struct gn_scratch *scratch) {
    size_t bytes = 0, n_tokens = (size_t)run->n_tokens, at[GN_RUN_NODES];
    for (uint32_t i = 0; i < run->n_nodes; i++) {
        struct gn_run_node *node = &run->nodes[i];
        at[i] = bytes;
        const struct gn_operand *rows = &node->operand[1];
        node->takes_tokens = node->job && rows->kind == GN_OPERAND_INPUT && run->inputs[rows->index].per_token;
        if (!node->takes_tokens) {
            continue;
        }
        const struct gn_run_node *first = run->nodes;
        while (first < node && !(first->takes_tokens && gn_same_input(run, first, node))) {
            first++;
        }
        node->tokens = (uint8_t)(first - run->nodes);
        bytes += node->tokens == i ? n_tokens * gn_quantised_bytes(run, node) : 0;
    }
    uint8_t *memory = bytes ? gn_scratch_get(scratch, GN_SCRATCH_TOKENS, bytes) : NULL;
    for (uint32_t i = 0; memory && i < run->n_nodes; i++) {
        run->nodes[i].quantised = memory + at[i];
    }
    return memory || !bytes;
}

int gn_moe_run_plan(struct gn_moe_run *run, struct gn_scratch *scratch) {
    choose_jobs(run);
    find_per_token(run);
    count_bytes(run);
    if (!place_tokens(run, scratch)) {
        snprintf(run->error, sizeof run->error, "no memory to quantise a batch");
        return -ENOMEM;
    }
    return 0;
}

bool gn_moe_run_can_wait(const struct gn_moe_run *run) {
    for (uint32_t i = 0; i < run->n_nodes; i++) {
        if (run->nodes[i].operand[0].kind == GN_OPERAND_WEIGHT && !run->nodes[i].job) {
            return false;
        }
    }
    return true;
}
