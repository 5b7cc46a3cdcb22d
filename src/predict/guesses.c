#include "predict/guesses.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MEMORY 32.0f       // cases over which a rank's record is averaged
#define FIRST_RECORD 0.75f // taken for granted until there is experience

struct layer {
    uint32_t experts[GN_GUESSES], n; // noted
    float record[GN_GUESSES];        // share of cases in which the rank came true
    float misses;                    // per event
    struct gn_guesses_figures figures;
};

struct gn_guesses {
    uint32_t n_layers;
    struct layer layers[];
};

struct gn_guesses *gn_guesses_open(uint32_t n_layers) {
    struct gn_guesses *guesses = calloc(1, sizeof *guesses + n_layers * sizeof(struct layer));
    if (!guesses) {
        return NULL;
    }
    guesses->n_layers = n_layers;
    for (uint32_t l = 0; l < n_layers; l++) {
        guesses->layers[l].misses = 1;
        for (uint32_t r = 0; r < GN_GUESSES; r++) {
            guesses->layers[l].record[r] = FIRST_RECORD;
        }
    }
    return guesses;
}

void gn_guesses_close(struct gn_guesses *guesses) {
    free(guesses);
}

void gn_guesses_note(struct gn_guesses *guesses, uint32_t layer, const uint32_t *experts, uint32_t n) {
    struct layer *noted = &guesses->layers[layer];
    noted->n = n < GN_GUESSES ? n : GN_GUESSES;
    memcpy(noted->experts, experts, noted->n * sizeof *experts);
}

uint32_t gn_guesses_worth(const struct gn_guesses *guesses, uint32_t layer, double share,
                          uint32_t experts[GN_GUESSES]) {
    const struct layer *noted = &guesses->layers[layer];
    uint32_t n = 0;
    for (uint32_t r = 0; r < noted->n; r++) {
        if ((double)noted->record[r] >= share) {
            experts[n++] = noted->experts[r];
        }
    }
    return n;
}

static bool contains(const uint32_t *ascending, uint32_t n, uint32_t expert) {
    uint32_t low = 0, high = n;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (ascending[middle] < expert) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < n && ascending[low] == expert;
}

void gn_guesses_check(struct gn_guesses *guesses, uint32_t layer, const uint32_t *used, uint32_t n, uint32_t missed) {
    struct layer *noted = &guesses->layers[layer];
    noted->misses += ((float)missed - noted->misses) / MEMORY;
    for (uint32_t r = 0; r < noted->n; r++) {
        bool came_true = contains(used, n, noted->experts[r]);
        noted->record[r] += ((float)came_true - noted->record[r]) / MEMORY;
        noted->figures.foreseen += came_true;
    }
    noted->figures.used += noted->n > 0 ? n : 0;
    noted->n = 0;
}

double gn_guesses_misses(const struct gn_guesses *guesses, uint32_t layer) {
    return guesses->layers[layer].misses;
}

struct gn_guesses_figures gn_guesses_figures(const struct gn_guesses *guesses, uint32_t layer) {
    return guesses->layers[layer].figures;
}
