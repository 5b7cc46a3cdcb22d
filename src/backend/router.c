#include "backend/router.h"

#include "ggml-backend.h"

#include <math.h>
#include <string.h>

#define DEEPEST 24 // operations between the ids and the router's product; the group masks of some models are long

static bool in_memory(const struct ggml_tensor *weight) {
    const struct ggml_tensor *base = weight->view_src ? weight->view_src : weight;
    return weight->op == GGML_OP_NONE && weight->data && base->buffer && ggml_backend_buffer_is_host(base->buffer) &&
           ggml_backend_buffer_get_usage(base->buffer) == GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
}

// A vector of `n` floats that belongs to the model.
static const float *vector_of(const struct ggml_tensor *tensor, int64_t n) {
    bool is_vector = tensor && in_memory(tensor) && tensor->type == GGML_TYPE_F32 && tensor->ne[0] == n &&
                     ggml_nelements(tensor) == n;
    return is_vector ? tensor->data : NULL;
}

static void find_norm(struct gn_router *router) {
    const struct ggml_tensor *input = router->input;
    while (input->op == GGML_OP_RESHAPE || input->op == GGML_OP_VIEW) {
        input = input->src[0];
    }
    for (int s = 0; input->op == GGML_OP_MUL && s < 2 && !router->norm; s++) {
        router->norm = vector_of(input->src[s], router->width);
    }
}

static bool is_router(const struct ggml_tensor *op, int64_t n_experts) {
    return op->op == GGML_OP_MUL_MAT && op->src[0]->ne[1] == n_experts && op->src[0]->ne[2] == 1 &&
           op->src[1]->type == GGML_TYPE_F32 && in_memory(op->src[0]);
}

// Follows the scores back, noting what is done to them on the way.
static bool follow(struct gn_router *router, const struct ggml_tensor *op, int64_t n_experts, int depth) {
    if (!op || depth == 0) {
        return false;
    }
    if (is_router(op, n_experts)) {
        router->weight = op->src[0]->data;
        router->type = op->src[0]->type;
        router->weight_stride = op->src[0]->nb[1];
        router->width = op->src[0]->ne[0];
        router->n_experts = n_experts;
        router->input = op->src[1];
        return true;
    }
    bool found = false;
    for (int s = 0; s < 2 && !found; s++) {
        found = op->src[s] && follow(router, op->src[s], n_experts, depth - 1);
    }
    if (!found) {
        return false;
    }
    for (int s = 0; op->op == GGML_OP_ADD && s < 2; s++) { // before the activation a bias, after it for the choice
        const float *vector = vector_of(op->src[s], n_experts);
        if (vector) {
            *(router->activation == GN_ROUTER_PLAIN ? &router->bias : &router->selection) = vector;
        }
    }
    if (op->op == GGML_OP_UNARY && ggml_get_unary_op(op) == GGML_UNARY_OP_SIGMOID) {
        router->activation = GN_ROUTER_SIGMOID;
    } else if (op->op == GGML_OP_SOFT_MAX) {
        router->activation = GN_ROUTER_SOFTMAX;
    }
    return true;
}

void gn_router_find(struct gn_router *router, const struct ggml_tensor *ids, int64_t n_experts) {
    *router = (struct gn_router){0};
    router->found = follow(router, ids, n_experts, DEEPEST);
    if (router->found) {
        find_norm(router);
    }
}

size_t gn_router_scratch(const struct gn_router *router, gn_cpu_traits_fn traits) {
    const struct ggml_type_traits_cpu *type = traits ? traits(router->type) : NULL;
    bool quantises = type && type->vec_dot_type != GGML_TYPE_F32;
    return quantises ? ggml_row_size(type->vec_dot_type, router->width) : 0;
}

// What the activation gives matters only where something is added to it: otherwise the order is the products'.
static void activate(const struct gn_router *router, float *scores) {
    float sum = 0, most = -INFINITY;
    for (int64_t e = 0; e < router->n_experts; e++) {
        most = fmaxf(most, scores[e]);
    }
    for (int64_t e = 0; e < router->n_experts; e++) {
        bool sigmoid = router->activation == GN_ROUTER_SIGMOID;
        scores[e] = sigmoid ? 1 / (1 + expf(-scores[e])) : expf(scores[e] - most);
        sum += scores[e];
    }
    for (int64_t e = 0; e < router->n_experts; e++) {
        scores[e] = scores[e] / (router->activation == GN_ROUTER_SOFTMAX ? sum : 1) + router->selection[e];
    }
}

void gn_router_score(const struct gn_router *router, gn_cpu_traits_fn traits, const float *input, float *scores,
                     void *scratch) {
    const struct ggml_type_traits_cpu *type = traits(router->type);
    const void *row = input;
    if (type->vec_dot_type != GGML_TYPE_F32) {
        traits(type->vec_dot_type)->from_float(input, scratch, router->width);
        row = scratch;
    }
    const uint8_t *weight = router->weight;
    for (int64_t e = 0; e < router->n_experts; e++, weight += router->weight_stride) {
        type->vec_dot((int)router->width, &scores[e], 0, weight, 0, row, 0, 1);
        scores[e] += router->bias ? router->bias[e] : 0;
    }
    if (router->selection) {
        activate(router, scores);
    }
}
