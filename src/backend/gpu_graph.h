// A MoE layer's products and what lies between them as a graph for a device, over the rows of the experts that it
// holds. The same nodes as the CPU computes for the others (moe_run.h), but all experts at once, by the device's own
// MUL_MAT_ID over its slots.
#pragma once

#include "backend/gpu_pool.h"
#include "backend/moe_run.h"
#include "backend/rows.h"

#include "ggml-alloc.h"

// Rows that a graph takes at most: what their copies in page-locked memory may take.
#define GN_GPU_ROWS 1024

struct gn_gpu_graph {
    void *memory; // of the context
    struct ggml_context *context;
    struct ggml_cgraph *graph;
    ggml_gallocr_t allocator;
    struct ggml_tensor *ids; // I32: the slot of each row's expert
    struct ggml_tensor *inputs[GN_RUN_INPUTS];
    struct ggml_tensor *nodes[GN_RUN_NODES];
    struct {
        struct ggml_tensor *tensor;       // the device's
        const struct ggml_tensor *source; // bytes in host memory
    } whole[GN_RUN_NODES];
    uint32_t n_whole;
    ggml_backend_buffer_t rows_buffer; // page-locked, or NULL
    uint8_t *rows;                     // host copies of ids, inputs and results
    size_t rows_bytes;
    uint8_t *results; // in rows
    struct gn_row_copies copies;
};

// Says what an expert is made of in this run, in the order of the nodes that use the parts. False: a device cannot hold
// that.
bool gn_gpu_shape_of(const struct gn_moe_run *run, struct gn_gpu_shape *shape);
// Where the bytes of an expert's parts are. slices: in memory.
void gn_gpu_parts_of(const struct gn_moe_run *run, uint32_t expert, const uint8_t *const *slices, const void **parts);
// A number that runs with the same operations, in the same way connected, have in common.
uint64_t gn_gpu_signature(const struct gn_moe_run *run);

bool gn_gpu_graph_open(struct gn_gpu_graph *graph, ggml_backend_buffer_type_t type); // false: no memory
void gn_gpu_graph_close(struct gn_gpu_graph *graph);

// Whether the device can run every operation of the run.
bool gn_gpu_graph_supported(const struct gn_moe_run *run, ggml_backend_dev_t device, const struct gn_gpu_shape *shape);

// Takes the device's and the page-locked memory for graphs of the run with up to n_rows rows. False: it has not got it.
bool gn_gpu_graph_reserve(struct gn_gpu_graph *graph, const struct gn_moe_run *run, struct gn_gpu_device *gpu,
                          const struct gn_gpu_shape *shape, uint32_t n_rows);
size_t gn_gpu_graph_bytes(const struct gn_gpu_graph *graph); // of the device's memory

// Begins to compute the experts run->n_cpu … n_experts-1 of a sorted run, which are in run->slots of the pool. Returns
// GGML_STATUS_ALLOC_FAILED when memory is short: nothing has begun then.
enum ggml_status gn_gpu_graph_start(struct gn_gpu_graph *graph, struct gn_moe_run *run, struct gn_scratch *scratch,
                                    struct gn_gpu_device *gpu, const struct gn_gpu_pool *pool);
// Waits for it, and copies the results to where ggml expects them.
void gn_gpu_graph_finish(struct gn_gpu_graph *graph, struct gn_moe_run *run, struct gn_gpu_device *gpu);
