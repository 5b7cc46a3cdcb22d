// Copies rows between the tensors of ggml's graph and the compact arrays of a group of experts (moe_run.h).
#pragma once

#include "backend/moe_run.h"

// A group's copies, as work for a graph node. Set up by the caller; must stay until the graph has run.
struct gn_row_copies {
    const struct gn_moe_run *run;
    const struct gn_ready *ready; // [n] the group's experts
    uint32_t n;
};

// Thread `ith` of `nth` copies its share of the rows: into the compact arrays those of all inputs that jobs do not take
// where they lie, or all results' to where ggml expects them.
void gn_rows_gather(const struct gn_row_copies *copies, int ith, int nth);
void gn_rows_scatter(const struct gn_row_copies *copies, int ith, int nth);

// The same as nodes that all threads share.
void gn_rows_gather_node(struct gn_row_copies *copies, struct ggml_context *context, struct ggml_cgraph *graph);
void gn_rows_scatter_node(struct gn_row_copies *copies, struct ggml_context *context, struct ggml_cgraph *graph);
