#include "trace/foresee.h"

#include "predict/pilot.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct foresee {
    const struct gn_trace *trace;
    const struct gn_replay_events *events;
    const struct gn_foresee_options *how;
    struct gn_pilot *pilot;
    struct gn_guesses *guesses;
    int32_t *ids;   // [rows of the largest event]
    uint32_t *used; // [experts of the largest event]
    struct gn_foresight *result;
};

// A prompt's tokens one by one. Decode's are one event, and need not be told apart. False: they differ in number.
static bool take_tokens(const struct foresee *foresee, const struct gn_replay_event *event,
                        struct gn_pilot_batch *batch) {
    const struct gn_trace_row *rows = foresee->trace->rows + event->row;
    uint32_t n = event->decode ? event->n : (uint32_t)event->n_rows, n_tokens = 1;
    for (uint32_t i = 0; i < n; i++) {
        foresee->ids[i] = event->decode ? (int32_t)foresee->used[i] : (int32_t)rows[i].expert;
        n_tokens += !event->decode && i > 0 && rows[i].step != rows[i - 1].step;
    }
    *batch = (struct gn_pilot_batch){
        .ids = foresee->ids,
        .choice_stride = sizeof *foresee->ids,
        .token_stride = n / n_tokens * sizeof *foresee->ids,
        .n_used = n / n_tokens,
        .n_tokens = n_tokens,
    };
    return n % n_tokens == 0;
}

static void guess(const struct foresee *foresee, const struct gn_replay_event *event, const struct gn_cache *cache) {
    uint32_t next = (event->layer + 1) % foresee->events->n_layers, guesses[GN_GUESSES], missing = 0;
    gn_guesses_forget(foresee->guesses, next);
    if (gn_guesses_misses(foresee->guesses, next) < GN_HARDLY_MISSES) {
        return;
    }
    uint32_t n = gn_pilot_guess(foresee->pilot, foresee->how->mass, GN_GUESSES_FOR(event->n), guesses, GN_GUESSES);
    for (uint32_t g = 0; g < n; g++) {
        bool there = gn_cache_peek(cache, gn_cache_entry(cache, next, guesses[g])) != GN_NONE;
        missing |= (uint32_t)!there << g;
    }
    gn_guesses_note(foresee->guesses, next, guesses, n, missing, foresee->how->bar);
}

static void watch(void *context, const struct gn_replay_event *event, const struct gn_cache *cache,
                  const bool *missed) {
    const struct foresee *foresee = context;
    uint32_t n_missed = 0, first_entry = gn_cache_entry(cache, event->layer, 0);
    for (uint32_t i = 0; i < event->n; i++) {
        foresee->used[i] = foresee->events->entries[event->first + i] - first_entry;
        n_missed += missed[i];
    }
    if (event->decode) {
        foresee->result->missed += n_missed;
        gn_guesses_check(foresee->guesses, event->layer, foresee->used, event->n, n_missed);
    }
    struct gn_pilot_batch batch;
    if (take_tokens(foresee, event, &batch)) {
        gn_pilot_see(foresee->pilot, event->layer, &batch);
        if (event->decode) {
            guess(foresee, event, cache);
        }
    }
}

static void sum_up(const struct foresee *foresee, struct gn_guesses_figures *layers) {
    struct gn_foresight *result = foresee->result;
    for (uint32_t l = 0; l < foresee->events->n_layers; l++) {
        struct gn_guesses_figures figures = gn_guesses_figures(foresee->guesses, l);
        result->used += figures.used;
        result->foreseen += figures.foreseen;
        result->read += figures.worth;
        result->useful += figures.came_true;
        result->wasted_bytes += (figures.worth - figures.came_true) * foresee->events->layers[l].expert_bytes;
        if (layers) {
            layers[l] = figures;
        }
    }
    result->table_bytes = gn_pilot_bytes(foresee->pilot);
}

static int open_parts(struct foresee *foresee) {
    const struct gn_replay_events *events = foresee->events;
    size_t most_rows = 1;
    for (uint32_t e = 0; e < events->n_events; e++) {
        most_rows = events->events[e].n_rows > most_rows ? events->events[e].n_rows : most_rows;
    }
    uint32_t *n_experts = calloc(events->n_layers, sizeof *n_experts);
    for (uint32_t l = 0; n_experts && l < events->n_layers; l++) {
        n_experts[l] = events->layers[l].n_experts;
    }
    foresee->pilot = n_experts ? gn_pilot_open(events->n_layers, n_experts) : NULL;
    foresee->guesses = gn_guesses_open(events->n_layers, GN_PILOT_TRUST);
    foresee->ids = calloc(most_rows, sizeof *foresee->ids);
    foresee->used = calloc(events->largest, sizeof *foresee->used);
    free(n_experts);
    return foresee->pilot && foresee->guesses && foresee->ids && foresee->used ? 0 : -ENOMEM;
}

int gn_foresee(const struct gn_trace *trace, const struct gn_replay_events *events,
               const struct gn_cache_options *options, const struct gn_foresee_options *how,
               struct gn_foresight *result, struct gn_guesses_figures *layers) {
    memset(result, 0, sizeof *result);
    struct foresee foresee = {.trace = trace, .events = events, .how = how, .result = result};
    struct gn_replay_result replayed;
    int failed = open_parts(&foresee);
    if (!failed) {
        failed = gn_replay_watched(events, options, watch, &foresee, &replayed);
        sum_up(&foresee, layers);
    }
    gn_pilot_close(foresee.pilot);
    gn_guesses_close(foresee.guesses);
    free(foresee.ids);
    free(foresee.used);
    return failed;
}
