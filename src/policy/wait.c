// Expected wait: the expert that will probably be wanted again latest goes first.
//
// A layer runs once a token, so its experts can be wanted only when the sweep through the layers comes to it again. The
// chance p that an expert is used then is estimated by its own past uses, decayed at several half-lives: the short ones
// catch what a few tokens share, the long ones what the text is about. Expected wait, in tokens:
//
//     distance of its layer in the sweep  +  1/p - 1
//
// All chances of a layer change only when the layer runs. So they are brought up to date there, and the layer's least
// likely expert in the cache is remembered: a victim is found by a look at each layer.
#include "policy/policy.h"

#include <math.h>
#include <stdlib.h>

#define SCALES 4
static const float half_life[SCALES] = {1, 4, 16, 80}; // in tokens
static const float weight[SCALES] = {0.08f, 0.12f, 0.3f, 0.5f};
#define LEAST_CHANCE 1e-6f

struct layer {
    uint32_t first, n;   // its entries
    uint32_t size_class; // GN_NONE: nothing of it was in the cache yet
    uint32_t least;      // the least likely entry in the cache; GN_NONE: to be found
    uint32_t n_resident;
};

struct wait {
    uint32_t n_layers, layer; // of the event that runs
    bool in_event;            // uses may still be added to it
    const uint32_t *layer_of;
    struct layer *layers;
    float *use[SCALES]; // [n_entries] uses, decayed
    float *chance;      // [n_entries] of use when its layer runs next
    uint64_t *used_at;  // [n_entries] the last event that used it
    bool *resident;     // [n_entries]
    uint64_t event;
    float keep[SCALES]; // what is left of a use after one token
    float gain;         // what a use adds to a chance
};

static void wait_close(void *state) {
    struct wait *wait = state;
    free(wait->layers);
    free(wait->use[0]);
    free(wait->used_at);
    free(wait->resident);
    free(wait);
}

static void find_layers(struct wait *wait, const struct gn_policy_shape *shape) {
    for (uint32_t entry = shape->n_entries; entry-- > 0;) {
        struct layer *layer = &wait->layers[shape->layer_of[entry]];
        layer->first = entry;
        layer->n++;
        layer->size_class = layer->least = GN_NONE;
    }
}

static void *wait_open(const struct gn_policy_shape *shape) {
    struct wait *wait = calloc(1, sizeof *wait);
    if (!wait) {
        return NULL;
    }
    size_t n = shape->n_entries;
    wait->n_layers = shape->n_layers;
    wait->layer = GN_NONE;
    wait->layer_of = shape->layer_of;
    wait->layers = calloc(shape->n_layers, sizeof *wait->layers);
    wait->use[0] = calloc((SCALES + 1) * n, sizeof *wait->use[0]);
    wait->used_at = calloc(n, sizeof *wait->used_at);
    wait->resident = calloc(n, sizeof *wait->resident);
    if (!wait->layers || !wait->use[0] || !wait->used_at || !wait->resident) {
        wait_close(wait);
        return NULL;
    }
    for (int s = 0; s < SCALES; s++) {
        wait->use[s] = wait->use[0] + (size_t)s * n;
        wait->keep[s] = exp2f(-1 / half_life[s]);
        wait->gain += weight[s] * (1 - wait->keep[s]);
    }
    wait->chance = wait->use[0] + SCALES * n;
    find_layers(wait, shape);
    return wait;
}

// A token later for this layer.
static void run_layer(struct wait *wait, uint32_t l) {
    struct layer *layer = &wait->layers[l];
    wait->layer = l;
    wait->event++;
    wait->in_event = true;
    layer->least = GN_NONE;
    for (uint32_t entry = layer->first; entry < layer->first + layer->n; entry++) {
        float chance = 0;
        for (int s = 0; s < SCALES; s++) {
            wait->use[s][entry] *= wait->keep[s];
            chance += weight[s] * wait->use[s][entry];
        }
        wait->chance[entry] = chance;
    }
}

static void wait_use(void *state, uint32_t entry, uint32_t size_class) {
    struct wait *wait = state;
    uint32_t l = wait->layer_of[entry];
    wait->layers[l].size_class = size_class;
    if (l != wait->layer || !wait->in_event || wait->used_at[entry] == wait->event) {
        run_layer(wait, l);
    }
    wait->used_at[entry] = wait->event;
    wait->chance[entry] += wait->gain;
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
    layer->n_resident++;
    layer->least = GN_NONE;
}

static void wait_evict(void *state, uint32_t entry, uint32_t size_class) {
    struct wait *wait = state;
    struct layer *layer = &wait->layers[wait->layer_of[entry]];
    (void)size_class;
    wait->resident[entry] = false;
    layer->n_resident--;
    layer->least = GN_NONE;
}

static uint32_t least_likely(const struct wait *wait, const struct layer *layer,
                             bool (*busy)(const void *context, uint32_t entry), const void *context) {
    uint32_t least = GN_NONE;
    float chance = INFINITY;
    for (uint32_t entry = layer->first; entry < layer->first + layer->n; entry++) {
        if (wait->resident[entry] && wait->chance[entry] < chance && !(busy && busy(context, entry))) {
            chance = wait->chance[entry];
            least = entry;
        }
    }
    return least;
}

// The entry of a layer that may go. Only the layer that runs has busy ones, as a rule.
static uint32_t candidate(const struct wait *wait, struct layer *layer,
                          bool (*busy)(const void *context, uint32_t entry), const void *context) {
    if (layer->least == GN_NONE) {
        layer->least = least_likely(wait, layer, NULL, NULL);
    }
    return busy(context, layer->least) ? least_likely(wait, layer, busy, context) : layer->least;
}

static uint32_t wait_victim(void *state, uint32_t size_class, bool (*busy)(const void *context, uint32_t entry),
                            const void *context) {
    struct wait *wait = state;
    uint32_t victim = GN_NONE;
    float longest = -1;
    wait->in_event = false;
    for (uint32_t l = 0; l < wait->n_layers; l++) {
        struct layer *layer = &wait->layers[l];
        if (layer->size_class != size_class || layer->n_resident == 0) {
            continue;
        }
        uint32_t entry = candidate(wait, layer, busy, context);
        if (entry == GN_NONE) {
            continue;
        }
        uint32_t layers_ahead = l > wait->layer ? l - wait->layer : l + wait->n_layers - wait->layer;
        float distance = (float)layers_ahead / (float)wait->n_layers;
        float expected = distance + 1 / fmaxf(wait->chance[entry], LEAST_CHANCE) - 1;
        if (expected > longest) {
            longest = expected;
            victim = entry;
        }
    }
    return victim;
}

const struct gn_policy gn_policy_wait = {
    .name = "expected-wait",
    .help = "the longest expected wait until it is used again, from decayed counts",
    .open = wait_open,
    .close = wait_close,
    .hit = wait_use,
    .miss = wait_use,
    .insert = wait_insert,
    .evict = wait_evict,
    .victim = wait_victim,
};
