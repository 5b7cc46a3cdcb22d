#include "policy/history.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS 128   // remembered, with the present one
#define MATCHES 32   // tokens that have a say
#define MOST_USED 32 // by a layer; an event with more is a prompt's, which resembles everything, and is left out
// A token's say is exp(SHARPNESS x share of the uses it has in common with the present one) x age^-FADING.
#define SHARPNESS 10.0f
#define FADING 0.3f

struct used {
    uint16_t n, expert[MOST_USED];
};

struct match {
    uint32_t token; // its place in the ring
    float score;    // logarithm of its say, then its say
};

struct gn_history {
    uint32_t n_layers, layer;
    uint64_t tokens;         // begun
    struct used *used;       // [TOKENS][n_layers], a ring
    uint32_t common[TOKENS]; // uses in common with the present token so far
    uint32_t n_used;         // by the present token so far
    bool *marked;            // [most_experts] scratch
    float fading[TOKENS];    // by age, as a logarithm
    struct match match[MATCHES];
    uint32_t n_matches;
    float say, later_say; // of all matches; of those that a token came after
    bool matched;
};

struct gn_history *gn_history_open(uint32_t n_layers, uint32_t most_experts) {
    struct gn_history *history = calloc(1, sizeof *history);
    if (!history) {
        return NULL;
    }
    history->n_layers = n_layers;
    history->layer = GN_NONE;
    history->used = calloc((size_t)TOKENS * n_layers, sizeof *history->used);
    history->marked = calloc(most_experts, sizeof *history->marked);
    for (uint32_t age = 1; age < TOKENS; age++) {
        history->fading[age] = -FADING * logf((float)age);
    }
    if (!history->used || !history->marked) {
        gn_history_close(history);
        return NULL;
    }
    return history;
}

void gn_history_close(struct gn_history *history) {
    if (history) {
        free(history->used);
        free(history->marked);
        free(history);
    }
}

static struct used *used_by(const struct gn_history *history, uint64_t token, uint32_t layer) {
    return &history->used[(size_t)(token % TOKENS) * history->n_layers + layer];
}

void gn_history_begin(struct gn_history *history, uint32_t layer) {
    gn_history_match(history);
    if (history->layer == GN_NONE || layer <= history->layer) {
        history->tokens++;
        history->n_used = 0;
        memset(history->common, 0, sizeof history->common);
        memset(used_by(history, history->tokens, 0), 0, history->n_layers * sizeof *history->used);
    }
    history->layer = layer;
    history->matched = false;
}

void gn_history_use(struct gn_history *history, uint32_t expert) {
    struct used *used = used_by(history, history->tokens, history->layer);
    if (used->n < MOST_USED && expert <= UINT16_MAX) {
        used->expert[used->n] = (uint16_t)expert;
    }
    used->n += used->n <= MOST_USED;
}

static void count_common(struct gn_history *history, const struct used *now) {
    for (uint32_t i = 0; i < now->n; i++) {
        history->marked[now->expert[i]] = true;
    }
    for (uint32_t t = 0; t < TOKENS; t++) {
        const struct used *then = used_by(history, t, history->layer);
        for (uint32_t i = 0; i < then->n; i++) {
            history->common[t] += history->marked[then->expert[i]];
        }
    }
    for (uint32_t i = 0; i < now->n; i++) {
        history->marked[now->expert[i]] = false;
    }
    history->n_used += now->n;
}

// Keeps the best, in order.
static void offer(struct gn_history *history, struct match match) {
    uint32_t at = history->n_matches;
    if (at == MATCHES) {
        if (match.score <= history->match[MATCHES - 1].score) {
            return;
        }
        at--;
    } else {
        history->n_matches++;
    }
    for (; at > 0 && history->match[at - 1].score < match.score; at--) {
        history->match[at] = history->match[at - 1];
    }
    history->match[at] = match;
}

void gn_history_match(struct gn_history *history) {
    if (history->matched || history->layer == GN_NONE) {
        return;
    }
    history->matched = true;
    struct used *now = used_by(history, history->tokens, history->layer);
    now->n = now->n <= MOST_USED ? now->n : 0;
    count_common(history, now);
    history->n_matches = 0;
    history->say = history->later_say = 0;
    float scale = SHARPNESS / (float)(history->n_used ? history->n_used : 1);
    for (uint64_t age = 1; age < TOKENS && age < history->tokens; age++) {
        uint32_t token = (uint32_t)((history->tokens - age) % TOKENS);
        offer(history, (struct match){token, scale * (float)history->common[token] + history->fading[age]});
    }
    for (uint32_t m = 0; m < history->n_matches; m++) {
        struct match *match = &history->match[m];
        match->score = expf(match->score);
        history->say += match->score;
        history->later_say += (match->token + 1) % TOKENS != history->tokens % TOKENS ? match->score : 0;
    }
}

void gn_history_predict(const struct gn_history *history, uint32_t layer, float share, float *chance) {
    bool later = layer <= history->layer; // it runs next in the next token
    float all = later ? history->later_say : history->say;
    for (uint32_t m = 0; m < history->n_matches && all > 0; m++) {
        uint32_t token = (history->match[m].token + later) % TOKENS;
        if (token == history->tokens % TOKENS) {
            continue;
        }
        const struct used *used = used_by(history, token, layer);
        for (uint32_t i = 0; i < used->n; i++) {
            chance[used->expert[i]] += share * history->match[m].score / all;
        }
    }
}
