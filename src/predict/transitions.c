#include "predict/transitions.h"

#include "predict/rank.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#define ONE 64u          // a use, as it is counted: a fraction is left of it after counts were halved
#define ROW_USES 32u     // uses of an expert after which the counts of its successors are halved
#define LAYER_USES 4096u // uses of a layer, of one expert on average 8 to 64, after which its counts are halved
#define LEARNT 4u        // tokens that a layer must have seen
#define PRIOR 2.0        // a: uses that what is known anyway is worth
#define EVIDENCE 0.6f    // w
#define RARE 3.0         // in units of ONE: what an expert counts that was never used

struct successor {
    uint16_t expert, count; // count 0: none
};

// Of one expert of the layer before: its uses, since they were halved, lie in row_uses.
struct layer {
    struct successor *rows; // [experts of the layer before][width]
    uint16_t *row_uses;     // [experts of the layer before]
    uint16_t *uses;         // [n_experts] in units of ONE
    uint32_t n_experts, n_from, width;
    uint32_t all_uses, tokens;
};

struct gn_transitions {
    uint32_t n_layers;
    size_t bytes;
    void *memory; // of all layers' tables
    struct layer layers[];
};

// Lays the tables out one after another from `at`, which may be NULL, to size them. Returns their end.
static size_t lay_out(struct gn_transitions *transitions, uint8_t *memory) {
    size_t used = 0;
    for (uint32_t l = 0; l < transitions->n_layers; l++) {
        struct layer *layer = &transitions->layers[l];
        size_t rows = (size_t)layer->n_from * layer->width * sizeof *layer->rows;
        size_t row_uses = (layer->n_from * sizeof *layer->row_uses + 3) & ~(size_t)3;
        size_t uses = (layer->n_experts * sizeof *layer->uses + 3) & ~(size_t)3;
        if (memory) {
            layer->rows = (struct successor *)(void *)(memory + used);
            layer->row_uses = (uint16_t *)(void *)(memory + used + rows);
            layer->uses = (uint16_t *)(void *)(memory + used + rows + row_uses);
        }
        used += rows + row_uses + uses;
    }
    return used;
}

struct gn_transitions *gn_transitions_open(uint32_t n_layers, const uint32_t *n_experts) {
    struct gn_transitions *transitions = calloc(1, sizeof *transitions + n_layers * sizeof(struct layer));
    if (!transitions) {
        return NULL;
    }
    transitions->n_layers = n_layers;
    for (uint32_t l = 0; l < n_layers; l++) {
        struct layer *layer = &transitions->layers[l];
        uint32_t before = n_experts[l > 0 ? l - 1 : n_layers - 1];
        bool fits = n_experts[l] <= UINT16_MAX + 1u && before <= UINT16_MAX + 1u;
        layer->n_experts = fits ? n_experts[l] : 0;
        layer->n_from = fits ? before : 0;
        layer->width = layer->n_experts < GN_SUCCESSORS ? layer->n_experts : GN_SUCCESSORS;
    }
    size_t tables = lay_out(transitions, NULL);
    transitions->bytes = sizeof *transitions + n_layers * sizeof(struct layer) + tables;
    transitions->memory = calloc(1, tables + 1);
    if (!transitions->memory) {
        gn_transitions_close(transitions);
        return NULL;
    }
    lay_out(transitions, transitions->memory);
    return transitions;
}

void gn_transitions_close(struct gn_transitions *transitions) {
    if (transitions) {
        free(transitions->memory);
        free(transitions);
    }
}

size_t gn_transitions_bytes(const struct gn_transitions *transitions) {
    return transitions->bytes;
}

// Counts a use of an expert as a successor. When there is no room, the one counted least makes it.
static void count_successor(struct successor *row, uint32_t width, uint32_t expert) {
    uint32_t least = 0;
    for (uint32_t i = 0; i < width; i++) {
        if (row[i].count > 0 && row[i].expert == expert) {
            row[i].count = (uint16_t)(row[i].count + ONE);
            return;
        }
        least = row[i].count < row[least].count ? i : least;
    }
    row[least] = (struct successor){(uint16_t)expert, ONE};
}

static void learn_row(struct layer *layer, uint32_t from, const uint32_t *used, uint32_t n_used) {
    struct successor *row = layer->rows + (size_t)from * layer->width;
    if (++layer->row_uses[from] >= ROW_USES) {
        layer->row_uses[from] /= 2;
        for (uint32_t i = 0; i < layer->width; i++) {
            row[i].count /= 2;
        }
    }
    for (uint32_t i = 0; i < n_used; i++) {
        count_successor(row, layer->width, used[i]);
    }
}

void gn_transitions_learn(struct gn_transitions *transitions, uint32_t layer_index, const uint32_t *from,
                          uint32_t n_from, const uint32_t *used, uint32_t n_used) {
    struct layer *layer = &transitions->layers[layer_index];
    if (layer->width == 0) {
        return;
    }
    layer->tokens += layer->tokens < LEARNT;
    for (uint32_t i = 0; i < n_from; i++) {
        learn_row(layer, from[i], used, n_used);
    }
    uint32_t full = LAYER_USES * ONE;
    for (uint32_t i = 0; i < n_used; i++) {
        uint16_t *uses = &layer->uses[used[i]];
        *uses = (uint16_t)(*uses + ONE);
        layer->all_uses += ONE;
        if (*uses > UINT16_MAX - ONE) {
            full = 0;
        }
    }
    if (layer->all_uses > full) {
        layer->all_uses = 0;
        for (uint32_t e = 0; e < layer->n_experts; e++) {
            layer->uses[e] /= 2;
            layer->all_uses += layer->uses[e];
        }
    }
}

uint32_t gn_transitions_score(const struct gn_transitions *transitions, uint32_t layer_index, const uint32_t *from,
                              uint32_t n_from, float *scores) {
    const struct layer *layer = &transitions->layers[layer_index];
    if (layer->width == 0 || layer->tokens < LEARNT) {
        return 0;
    }
    // How many of the experts of one token are this one, on average, if nothing else is known. As many experts are
    // used here as in the layer before.
    double unit = (double)n_from / ((double)layer->all_uses + RARE * layer->n_experts);
    for (uint32_t e = 0; e < layer->n_experts; e++) {
        scores[e] = 0;
    }
    for (uint32_t i = 0; i < n_from; i++) {
        const struct successor *row = layer->rows + (size_t)from[i] * layer->width;
        for (uint32_t s = 0; s < layer->width; s++) {
            double expected = PRIOR * ONE * (layer->uses[row[s].expert] + RARE) * unit;
            scores[row[s].expert] += row[s].count > 0 ? logf(1 + (float)(row[s].count / expected)) : 0;
        }
    }
    for (uint32_t e = 0; e < layer->n_experts; e++) {
        scores[e] = EVIDENCE * scores[e] + logf((float)((layer->uses[e] + RARE) * unit));
    }
    return layer->n_experts;
}

uint32_t gn_transitions_choose(const float *scores, uint32_t n, double mass, uint32_t most, uint32_t *best) {
    uint32_t chosen = gn_rank(scores, n, most, best);
    if (chosen == 0 || mass >= 1) {
        return chosen;
    }
    double all = 0, covered = 0;
    for (uint32_t i = 0; i < n; i++) {
        all += exp((double)(scores[i] - scores[best[0]]));
    }
    uint32_t needed = 0;
    while (needed < chosen && covered < mass * all) {
        covered += exp((double)(scores[best[needed++]] - scores[best[0]]));
    }
    return needed;
}
