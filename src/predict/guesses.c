#include "predict/guesses.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MEMORY 32     // cases over which a rank's record is averaged, and events over which a layer's
#define FIRST_CASES 3 // that the trust at the start counts for
#define DEAREST 4.0   // what a guess in vain costs at most, in guesses that came true

struct layer {
    uint32_t experts[GN_GUESSES], n; // noted
    uint32_t missing, worth;         // bit r: of the r-th
    float price;                     // of a guess in vain
    float record[GN_GUESSES];        // share of cases in which the rank came true
    uint8_t cases[GN_GUESSES];       // of them, up to MEMORY
    float misses, value;             // per event
    struct gn_guesses_figures figures;
};

struct gn_guesses {
    uint32_t n_layers;
    struct layer layers[];
};

struct gn_guesses *gn_guesses_open(uint32_t n_layers, double trust) {
    struct gn_guesses *guesses = calloc(1, sizeof *guesses + n_layers * sizeof(struct layer));
    if (!guesses) {
        return NULL;
    }
    guesses->n_layers = n_layers;
    for (uint32_t l = 0; l < n_layers; l++) {
        guesses->layers[l].misses = 1;
        for (uint32_t r = 0; r < GN_GUESSES; r++) {
            guesses->layers[l].record[r] = (float)trust;
            guesses->layers[l].cases[r] = FIRST_CASES;
        }
    }
    return guesses;
}

void gn_guesses_close(struct gn_guesses *guesses) {
    free(guesses);
}

void gn_guesses_note(struct gn_guesses *guesses, uint32_t layer, const uint32_t *experts, uint32_t n, uint32_t missing,
                     double bar) {
    struct layer *noted = &guesses->layers[layer];
    noted->n = n < GN_GUESSES ? n : GN_GUESSES;
    memcpy(noted->experts, experts, noted->n * sizeof *experts);
    noted->missing = missing;
    noted->worth = 0;
    noted->price = (float)(bar < 1 ? fmin(bar / (1 - bar), DEAREST) : DEAREST);
    for (uint32_t r = 0; r < noted->n; r++) {
        bool worth = missing & 1u << r && (double)noted->record[r] >= bar;
        noted->worth |= (uint32_t)worth << r;
    }
}

void gn_guesses_forget(struct gn_guesses *guesses, uint32_t layer) {
    guesses->layers[layer].n = 0;
}

uint32_t gn_guesses_worth(const struct gn_guesses *guesses, uint32_t layer, uint32_t experts[GN_GUESSES]) {
    const struct layer *noted = &guesses->layers[layer];
    uint32_t n = 0;
    for (uint32_t r = 0; r < noted->n; r++) {
        if (noted->worth & 1u << r) {
            experts[n++] = noted->experts[r];
        }
    }
    return n;
}

static void record(struct layer *noted, uint32_t rank, bool came_true) {
    noted->cases[rank] += noted->cases[rank] < MEMORY;
    noted->record[rank] += ((float)came_true - noted->record[rank]) / noted->cases[rank];
}

static bool contains(const uint32_t *experts, uint32_t n, uint32_t expert) {
    for (uint32_t i = 0; i < n; i++) {
        if (experts[i] == expert) {
            return true;
        }
    }
    return false;
}

struct gn_guesses_figures gn_guesses_check(struct gn_guesses *guesses, uint32_t layer, const uint32_t *used, uint32_t n,
                                           uint32_t missed) {
    struct layer *noted = &guesses->layers[layer];
    struct gn_guesses_figures now = {0};
    noted->misses += ((float)missed - noted->misses) / MEMORY;
    if (noted->n == 0) {
        return now;
    }
    float value = 0;
    for (uint32_t r = 0; r < noted->n; r++) {
        bool came_true = contains(used, n, noted->experts[r]), worth = noted->worth & 1u << r;
        if (noted->missing & 1u << r) {
            record(noted, r, came_true);
        }
        value += !worth ? 0 : came_true ? 1 : -noted->price;
        now.foreseen += came_true;
        now.worth += worth;
        now.came_true += worth && came_true;
    }
    now.used = n;
    noted->value += (value - noted->value) / MEMORY;
    noted->n = 0;
    noted->figures.used += now.used;
    noted->figures.foreseen += now.foreseen;
    noted->figures.worth += now.worth;
    noted->figures.came_true += now.came_true;
    return now;
}

double gn_guesses_misses(const struct gn_guesses *guesses, uint32_t layer) {
    return guesses->layers[layer].misses;
}

double gn_guesses_value(const struct gn_guesses *guesses, uint32_t layer) {
    return guesses->layers[layer].value;
}

struct gn_guesses_figures gn_guesses_figures(const struct gn_guesses *guesses, uint32_t layer) {
    return guesses->layers[layer].figures;
}
