// Guesses the experts of the next MoE layer while a layer computes, so that they can be read ahead. Decode only. Two
// sources: the next layer's router, run on this layer's input, which differs from its own by one layer's contribution
// to the residual stream and by the two norms' weights (corrected); and PILOT (predict/pilot.h), which has learnt what
// goes with the experts that this layer uses. With --prefetch auto every layer takes the source that has brought more
// lately, and short stretches with and without reading ahead show whether it makes tokens faster at all
// (predict/trial.h).
//
// A layer whose guesses do not come true, or which hardly misses, costs nothing. The routers are learnt from the graphs
// as they pass. One per compute context; under the stream's lock.
//
// Method: router look-ahead as in "Fast Inference of Mixture-of-Experts Language Models with Offloading" (Eliseev and
// Mazur, 2023, arXiv 2312.17238), there with the next layer's input norm left as it is.
#pragma once

#include "backend/moe_run.h"

struct gn_lookahead;

// For a stream that has started, and its --prefetch. Returns NULL when memory is short.
struct gn_lookahead *gn_lookahead_open(const struct gn_stream *stream);
void gn_lookahead_close(struct gn_lookahead *lookahead); // NULL is allowed

// Learns from the sorted run of an event, before anything of it is computed, and of which experts it uses; right after
// gn_fetch_begin(), of every event. missed: how many of the experts were not in memory.
void gn_lookahead_learn(struct gn_lookahead *lookahead, const struct gn_moe_run *run, uint32_t missed, bool prefill);

// Guesses the next layer's experts and plans to read those that pay. Not for a prefill. Once for an
// event, after gn_lookahead_learn() and before gn_fetch_end().
void gn_lookahead_plan(struct gn_lookahead *lookahead, const struct gn_moe_run *run, struct gn_scratch *scratch);
