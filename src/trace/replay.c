#include "trace/replay.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

bool gn_trace_same_event(const struct gn_trace_row *a, const struct gn_trace_row *b) {
    return a->turn == b->turn && a->decode == b->decode && a->layer == b->layer && (!a->decode || a->step == b->step);
}

static int ascending(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

// Ends the event that began at entry `first`, before row `end`, with what it used, each once, in the engine's order.
static void end_event(struct gn_replay_events *events, uint32_t first, uint32_t n, const struct gn_trace *trace,
                      size_t end, float *weight) {
    qsort(events->entries + first, n, sizeof *events->entries, ascending);
    for (uint32_t i = first; i < first + n; i++) {
        events->weight[i] = weight[events->entries[i]];
        weight[events->entries[i]] = 0;
    }
    const struct gn_trace_row *last = &trace->rows[end - 1];
    const struct gn_replay_event *before = events->n_events > 0 ? &events->events[events->n_events - 1] : NULL;
    size_t row = before ? before->row + before->n_rows : 0;
    events->events[events->n_events++] = (struct gn_replay_event){last->layer, first, n, last->decode, row, end - row};
    events->largest = n > events->largest ? n : events->largest;
}

static void cut(struct gn_replay_events *events, const struct gn_trace *trace, const uint32_t *first_entry,
                uint32_t *seen, float *weight) {
    uint32_t first = 0, used = 0;
    const struct gn_trace_row *rows = trace->rows;
    for (size_t r = 0; r < trace->n_rows; r++) {
        if (r > 0 && !gn_trace_same_event(&rows[r - 1], &rows[r])) {
            end_event(events, first, used - first, trace, r, weight);
            first = used;
        }
        bool new_step =
            r == 0 || !rows[r - 1].decode || rows[r].step != rows[r - 1].step || rows[r].turn != rows[r - 1].turn;
        events->n_tokens += rows[r].decode && new_step;
        uint32_t entry = first_entry[rows[r].layer] + rows[r].expert;
        if (seen[entry] != events->n_events + 1) {
            seen[entry] = events->n_events + 1;
            events->entries[used++] = entry;
        }
        weight[entry] += rows[r].weight;
    }
    end_event(events, first, used - first, trace, trace->n_rows, weight);
}

static void look_ahead(struct gn_replay_events *events, uint32_t *next_use) {
    memset(next_use, 0xff, events->n_entries * sizeof *next_use); // GN_NONE
    for (uint32_t e = events->n_events; e-- > 0;) {
        const struct gn_replay_event *event = &events->events[e];
        for (uint32_t i = event->first; i < event->first + event->n; i++) {
            events->next[i] = next_use[events->entries[i]];
            next_use[events->entries[i]] = e;
        }
    }
}

static int number_entries(struct gn_replay_events *events, uint32_t *first_entry) {
    uint64_t n = 0;
    for (uint32_t l = 0; l < events->n_layers; l++) {
        first_entry[l] = (uint32_t)n;
        n += events->layers[l].n_experts;
        if (n >= GN_NONE) {
            return -EINVAL;
        }
    }
    events->n_entries = (uint32_t)n;
    events->layer_of = calloc(n, sizeof *events->layer_of);
    if (!events->layer_of) {
        return -ENOMEM;
    }
    for (uint32_t l = 0, entry = 0; l < events->n_layers; l++) {
        for (uint32_t e = 0; e < events->layers[l].n_experts; e++) {
            events->layer_of[entry++] = l;
        }
    }
    return 0;
}

static int build(const struct gn_trace *trace, struct gn_replay_events *events, uint32_t *first_entry) {
    int failed = number_entries(events, first_entry);
    if (failed) {
        return failed;
    }
    uint32_t *seen = calloc(events->n_entries, sizeof *seen);
    events->events = calloc(trace->n_rows, sizeof *events->events);
    events->entries = calloc(trace->n_rows, sizeof *events->entries);
    events->next = calloc(trace->n_rows, sizeof *events->next);
    events->weight = calloc(trace->n_rows, sizeof *events->weight);
    float *weight = calloc(events->n_entries, sizeof *weight);
    bool good = seen && events->events && events->entries && events->next && events->weight && weight;
    if (good) {
        cut(events, trace, first_entry, seen, weight);
        look_ahead(events, seen);
    }
    free(seen);
    free(weight);
    return good ? 0 : -ENOMEM;
}

int gn_replay_open(const struct gn_trace *trace, struct gn_replay_events *events) {
    memset(events, 0, sizeof *events);
    if (trace->n_rows == 0 || trace->n_rows >= GN_NONE || trace->n_layers == 0) {
        return -EINVAL;
    }
    events->layers = trace->layers;
    events->n_layers = trace->n_layers;
    uint32_t *first_entry = calloc(trace->n_layers, sizeof *first_entry);
    int failed = first_entry ? build(trace, events, first_entry) : -ENOMEM;
    free(first_entry);
    if (failed) {
        gn_replay_close(events);
    }
    return failed;
}

void gn_replay_close(struct gn_replay_events *events) {
    free(events->layer_of);
    free(events->events);
    free(events->entries);
    free(events->next);
    free(events->weight);
    memset(events, 0, sizeof *events);
}

uint64_t gn_replay_all_bytes(const struct gn_replay_events *events) {
    uint64_t bytes = 0;
    for (uint32_t l = 0; l < events->n_layers; l++) {
        bytes += events->layers[l].n_experts * gn_trace_slot_bytes(&events->layers[l]);
    }
    return bytes;
}

void gn_replay_count(const struct gn_replay_events *events, const struct gn_replay_event *event, const bool *missed,
                     struct gn_replay_result *result) {
    uint32_t misses = 0;
    double weight[2] = {0, 0};
    for (uint32_t i = 0; i < event->n; i++) {
        misses += missed[i];
        weight[missed[i]] += events->weight[event->first + i];
    }
    uint64_t bytes = misses * events->layers[event->layer].expert_bytes;
    if (event->decode) {
        result->hits += event->n - misses;
        result->misses += misses;
        result->missed_bytes += bytes;
        result->weight_hit += weight[0];
        result->weight_missed += weight[1];
    } else {
        result->prefill_hits += event->n - misses;
        result->prefill_misses += misses;
        result->prefill_missed_bytes += bytes;
    }
}

static int open_cache(const struct gn_replay_events *events, const struct gn_cache_options *options,
                      struct gn_cache **cache) {
    struct gn_cache_layer *layers = calloc(events->n_layers, sizeof *layers);
    if (!layers) {
        return -ENOMEM;
    }
    for (uint32_t l = 0; l < events->n_layers; l++) {
        layers[l] = (struct gn_cache_layer){.n_experts = events->layers[l].n_experts,
                                            .slot_bytes = gn_trace_slot_bytes(&events->layers[l])};
    }
    struct gn_cache_options complete = *options;
    complete.layers = layers;
    complete.n_layers = events->n_layers;
    int failed = gn_cache_open(&complete, cache);
    free(layers);
    return failed;
}

static void run_event(struct gn_cache *cache, const struct gn_replay_event *event, const uint32_t *entries,
                      bool *missed, gn_replay_watch_fn watch, void *context) {
    gn_cache_begin(cache);
    for (uint32_t i = 0; i < event->n; i++) {
        missed[i] = gn_cache_lookup(cache, entries[event->first + i]) == GN_NONE;
    }
    for (uint32_t i = 0; i < event->n; i++) {
        if (missed[i]) {
            gn_cache_insert(cache, entries[event->first + i], event->decode);
        }
    }
    if (watch) {
        watch(context, event, cache, missed);
    }
    gn_cache_end(cache);
}

int gn_replay_watched(const struct gn_replay_events *events, const struct gn_cache_options *options,
                      gn_replay_watch_fn watch, void *context, struct gn_replay_result *result) {
    memset(result, 0, sizeof *result);
    struct gn_cache *cache = NULL;
    bool *missed = calloc(events->largest, sizeof *missed);
    int failed = missed ? open_cache(events, options, &cache) : -ENOMEM;
    if (!failed) {
        result->slots = gn_cache_slots(cache);
        for (uint32_t e = 0; e < events->n_events; e++) {
            const struct gn_replay_event *event = &events->events[e];
            run_event(cache, event, events->entries, missed, watch, context);
            gn_replay_count(events, event, missed, result);
        }
        failed = gn_cache_error(cache) ? -EBADMSG : 0;
        result->totals = gn_cache_totals(cache);
    }
    gn_cache_close(cache);
    free(missed);
    return failed;
}

int gn_replay_cache(const struct gn_replay_events *events, const struct gn_cache_options *options,
                    struct gn_replay_result *result) {
    return gn_replay_watched(events, options, NULL, NULL, result);
}

int gn_replay_policy(const struct gn_replay_events *events, const struct guanaco_policy *policy, uint64_t budget,
                     struct gn_replay_result *result) {
    struct gn_cache_options options = {.budget = budget, .policy = policy};
    return gn_replay_cache(events, &options, result);
}
