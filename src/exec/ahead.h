// Reads experts of events to come into spare slots, with what the drive has left over: nothing is evicted for them, and
// they are started when the running event waits for hardly anything any more. The cache learns of an expert only when
// it is used, so that hits, misses and evictions are those of a run without reading ahead.
//
// Who guesses is another's affair; see backend/lookahead.h. Under the stream's lock.
#pragma once

#include "exec/stream.h"

// Plans to read these experts of the layer; those in slots, or on their way, are skipped. Replaces the plan before it.
// source: who guessed them, GN_SOURCES: nobody, all are read.
void gn_ahead_plan(struct gn_stream *stream, const struct gn_layer *layer, const uint32_t *experts, uint32_t n,
                   enum gn_source source);

// Starts as much of the plan as spares and the reader have room for, at most `most` experts.
void gn_ahead_start(struct gn_stream *stream, uint32_t most);

// Counts an expert that was read ahead, or is on its way, and is used now. source: as in the plan that it was of.
void gn_ahead_count_useful(struct gn_stream *stream, enum gn_source source);

// Counts what a source had guessed for an event: of the experts used, how many it foresaw.
void gn_ahead_count_guesses(struct gn_stream *stream, const struct gn_layer *layer, enum gn_source source,
                            uint64_t used, uint64_t foreseen);

// Forgets the plan and gives up what was read ahead for a layer, or, with NULL, for all.
void gn_ahead_dismiss(struct gn_stream *stream, const struct gn_layer *layer);
