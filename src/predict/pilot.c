#include "predict/pilot.h"

#include "predict/rank.h"
#include "predict/transitions.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define ROOM 4096    // choices that are kept of a batch
#define MOST_EACH 64 // guesses for one token

// What the tokens of a batch used in one layer.
struct seen {
    uint32_t layer, n_tokens, n_used; // n_tokens 0: nothing
    uint32_t batch_tokens;            // with those that were left out
    uint32_t ids[ROOM];               // [n_tokens][n_used]
};

struct gn_pilot {
    struct gn_transitions *transitions;
    uint32_t n_layers;
    float *scores; // [experts of the largest layer]
    struct seen *before, *now, seen[2];
};

struct gn_pilot *gn_pilot_open(uint32_t n_layers, const uint32_t *n_experts) {
    struct gn_pilot *pilot = calloc(1, sizeof *pilot);
    if (!pilot) {
        return NULL;
    }
    uint32_t largest = 1;
    for (uint32_t l = 0; l < n_layers; l++) {
        largest = n_experts[l] > largest ? n_experts[l] : largest;
    }
    pilot->n_layers = n_layers;
    pilot->before = &pilot->seen[0];
    pilot->now = &pilot->seen[1];
    pilot->scores = calloc(largest, sizeof *pilot->scores);
    pilot->transitions = gn_transitions_open(n_layers, n_experts);
    if (!pilot->scores || !pilot->transitions) {
        gn_pilot_close(pilot);
        return NULL;
    }
    return pilot;
}

void gn_pilot_close(struct gn_pilot *pilot) {
    if (pilot) {
        gn_transitions_close(pilot->transitions);
        free(pilot->scores);
        free(pilot);
    }
}

size_t gn_pilot_bytes(const struct gn_pilot *pilot) {
    return gn_transitions_bytes(pilot->transitions) + sizeof *pilot;
}

static void take(struct seen *seen, uint32_t layer, const struct gn_pilot_batch *batch) {
    uint32_t fit = batch->n_used > 0 ? ROOM / batch->n_used : 0;
    uint32_t n = batch->n_tokens < fit ? batch->n_tokens : fit, left_out = batch->n_tokens - n;
    seen->layer = layer;
    seen->n_tokens = n;
    seen->n_used = batch->n_used;
    seen->batch_tokens = batch->n_tokens;
    for (uint32_t t = 0; t < n; t++) {
        const uint8_t *token = (const uint8_t *)batch->ids + (left_out + t) * batch->token_stride;
        for (uint32_t k = 0; k < batch->n_used; k++) {
            int32_t id;
            memcpy(&id, token + k * batch->choice_stride, sizeof id);
            seen->ids[t * batch->n_used + k] = (uint32_t)id;
        }
    }
}

// Whether token t of the one is token t of the other, a layer earlier; or the only token, and the one before it.
static bool follows(const struct gn_pilot *pilot, const struct seen *before, const struct seen *now) {
    if (now->layer == 0) {
        return before->n_tokens > 0 && before->layer + 1 == pilot->n_layers && now->batch_tokens == 1;
    }
    return before->layer + 1 == now->layer && before->batch_tokens == now->batch_tokens &&
           before->n_tokens == now->n_tokens;
}

void gn_pilot_see(struct gn_pilot *pilot, uint32_t layer, const struct gn_pilot_batch *batch) {
    struct seen *before = pilot->now, *now = pilot->before;
    pilot->now = now;
    pilot->before = before;
    take(now, layer, batch);
    bool known = follows(pilot, before, now);
    uint32_t first = known && layer == 0 ? before->n_tokens - 1 : 0;
    for (uint32_t t = 0; t < now->n_tokens; t++) {
        const uint32_t *from = before->ids + (size_t)(first + t) * before->n_used;
        gn_transitions_learn(pilot->transitions, layer, from, known ? before->n_used : 0,
                             now->ids + (size_t)t * now->n_used, now->n_used);
    }
}

uint32_t gn_pilot_guess(struct gn_pilot *pilot, double mass, uint32_t each, uint32_t *experts, uint32_t most) {
    const struct seen *now = pilot->now;
    uint32_t next = (now->layer + 1) % pilot->n_layers, n_tokens = next == 0 ? 1 : now->n_tokens;
    uint32_t best[GN_PILOT_TOKENS][MOST_EACH], n_best[GN_PILOT_TOKENS], n = 0;
    if (now->n_tokens == 0 || now->batch_tokens > GN_PILOT_TOKENS) {
        return 0;
    }
    each = each < MOST_EACH ? each : MOST_EACH;
    for (uint32_t t = 0; t < n_tokens; t++) {
        const uint32_t *from = now->ids + (size_t)(next == 0 ? now->n_tokens - 1 : t) * now->n_used;
        uint32_t n_scores = gn_transitions_score(pilot->transitions, next, from, now->n_used, pilot->scores);
        n_best[t] = gn_transitions_choose(pilot->scores, n_scores, mass, each, best[t]);
    }
    for (uint32_t r = 0; r < each; r++) {
        for (uint32_t t = 0; t < n_tokens; t++) {
            if (r < n_best[t]) {
                gn_rank_add(experts, &n, most, best[t][r]);
            }
        }
    }
    return n;
}
