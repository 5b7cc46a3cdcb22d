#include "trace/facts.h"

#include <errno.h>
#include <stdlib.h>

struct counting {
    const struct gn_replay_events *events;
    uint32_t *uses;    // [n_entries]
    uint32_t *used_in; // [n_entries] the last token of the layer that used it, counted from 1
    uint32_t *tokens;  // [n_layers] that ran it
    uint64_t common, followed;
};

static void count(struct counting *counting) {
    const struct gn_replay_events *events = counting->events;
    for (uint32_t e = 0; e < events->n_events; e++) {
        const struct gn_replay_event *event = &events->events[e];
        if (!event->decode) {
            continue;
        }
        uint32_t token = ++counting->tokens[event->layer];
        for (uint32_t i = event->first; i < event->first + event->n; i++) {
            uint32_t entry = events->entries[i];
            counting->uses[entry]++;
            counting->common += token > 1 && counting->used_in[entry] == token - 1;
            counting->used_in[entry] = token;
        }
        counting->followed += token > 1 ? event->n : 0;
    }
}

static int ascending(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

// Adds what one layer's n counts say; sorts them.
static void add_layer(struct gn_trace_facts *facts, uint32_t *uses, uint32_t n) {
    qsort(uses, n, sizeof *uses, ascending);
    double all = 0, ranked = 0, top = 0;
    uint32_t distinct = 0, fifth = (n + 4) / 5;
    for (uint32_t i = 0; i < n; i++) {
        all += uses[i];
        ranked += (double)(i + 1) * uses[i];
        top += i >= n - fifth ? uses[i] : 0;
        distinct += uses[i] > 0;
    }
    facts->gini += all > 0 ? 2 * ranked / (n * all) - (double)(n + 1) / n : 0;
    facts->top_fifth += all > 0 ? top / all : 0;
    facts->distinct += distinct;
    facts->least_distinct = distinct < facts->least_distinct ? distinct : facts->least_distinct;
    facts->most_distinct = distinct > facts->most_distinct ? distinct : facts->most_distinct;
}

int gn_trace_find_facts(const struct gn_replay_events *events, struct gn_trace_facts *facts) {
    struct counting counting = {.events = events};
    counting.uses = calloc(events->n_entries, sizeof *counting.uses);
    counting.used_in = calloc(events->n_entries, sizeof *counting.used_in);
    counting.tokens = calloc(events->n_layers, sizeof *counting.tokens);
    *facts = (struct gn_trace_facts){.least_distinct = UINT32_MAX};
    int failed = counting.uses && counting.used_in && counting.tokens ? 0 : -ENOMEM;
    if (!failed) {
        count(&counting);
        uint32_t *uses = counting.uses;
        for (uint32_t l = 0; l < events->n_layers; l++) {
            add_layer(facts, uses, events->layers[l].n_experts);
            uses += events->layers[l].n_experts;
        }
        facts->gini /= events->n_layers;
        facts->top_fifth /= events->n_layers;
        facts->distinct /= events->n_layers;
        facts->overlap = counting.followed ? (double)counting.common / (double)counting.followed : 0;
    }
    free(counting.uses);
    free(counting.used_in);
    free(counting.tokens);
    return failed;
}
