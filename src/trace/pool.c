// The rules by which BigMoeOnEdge's published curves were counted: all experts share one pool of bytes, whatever their
// size; prompts push out as well; an event's misses are all taken in before anything is evicted; an expert that several
// tokens of an event use was used when the last of them did.
#include "trace/replay.h"

#include "trace/latest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct pool {
    const struct gn_replay_events *events;
    const struct guanaco_policy *policy; // NULL: knows the future
    void *state;
    uint64_t used, budget;
    bool *resident;          // [n_entries]
    uint32_t *next;          // [n_entries] the event that wants it next
    uint32_t *used_in;       // [n_entries] the last event that used it, counted from 1
    uint32_t *placed_in;     // [n_entries] the same, while an event is put in order
    uint32_t *order;         // [n_entries] of the event
    bool *missed;            // [largest event]
    uint32_t *first;         // [n_layers] the first entry of a layer
    struct gn_latest latest; // of the residents, for who knows the future
    struct gn_wanted *aside; // [largest event] taken out of it, but in use
    uint32_t event;
    uint64_t evictions;
};

static void pool_close(struct pool *pool) {
    if (pool->state) {
        pool->policy->close(pool->state);
    }
    free(pool->resident);
    free(pool->next);
    free(pool->used_in);
    free(pool->placed_in);
    free(pool->order);
    free(pool->missed);
    free(pool->first);
    free(pool->latest.noted);
    free(pool->aside);
}

static size_t uses_of_all(const struct gn_replay_events *events) {
    const struct gn_replay_event *last = &events->events[events->n_events - 1];
    return (size_t)last->first + last->n;
}

static int pool_open(struct pool *pool) {
    uint32_t n = pool->events->n_entries;
    pool->resident = calloc(n, sizeof *pool->resident);
    pool->next = calloc(n, sizeof *pool->next);
    pool->used_in = calloc(n, sizeof *pool->used_in);
    pool->placed_in = calloc(n, sizeof *pool->placed_in);
    pool->order = calloc(n, sizeof *pool->order);
    pool->missed = calloc(pool->events->largest, sizeof *pool->missed);
    pool->first = calloc(pool->events->n_layers, sizeof *pool->first);
    pool->aside = calloc(pool->events->largest, sizeof *pool->aside);
    pool->latest.noted = pool->policy ? NULL : calloc(uses_of_all(pool->events), sizeof *pool->latest.noted);
    if (!pool->first || !pool->aside || (!pool->policy && !pool->latest.noted) || !pool->missed || !pool->resident ||
        !pool->next || !pool->used_in || !pool->placed_in || !pool->order) {
        return -ENOMEM;
    }
    for (uint32_t l = 1; l < pool->events->n_layers; l++) {
        pool->first[l] = pool->first[l - 1] + pool->events->layers[l - 1].n_experts;
    }
    if (pool->policy) {
        struct gn_parameters parameters;
        gn_parameters_default(pool->policy, &parameters);
        struct guanaco_policy_shape shape = {n, 1, pool->events->n_layers, pool->events->layer_of, parameters.value};
        pool->state = pool->policy->open(&shape);
        return pool->state ? 0 : -ENOMEM;
    }
    return 0;
}

static bool in_use(const void *context, uint32_t entry) {
    const struct pool *pool = context;
    return pool->used_in[entry] == pool->event;
}

// The resident that is wanted again latest, of those that the event does not use.
static uint32_t wanted_latest(struct pool *pool) {
    struct gn_wanted wanted;
    uint32_t found = GN_NONE, n_aside = 0;
    while (found == GN_NONE && gn_latest_take(&pool->latest, &wanted)) {
        if (!pool->resident[wanted.entry] || pool->next[wanted.entry] != wanted.next) {
            continue; // it was used since, or has gone
        }
        if (in_use(pool, wanted.entry)) {
            pool->aside[n_aside++] = wanted;
        } else {
            found = wanted.entry;
        }
    }
    while (n_aside > 0) {
        gn_latest_add(&pool->latest, pool->aside[--n_aside]);
    }
    return found;
}

static uint64_t bytes_of(const struct pool *pool, uint32_t entry) {
    return pool->events->layers[pool->events->layer_of[entry]].expert_bytes;
}

static void use(struct pool *pool, uint32_t entry) {
    bool hit = pool->resident[entry];
    pool->used_in[entry] = pool->event;
    pool->used += hit ? 0 : bytes_of(pool, entry);
    pool->resident[entry] = true;
    if (pool->policy && hit) {
        pool->policy->hit(pool->state, entry, 0);
    } else if (pool->policy) {
        if (pool->policy->miss) {
            pool->policy->miss(pool->state, entry, 0);
        }
        pool->policy->insert(pool->state, entry, 0);
    }
}

static void shrink(struct pool *pool) {
    while (pool->used > pool->budget) {
        uint32_t victim = pool->policy ? pool->policy->victim(pool->state, 0, in_use, pool) : wanted_latest(pool);
        if (victim == GN_NONE) {
            return;
        }
        if (pool->policy) {
            pool->policy->evict(pool->state, victim, 0);
        }
        pool->resident[victim] = false;
        pool->evictions++;
        pool->used -= bytes_of(pool, victim);
    }
}

// The experts of an event's rows, in the order of their last uses. Returns how many.
static uint32_t put_in_order(struct pool *pool, const struct gn_trace_row *rows, size_t n_rows, uint32_t first_entry) {
    uint32_t n = 0;
    for (size_t r = n_rows; r-- > 0;) {
        uint32_t entry = first_entry + rows[r].expert;
        if (pool->placed_in[entry] != pool->event) {
            pool->placed_in[entry] = pool->event;
            pool->order[n++] = entry;
        }
    }
    return n;
}

static void run(struct pool *pool, const struct gn_trace *trace, struct gn_replay_result *result) {
    const struct gn_replay_events *events = pool->events;
    size_t row = 0;
    for (uint32_t e = 0; e < events->n_events; e++) {
        const struct gn_replay_event *event = &events->events[e];
        size_t first = row++;
        while (row < trace->n_rows && gn_trace_same_event(&trace->rows[row - 1], &trace->rows[row])) {
            row++;
        }
        pool->event = e + 1;
        for (uint32_t i = event->first; i < event->first + event->n; i++) {
            uint32_t entry = events->entries[i];
            pool->next[entry] = events->next[i];
            if (!pool->policy) {
                gn_latest_add(&pool->latest, (struct gn_wanted){events->next[i], entry});
            }
        }
        for (uint32_t i = 0; i < event->n; i++) {
            pool->missed[i] = !pool->resident[events->entries[event->first + i]];
        }
        for (uint32_t i = put_in_order(pool, trace->rows + first, row - first, pool->first[event->layer]); i-- > 0;) {
            use(pool, pool->order[i]);
        }
        shrink(pool);
        gn_replay_count(events, event, pool->missed, result);
    }
}

int gn_replay_pool(const struct gn_trace *trace, const struct gn_replay_events *events,
                   const struct guanaco_policy *policy, uint64_t budget, struct gn_replay_result *result) {
    struct pool pool = {.events = events, .policy = policy, .budget = budget};
    memset(result, 0, sizeof *result);
    int failed = pool_open(&pool);
    if (!failed) {
        run(&pool, trace, result);
        result->totals.evictions = pool.evictions;
    }
    pool_close(&pool);
    return failed;
}
