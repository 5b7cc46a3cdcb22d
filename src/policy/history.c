#include "policy/history.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS 128 // remembered, with the present one; a whole number of words
#define WORD 64
#define MATCHES 32   // tokens that have a say
#define MOST_USED 32 // by a layer; an event with more is a prompt's, which resembles everything, and is left out
// A token's say is exp(SHARPNESS x share of the uses it has in common with the present one) x age^-FADING.
#define SHARPNESS 10.0f
#define FADING 0.3f

struct used {
    uint16_t n, expert[MOST_USED];
};

// A set of tokens, by their place in the ring.
struct tokens {
    uint64_t word[TOKENS / WORD];
};

struct match {
    uint32_t token; // its place in the ring
    float score;    // logarithm of its say, then its say
};

struct gn_history {
    uint32_t n_layers, layer;
    uint64_t tokens;      // begun
    struct used *used;    // [TOKENS][n_layers], a ring
    struct tokens *users; // [n_layers][most_experts] which tokens used the expert, but for the present one
    uint32_t most_experts;
    uint32_t common[TOKENS]; // uses in common with the present token so far
    uint32_t n_used;         // by the present token so far
    float fading[TOKENS];    // by age, as a logarithm
    struct match match[MATCHES];
    uint32_t n_matches;
    bool matched;
    // Whose uses tell what comes in this token [0], and in the next [1]: the tokens after those that match.
    struct tokens telling[2];
    float say[2][TOKENS]; // of each of them; all together 1
};

static void add_token(struct tokens *tokens, uint32_t t) {
    tokens->word[t / WORD] |= UINT64_C(1) << t % WORD;
}

static void remove_token(struct tokens *tokens, uint32_t t) {
    tokens->word[t / WORD] &= ~(UINT64_C(1) << t % WORD);
}

// Takes the first token at or after `from` of a word out of it.
static uint32_t take_token(uint64_t *word, uint32_t from) {
    uint32_t t = from + (uint32_t)__builtin_ctzll(*word);
    *word &= *word - 1;
    return t;
}

struct gn_history *gn_history_open(uint32_t n_layers, uint32_t most_experts) {
    struct gn_history *history = calloc(1, sizeof *history);
    if (!history) {
        return NULL;
    }
    history->n_layers = n_layers;
    history->layer = GN_NONE;
    history->used = calloc((size_t)TOKENS * n_layers, sizeof *history->used);
    history->most_experts = most_experts;
    history->users = calloc((size_t)n_layers * most_experts, sizeof *history->users);
    for (uint32_t age = 1; age < TOKENS; age++) {
        history->fading[age] = -FADING * logf((float)age);
    }
    if (!history->used || !history->users) {
        gn_history_close(history);
        return NULL;
    }
    return history;
}

void gn_history_close(struct gn_history *history) {
    if (history) {
        free(history->used);
        free(history->users);
        free(history);
    }
}

static struct used *used_by(const struct gn_history *history, uint64_t token, uint32_t layer) {
    return &history->used[(size_t)(token % TOKENS) * history->n_layers + layer];
}

static struct tokens *users_of(const struct gn_history *history, uint32_t layer, uint32_t expert) {
    return &history->users[(size_t)layer * history->most_experts + expert];
}

// The oldest token makes room for a new one.
static void begin_token(struct gn_history *history) {
    uint32_t token = (uint32_t)(++history->tokens % TOKENS);
    for (uint32_t l = 0; l < history->n_layers; l++) {
        struct used *used = used_by(history, token, l);
        for (uint32_t i = 0; i < used->n; i++) {
            remove_token(users_of(history, l, used->expert[i]), token);
        }
        used->n = 0;
    }
    history->n_used = 0;
    memset(history->common, 0, sizeof history->common);
}

void gn_history_begin(struct gn_history *history, uint32_t layer) {
    gn_history_match(history);
    if (history->layer == GN_NONE || layer <= history->layer) {
        begin_token(history);
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
        struct tokens *users = users_of(history, history->layer, now->expert[i]);
        for (uint32_t w = 0; w < TOKENS / WORD; w++) {
            for (uint64_t word = users->word[w]; word;) {
                history->common[take_token(&word, w * WORD)]++;
            }
        }
        add_token(users, (uint32_t)(history->tokens % TOKENS));
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

// Gives the matches their say, in this token, or in the next.
static void tell(struct gn_history *history, bool next) {
    uint32_t present = (uint32_t)(history->tokens % TOKENS);
    float all = 0;
    memset(&history->telling[next], 0, sizeof history->telling[next]);
    for (uint32_t m = 0; m < history->n_matches; m++) {
        uint32_t token = (history->match[m].token + next) % TOKENS;
        if (token != present) {
            all += history->match[m].score;
            add_token(&history->telling[next], token);
        }
    }
    for (uint32_t m = 0; m < history->n_matches; m++) {
        history->say[next][(history->match[m].token + next) % TOKENS] = history->match[m].score / all;
    }
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
    float scale = SHARPNESS / (float)(history->n_used ? history->n_used : 1);
    for (uint64_t age = 1; age < TOKENS && age < history->tokens; age++) {
        uint32_t token = (uint32_t)((history->tokens - age) % TOKENS);
        offer(history, (struct match){token, scale * (float)history->common[token] + history->fading[age]});
    }
    for (uint32_t m = 0; m < history->n_matches; m++) {
        history->match[m].score = expf(history->match[m].score);
    }
    tell(history, false);
    tell(history, true);
}

float gn_history_chance(const struct gn_history *history, uint32_t layer, uint32_t expert) {
    bool next = layer <= history->layer; // it runs next in the next token
    const struct tokens *users = users_of(history, layer, expert), *telling = &history->telling[next];
    float chance = 0;
    for (uint32_t w = 0; w < TOKENS / WORD; w++) {
        for (uint64_t word = users->word[w] & telling->word[w]; word;) {
            chance += history->say[next][take_token(&word, w * WORD)];
        }
    }
    return chance;
}
