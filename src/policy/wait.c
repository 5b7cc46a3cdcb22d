// Expected wait: the expert that will probably be wanted again latest goes first.
//
// A layer runs once a token, so its experts can be wanted only when the sweep through the layers comes to it again.
// Expected wait, in tokens, of an expert with a chance p of being used then:
//
//     distance of its layer in the sweep  +  1/p - 1
//
// p is a mixture of two estimates. One is the expert's own past uses, decayed at several half-lives: the short ones
// catch what neighbouring tokens share, the long ones what the text is about. The other is what the tokens used that
// resemble the present one (history.h).
//
// Uses decay when their layer runs, so that work is bounded by a layer. A victim is found by a look at the least likely
// expert of each layer, which is remembered for the event. Similar tokens only add to a chance, so it is among the few
// whose own uses say least: these are remembered until their layer runs again.
#include "policy/history.h"

#include <math.h>
#include <stdlib.h>

#define SCALES 4
enum { HALF_LIFE, WEIGHT = SCALES, AHEAD = 2 * SCALES, LATER };
static const struct guanaco_policy_parameter parameters[] = {
    [HALF_LIFE] = {"half-life-1", 0.5, 0.01, 1e6, "tokens after which a past use counts half"},
    {"half-life-2", 4, 0.01, 1e6, "the same, of the second count"},
    {"half-life-3", 30, 0.01, 1e6, "of the third"},
    {"half-life-4", 200, 0.01, 1e6, "of the fourth"},
    [WEIGHT] = {"weight-1", 0.12, 0, 1, "say of the first count; all four together have the whole"},
    {"weight-2", 0.2, 0, 1, "of the second"},
    {"weight-3", 0.34, 0, 1, "of the third"},
    {"weight-4", 0.34, 0, 1, "of the fourth"},
    [AHEAD] = {"ahead", 0.2, 0, 1, "say of similar tokens in layers that still come in this token"},
    [LATER] = {"later", 0.3, 0, 1, "and in those that come in the next"},
    {0},
};
#define LEAST_CHANCE 1e-6f
#define LOW 24

struct layer {
    uint32_t first, n;   // its entries
    uint32_t size_class; // GN_NONE: nothing of it was in the cache yet
    uint32_t n_resident;
    uint32_t least; // the least likely entry in the cache that is not in use; GN_NONE: there is none
    float least_chance;
    uint64_t looked_at; // the event for which that was found; 0: to be found
    uint32_t low[LOW];  // entries in the cache of the lowest chances by their own uses, ascending
    uint32_t n_low;     // 0: to be found
    float bound;        // no other has less,
    uint64_t grown_at;  // but for what came in at that event, which used it; 0: nothing did
};

struct wait {
    uint32_t n_layers, layer; // of the event that runs
    bool in_event;            // uses may still be added to it
    const uint32_t *layer_of;
    struct layer *layers;
    struct gn_history *history;
    float *use[SCALES]; // [n_entries] uses, decayed
    float *chance;      // [n_entries] by them, of use when its layer runs next
    float *kept;        // [n_entries] the same of what is in the cache, INFINITY for the rest: quickly gone through
    uint64_t *used_at;  // [n_entries] the last event that used it
    bool *resident;     // [n_entries]
    uint64_t event;
    float keep[SCALES];   // what is left of a use after one token
    float weight[SCALES]; // of each, in a chance
    float gain;           // what a use adds to a chance
    float ahead_say, later_say;
};

static void wait_close(void *state) {
    struct wait *wait = state;
    gn_history_close(wait->history);
    free(wait->layers);
    free(wait->use[0]);
    free(wait->used_at);
    free(wait->resident);
    free(wait);
}

// Returns the number of experts of the largest.
static uint32_t find_layers(struct wait *wait, const struct guanaco_policy_shape *shape) {
    uint32_t most = 1;
    for (uint32_t entry = shape->n_entries; entry-- > 0;) {
        struct layer *layer = &wait->layers[shape->layer_of[entry]];
        layer->first = entry;
        layer->n++;
        layer->size_class = layer->least = GN_NONE;
        most = layer->n > most ? layer->n : most;
    }
    return most;
}

static void set_parameters(struct wait *wait, const double *value) {
    double whole = 0;
    for (int s = 0; s < SCALES; s++) {
        whole += value[WEIGHT + s];
    }
    for (int s = 0; s < SCALES; s++) {
        wait->keep[s] = exp2f(-1 / (float)value[HALF_LIFE + s]);
        wait->weight[s] = whole > 0 ? (float)(value[WEIGHT + s] / whole) : 1.0f / SCALES;
        wait->gain += wait->weight[s] * (1 - wait->keep[s]);
    }
    wait->ahead_say = (float)value[AHEAD];
    wait->later_say = (float)value[LATER];
}

static void *wait_open(const struct guanaco_policy_shape *shape) {
    struct wait *wait = calloc(1, sizeof *wait);
    if (!wait) {
        return NULL;
    }
    size_t n = shape->n_entries;
    wait->n_layers = shape->n_layers;
    wait->layer = GN_NONE;
    wait->layer_of = shape->layer_of;
    wait->layers = calloc(shape->n_layers, sizeof *wait->layers);
    wait->use[0] = calloc((SCALES + 2) * n, sizeof *wait->use[0]);
    wait->used_at = calloc(n, sizeof *wait->used_at);
    wait->resident = calloc(n, sizeof *wait->resident);
    if (wait->layers) {
        uint32_t most = find_layers(wait, shape);
        wait->history = gn_history_open(shape->n_layers, most);
    }
    if (!wait->layers || !wait->use[0] || !wait->used_at || !wait->resident || !wait->history) {
        wait_close(wait);
        return NULL;
    }
    wait->chance = wait->use[0] + SCALES * n;
    wait->kept = wait->chance + n;
    for (size_t entry = 0; entry < n; entry++) {
        wait->kept[entry] = INFINITY;
    }
    set_parameters(wait, shape->parameters);
    for (int s = 0; s < SCALES; s++) {
        wait->use[s] = wait->use[0] + (size_t)s * n;
    }
    return wait;
}

static void set_chance(struct wait *wait, uint32_t entry, float chance) {
    wait->chance[entry] = chance;
    wait->kept[entry] = wait->resident[entry] ? chance : INFINITY;
}

static void find_low(const struct wait *wait, struct layer *layer) {
    layer->n_low = 0;
    layer->grown_at = 0;
    layer->bound = INFINITY;
    for (uint32_t entry = layer->first; entry < layer->first + layer->n; entry++) {
        float chance = wait->kept[entry];
        if (!(chance < layer->bound)) {
            continue;
        }
        uint32_t at = layer->n_low < LOW ? layer->n_low++ : LOW - 1;
        for (; at > 0 && chance < wait->kept[layer->low[at - 1]]; at--) {
            layer->low[at] = layer->low[at - 1];
        }
        layer->low[at] = entry;
        layer->bound = layer->n_low == LOW ? wait->kept[layer->low[LOW - 1]] : INFINITY;
    }
}

// A token later for this layer.
static void run_layer(struct wait *wait, uint32_t l) {
    const struct layer *layer = &wait->layers[l];
    gn_history_begin(wait->history, l);
    wait->layers[l].n_low = 0;
    wait->layer = l;
    wait->event++;
    wait->in_event = true;
    for (uint32_t entry = layer->first; entry < layer->first + layer->n; entry++) {
        float chance = 0;
        for (int s = 0; s < SCALES; s++) {
            wait->use[s][entry] *= wait->keep[s];
            chance += wait->weight[s] * wait->use[s][entry];
        }
        set_chance(wait, entry, chance);
    }
}

static void wait_use(void *state, uint32_t entry, uint32_t size_class) {
    struct wait *wait = state;
    uint32_t l = wait->layer_of[entry];
    wait->layers[l].size_class = size_class;
    if (l != wait->layer || !wait->in_event || wait->used_at[entry] == wait->event) {
        run_layer(wait, l);
    }
    gn_history_use(wait->history, entry - wait->layers[l].first);
    wait->used_at[entry] = wait->event;
    wait->layers[l].n_low = 0;
    set_chance(wait, entry, wait->chance[entry] + wait->gain);
    for (int s = 0; s < SCALES; s++) {
        wait->use[s][entry] += 1 - wait->keep[s];
    }
}

static void wait_insert(void *state, uint32_t entry, uint32_t size_class) {
    struct wait *wait = state;
    struct layer *layer = &wait->layers[wait->layer_of[entry]];
    (void)size_class;
    wait->in_event = false; // all uses of an event come before its first insertion
    wait->resident[entry] = true;
    set_chance(wait, entry, wait->chance[entry]);
    layer->n_resident++;
    if (wait->used_at[entry] == wait->event) {
        layer->grown_at = wait->event;
    } else {
        layer->n_low = 0;
    }
}

static void wait_evict(void *state, uint32_t entry, uint32_t size_class) {
    struct wait *wait = state;
    struct layer *layer = &wait->layers[wait->layer_of[entry]];
    (void)size_class;
    wait->resident[entry] = false;
    set_chance(wait, entry, wait->chance[entry]);
    layer->n_resident--;
    layer->looked_at = 0;
}

struct ask {
    bool (*busy)(const void *context, uint32_t entry);
    const void *context;
    float share; // of similar tokens
};

// Makes the entry the layer's least likely, if it is. False: neither it nor any with a higher chance by its own uses
// is.
static bool compare(const struct wait *wait, struct layer *layer, uint32_t entry, const struct ask *ask) {
    float chance = (1 - ask->share) * wait->kept[entry];
    if (!(chance <= layer->least_chance) || !wait->resident[entry]) {
        return !wait->resident[entry];
    }
    chance += ask->share * gn_history_chance(wait->history, wait->layer_of[entry], entry - layer->first);
    bool less = chance < layer->least_chance || (chance == layer->least_chance && entry < layer->least);
    if (less && !ask->busy(ask->context, entry)) {
        layer->least_chance = chance;
        layer->least = entry;
    }
    return true;
}

static void find_least(struct wait *wait, uint32_t l, bool (*busy)(const void *context, uint32_t entry),
                       const void *context) {
    struct layer *layer = &wait->layers[l];
    struct ask ask = {busy, context, l > wait->layer ? wait->ahead_say : wait->later_say};
    layer->looked_at = wait->event;
    layer->least = GN_NONE;
    layer->least_chance = INFINITY;
    if (layer->n_low == 0 || (layer->grown_at && layer->grown_at != wait->event)) {
        find_low(wait, layer);
    }
    for (uint32_t i = 0; i < layer->n_low && compare(wait, layer, layer->low[i], &ask); i++) {
    }
    if (layer->bound < INFINITY && !(layer->least_chance < (1 - ask.share) * layer->bound)) {
        for (uint32_t i = 0; i < layer->n; i++) { // none of them is it for sure
            compare(wait, layer, layer->first + i, &ask);
        }
        layer->n_low = 0;
    }
}

static uint32_t wait_victim(void *state, uint32_t size_class, bool (*busy)(const void *context, uint32_t entry),
                            const void *context) {
    struct wait *wait = state;
    uint32_t victim = GN_NONE;
    float longest = -1;
    wait->in_event = false;
    gn_history_match(wait->history);
    for (uint32_t l = 0; l < wait->n_layers; l++) {
        struct layer *layer = &wait->layers[l];
        if (layer->size_class != size_class || layer->n_resident == 0) {
            continue;
        }
        if (layer->looked_at != wait->event) {
            find_least(wait, l, busy, context);
        }
        if (layer->least == GN_NONE) { // what came in at this event may be free by now: slots go between events, too
            layer->n_low = 0;
            find_least(wait, l, busy, context);
        }
        if (layer->least == GN_NONE) {
            continue;
        }
        uint32_t layers_ahead = l > wait->layer ? l - wait->layer : l + wait->n_layers - wait->layer;
        float distance = (float)layers_ahead / (float)wait->n_layers;
        float expected = distance + 1 / fmaxf(layer->least_chance, LEAST_CHANCE) - 1;
        if (expected > longest) {
            longest = expected;
            victim = layer->least;
        }
    }
    return victim;
}

// As if the entry had been used evenly for long.
static void wait_prior(void *state, uint32_t entry, float chance) {
    struct wait *wait = state;
    for (int s = 0; s < SCALES; s++) {
        wait->use[s][entry] = chance;
        set_chance(wait, entry, wait->chance[entry] + wait->weight[s] * chance);
    }
    wait->layers[wait->layer_of[entry]].n_low = 0;
}

const struct guanaco_policy gn_policy_wait = {
    .version = GUANACO_POLICY_VERSION,
    .name = "expected-wait",
    .help = "the longest expected wait until it is used again, from past uses and like tokens",
    .parameters = parameters,
    .open = wait_open,
    .close = wait_close,
    .hit = wait_use,
    .miss = wait_use,
    .insert = wait_insert,
    .evict = wait_evict,
    .victim = wait_victim,
    .prior = wait_prior,
};
