#include "backend/product_check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH 512 // blocks of any type
#define N_OUT 64
#define FEW 3u
#define MANY 33u
#define MOST_TYPES 256u // that a ggml may have

// What is known of a type.
enum { UNKNOWN, NONE, A_FEW, ANY };
static _Atomic unsigned char known[MOST_TYPES];

struct trial {
    uint8_t *weights, *quantised;
    float inputs[MANY * WIDTH], theirs[MANY * N_OUT], ours[MANY * N_OUT];
    int32_t ids[MANY];
};

static uint32_t next_random(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 16;
}

// Bytes that make finite numbers, neither huge nor tiny, whatever a type takes them for.
static void fill(struct trial *trial, size_t weight_bytes) {
    uint32_t state = 1;
    for (size_t i = 0; i < weight_bytes; i++) {
        trial->weights[i] = (uint8_t)(0x20 | (next_random(&state) & 0x1f));
    }
    for (size_t i = 0; i < (size_t)MANY * WIDTH; i++) {
        trial->inputs[i] = (float)next_random(&state) / 32768 - 1;
    }
}

static void add_theirs(struct trial *trial, enum ggml_type type, uint32_t n_rows, struct ggml_context *context,
                       struct ggml_cgraph *graph) {
    struct ggml_tensor *weights = ggml_new_tensor_3d(context, type, WIDTH, N_OUT, 1);
    struct ggml_tensor *rows = ggml_new_tensor_3d(context, GGML_TYPE_F32, WIDTH, 1, n_rows);
    struct ggml_tensor *ids = ggml_new_tensor_2d(context, GGML_TYPE_I32, 1, n_rows);
    struct ggml_tensor *product = ggml_mul_mat_id(context, weights, rows, ids);
    weights->data = trial->weights;
    rows->data = trial->inputs;
    ids->data = trial->ids;
    product->data = trial->theirs;
    ggml_build_forward_expand(graph, product);
}

// Whether both ways make the same bits of n_rows. *done: the graph ran.
static bool agree(struct trial *trial, ggml_backend_t cpu, gn_cpu_traits_fn traits, enum ggml_type type,
                  uint32_t n_rows, bool *done) {
    const struct ggml_type_traits_cpu *of_type = traits(type);
    const uint8_t *weights = trial->weights;
    uint32_t first[] = {0, n_rows};
    struct gn_product_job job = {
        .width = WIDTH,
        .inputs = trial->inputs,
        .input_stride = WIDTH * sizeof(float),
        .n_inputs = n_rows,
        .n_experts = 1,
        .first = first,
        .n_products = 1,
        .product = {{.weights = &weights,
                     .weight_stride = ggml_row_size(type, WIDTH),
                     .n_out = N_OUT,
                     .out = trial->ours,
                     .dot = of_type->vec_dot}},
        .quantise = of_type->vec_dot_type == GGML_TYPE_F32 ? NULL : traits(of_type->vec_dot_type)->from_float,
        .quantised = trial->quantised,
        .quantised_stride = ggml_row_size(of_type->vec_dot_type, WIDTH),
    };
    struct ggml_init_params params = {.mem_size = 16 * ggml_tensor_overhead() + ggml_graph_overhead(),
                                      .no_alloc = true};
    struct ggml_context *context = ggml_init(params);
    *done = false;
    if (!context) {
        return false;
    }
    struct ggml_cgraph *graph = ggml_new_graph(context);
    add_theirs(trial, type, n_rows, context, graph);
    gn_product_job_build(&job, 1, context, graph);
    *done = ggml_backend_graph_compute(cpu, graph) == GGML_STATUS_SUCCESS;
    ggml_free(context);
    return *done && !memcmp(trial->theirs, trial->ours, (size_t)n_rows * N_OUT * sizeof(float));
}

// UNKNOWN when it could not be tried.
static unsigned char try(ggml_backend_t cpu, gn_cpu_traits_fn traits, enum ggml_type type) {
    size_t weight_bytes = ggml_row_size(type, WIDTH) * N_OUT;
    struct trial *trial = calloc(1, sizeof *trial);
    bool done = false;
    unsigned char verdict = UNKNOWN;
    if (trial) {
        trial->weights = malloc(weight_bytes);
        trial->quantised = malloc(MANY * ggml_row_size(traits(type)->vec_dot_type, WIDTH));
        if (trial->weights && trial->quantised) {
            fill(trial, weight_bytes);
            bool few = agree(trial, cpu, traits, type, FEW, &done), many = false;
            if (few) {
                many = agree(trial, cpu, traits, type, MANY, &done);
            }
            verdict = !done ? UNKNOWN : many ? ANY : few ? A_FEW : NONE;
        }
        free(trial->weights);
        free(trial->quantised);
        free(trial);
    }
    return verdict;
}

uint32_t gn_product_rows(ggml_backend_t cpu, gn_cpu_traits_fn traits, enum ggml_type type) {
    const struct ggml_type_traits_cpu *of_type = traits ? traits(type) : NULL;
    if ((unsigned)type >= MOST_TYPES || !of_type || !of_type->vec_dot || WIDTH % ggml_blck_size(type) != 0) {
        return 0;
    }
    if (known[type] == UNKNOWN) {
        known[type] = try(cpu, traits, type);
    }
    return known[type] == ANY ? UINT32_MAX : known[type] == A_FEW ? FEW : 0;
}
