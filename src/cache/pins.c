#include "cache/pins.h"

#include <stdlib.h>
#include <string.h>

#define DECAY 0.95
#define PRIOR_TOKENS 64 // as many tokens' uses are counted in advance
#define COLD 1e-6f      // counts below this are none

struct gn_pins {
    struct gn_pins_options options;
    uint32_t n_entries, n_hot;
    uint32_t events; // since the last choice, or before the first
    uint64_t choices;
    uint64_t uses;
    uint32_t n_seen;
    uint64_t *bytes; // [n_entries]
    float *count;    // [n_entries]
    bool *seen;      // [n_entries]
    bool *hot;       // [n_entries]
    bool *was_hot;   // [n_entries]
    uint32_t n_distinct;
};

struct gn_pins *gn_pins_open(const struct gn_pins_options *options, uint32_t n_entries, const uint64_t *entry_bytes) {
    struct gn_pins *pins = calloc(1, sizeof *pins);
    if (!pins) {
        return NULL;
    }
    pins->options = *options;
    pins->options.decay = options->decay > 0 ? options->decay : DECAY;
    pins->options.warm_up = options->warm_up ? options->warm_up : GN_PINS_INTERVAL;
    pins->n_entries = n_entries;
    pins->bytes = calloc(n_entries, sizeof *pins->bytes);
    pins->count = calloc(n_entries, sizeof *pins->count);
    pins->seen = calloc(n_entries, sizeof *pins->seen);
    pins->hot = calloc(n_entries, sizeof *pins->hot);
    pins->was_hot = calloc(n_entries, sizeof *pins->was_hot);
    if (!pins->bytes || !pins->count || !pins->seen || !pins->hot || !pins->was_hot) {
        gn_pins_close(pins);
        return NULL;
    }
    memcpy(pins->bytes, entry_bytes, n_entries * sizeof *entry_bytes);
    return pins;
}

void gn_pins_close(struct gn_pins *pins) {
    if (pins) {
        free(pins->bytes);
        free(pins->count);
        free(pins->seen);
        free(pins->hot);
        free(pins->was_hot);
        free(pins);
    }
}

void gn_pins_use(struct gn_pins *pins, uint32_t entry) {
    pins->count[entry] += 1;
    pins->uses++;
    pins->n_seen += !pins->seen[entry];
    pins->seen[entry] = true;
}

bool gn_pins_event(struct gn_pins *pins) {
    return ++pins->events > (pins->choices > 0 ? GN_PINS_INTERVAL : pins->options.warm_up);
}

uint64_t gn_pins_choices(const struct gn_pins *pins) {
    return pins->choices;
}

bool gn_pins_hot(const struct gn_pins *pins, uint32_t entry) {
    return pins->hot[entry];
}

// Hotter entries have greater keys, and no two have the same. The bits of a float that is not negative are in order.
// 0: never to be hot.
static uint64_t key_of(const struct gn_pins *pins, uint32_t entry) {
    uint32_t bits;
    memcpy(&bits, &pins->count[entry], sizeof bits);
    return bits ? (uint64_t)bits << 32 | (uint64_t)pins->hot[entry] << 31 | (pins->n_entries - entry) : 0;
}

struct weight {
    uint64_t n, bytes;
};

static struct weight sum(struct weight a, struct weight b) {
    return (struct weight){a.n + b.n, a.bytes + b.bytes};
}

static bool fits(const struct gn_pins *pins, struct weight weight) {
    return (pins->options.most == 0 || weight.n <= pins->options.most) &&
           (pins->options.bytes == 0 || weight.bytes <= pins->options.bytes);
}

// The least key such that all entries with this key or a greater one fit. Found byte by byte from the top: the weights
// of the entries that share the bytes found so far are summed by their next byte.
static uint64_t threshold(const struct gn_pins *pins) {
    uint64_t found = 0;
    struct weight taken = {0, 0};
    for (unsigned shift = 56;; shift -= 8) {
        struct weight sums[256] = {{0, 0}};
        for (uint32_t entry = 0; entry < pins->n_entries; entry++) {
            uint64_t key = key_of(pins, entry);
            if (key > 0 && (shift == 56 || key >> (shift + 8) == found >> (shift + 8))) {
                struct weight *at = &sums[key >> shift & 255];
                *at = sum(*at, (struct weight){1, pins->bytes[entry]});
            }
        }
        unsigned byte = 255;
        while (fits(pins, sum(taken, sums[byte]))) {
            taken = sum(taken, sums[byte]);
            if (byte-- == 0) {
                return 1; // all fit
            }
        }
        found |= (uint64_t)byte << shift;
        if (shift == 0) {
            return found + 1; // the one that did not
        }
    }
}

void gn_pins_choose(struct gn_pins *pins) {
    uint64_t least = threshold(pins);
    pins->n_hot = 0;
    for (uint32_t entry = 0; entry < pins->n_entries; entry++) {
        pins->hot[entry] = key_of(pins, entry) >= least;
        pins->n_hot += pins->hot[entry];
        pins->n_distinct += pins->hot[entry] && !pins->was_hot[entry];
        pins->was_hot[entry] = pins->was_hot[entry] || pins->hot[entry];
        pins->count[entry] *= (float)pins->options.decay;
        if (pins->count[entry] < COLD) {
            pins->count[entry] = 0;
        }
    }
    pins->events = 0;
    pins->choices++;
}

void gn_pins_prior(struct gn_pins *pins, uint32_t entry, float chance) {
    pins->count[entry] += chance * PRIOR_TOKENS;
    pins->events = pins->options.warm_up;
}

struct gn_pins_figures gn_pins_figures(const struct gn_pins *pins) {
    struct gn_pins_figures figures = {.uses = pins->uses,
                                      .seen = pins->n_seen,
                                      .hot = pins->n_hot,
                                      .most = pins->options.most,
                                      .distinct = pins->n_distinct};
    for (uint32_t entry = 0; entry < pins->n_entries; entry++) {
        if (pins->hot[entry]) {
            float count = pins->count[entry];
            figures.least = figures.greatest == 0 || count < figures.least ? count : figures.least;
            figures.greatest = count > figures.greatest ? count : figures.greatest;
        }
    }
    figures.most = figures.most ? figures.most : figures.hot;
    return figures;
}
