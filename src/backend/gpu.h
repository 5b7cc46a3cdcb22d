// The device tiers of one model: its most used experts, held and computed by a GPU while the CPU computes the others.
// What ggml calls a device is one, whatever it is: Vulkan, CUDA.
//
// The tiers open by themselves once all layers have been seen, or all that run: then it is known what an expert is made
// of, what the device can compute, and, with the context's memory taken, what is free. One event:
//
//     gn_gpu_begin(gpu, run, …)             of a run that was counted and is not sorted: its experts on the device are
//                                           put behind the others, run->n_cpu says where
//     gn_gpu_start(gpu, run, scratch)       of the sorted run
//     …the CPU's part…
//     gn_gpu_finish(gpu, run)               merges the results
//     gn_gpu_end(gpu, run, done)            has used experts come up, if all went well
//
// Under the stream's lock.
#pragma once

#include "backend/moe_run.h"

struct gn_gpu;

// The model's tiers. NULL: none are asked for, there is no device, or memory is short; a line has said so where it was
// asked for. Opens them on the first call.
struct gn_gpu *gn_gpu_of(struct gn_stream *stream, const struct gn_knobs *knobs);
void gn_gpu_close(struct gn_gpu *gpu); // once its stream is closed; NULL is allowed

// Returns whether a tier serves the run; if not, the other calls are not to be made. left_out: since the last run a
// layer has come with no tokens to compute.
bool gn_gpu_begin(struct gn_gpu *gpu, struct gn_moe_run *run, bool prefill, bool left_out);
// Begins to compute what is on the device. GGML_STATUS_ALLOC_FAILED: it cannot, a line has said so, and all is the
// CPU's: to be counted and sorted again. Another failure is the graph's.
enum ggml_status gn_gpu_start(struct gn_gpu *gpu, struct gn_moe_run *run, struct gn_scratch *scratch);
void gn_gpu_finish(struct gn_gpu *gpu, struct gn_moe_run *run);
void gn_gpu_end(struct gn_gpu *gpu, const struct gn_moe_run *run, bool done);

// Appends "; Vulkan0 computes up to …" for each open tier. Returns its length. NULL is allowed.
size_t gn_gpu_describe(const struct gn_gpu *gpu, char *text, size_t size);
