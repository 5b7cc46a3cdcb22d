#include "backend/router.h"

#include "backend/host.h"
#include "predict/rank.h"

#include "ggml-backend.h"

#include <math.h>
#include <string.h>

#define LONGEST 32      // operations between the ids and the router's product
#define MOST_GROUPS 256 // of experts
#define MOST_BEST 8

static bool in_memory(const struct ggml_tensor *weight) {
    const struct ggml_tensor *base = weight->view_src ? weight->view_src : weight;
    return gn_op_of(weight) == GN_OP_NONE && weight->data && base->buffer &&
           ggml_backend_buffer_is_host(base->buffer) &&
           ggml_backend_buffer_get_usage(base->buffer) == GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
}

// A vector of `n` floats that belongs to the model.
static const float *vector_of(const struct ggml_tensor *tensor, int64_t n) {
    bool is_vector = tensor && in_memory(tensor) && tensor->type == GGML_TYPE_F32 && tensor->ne[0] == n &&
                     ggml_nelements(tensor) == n;
    return is_vector ? tensor->data : NULL;
}

// What lies behind operations that move nothing to another place in its row.
static const struct ggml_tensor *behind_shapes(const struct ggml_tensor *tensor) {
    while (tensor &&
           (gn_op_of(tensor) == GN_OP_RESHAPE || gn_op_of(tensor) == GN_OP_VIEW || gn_op_of(tensor) == GN_OP_CONT)) {
        tensor = tensor->src[0];
    }
    return tensor;
}

static void find_norm(struct gn_router *router) {
    const struct ggml_tensor *input = behind_shapes(router->input);
    for (int s = 0; gn_op_of(input) == GN_OP_MUL && s < 2 && !router->norm; s++) {
        router->norm = vector_of(input->src[s], router->width);
    }
}

static bool is_router(const struct ggml_tensor *op, int64_t n_experts) {
    return gn_op_of(op) == GN_OP_MUL_MAT && op->src[0]->ne[1] == n_experts && op->src[0]->ne[2] == 1 &&
           op->src[1]->type == GGML_TYPE_F32 && in_memory(op->src[0]);
}

static void take_router(struct gn_router *router, const struct ggml_tensor *op, int64_t n_experts) {
    router->weight = op->src[0]->data;
    router->type = op->src[0]->type;
    router->weight_stride = op->src[0]->nb[1];
    router->width = op->src[0]->ne[0];
    router->n_experts = n_experts;
    router->input = op->src[1];
}

static float parameter(const struct ggml_tensor *op, size_t index) {
    float value;
    memcpy(&value, (const char *)op->op_params + index * sizeof value, sizeof value);
    return value;
}

// The scores that the ids were chosen by, if they are the largest of them.
static const struct ggml_tensor *sorted_by(const struct ggml_tensor *ids) {
    if (ids->view_src && ids->view_offs != 0) {
        return NULL;
    }
    const struct ggml_tensor *sort = behind_shapes(ids);
    bool largest_first = sort && ((gn_op_of(sort) == GN_OP_ARGSORT && sort->op_params[0] == GGML_SORT_ORDER_DESC) ||
                                  gn_op_of(sort) == GN_OP_TOP_K);
    return largest_first ? sort->src[0] : NULL;
}

// The groups' scores: sums of the best scores of each. Returns of how many, 0 when it is anything else.
static int64_t best_of_groups(const struct ggml_tensor *group_scores, const struct ggml_tensor *groups) {
    const struct ggml_tensor *sum = behind_shapes(group_scores);
    const struct ggml_tensor *best = sum && gn_op_of(sum) == GN_OP_SUM_ROWS ? behind_shapes(sum->src[0]) : NULL;
    bool good = best && gn_op_of(best) == GN_OP_GET_ROWS && behind_shapes(best->src[0]) == behind_shapes(groups) &&
                behind_shapes(sorted_by(best->src[1])) == behind_shapes(groups);
    return good ? best->src[1]->ne[0] : 0;
}

// Scores of which those outside the chosen groups were replaced by -infinity. Returns the scores before that, NULL when
// it is not so.
static const struct ggml_tensor *behind_groups(struct gn_router *router, const struct ggml_tensor *masked,
                                               int64_t n_experts) {
    const struct ggml_tensor *kept = NULL, *chosen = NULL, *none = NULL;
    for (int s = 0; s < 3; s++) { // which is which has changed between versions
        const struct ggml_tensor *source = masked->src[s];
        kept = source && gn_op_of(source) == GN_OP_GET_ROWS ? source : kept;
        none = source && gn_op_of(source) == GN_OP_FILL ? source : none;
        chosen = source && source->type == GGML_TYPE_I32 ? source : chosen;
    }
    if (!kept || !chosen || !none || kept->src[1] != chosen || parameter(none, 0) != -INFINITY) {
        return NULL;
    }
    const struct ggml_tensor *groups = kept->src[0];
    router->n_groups = groups->ne[1];
    router->groups_used = chosen->ne[0];
    router->group_best = best_of_groups(sorted_by(chosen), groups);
    bool good = groups->ne[0] * groups->ne[1] == n_experts && router->n_groups <= MOST_GROUPS &&
                router->groups_used <= router->n_groups && router->group_best > 0 && router->group_best <= MOST_BEST &&
                router->group_best <= groups->ne[0];
    return good ? groups : NULL;
}

// Going back, what is added before an activation is met belongs to the choice, after it to the products.
static const struct ggml_tensor *behind_sum(struct gn_router *router, const struct ggml_tensor *sum,
                                            int64_t n_experts) {
    const float **to = router->activation == GN_ROUTER_PLAIN ? &router->selection : &router->bias;
    for (int s = 0; s < 2 && !*to; s++) {
        *to = vector_of(sum->src[s], n_experts);
        if (*to) {
            return sum->src[1 - s];
        }
    }
    return NULL;
}

static const struct ggml_tensor *behind_activation(struct gn_router *router, const struct ggml_tensor *op) {
    enum gn_router_activation before = router->activation;
    if (gn_op_of(op) == GN_OP_SQRT) {
        router->activation = GN_ROUTER_ROOT_SOFTPLUS;
        const struct ggml_tensor *of = op->src[0];
        return before == GN_ROUTER_PLAIN && gn_op_of(of) == GN_OP_UNARY && gn_unary_of(of) == GN_UNARY_SOFTPLUS
                   ? of->src[0]
                   : NULL;
    }
    if (gn_op_of(op) == GN_OP_SOFT_MAX) {
        router->activation = GN_ROUTER_SOFTMAX;
        return before == GN_ROUTER_PLAIN && !op->src[1] && !op->src[2] && parameter(op, 0) == 1 ? op->src[0] : NULL;
    }
    enum gn_unary unary = gn_unary_of(op);
    router->activation = unary == GN_UNARY_SIGMOID ? GN_ROUTER_SIGMOID : GN_ROUTER_SOFTPLUS;
    bool known = unary == GN_UNARY_SIGMOID || unary == GN_UNARY_SOFTPLUS;
    return before == GN_ROUTER_PLAIN && known ? op->src[0] : NULL;
}

// Goes from the scores back to the router, noting what is done to them on the way.
static bool follow(struct gn_router *router, const struct ggml_tensor *op, int64_t n_experts) {
    for (int i = 0; i < LONGEST && (op = behind_shapes(op)); i++) {
        if (is_router(op, n_experts)) {
            take_router(router, op, n_experts);
            return true;
        }
        switch (gn_op_of(op)) {
        case GN_OP_SET_ROWS:
            op = router->n_groups == 0 ? behind_groups(router, op, n_experts) : NULL;
            break;
        case GN_OP_ADD:
            op = behind_sum(router, op, n_experts);
            break;
        case GN_OP_SQRT:
        case GN_OP_SOFT_MAX:
        case GN_OP_UNARY:
            op = behind_activation(router, op);
            break;
        default:
            return false;
        }
    }
    return false;
}

void gn_router_find(struct gn_router *router, const struct ggml_tensor *ids, int64_t n_experts) {
    *router = (struct gn_router){0};
    const struct ggml_tensor *scores = sorted_by(ids);
    router->found = scores && follow(router, scores, n_experts);
    if (router->found) {
        find_norm(router);
    }
}

size_t gn_router_scratch(const struct gn_router *router, gn_cpu_traits_fn traits) {
    const struct ggml_type_traits_cpu *type = traits ? traits(router->type) : NULL;
    bool quantises = type && type->vec_dot_type != GGML_TYPE_F32;
    return quantises ? ggml_row_size(type->vec_dot_type, router->width) : 0;
}

static float softplus(float x) {
    return x > 20 ? x : logf(1 + expf(x));
}

static void activate(const struct gn_router *router, float *scores) {
    float sum = 0, most = -INFINITY;
    for (int64_t e = 0; e < router->n_experts; e++) {
        most = fmaxf(most, scores[e]);
    }
    for (int64_t e = 0; e < router->n_experts; e++) {
        switch (router->activation) {
        case GN_ROUTER_PLAIN:
            break;
        case GN_ROUTER_SIGMOID:
            scores[e] = 1 / (1 + expf(-scores[e]));
            break;
        case GN_ROUTER_SOFTMAX:
            scores[e] = expf(scores[e] - most);
            break;
        case GN_ROUTER_SOFTPLUS:
            scores[e] = softplus(scores[e]);
            break;
        case GN_ROUTER_ROOT_SOFTPLUS:
            scores[e] = sqrtf(softplus(scores[e]));
            break;
        }
        sum += scores[e];
    }
    for (int64_t e = 0; e < router->n_experts; e++) {
        scores[e] = scores[e] / (router->activation == GN_ROUTER_SOFTMAX ? sum : 1) +
                    (router->selection ? router->selection[e] : 0);
    }
}

static void mask_groups(const struct gn_router *router, float *scores) {
    float group_scores[MOST_GROUPS];
    uint32_t n_groups = (uint32_t)router->n_groups, size = (uint32_t)(router->n_experts / router->n_groups);
    uint32_t best[MOST_GROUPS];
    for (uint32_t g = 0; g < n_groups; g++) {
        const float *group = scores + (size_t)g * size;
        uint32_t n = gn_rank(group, size, (uint32_t)router->group_best, best);
        group_scores[g] = 0;
        for (uint32_t i = 0; i < n; i++) {
            group_scores[g] += group[best[i]];
        }
    }
    uint32_t n = gn_rank(group_scores, n_groups, (uint32_t)router->groups_used, best);
    bool chosen[MOST_GROUPS] = {false};
    for (uint32_t i = 0; i < n; i++) {
        chosen[best[i]] = true;
    }
    for (uint32_t e = 0; e < (uint32_t)router->n_experts; e++) {
        scores[e] = chosen[e / size] ? scores[e] : -INFINITY;
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
    if (router->selection || router->n_groups > 0) { // else the order is the products'
        activate(router, scores);
    }
    if (router->n_groups > 0) {
        mask_groups(router, scores);
    }
}
