// Products of ours have ggml_mul_mat_id's bits wherever product_check.h says so, which tried it with one shape: here
// other widths, outputs, numbers of rows and experts, with every type that the CPU backend can multiply, and two
// threads.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend/product_check.h"
#include "backends.h"

#include "ggml-cpu.h"

#include <stdlib.h>
#include <string.h>

enum { EXPERTS = 3 };

static ggml_backend_t cpu;
static gn_cpu_traits_fn traits;
static uint32_t state = 7;

static uint32_t next_random(void) {
    state = state * 1664525u + 1013904223u;
    return state >> 16;
}

static int setup(void **context) {
    (void)context;
    ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    ggml_backend_reg_t registry = ggml_backend_dev_backend_reg(device);
    cpu = ggml_backend_dev_init(device, NULL);
    traits = gn_find_cpu_traits(registry);
    ggml_backend_set_n_threads_t set;
    *(void **)&set = ggml_backend_reg_get_proc_address(registry, "ggml_backend_set_n_threads");
    set(cpu, 2);
    return !cpu || !traits;
}

static struct ggml_tensor *tensor_3d(struct ggml_context *context, enum ggml_type type, int64_t a, int64_t b, int64_t c,
                                     void *data) {
    struct ggml_tensor *tensor = ggml_new_tensor_3d(context, type, a, b, c);
    tensor->data = data;
    return tensor;
}

// Rows of expert e: rows[e]. Both ways, from the same inputs.
static bool same_bits(enum ggml_type type, int64_t width, int64_t n_out, const uint32_t rows[EXPERTS]) {
    const struct ggml_type_traits_cpu *of_type = traits(type);
    uint32_t first[EXPERTS + 1] = {0}, n = 0;
    for (int e = 0; e < EXPERTS; e++) {
        n = first[e + 1] = n + rows[e];
    }
    size_t expert_bytes = ggml_row_size(type, width) * (size_t)n_out, out_bytes = (size_t)n_out * n * sizeof(float);
    uint8_t *weights = malloc(EXPERTS * expert_bytes),
            *quantised = malloc(n * ggml_row_size(of_type->vec_dot_type, width));
    float *inputs = malloc(n * (size_t)width * sizeof *inputs), *theirs = malloc(out_bytes), *ours = malloc(out_bytes);
    int32_t *ids = malloc(n * sizeof *ids);
    const uint8_t *of_expert[EXPERTS];
    for (size_t i = 0; i < EXPERTS * expert_bytes; i++) {
        weights[i] = (uint8_t)(next_random() & 0x3f); // finite, whatever the type
    }
    for (size_t i = 0; i < n * (size_t)width; i++) {
        inputs[i] = (float)next_random() / 16384 - 2;
    }
    for (int e = 0; e < EXPERTS; e++) {
        of_expert[e] = weights + (size_t)e * expert_bytes;
        for (uint32_t r = first[e]; r < first[e + 1]; r++) {
            ids[r] = e;
        }
    }
    struct ggml_context *context = ggml_init((struct ggml_init_params){.mem_size = 1 << 20, .no_alloc = true});
    struct ggml_cgraph *graph = ggml_new_graph(context);
    struct ggml_tensor *product = ggml_mul_mat_id(context, tensor_3d(context, type, width, n_out, EXPERTS, weights),
                                                  tensor_3d(context, GGML_TYPE_F32, width, 1, n, inputs),
                                                  tensor_3d(context, GGML_TYPE_I32, 1, n, 1, ids));
    product->data = theirs;
    ggml_build_forward_expand(graph, product);
    struct gn_product_job job = {
        .width = width,
        .inputs = inputs,
        .input_stride = (size_t)width * sizeof(float),
        .n_inputs = n,
        .n_experts = EXPERTS,
        .first = first,
        .n_products = 1,
        .product = {{.weights = of_expert,
                     .weight_stride = ggml_row_size(type, width),
                     .n_out = n_out,
                     .out = ours,
                     .dot = of_type->vec_dot}},
        .quantise = of_type->vec_dot_type == GGML_TYPE_F32 ? NULL : traits(of_type->vec_dot_type)->from_float,
        .quantised = quantised,
        .quantised_stride = ggml_row_size(of_type->vec_dot_type, width),
    };
    gn_product_job_build(&job, 2, context, graph);
    bool same = ggml_backend_graph_compute(cpu, graph) == GGML_STATUS_SUCCESS && !memcmp(theirs, ours, out_bytes);
    ggml_free(context);
    free(weights);
    free(quantised);
    free(inputs);
    free(theirs);
    free(ours);
    free(ids);
    return same;
}

static void what_is_trusted_is_exact(void **context) {
    (void)context;
    static const uint32_t rows[][EXPERTS] = {{1, 1, 1}, {3, 0, 2}, {4, 7, 8}, {9, 1, 40}, {0, 130, 17}};
    static const int64_t shapes[][2] = {{256, 8}, {512, 200}, {1536, 64}};
    int tried = 0, any = 0;
    for (int type = 0; type < GGML_TYPE_COUNT; type++) {
        const struct ggml_type_traits_cpu *of_type = traits((enum ggml_type)type);
        if (!of_type || !of_type->vec_dot || ggml_blck_size((enum ggml_type)type) == 0) {
            continue;
        }
        uint32_t trusted = gn_product_rows(cpu, traits, (enum ggml_type)type);
        assert_int_equal(trusted, gn_product_rows(cpu, traits, (enum ggml_type)type));
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
                uint32_t most = 0;
                for (int e = 0; e < EXPERTS; e++) {
                    most = rows[r][e] > most ? rows[r][e] : most;
                }
                if (most <= trusted && !same_bits((enum ggml_type)type, shapes[s][0], shapes[s][1], rows[r])) {
                    fail_msg("%s, %d x %d, up to %u rows: other bits", ggml_type_name((enum ggml_type)type),
                             (int)shapes[s][0], (int)shapes[s][1], most);
                }
            }
        }
        print_message("%s: %s\n", ggml_type_name((enum ggml_type)type),
                      trusted == UINT32_MAX ? "any number of rows"
                      : trusted             ? "few rows"
                                            : "not at all");
        tried++;
        any += trusted == UINT32_MAX;
    }
    assert_true(tried > 20); // of ggml's types
    assert_true(any > 10);
}

int main(void) {
    if (!load_backends()) {
        print_error("there is no CPU backend beside libllama\n");
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_trusted_is_exact)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
