// Expert products: one graph node computes them for all experts of a group, and for gate and up together, where a
// ggml_mul_mat_id each would cost two barriers an expert and quantise each row once for every expert that takes it.
// It calls the CPU backend's own routines, a row of weights and a quantised row of activations at a time, as
// ggml_mul_mat_id does; where that has the same bits product_check.h finds out.
//
// Weights that are still being read are multiplied last, each expert's when it is there: the thread that runs the graph
// takes in the reads, the others wait for it.
//
// Method: ggml's mul_mat_id (ggml-cpu.c) without its sorting by expert, which is done already.
#pragma once

#include "backend/scratch.h"
#include "exec/fetch.h"

#include "ggml-backend.h"
#include "ggml-cpu.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GN_JOB_PRODUCTS 2

// The CPU backend's routines for a weight type, or NULL.
typedef const struct ggml_type_traits_cpu *(*gn_cpu_traits_fn)(enum ggml_type type);

// Finds ggml_get_type_traits_cpu() in the CPU backend that this process has loaded; NULL when it does not export it.
gn_cpu_traits_fn gn_find_cpu_traits(ggml_backend_reg_t cpu);

// Something else to be done while computing waits; done once, by the thread that runs the graph.
struct gn_deferred {
    void (*call)(void *context); // NULL: nothing, or done
    void *context;
};

// The products of one set of rows with up to two weights of each expert. Set up by the caller; must stay until the
// graph has run.
struct gn_product_job {
    int64_t width;       // of an input row, and of a weight row
    const float *inputs; // [n_inputs]
    size_t input_stride; // bytes from one to the next
    uint32_t n_inputs;
    const uint32_t *input_of; // [rows of all experts] the input of each; NULL: row r's is r
    uint32_t n_experts;       // of the group
    const uint32_t *first;    // [n_experts + 1] first row of each expert
    uint32_t n_products;
    struct {
        const uint8_t *const *weights; // [n_experts] each expert's weights
        size_t weight_stride;          // bytes from one weight row to the next
        uint32_t slice;                // which of the experts' slices they are
        int64_t n_out;                 // weight rows
        float *out;                    // [rows][n_out]
        ggml_vec_dot_t dot;
        uint32_t n_chunks; // set by the build, as the next
        int64_t chunk;     // weight rows of each, the last may have fewer
    } product[GN_JOB_PRODUCTS];
    // NULL: all weights are in memory. Else they may be still arriving: the slices of the event's experts that
    // `arriving` names, in the order of the group.
    struct gn_stream *stream;
    const struct gn_ready *arriving; // [n_experts]
    struct gn_deferred *deferred;    // with `stream` alone
    ggml_from_float_t quantise;      // NULL: inputs are used as they are
    uint8_t *quantised;              // [n_inputs][quantised_stride]
    size_t quantised_stride;
    bool quantised_before;                            // by another graph
    uint32_t n_chunks;                                // of one expert, all products together; set by the build
    atomic_uint_fast32_t next_quantise, next_product; // shared out among the threads
};

void gn_do_deferred(struct gn_deferred *deferred);

// Adds the job to the graph: a node that quantises the inputs, unless that is done, and one that multiplies. n_threads:
// that will run the graph.
void gn_product_job_build(struct gn_product_job *job, int n_threads, struct ggml_context *context,
                          struct ggml_cgraph *graph);
