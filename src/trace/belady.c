// The bound: no policy, but the future. The cache is asked only how it cuts its size classes.
#include "trace/replay.h"

#include "cache/cache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define STALE (GN_NONE - 1)

struct layer {
    uint32_t first, n, n_resident;
    uint32_t *n_free; // of its size class; shared by the layers of a class
    uint32_t latest;  // the entry in the cache that is wanted again latest; STALE: to be found
};

struct missed {
    uint32_t entry, next;
};

struct belady {
    const struct gn_replay_events *events;
    struct layer *layers;
    uint32_t *n_free;  // [n_layers], as many used as there are classes
    uint32_t *next;    // [n_entries] the event that wants it next
    uint32_t *used_in; // [n_entries] the event that used it last
    bool *resident;    // [n_entries]
    struct missed *missed;
    bool *is_missed; // beside the entries of an event
    uint64_t evictions;
};

static void belady_close(struct belady *belady) {
    free(belady->layers);
    free(belady->n_free);
    free(belady->next);
    free(belady->used_in);
    free(belady->resident);
    free(belady->missed);
    free(belady->is_missed);
}

// A layer's class shows in the size of the slot that one of its experts is given.
static uint64_t slot_size(struct gn_cache *cache, uint32_t entry) {
    gn_cache_begin(cache);
    uint32_t slot = gn_cache_insert(cache, entry, false);
    uint64_t bytes = slot == GN_NONE ? 0 : gn_layout_slot_bytes(gn_cache_layout(cache), slot);
    gn_cache_drop(cache, entry);
    gn_cache_end(cache);
    return bytes;
}

static uint32_t slots_of_size(const struct gn_cache *cache, uint64_t bytes) {
    const struct gn_layout *layout = gn_cache_layout(cache);
    uint32_t n = 0;
    for (uint32_t slot = 0; slot < layout->n_slots; slot++) {
        n += gn_layout_slot_bytes(layout, slot) == bytes;
    }
    return n;
}

static void find_classes(struct belady *belady, uint64_t *sizes, struct gn_cache *cache) {
    uint32_t n_classes = 0;
    for (uint32_t l = 0, entry = 0; l < belady->events->n_layers; l++) {
        struct layer *layer = &belady->layers[l];
        *layer = (struct layer){.first = entry, .n = belady->events->layers[l].n_experts, .latest = STALE};
        uint64_t bytes = slot_size(cache, entry);
        uint32_t c = 0;
        while (c < n_classes && sizes[c] != bytes) {
            c++;
        }
        if (c == n_classes) {
            sizes[n_classes] = bytes;
            belady->n_free[n_classes++] = slots_of_size(cache, bytes);
        }
        layer->n_free = &belady->n_free[c];
        entry += layer->n;
    }
}

static int ask_cache(struct belady *belady, uint64_t budget, uint64_t *slots) {
    uint32_t n = belady->events->n_layers;
    struct gn_cache_layer *layers = calloc(n, sizeof *layers);
    uint64_t *sizes = calloc(n, sizeof *sizes);
    struct gn_cache *cache = NULL;
    int failed = layers && sizes ? 0 : -ENOMEM;
    for (uint32_t l = 0; !failed && l < n; l++) {
        layers[l] = (struct gn_cache_layer){.n_experts = belady->events->layers[l].n_experts,
                                            .slot_bytes = gn_trace_slot_bytes(&belady->events->layers[l])};
    }
    if (!failed) {
        struct gn_cache_options options = {.layers = layers, .n_layers = n, .budget = budget, .policy = &gn_policy_lru};
        failed = gn_cache_open(&options, &cache);
    }
    if (!failed) {
        *slots = gn_cache_slots(cache);
        find_classes(belady, sizes, cache);
    }
    gn_cache_close(cache);
    free(layers);
    free(sizes);
    return failed;
}

// The entry of a layer that is wanted again latest, of those that the event does not use.
static uint32_t latest_of(const struct belady *belady, const struct layer *layer, uint32_t event) {
    uint32_t latest = GN_NONE;
    for (uint32_t entry = layer->first; entry < layer->first + layer->n; entry++) {
        if (belady->resident[entry] && belady->used_in[entry] != event &&
            (latest == GN_NONE || belady->next[entry] > belady->next[latest])) {
            latest = entry;
        }
    }
    return latest;
}

static uint32_t latest_of_class(struct belady *belady, const uint32_t *n_free, uint32_t event) {
    uint32_t victim = GN_NONE;
    for (uint32_t l = 0; l < belady->events->n_layers; l++) {
        struct layer *layer = &belady->layers[l];
        if (layer->n_free != n_free || layer->n_resident == 0) {
            continue;
        }
        if (layer->latest == STALE) {
            layer->latest = latest_of(belady, layer, event);
        }
        if (layer->latest != GN_NONE && (victim == GN_NONE || belady->next[layer->latest] > belady->next[victim])) {
            victim = layer->latest;
        }
    }
    return victim;
}

static bool find_room(struct belady *belady, uint32_t *n_free, bool evict, uint32_t event) {
    if (*n_free > 0) {
        --*n_free;
        return true;
    }
    uint32_t victim = evict ? latest_of_class(belady, n_free, event) : GN_NONE;
    if (victim == GN_NONE) {
        return false;
    }
    struct layer *layer = &belady->layers[belady->events->layer_of[victim]];
    belady->resident[victim] = false;
    belady->evictions++;
    layer->n_resident--;
    layer->latest = STALE;
    return true;
}

static int sooner(const void *a, const void *b) {
    uint32_t x = ((const struct missed *)a)->next, y = ((const struct missed *)b)->next;
    return (x > y) - (x < y);
}

static void run_event(struct belady *belady, uint32_t e) {
    const struct gn_replay_event *event = &belady->events->events[e];
    struct layer *layer = &belady->layers[event->layer];
    uint32_t n = 0;
    for (uint32_t i = event->first; i < event->first + event->n; i++) {
        uint32_t entry = belady->events->entries[i];
        belady->next[entry] = belady->events->next[i];
        belady->used_in[entry] = e;
        belady->is_missed[i - event->first] = !belady->resident[entry];
        if (!belady->resident[entry]) {
            belady->missed[n++] = (struct missed){entry, belady->next[entry]};
        }
    }
    layer->latest = STALE;
    qsort(belady->missed, n, sizeof *belady->missed, sooner); // what is wanted first is the surest to find room
    for (uint32_t i = 0; i < n && find_room(belady, layer->n_free, event->decode, e); i++) {
        belady->resident[belady->missed[i].entry] = true;
        layer->n_resident++;
    }
    layer->latest = STALE; // what was in use may go from now on
}

static int belady_open(struct belady *belady, const struct gn_replay_events *events) {
    *belady = (struct belady){.events = events};
    belady->layers = calloc(events->n_layers, sizeof *belady->layers);
    belady->n_free = calloc(events->n_layers, sizeof *belady->n_free);
    belady->next = calloc(events->n_entries, sizeof *belady->next);
    belady->used_in = calloc(events->n_entries, sizeof *belady->used_in);
    belady->resident = calloc(events->n_entries, sizeof *belady->resident);
    belady->missed = calloc(events->largest, sizeof *belady->missed);
    belady->is_missed = calloc(events->largest, sizeof *belady->is_missed);
    bool good = belady->is_missed && belady->layers && belady->n_free && belady->next && belady->used_in &&
                belady->resident && belady->missed;
    return good ? 0 : -ENOMEM;
}

int gn_replay_belady(const struct gn_replay_events *events, uint64_t budget, struct gn_replay_result *result) {
    struct belady belady;
    memset(result, 0, sizeof *result);
    int failed = belady_open(&belady, events);
    if (!failed) {
        failed = ask_cache(&belady, budget, &result->slots);
    }
    for (uint32_t e = 0; !failed && e < events->n_events; e++) {
        run_event(&belady, e);
        gn_replay_count(events, &events->events[e], belady.is_missed, result);
    }
    result->totals.evictions = belady.evictions;
    belady_close(&belady);
    return failed;
}
