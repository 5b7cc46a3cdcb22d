// The backend itself, on graphs that llama.cpp does not build today: what it claims has the CPU backend's bits, what it
// cannot do it refuses, and if it is made to run it, it fails rather than compute with bytes it does not have.
//
//     test_graphs PLUGIN CPU_LIBRARY_FOLDER
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backends.h"

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { WIDTH = 256, OUT = 64, EXPERTS = 8, USED = 4, TOKENS = 3, MANY_TOKENS = 9000 };
#define WEIGHTS ((size_t)WIDTH * OUT * EXPERTS)

static ggml_backend_t ours, cpu;
static float *values;                                      // of the weight
static struct ggml_tensor *streamed, *plain;               // F32
static struct ggml_tensor *streamed_halves, *plain_halves; // the same values, F16: inputs are converted

static struct ggml_context *new_context(void) {
    struct ggml_init_params params = {.mem_size = 1 << 20, .no_alloc = true};
    return ggml_init(params);
}

// A weight of each kind: one in a mapped file, given to our buffer type; the same in the CPU's memory.
static void make_weights(enum ggml_type type, const void *bytes, struct ggml_tensor **in_file,
                         struct ggml_tensor **in_memory) {
    char path[] = "graphs-test-XXXXXX";
    int fd = mkstemp(path);
    size_t size = ggml_row_size(type, WIDTH) * OUT * EXPERTS;
    assert_true(fd >= 0);
    unlink(path); // the plugin finds the file by the descriptor
    assert_int_equal(write(fd, bytes, size), size);
    const void *mapping = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    struct ggml_context *context = new_context(), *cpu_context = new_context();
    *in_file = ggml_new_tensor_3d(context, type, WIDTH, OUT, EXPERTS);
    ggml_set_name(*in_file, "blk.0.ffn_gate_exps.weight");
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors_from_buft(
        context, ggml_backend_dev_buffer_type(ggml_backend_dev_by_name("GUANACO")));
    ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    ggml_backend_tensor_set(*in_file, mapping, 0, size);
    *in_memory = ggml_new_tensor_3d(cpu_context, type, WIDTH, OUT, EXPERTS);
    ggml_backend_alloc_ctx_tensors(cpu_context, cpu);
    ggml_backend_tensor_set(*in_memory, bytes, 0, size);
}

static int setup(void **state) {
    (void)state;
    ggml_backend_dev_t device = ggml_backend_dev_by_name("GUANACO");
    assert_non_null(device);
    ours = ggml_backend_dev_init(device, NULL);
    cpu = ggml_backend_dev_init(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), NULL);
    assert_non_null(ours);
    values = malloc(WEIGHTS * sizeof *values);
    for (size_t i = 0; i < WEIGHTS; i++) {
        values[i] = (float)(int)(i * 2654435761u >> 20 & 2047) / 1024.0f - 1.0f;
    }
    ggml_fp16_t *halves = malloc(WEIGHTS * sizeof *halves);
    ggml_fp32_to_fp16_row(values, halves, WEIGHTS);
    make_weights(GGML_TYPE_F32, values, &streamed, &plain);
    make_weights(GGML_TYPE_F16, halves, &streamed_halves, &plain_halves);
    free(halves);
    return 0;
}
struct product {
    bool claimed;
    enum ggml_status status;
    float out[OUT * USED * TOKENS];
};

// What a product's inputs look like.
struct inputs {
    int64_t per_token, n_tokens;
    int first_id;
    bool apart;  // every token's rows are followed by something else
    bool reused; // the result lies on them
};

// The rows, as a tensor or as a view of a larger one.
static struct ggml_tensor *make_rows(struct ggml_context *context, const struct inputs *inputs) {
    int64_t n = inputs->per_token, more = inputs->apart ? n + 1 : n;
    struct ggml_tensor *rows = ggml_new_tensor_3d(context, GGML_TYPE_F32, WIDTH, more, inputs->n_tokens);
    return inputs->apart ? ggml_view_3d(context, rows, WIDTH, n, inputs->n_tokens, rows->nb[1], rows->nb[2], 0) : rows;
}

static void fill(struct ggml_tensor *rows, struct ggml_tensor *ids, int first_id) {
    int64_t n_ids = ggml_nelements(ids), n_all = ggml_nelements(rows);
    int32_t *chosen = malloc((size_t)n_ids * sizeof *chosen);
    float *values_in = malloc((size_t)n_all * sizeof *values_in);
    for (int64_t i = 0; i < n_ids; i++) {
        chosen[i] = first_id + (int32_t)(i % 4);
    }
    for (int64_t i = 0; i < n_all; i++) {
        values_in[i] = (float)(i * 37 % 199) / 100.0f - 1.0f;
    }
    ggml_backend_tensor_set(rows, values_in, 0, ggml_nbytes(rows));
    ggml_backend_tensor_set(ids, chosen, 0, ggml_nbytes(ids));
    free(chosen);
    free(values_in);
}

// weight x rows, routed by ids that start at first_id. The result is to be freed.
static float *multiply_rows(ggml_backend_t backend, struct ggml_tensor *weight, const struct inputs *inputs,
                            bool *claimed, enum ggml_status *status) {
    struct ggml_context *context = new_context();
    struct ggml_tensor *rows = make_rows(context, inputs);
    struct ggml_tensor *ids = ggml_new_tensor_2d(context, GGML_TYPE_I32, USED, inputs->n_tokens);
    struct ggml_tensor *out = ggml_mul_mat_id(context, weight, rows, ids);
    struct ggml_cgraph *graph = ggml_new_graph(context);
    ggml_build_forward_expand(graph, out);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(context, backend);
    fill(rows->view_src ? rows->view_src : rows, ids, inputs->first_id);
    if (inputs->reused) {
        assert_true(ggml_nbytes(out) <= ggml_nbytes(rows));
        out->data = rows->data;
    }
    *claimed = ggml_backend_supports_op(backend, out);
    *status = ggml_backend_graph_compute(backend, graph);
    float *result = malloc(ggml_nbytes(out));
    ggml_backend_tensor_get(out, result, 0, ggml_nbytes(out));
    ggml_backend_buffer_free(buffer);
    ggml_free(context);
    return result;
}

static struct product multiply(ggml_backend_t backend, struct ggml_tensor *weight, int per_token, int first_id) {
    struct product product;
    struct inputs inputs = {.per_token = per_token, .n_tokens = TOKENS, .first_id = first_id};
    float *out = multiply_rows(backend, weight, &inputs, &product.claimed, &product.status);
    memcpy(product.out, out, sizeof product.out);
    free(out);
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

// Many rows of an expert, in several groups; inputs that do not lie one after another, or that the result is written
// over, as ggml does with what it thinks dead.
static void inputs_of_any_kind_are_read_right(void **state) {
    (void)state;
    struct ggml_tensor *const weights[][2] = {{streamed, plain}, {streamed_halves, plain_halves}};
    for (int w = 0; w < 2; w++) {
        for (int kind = 0; kind < (w == 0 ? 8 : 16); kind++) {
            bool reused = kind & 1;
            struct inputs inputs = {.per_token = kind & 2 ? USED : 1,
                                    .n_tokens = kind & 8 ? MANY_TOKENS : TOKENS,
                                    .first_id = 2,
                                    .apart = kind & 4,
                                    .reused = reused};
            bool claimed;
            enum ggml_status status;
            float *a = multiply_rows(ours, weights[w][0], &inputs, &claimed, &status);
            assert_int_equal(status, GGML_STATUS_SUCCESS);
            inputs.reused = false; // the CPU backend itself would read what it has just written
            float *b = multiply_rows(cpu, weights[w][1], &inputs, &claimed, &status);
            assert_memory_equal(a, b, (size_t)(OUT * USED * inputs.n_tokens) * sizeof *a);
            free(a);
            free(b);
        }
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
    if (!load_backends() || !ggml_backend_load(argv[1])) {
        print_error("cannot load the CPU's backend beside libllama, or the plugin\n");
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_have_the_cpu_backends_bits),
        cmocka_unit_test(inputs_of_any_kind_are_read_right),
        cmocka_unit_test(rows_that_repeat_otherwise_are_refused),
        cmocka_unit_test(views_of_some_experts_are_refused),
        cmocka_unit_test(weights_can_be_read_back),
        cmocka_unit_test(experts_out_of_range_fail_the_graph_alone),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
