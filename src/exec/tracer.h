// Writes down what a run's router chose, as a routing trace (trace/trace.h), for `guanaco simulate`.
//
// One process writes one trace: of the first model that computes. Rows come in the order in which the cache saw the
// events, so that a replay sees the same. How a row's fields are filled:
//
//   turn   a prompt begins one, if it comes after decode
//   step   the token's place in the turn. In decode, all tokens of a batch have that of the first: they are one event
//   weight 0: the router's weights are not ours to see
//
// The rows of a batch are handed to the kernel after its last layer: a process that is killed leaves a trace that can
// be read, of all batches but the one that ran.
//
// Call with the stream's lock held.
#pragma once

#include "cache/cache.h"
#include "model/expert_map.h"

#include <stddef.h>
#include <stdint.h>

struct gn_tracer;

// What the map does not know of a model.
struct gn_tracer_model {
    const char *path, *architecture;
    uint32_t layers, top_k; // 0: not known
};

// What the router chose in one layer of one batch. Choice k of token t is an int32_t at ids + k * choice_stride + t *
// token_stride, and below the layer's n_experts.
struct gn_routing {
    const struct gn_layer *layer;
    const void *ids;
    size_t choice_stride, token_stride; // bytes
    uint32_t n_used, n_tokens;
    bool prefill;
};

// Creates the file and writes the header. Returns 0 with the tracer; -EBUSY when a model is traced already or was, or
// another negative errno.
int gn_tracer_open(const char *path, const struct gn_expert_map *map, const struct gn_tracer_model *model,
                   struct gn_tracer **out);

// Adds the rows of one event that is about to run: who hits is looked up in the cache. When they cannot be written, one
// line is logged and nothing more is traced. A NULL tracer is allowed.
void gn_tracer_add(struct gn_tracer *tracer, const struct gn_cache *cache, const struct gn_routing *routing);

// In a child process after fork(), instead of closing: the trace is the parent's, and the child writes none. Safe in a
// handler of pthread_atfork(). NULL is allowed.
void gn_tracer_forked(struct gn_tracer *tracer);

void gn_tracer_close(struct gn_tracer *tracer); // logs a line if the rest cannot be written; NULL is allowed
