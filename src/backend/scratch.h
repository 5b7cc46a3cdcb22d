// Memory that a backend uses again for every graph: grown when needed, kept. Not thread-safe: one per backend.
#pragma once

#include "ggml.h"

#include <stddef.h>
#include <stdint.h>

enum gn_scratch_part {
    GN_SCRATCH_ROWS,     // compact rows
    GN_SCRATCH_COPIES,   // inputs that a result lies on
    GN_SCRATCH_SORT,     // rows sorted by expert
    GN_SCRATCH_IDS,      // expert ids for products and biases
    GN_SCRATCH_JOBS,     // a group's products, with their quantised rows
    GN_SCRATCH_TOKENS,   // quantised inputs of a whole batch
    GN_SCRATCH_COPY_JOB, // what is copied in and out of the compact rows
    GN_SCRATCH_GUESS,    // a router's input and scores
    GN_SCRATCH_GPU,      // the experts that a device computes
    GN_SCRATCH_GRAPH,    // ggml's tensors and graph
    GN_SCRATCH_PARTS
};

struct gn_scratch {
    void *memory[GN_SCRATCH_PARTS];
    size_t bytes[GN_SCRATCH_PARTS];
    struct ggml_context *context; // over memory[GN_SCRATCH_GRAPH]
};

// Returns at least `bytes` of the part, aligned to 64, NULL when memory is short. Contents are kept only when it need
// not grow.
void *gn_scratch_get(struct gn_scratch *scratch, enum gn_scratch_part part, size_t bytes);

// Returns an empty graph for n nodes, each with up to three operands made in scratch->context. What was made there
// before is gone. NULL when memory is short.
struct ggml_cgraph *gn_scratch_graph(struct gn_scratch *scratch, size_t n);

void gn_scratch_free(struct gn_scratch *scratch);
