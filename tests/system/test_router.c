// Routers as llama.cpp builds them: found in the graph, they score experts as the graph does; those with anything on
// the way that is not known are left alone.
//
//     test_router CPU_LIBRARY_FOLDER
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend/host.h"
#include "backend/router.h"
#include "predict/rank.h"

#include "ggml-alloc.h"
#include "ggml-backend.h"

#include <math.h>
#include <stdlib.h>

enum { WIDTH = 64, EXPERTS = 32, USED = 6, TOKENS = 5, GROUPS = 8, GROUPS_USED = 3 };

static ggml_backend_t cpu;
static gn_cpu_traits_fn traits;
static struct ggml_context *weights;
static struct ggml_tensor *matrix, *bias, *selection, *norm;

static float noise(int i) {
    return (float)(int)((uint32_t)i * 2654435761u >> 16 & 0xffff) / 32768.0f - 1.0f;
}

static void fill(struct ggml_tensor *tensor, int seed, float scale) {
    float *values = tensor->data;
    for (int64_t i = 0; i < ggml_nelements(tensor); i++) {
        values[i] = noise((int)i * 7 + seed) * scale;
    }
}

static int setup(void **state) {
    (void)state;
    assert_null(gn_host_unfit());
    cpu = ggml_backend_dev_init(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), NULL);
    assert_non_null(cpu);
    traits = gn_find_cpu_traits(ggml_backend_dev_backend_reg(ggml_backend_get_device(cpu)));
    assert_non_null(traits);
    struct ggml_init_params params = {.mem_size = 1 << 20, .no_alloc = true};
    weights = ggml_init(params);
    matrix = ggml_new_tensor_2d(weights, GGML_TYPE_F32, WIDTH, EXPERTS);
    bias = ggml_new_tensor_1d(weights, GGML_TYPE_F32, EXPERTS);
    selection = ggml_new_tensor_1d(weights, GGML_TYPE_F32, EXPERTS);
    norm = ggml_new_tensor_1d(weights, GGML_TYPE_F32, WIDTH);
    ggml_backend_buffer_set_usage(ggml_backend_alloc_ctx_tensors(weights, cpu), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    fill(matrix, 1, 0.3f);
    fill(bias, 2, 0.5f);
    fill(selection, 3, 0.3f);
    fill(norm, 4, 1.0f);
    return 0;
}

enum { SOFTMAX = 1, SIGMOID = 2, ROOT_SOFTPLUS = 4, BIAS = 8, SELECTION = 16, IN_GROUPS = 32, TANH = 64 };

// As llama.cpp masks out groups.
static struct ggml_tensor *choose_groups(struct ggml_context *context, struct ggml_tensor *scores) {
    struct ggml_tensor *groups = ggml_reshape_3d(context, scores, EXPERTS / GROUPS, GROUPS, TOKENS);
    struct ggml_tensor *best = ggml_argsort_top_k(context, groups, 2);
    best = ggml_get_rows(context, ggml_reshape_4d(context, groups, 1, EXPERTS / GROUPS, GROUPS, TOKENS), best);
    best = ggml_sum_rows(context, ggml_reshape_3d(context, best, 2, GROUPS, TOKENS));
    best = ggml_reshape_2d(context, best, GROUPS, TOKENS);
    struct ggml_tensor *chosen = ggml_argsort_top_k(context, best, GROUPS_USED);
    struct ggml_tensor *kept = ggml_get_rows(context, groups, chosen);
    scores = ggml_set_rows(context, ggml_fill(context, groups, -INFINITY), kept, chosen);
    return ggml_reshape_2d(context, scores, EXPERTS, TOKENS);
}

static struct ggml_tensor *route(struct ggml_context *context, struct ggml_tensor *input, int what) {
    struct ggml_tensor *scores = ggml_mul_mat(context, matrix, ggml_mul(context, input, norm));
    scores = what & BIAS ? ggml_add(context, scores, bias) : scores;
    scores = what & TANH ? ggml_tanh(context, scores) : scores;
    scores = what & SOFTMAX ? ggml_soft_max(context, scores) : scores;
    scores = what & SIGMOID ? ggml_sigmoid(context, scores) : scores;
    scores = what & ROOT_SOFTPLUS ? ggml_sqrt(context, ggml_softplus(context, scores)) : scores;
    scores = what & SELECTION ? ggml_add(context, scores, selection) : scores;
    scores = what & IN_GROUPS ? choose_groups(context, scores) : scores;
    return ggml_argsort_top_k(context, scores, USED);
}

// Runs a router, and compares what it chose with what ours would choose from the same input.
static void compare(int what) {
    struct ggml_init_params params = {.mem_size = 1 << 20, .no_alloc = true};
    struct ggml_context *context = ggml_init(params);
    struct ggml_tensor *input = ggml_new_tensor_2d(context, GGML_TYPE_F32, WIDTH, TOKENS);
    struct ggml_tensor *ids = route(context, input, what);
    struct ggml_cgraph *graph = ggml_new_graph(context);
    ggml_build_forward_expand(graph, ids);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(context, cpu);
    fill(input, 5 + what, 2.0f);
    assert_int_equal(ggml_backend_graph_compute(cpu, graph), GGML_STATUS_SUCCESS);
    struct gn_router router;
    gn_router_find(&router, ids, EXPERTS);
    assert_true(router.found);
    assert_ptr_equal(router.norm, norm->data);
    assert_int_equal(router.n_groups, what & IN_GROUPS ? GROUPS : 0);
    void *scratch = malloc(gn_router_scratch(&router, traits) + 1);
    for (int t = 0; t < TOKENS; t++) {
        const float *row = (const float *)((const char *)router.input->data + (size_t)t * router.input->nb[1]);
        const int32_t *chosen = (const int32_t *)((const char *)ids->data + (size_t)t * ids->nb[1]);
        float scores[EXPERTS];
        uint32_t best[USED];
        gn_router_score(&router, traits, row, scores, scratch);
        assert_int_equal(gn_rank(scores, EXPERTS, USED, best), USED);
        for (int k = 0; k < USED; k++) {
            assert_int_equal(best[k], chosen[k]);
        }
    }
    free(scratch);
    ggml_backend_buffer_free(buffer);
    ggml_free(context);
}

static void every_router_is_scored_right(void **state) {
    (void)state;
    static const int activations[] = {0, SOFTMAX, SIGMOID, ROOT_SOFTPLUS};
    for (size_t a = 0; a < sizeof activations / sizeof *activations; a++) {
        for (int more = 0; more < 8; more++) {
            int biases = (more & 1 ? BIAS : 0) | (more & 2 ? SELECTION : 0), groups = more & 4 ? IN_GROUPS : 0;
            if (activations[a] || biases != (BIAS | SELECTION)) { // two vectors added to one another: not built
                compare(activations[a] | biases | groups);
            }
        }
    }
}

static bool is_found(struct ggml_tensor *ids, int n_experts) {
    struct gn_router router;
    gn_router_find(&router, ids, n_experts);
    return router.found;
}

static void the_unknown_is_left_alone(void **state) {
    (void)state;
    struct ggml_init_params params = {.mem_size = 1 << 20, .no_alloc = true};
    struct ggml_context *context = ggml_init(params);
    struct ggml_tensor *input = ggml_new_tensor_2d(context, GGML_TYPE_F32, WIDTH, TOKENS);
    assert_true(is_found(route(context, input, SIGMOID | SELECTION), EXPERTS));
    assert_false(is_found(route(context, input, SIGMOID | SELECTION), EXPERTS / 2)); // not this layer's router
    assert_false(is_found(route(context, input, TANH), EXPERTS));
    assert_false(is_found(route(context, input, TANH | SIGMOID | SELECTION), EXPERTS));
    assert_false(is_found(route(context, input, SOFTMAX | SIGMOID | SELECTION), EXPERTS));     // one on the other
    assert_false(is_found(ggml_new_tensor_2d(context, GGML_TYPE_I32, USED, TOKENS), EXPERTS)); // ids from a table
    // Other groups than the best ones; a mask of another value.
    struct ggml_tensor *groups = ggml_reshape_3d(context, ggml_mul_mat(context, matrix, input), 4, GROUPS, TOKENS);
    struct ggml_tensor *chosen = ggml_new_tensor_2d(context, GGML_TYPE_I32, GROUPS_USED, TOKENS);
    struct ggml_tensor *kept = ggml_get_rows(context, groups, chosen);
    struct ggml_tensor *masked = ggml_set_rows(context, ggml_fill(context, groups, -INFINITY), kept, chosen);
    masked = ggml_reshape_2d(context, masked, EXPERTS, TOKENS);
    assert_false(is_found(ggml_argsort_top_k(context, masked, USED), EXPERTS));
    // The smallest scores.
    struct ggml_tensor *smallest = ggml_argsort(context, ggml_mul_mat(context, matrix, input), GGML_SORT_ORDER_ASC);
    assert_false(is_found(smallest, EXPERTS));
    // All but the largest.
    struct ggml_tensor *all = ggml_argsort(context, ggml_mul_mat(context, matrix, input), GGML_SORT_ORDER_DESC);
    struct ggml_tensor *rest = ggml_view_2d(context, all, USED, TOKENS, all->nb[1], 2 * sizeof(int32_t));
    assert_false(is_found(rest, EXPERTS));
    ggml_free(context);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        print_error("usage: test_router CPU_LIBRARY_FOLDER\n");
        return 2;
    }
    ggml_backend_load_all_from_path(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_router_is_scored_right),
        cmocka_unit_test(the_unknown_is_left_alone),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
