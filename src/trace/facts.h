// How a trace's tokens spread over the experts, decode alone.
#pragma once

#include "trace/replay.h"

struct gn_trace_facts {
    double gini;      // of the uses of a layer's experts, mean of all layers: 0 all alike, 1 one has all
    double top_fifth; // share of uses that the most used 20 % of a layer's experts have, mean
    double overlap;   // share of a layer's experts that the token before used as well, mean
    double distinct;  // experts of a layer that were used at all, mean
    uint32_t least_distinct, most_distinct;
};

int gn_trace_find_facts(const struct gn_replay_events *events, struct gn_trace_facts *facts); // 0 or -ENOMEM
