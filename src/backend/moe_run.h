// A MoE layer as it stands in a graph: products with one layer's expert weights, all routed by the same ids, and the
// row-wise operations between them. Collected node by node, then built anew for each group of experts over compact
// rows.
//
//     gn_moe_run_add() …        collect nodes, until one does not belong
//     gn_moe_run_count()        which experts are used
//     gn_moe_run_sort()         which rows belong to which expert
//     gn_moe_run_plan()         how the CPU makes the products
//     for each group of experts: gn_moe_run_build(), compute, gn_moe_run_scatter()
//     gn_moe_run_clear()
//
// A row is one (token, k-th choice) pair. Compact arrays hold the rows of a group's experts one after another: [ne0, 1,
// rows].
#pragma once

#include "backend/backend.h"
#include "backend/products.h"
#include "backend/scratch.h"
#include "exec/fetch.h"

#define GN_RUN_NODES 24
#define GN_RUN_INPUTS 12

// Where a node's operand comes from.
enum gn_operand_kind {
    GN_OPERAND_NONE,
    GN_OPERAND_NODE,   // an earlier node's rows, perhaps a column range of them
    GN_OPERAND_INPUT,  // rows from outside
    GN_OPERAND_WHOLE,  // passed as it is: a bias matrix, a vector
    GN_OPERAND_IDS,    // the expert of each row
    GN_OPERAND_WEIGHT, // expert weights
};

struct gn_operand {
    enum gn_operand_kind kind;
    uint8_t index; // of the node or input
    size_t column; // byte offset in a row
    struct ggml_tensor *tensor;
};

struct gn_run_node {
    struct ggml_tensor *tensor;
    struct gn_operand operand[3];
    bool scatter;          // no later node of the run lies on its memory
    float *rows;           // compact
    bool job;              // a product of ours (products.h), else ggml_mul_mat_id's
    bool takes_tokens;     // a job whose input rows are the batch's tokens
    uint8_t tokens;        // the first node that takes the same ones, quantised alike
    uint8_t *quantised;    // of that first node: the tokens, once for all groups
    bool quantised_before; // that is done
};

struct gn_run_input {
    struct ggml_tensor *tensor; // [ne0, n_used or 1, n_tokens]
    const uint8_t *data;        // its bytes, or a copy of them
    bool saved;                 // a copy, because a result lies on them
    bool per_token;             // a token's rows are all the same, and jobs alone take it: it is not gathered
    float *rows;                // compact, when gathered
};

struct gn_moe_run {
    ggml_backend_t cpu;
    gn_cpu_traits_fn traits; // of the CPU backend; NULL: products are left to ggml_mul_mat_id
    int n_threads;           // that will compute
    struct gn_stream *stream;
    const struct gn_layer *layer;
    const struct ggml_tensor *ids; // [n_used, n_tokens]
    int64_t n_used, n_tokens;
    uint32_t slices; // bit s: slice s is used
    struct gn_run_node nodes[GN_RUN_NODES];
    uint32_t n_nodes;
    struct gn_run_input inputs[GN_RUN_INPUTS];
    uint32_t n_inputs;
    struct gn_deferred deferred; // until computing waits for an expert that is on its way
    bool arriving;               // experts may be still on their way when their graph is computed
    bool gathers;                // some inputs are gathered
    bool scatters;               // the graph built last copies its results out by itself
    size_t row_bytes;            // compact memory one row needs, if all inputs are gathered
    size_t compact_bytes;        // the same, of those that the plan has gathered

    uint32_t *experts; // [n_experts] used: first those that the CPU computes, then those on a device, each ascending
    uint32_t n_experts, n_cpu;
    uint32_t *slots;     // [n_experts] of the device, beside those on it
    uint32_t *held;      // [n_experts] for whoever sorts them out
    uint32_t *count;     // [experts of the layer] rows of each
    uint32_t *next;      // [experts of the layer] where each one's next row goes
    uint32_t *row_start; // [n_experts + 1] into rows[]
    uint32_t *rows;      // token * n_used + k, sorted by expert
    char error[160];
};

// Adds a node if it belongs; false if it does not.
bool gn_moe_run_add(struct gn_moe_run *run, struct ggml_tensor *node);

// Finds the experts that are used, and how many rows each has, checking the ids. Returns 0, or -EINVAL or -ENOMEM with
// run->error.
int gn_moe_run_count(struct gn_moe_run *run, struct gn_scratch *scratch);

// Sorts the rows by expert, in the order that run->experts has by now. Returns 0, or -ENOMEM with run->error.
int gn_moe_run_sort(struct gn_moe_run *run, struct gn_scratch *scratch);

static inline uint32_t gn_moe_run_rows(const struct gn_moe_run *run, uint32_t expert) {
    return run->row_start[expert + 1] - run->row_start[expert];
}

// Decides how the CPU's products are made, and which inputs they take where they lie: a device that gathers its rows
// from all inputs has done so by then. Returns 0, or -ENOMEM with run->error.
int gn_moe_run_plan(struct gn_moe_run *run, struct gn_scratch *scratch);

// Bytes of one input row as a job's routine wants it, padded; 0: as it is.
size_t gn_quantised_bytes(const struct gn_moe_run *run, const struct gn_run_node *node);

// Whether two products take the same input rows, quantised alike.
bool gn_same_input(const struct gn_moe_run *run, const struct gn_run_node *a, const struct gn_run_node *b);

// Whether the run's graphs can wait for weights: all products are jobs. After the plan.
bool gn_moe_run_can_wait(const struct gn_moe_run *run);

// Builds the graph of n ready experts, and gathers their rows or leaves that to the graph. NULL when memory is short.
// The graph is the scratch's, until the next build.
struct ggml_cgraph *gn_moe_run_build(struct gn_moe_run *run, struct gn_scratch *scratch, const struct gn_ready *ready,
                                     uint32_t n);
// Copies the results of that graph, which has run, to where ggml expects them.
void gn_moe_run_scatter(struct gn_moe_run *run, const struct gn_ready *ready, uint32_t n);
void gn_moe_run_clear(struct gn_moe_run *run);
