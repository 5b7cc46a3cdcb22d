// Replays a trace through the cache and through PILOT (predict/pilot.h), and counts which guesses come true. The
// engine's rules: each layer of decode is guessed when the one before it has begun, from what is in memory then;
// prompts only teach.
#pragma once

#include "predict/guesses.h"
#include "trace/replay.h"

struct gn_foresee_options {
    double mass; // of the probability that guesses are to have, 0 … 1
    double bar;  // how often a rank must come true to be read, 0 … 1
};

struct gn_foresight {
    uint64_t used, foreseen; // of decode, where there was a guess: experts used, and of these, those guessed
    uint64_t missed;         // experts of decode that were not in memory, guessed or not
    uint64_t read, useful;   // read ahead, and of these, those that were used
    uint64_t wasted_bytes;   // of what was read ahead and not used
    size_t table_bytes;
};

// layers: [the trace's layers], filled; NULL is allowed. Returns as gn_replay_cache(). trace: what the events were made
// from.
int gn_foresee(const struct gn_trace *trace, const struct gn_replay_events *events,
               const struct gn_cache_options *options, const struct gn_foresee_options *how,
               struct gn_foresight *result, struct gn_guesses_figures *layers);
