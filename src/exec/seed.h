// What is known of a model's experts before it runs: from an importance matrix beside it (model/imatrix.h), and from
// earlier runs (model/hot_set.h). It goes into the cache's policy and pins as prior counts, and fills slots ahead of
// use:
//
//   - a prompt, which reads nearly every expert anyhow, leaves the free slots to those that the seed wants;
//   - before each event of decode some more of them are read, a few megabytes at a time with a reader of its own, and
//     are in their slots by the next event. So no token waits for more than that, and what is in memory at an event
//     does not depend on the drive's speed.
//
// Nothing here can fail a run: what cannot be read or is not for this model is named in one warning line and left out.
// Call all with the stream's lock held.
#pragma once

#include "exec/stream.h"

// Finds, reads and applies the seeds that the knobs ask for. Called once the stream's cache stands.
void gn_seed_open(struct gn_stream *stream, const struct gn_knobs *knobs);
// Saves the hot set, if there is to be one. Called before the cache goes.
void gn_seed_close(struct gn_stream *stream);

// In a child process after fork(), instead of closing: the hot set is the parent's to save. Safe in a handler of
// pthread_atfork().
void gn_seed_forked(struct gn_stream *stream);

// Before each event.
void gn_seed_step(struct gn_stream *stream, bool prefill);
// Whether a prompt may give a free slot to this expert.
bool gn_seed_admits(const struct gn_stream *stream, uint32_t entry);

// In what share of all tokens an expert was used, as far as is known; 0: not known. entry: the cache's number of it.
float gn_seed_chance(const struct gn_stream *stream, uint32_t entry);

// "imatrix", "hot set", "imatrix and hot set", or "none".
const char *gn_seed_source(const struct gn_stream *stream);
