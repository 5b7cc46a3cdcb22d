// The backend itself, on graphs that llama.cpp does not build today: what it claims has the CPU backend's bits, what it
// cannot do it refuses, and if it is made to run it, it fails rather than compute with bytes it does not have.
//
//     test_graphs PLUGIN CPU_LIBRARY_FOLDER
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/backends.h"

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { WIDTH = 256, OUT = 64, EXPERTS = 8, USED = 4, TOKENS = 3 };
#define WEIGHTS ((size_t)WIDTH * OUT * EXPERTS)

static ggml_backend_t ours, cpu;
static float *values; // of the weight
static struct ggml_tensor *streamed, *plain;

static struct ggml_context *new_context(void) {
    struct ggml_init_params params = {.mem_size = 1 << 20, .no_alloc = true};
    return ggml_init(params);
}

// A weight of each kind: one in a mapped file, given to our buffer type; the same in the CPU's memory.
static int setup(void **state) {
    (void)state;
    char path[] = "graphs-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    unlink(path); // the plugin finds the file by the descriptor
    values = malloc(WEIGHTS * sizeof *values);
    for (size_t i = 0; i < WEIGHTS; i++) {
        values[i] = (float)(int)(i * 2654435761u >> 20 & 2047) / 1024.0f - 1.0f;
    }
    assert_int_equal(write(fd, values, WEIGHTS * sizeof *values), WEIGHTS * sizeof *values);
    const float *mapping = mmap(NULL, WEIGHTS * sizeof *values, PROT_READ, MAP_SHARED, fd, 0);
    ggml_backend_dev_t device = ggml_backend_dev_by_name("GUANACO");
    assert_non_null(device);
    struct ggml_context *context = new_context(), *cpu_context = new_context();
    streamed = ggml_new_tensor_3d(context, GGML_TYPE_F32, WIDTH, OUT, EXPERTS);
    ggml_set_name(streamed, "blk.0.ffn_gate_exps.weight");
    ggml_backend_buffer_t buffer =
        ggml_backend_alloc_ctx_tensors_from_buft(context, ggml_backend_dev_buffer_type(device));
    ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    ggml_backend_tensor_set(streamed, mapping, 0, ggml_nbytes(streamed));
    ours = ggml_backend_dev_init(device, NULL);
    cpu = ggml_backend_dev_init(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), NULL);
    assert_non_null(ours);
    plain = ggml_new_tensor_3d(cpu_context, GGML_TYPE_F32, WIDTH, OUT, EXPERTS);
    ggml_backend_alloc_ctx_tensors(cpu_context, cpu);
    ggml_backend_tensor_set(plain, values, 0, ggml_nbytes(plain));
    return 0;
}

struct product {
    bool claimed;
    enum ggml_status status;
    float out[OUT * USED * TOKENS];
};

// weight x rows[WIDTH, per_token, TOKENS], routed by ids that start at first_id.
static struct product multiply(ggml_backend_t backend, struct ggml_tensor *weight, int per_token, int first_id) {
    struct ggml_context *context = new_context();
    struct ggml_tensor *rows = ggml_new_tensor_3d(context, GGML_TYPE_F32, WIDTH, per_token, TOKENS);
    struct ggml_tensor *ids = ggml_new_tensor_2d(context, GGML_TYPE_I32, USED, TOKENS);
    struct ggml_tensor *out = ggml_mul_mat_id(context, weight, rows, ids);
    struct ggml_cgraph *graph = ggml_new_graph(context);
    ggml_build_forward_expand(graph, out);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(context, backend);
    int32_t chosen[USED * TOKENS];
    float inputs[WIDTH * USED * TOKENS];
    for (int i = 0; i < USED * TOKENS; i++) {
        chosen[i] = first_id + i % 4;
    }
    for (int i = 0; i < WIDTH * per_token * TOKENS; i++) {
        inputs[i] = (float)(i * 37 % 199) / 100.0f - 1.0f;
    }
    ggml_backend_tensor_set(rows, inputs, 0, ggml_nbytes(rows));
    ggml_backend_tensor_set(ids, chosen, 0, ggml_nbytes(ids));
    struct product product = {.claimed = ggml_backend_supports_op(backend, out)};
    product.status = ggml_backend_graph_compute(backend, graph);
    ggml_backend_tensor_get(out, product.out, 0, ggml_nbytes(out));
    ggml_backend_buffer_free(buffer);
    ggml_free(context);
    return product;
}

static void products_have_the_cpu_backends_bits(void **state) {
    (void)state;
    for (int per_token = 1; per_token <= USED; per_token += USED - 1) {
        struct product a = multiply(ours, streamed, per_token, 2), b = multiply(cpu, plain, per_token, 2);
        assert_true(a.claimed);
        assert_int_equal(a.status, GGML_STATUS_SUCCESS);
        assert_memory_equal(a.out, b.out, sizeof a.out);
    }
}

static void rows_that_repeat_otherwise_are_refused(void **state) {
    (void)state;
    struct product product = multiply(ours, streamed, 2, 0);
    assert_false(product.claimed);
    assert_int_equal(product.status, GGML_STATUS_FAILED);
}

static void views_of_some_experts_are_refused(void **state) {
    (void)state;
    struct ggml_context *context = new_context();
    struct ggml_tensor *half = ggml_view_3d(context, streamed, WIDTH, OUT, EXPERTS / 2, streamed->nb[1],
                                            streamed->nb[2], streamed->nb[2] * (EXPERTS / 2));
    ggml_backend_view_init(half);
    struct product product = multiply(ours, half, 1, 0);
    assert_false(product.claimed);
    assert_int_equal(product.status, GGML_STATUS_FAILED);
    ggml_free(context);
}

static void weights_can_be_read_back(void **state) {
    (void)state;
    struct ggml_context *context = new_context();
    struct ggml_tensor *view =
        ggml_view_3d(context, streamed, WIDTH, OUT, 2, streamed->nb[1], streamed->nb[2], streamed->nb[2] * 3);
    ggml_backend_view_init(view);
    float some[WIDTH];
    ggml_backend_tensor_get(view, some, 64, sizeof some);
    assert_memory_equal(some, values + (size_t)3 * WIDTH * OUT + 16, sizeof some);
    ggml_backend_tensor_get(streamed, some, 4096, sizeof some);
    assert_memory_equal(some, values + 1024, sizeof some);
    ggml_free(context);
}

static void experts_out_of_range_fail_the_graph_alone(void **state) {
    (void)state;
    assert_int_equal(multiply(ours, streamed, 1, EXPERTS - 2).status, GGML_STATUS_FAILED);
    assert_int_equal(multiply(ours, streamed, 1, -1).status, GGML_STATUS_FAILED);
    products_have_the_cpu_backends_bits(state);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        print_error("usage: test_graphs PLUGIN\n");
        return 2;
    }
    load_backends();
    if (!ggml_backend_load(argv[1])) {
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_have_the_cpu_backends_bits),
        cmocka_unit_test(rows_that_repeat_otherwise_are_refused),
        cmocka_unit_test(views_of_some_experts_are_refused),
        cmocka_unit_test(weights_can_be_read_back),
        cmocka_unit_test(experts_out_of_range_fail_the_graph_alone),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
