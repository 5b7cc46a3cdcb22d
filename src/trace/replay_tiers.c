#include "trace/replay_tiers.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct replay {
    const struct gn_replay_events *events;
    const struct gn_replay_tiers_options *options;
    struct gn_replay_tiers_result *result;
    struct gn_cache *ram;
    struct gn_tier device[GN_REPLAY_DEVICES];
    bool opened;           // the devices: all layers have been seen
    uint32_t *device_of;   // [n_layers] GN_NONE: none serves it
    uint32_t *first_entry; // [n_layers]
    uint32_t *missed;      // [largest] experts, of one event
    struct gn_promotion *promotions;
    uint32_t last_layer, last_decode_layer;
};

// ------------------------------------------------------------------------------------------------- shape

// Layers in turn to devices, by their bytes.
static void deal_layers(const struct gn_replay_tiers_options *options, uint32_t n_layers, uint32_t *device_of) {
    double all = 0, before = 0;
    uint32_t l = 0;
    memset(device_of, 0xff, n_layers * sizeof *device_of); // GN_NONE
    for (uint32_t d = 0; d < options->n_devices; d++) {
        all += (double)options->device[d].budget;
    }
    for (uint32_t d = 0; d < options->n_devices && all > 0; d++) {
        before += (double)options->device[d].budget;
        uint32_t until = (uint32_t)(n_layers * before / all + 0.5);
        while (l < until && l < n_layers) {
            device_of[l++] = d;
        }
    }
}

// Layers of the same expert size are of one kind: they share slots. Returns how many layers the device serves.
static uint32_t shape_device(const struct replay *replay, uint32_t d, struct gn_cache_layer *layers) {
    const struct gn_replay_events *events = replay->events;
    uint64_t needed = 0, budget = replay->options->device[d].budget;
    uint32_t served = 0, slots = 2 * replay->options->top_k;
    for (uint32_t l = 0; l < events->n_layers; l++) {
        const struct gn_trace_layer *layer = &events->layers[l];
        uint64_t least = layer->expert_bytes * (slots < layer->n_experts ? slots : layer->n_experts);
        layers[l] = (struct gn_cache_layer){0};
        if (replay->device_of[l] != d) {
            continue;
        }
        if (needed + least > budget) {
            replay->device_of[l] = GN_NONE;
            continue;
        }
        uint32_t kind = 0;
        while (events->layers[kind].expert_bytes != layer->expert_bytes) {
            kind++;
        }
        needed += least;
        layers[l] = (struct gn_cache_layer){layer->n_experts, layer->expert_bytes, kind};
        served++;
    }
    return served;
}

static int open_devices(struct replay *replay) {
    const struct gn_replay_tiers_options *options = replay->options;
    uint32_t n = replay->events->n_layers;
    struct gn_cache_layer *layers = calloc(n, sizeof *layers);
    int failed = layers ? 0 : -ENOMEM;
    deal_layers(options, n, replay->device_of);
    for (uint32_t d = 0; !failed && d < options->n_devices; d++) {
        const struct gn_replay_device *device = &options->device[d];
        struct gn_replay_tier *result = &replay->result->device[d];
        result->layers = shape_device(replay, d, layers);
        if (result->layers == 0) {
            continue;
        }
        struct gn_tier_options tier = {
            .layers = layers,
            .n_layers = n,
            .budget = device->budget,
            .policy = device->policy,
            .admission = device->admission,
            .inserts = device->inserts,
        };
        failed = gn_tier_open(&tier, &replay->device[d]);
        if (!failed) {
            replay->device[d].margin = device->margin;
            result->slots = gn_cache_slots(replay->device[d].cache);
            result->slot_bytes = gn_cache_bytes(replay->device[d].cache);
        }
    }
    free(layers);
    return failed;
}

// ------------------------------------------------------------------------------------------------- events

// Of the event's experts, those that the device does not hold.
static uint32_t ask_device(struct replay *replay, struct gn_tier *tier, const struct gn_replay_event *event) {
    uint32_t n = 0;
    for (uint32_t i = event->first; i < event->first + event->n; i++) {
        uint32_t expert = replay->events->entries[i] - replay->first_entry[event->layer];
        uint32_t slot = !tier           ? GN_NONE
                        : event->decode ? gn_tier_lookup(tier, event->layer, expert)
                                        : gn_tier_peek(tier, event->layer, expert);
        if (slot == GN_NONE) {
            replay->missed[n++] = expert;
        }
    }
    return n;
}

// Returns how many of the n experts the RAM had.
static uint32_t ask_ram(struct replay *replay, const struct gn_replay_event *event, uint32_t n) {
    uint32_t entry = replay->first_entry[event->layer], hits = 0;
    gn_cache_begin(replay->ram);
    for (uint32_t i = 0; i < n; i++) {
        hits += gn_cache_lookup(replay->ram, entry + replay->missed[i]) != GN_NONE;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (gn_cache_peek(replay->ram, entry + replay->missed[i]) == GN_NONE) {
            gn_cache_insert(replay->ram, entry + replay->missed[i], event->decode);
        }
    }
    return hits;
}

static void count(struct replay *replay, const struct gn_replay_use *use) {
    struct gn_replay_tiers_result *result = replay->result;
    struct gn_replay_tier *device = use->device == GN_NONE ? NULL : &result->device[use->device];
    uint64_t read = use->misses * use->expert_bytes;
    if (use->decode) {
        result->uses += use->held + use->hits + use->misses;
        result->ram.hits += use->hits;
        result->ram.misses += use->misses;
        result->ram.bytes += read;
    } else {
        result->prefill_uses += use->held + use->hits + use->misses;
        result->ram.prefill_hits += use->hits;
        result->ram.prefill_misses += use->misses;
        result->ram.prefill_bytes += read;
    }
    if (device && use->decode) {
        device->hits += use->held;
        device->misses += use->hits + use->misses;
        device->bytes += use->inserts * use->expert_bytes;
    } else if (device) {
        device->prefill_hits += use->held;
        device->prefill_misses += use->hits + use->misses;
    }
}

static void run_event(struct replay *replay, const struct gn_replay_event *event) {
    uint32_t d = replay->opened ? replay->device_of[event->layer] : GN_NONE;
    struct gn_tier *tier = d == GN_NONE ? NULL : &replay->device[d];
    if (tier && event->decode) {
        gn_tier_begin(tier);
    }
    uint32_t n = ask_device(replay, tier, event);
    struct gn_replay_use use = {
        .layer = event->layer,
        .device = d,
        .decode = event->decode,
        .first = event->decode && (event->layer <= replay->last_decode_layer),
        .held = event->n - n,
        .expert_bytes = replay->events->layers[event->layer].expert_bytes,
    };
    use.hits = ask_ram(replay, event, n);
    use.misses = n - use.hits;
    if (tier && event->decode) {
        use.inserts = gn_tier_promote(tier, replay->ram, event->layer, replay->missed, n, replay->promotions);
        gn_tier_end(tier);
    }
    gn_cache_end(replay->ram);
    replay->last_decode_layer = event->decode ? event->layer : UINT32_MAX;
    count(replay, &use);
    if (replay->options->each) {
        replay->options->each(replay->options->context, &use);
    }
}

static int run(struct replay *replay) {
    for (uint32_t e = 0; e < replay->events->n_events; e++) {
        const struct gn_replay_event *event = &replay->events->events[e];
        if (!replay->opened && e > 0 && event->layer <= replay->last_layer) {
            int failed = open_devices(replay);
            if (failed) {
                return failed;
            }
            replay->opened = true;
        }
        replay->last_layer = event->layer;
        run_event(replay, event);
    }
    return 0;
}

// ------------------------------------------------------------------------------------------------- whole

static int open_ram(struct replay *replay) {
    const struct gn_replay_events *events = replay->events;
    struct gn_cache_layer *layers = calloc(events->n_layers, sizeof *layers);
    if (!layers) {
        return -ENOMEM;
    }
    uint32_t entry = 0;
    for (uint32_t l = 0; l < events->n_layers; l++) {
        layers[l] = (struct gn_cache_layer){.n_experts = events->layers[l].n_experts,
                                            .slot_bytes = gn_trace_slot_bytes(&events->layers[l])};
        replay->first_entry[l] = entry;
        entry += events->layers[l].n_experts;
    }
    struct gn_cache_options complete = replay->options->ram;
    complete.layers = layers;
    complete.n_layers = events->n_layers;
    int failed = gn_cache_open(&complete, &replay->ram);
    free(layers);
    return failed;
}

static int finish(struct replay *replay) {
    struct gn_cache_totals totals = gn_cache_totals(replay->ram);
    struct gn_replay_tier *ram = &replay->result->ram;
    ram->slots = gn_cache_slots(replay->ram);
    ram->slot_bytes = gn_cache_bytes(replay->ram);
    ram->layers = replay->events->n_layers;
    ram->inserts = totals.inserts;
    ram->evictions = totals.evictions;
    bool nonsense = gn_cache_error(replay->ram) != NULL;
    for (uint32_t d = 0; d < replay->options->n_devices; d++) {
        const struct gn_cache *cache = replay->device[d].cache;
        if (cache) {
            totals = gn_cache_totals(cache);
            replay->result->device[d].inserts = totals.inserts;
            replay->result->device[d].evictions = totals.evictions;
            nonsense = nonsense || gn_cache_error(cache);
        }
    }
    return nonsense ? -EBADMSG : 0;
}

int gn_replay_tiers(const struct gn_replay_events *events, const struct gn_replay_tiers_options *options,
                    struct gn_replay_tiers_result *result) {
    memset(result, 0, sizeof *result);
    struct replay replay = {
        .events = events,
        .options = options,
        .result = result,
        .device_of = calloc(events->n_layers, sizeof *replay.device_of),
        .first_entry = calloc(events->n_layers, sizeof *replay.first_entry),
        .missed = calloc(events->largest, sizeof *replay.missed),
        .promotions = calloc(events->largest, sizeof *replay.promotions),
        .last_decode_layer = UINT32_MAX,
    };
    bool memory = replay.device_of && replay.first_entry && replay.missed && replay.promotions;
    int failed = memory ? open_ram(&replay) : -ENOMEM;
    failed = failed ? failed : run(&replay);
    failed = failed ? failed : finish(&replay);
    for (uint32_t d = 0; d < options->n_devices; d++) {
        gn_tier_close(&replay.device[d]);
    }
    gn_cache_close(replay.ram);
    free(replay.device_of);
    free(replay.first_entry);
    free(replay.missed);
    free(replay.promotions);
    return failed;
}
