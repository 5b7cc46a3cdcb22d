// The parts of the ggml plugin, to each other. ggml's own structures are described in ggml-backend-impl.h.
//
//   plugin.c     registration, device, backend: what ggml calls first
//   buffer.c     the buffer type that expert tensors are loaded into
//   start.c      starts the streams of what was loaded, and tells of them
//   recognise.c  which operations we claim
//   compute.c    runs a graph: experts as they arrive, anything else through the CPU backend
#pragma once

#include "backend/host.h"
#include "config/knobs.h"
#include "exec/stream.h"
#include "guanaco.h"

#include "ggml-backend-impl.h"
#include "ggml-backend.h"
#include "ggml.h"

#include <stdbool.h>

#define GN_NAME "GUANACO"

// What tensor->extra of a streamed weight points to. A weight without it lies in memory, in its buffer.
struct gn_weight {
    struct gn_stream *stream;
    struct gn_layer *layer; // NULL: its bytes are nowhere, and the stream is broken
    uint32_t slice;
};

// plugin.c
const struct gn_knobs *gn_settings(void); // as the environment had them when the plugin was loaded
unsigned gn_weights_asked(void);          // weights of any kind that a loader has asked us about

// buffer.c
void gn_buffer_type_of(ggml_backend_dev_t device); // to be called before all else
ggml_backend_buffer_type_t gn_buffer_type(void);   // the one buffer type
bool gn_is_our_buffer(const struct ggml_backend_buffer *buffer);
const struct gn_weight *gn_streamed_weight(const struct ggml_tensor *tensor); // NULL: not streamed
bool gn_is_whole_weight(const struct ggml_tensor *tensor);                    // and not a view of some of its experts

// start.c
// Starts the streams of all models loaded so far: protects dense weights, checks budgets. Returns 0 or a negative errno
// after gn_fail().
int gn_start_streams(const struct gn_knobs *knobs);
// Sizes a stream for its first graph, and says how it streams. Returns as above. Call with the stream's lock held; it
// is let go meanwhile.
int gn_ready_stream(struct gn_stream *stream, const struct gn_knobs *knobs);
// Starts what is not started and describes it: the line of guanaco_mode().
void gn_describe_streams(const struct gn_knobs *knobs, char *text, size_t size);

int gn_layer_stats(uint32_t model, uint32_t layer, struct guanaco_layer_stats *stats); // guanaco_layer_stats_fn

// recognise.c
bool gn_is_view(const struct ggml_tensor *op);     // moves no data
bool gn_is_row_wise(const struct ggml_tensor *op); // works on each row by itself
bool gn_is_expert_weight(const char *name);        // routed experts only: no biases, scales or adapters
bool gn_claims(const struct ggml_tensor *op);
unsigned gn_weights_offered(void); // expert weights that a loader has offered us and we took, in all

// compute.c
struct gn_compute;
struct gn_compute *gn_compute_open(const struct gn_knobs *knobs); // NULL: no CPU backend, or memory is short
void gn_compute_close(struct gn_compute *compute);
void gn_compute_set_threads(struct gn_compute *compute, int n_threads);
void gn_compute_set_abort(struct gn_compute *compute, ggml_abort_callback callback, void *context);
enum ggml_status gn_compute_graph(struct gn_compute *compute, struct ggml_cgraph *graph);
void gn_compute_share_pool(struct ggml_threadpool *pool); // for all backends of the process; NULL: their own again
void gn_compute_forked(void); // in a child process after fork(): no thread of any pool is there

// failure.c
// Logs an error line and keeps it for guanaco_last_error(). Any thread.
void gn_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
const char *gn_last_failure(void); // "": none; the calling thread's own copy, until it asks again
void gn_failure_forked(void);      // in a child process after fork(): makes the lock new
