// The router of a MoE layer, found in the graph that llama.cpp built: from the chosen experts' ids back to the matrix
// whose product with the layer's input gave their scores. With it the same scores can be computed for another input.
#pragma once

#include "backend/products.h"

#include "ggml.h"

enum gn_router_activation {
    GN_ROUTER_PLAIN,
    GN_ROUTER_SIGMOID,
    GN_ROUTER_SOFTMAX,
    GN_ROUTER_SOFTPLUS,
    GN_ROUTER_ROOT_SOFTPLUS, // sqrt(softplus(x))
};

struct gn_router {
    bool found;
    enum ggml_type type;
    const uint8_t *weight; // [n_experts] rows of `width` elements, weight_stride bytes apart
    size_t weight_stride;
    int64_t width, n_experts;
    const float *bias; // [n_experts] added to the products, or NULL
    enum gn_router_activation activation;
    const float *selection; // [n_experts] added to what the activation gives, for the choice alone; or NULL
    int64_t n_groups;       // experts fall into as many groups of equal size, one after another; 0: they do not
    int64_t groups_used;    // experts of others cannot be chosen
    int64_t group_best;     // a group is as good as the sum of so many of its best experts' scores
    const float *norm;      // [width] the weights of the norm that made the input, or NULL
    const struct ggml_tensor *input; // of the graph in which it was found: not to be used after it
};

// Looks for the router that chose `ids`. Its weights must lie in host memory, and are used where they lie, as
// long as the model lives. router->found says whether there is one: not where anything is done to the scores that is
// not known here, since they could not be computed right then.
void gn_router_find(struct gn_router *router, const struct ggml_tensor *ids, int64_t n_experts);

// Bytes of working memory that gn_router_score() needs.
size_t gn_router_scratch(const struct gn_router *router, gn_cpu_traits_fn traits);

// Scores all experts for one input of `width` floats, as the CPU backend would: the larger, the likelier the choice;
// -INFINITY where the expert's group is not chosen. scores: [n_experts].
void gn_router_score(const struct gn_router *router, gn_cpu_traits_fn traits, const float *input, float *scores,
                     void *scratch);
