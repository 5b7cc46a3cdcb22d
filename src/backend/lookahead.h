// Guesses the experts of the next MoE layer while a layer computes, so that they can be read ahead: the next layer's
// router is run on this layer's input, which differs from its own by one layer's contribution to the residual stream
// and by the two norms' weights (corrected). Decode only. A layer whose guesses do not come true, or which hardly
// misses, costs nothing.
//
// The routers are learnt from the graphs as they pass. One per compute context; under the stream's lock.
//
// Method: router look-ahead as in "Fast Inference of Mixture-of-Experts Language Models with Offloading" (Eliseev and
// Mazur, 2023, arXiv 2312.17238), there with the next layer's input norm left as it is.
#pragma once

#include "backend/moe_run.h"

struct gn_lookahead;

// Returns NULL when memory is short. n_layers: of the stream.
struct gn_lookahead *gn_lookahead_open(const struct gn_stream *stream);
void gn_lookahead_close(struct gn_lookahead *lookahead); // NULL is allowed

// Learns from the sorted run of an event, before anything of it is computed, and of which experts it uses.
void gn_lookahead_learn(struct gn_lookahead *lookahead, const struct gn_moe_run *run, uint32_t missed);

// Guesses the next layer's experts and plans to read those that pay. Call after gn_fetch_begin().
void gn_lookahead_plan(struct gn_lookahead *lookahead, const struct gn_moe_run *run, struct gn_scratch *scratch);
