#include "bench/tokens.h"

#include "bench/text.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ------------------------------------------------------------------------------------------------ text

// Whether the vocabulary knows the language: few tokens stand for bytes or for nothing at all.
static bool spells(const struct llama_vocab *vocab, const llama_token *tokens, int n) {
    int strange = 0;
    for (int i = 0; i < n; i++) {
        enum llama_token_attr attribute = llama_vocab_get_attr(vocab, tokens[i]);
        strange += (attribute & (LLAMA_TOKEN_ATTR_UNKNOWN | LLAMA_TOKEN_ATTR_BYTE)) != 0;
    }
    return n > 1 && strange * 4 < n;
}

// Returns the number of tokens of the text, all of them in *tokens (to be freed), or 0.
static int tokenize(const struct llama_vocab *vocab, const char *text, llama_token **tokens) {
    size_t length = strlen(text);
    if (llama_vocab_type(vocab) == LLAMA_VOCAB_TYPE_NONE || length == 0 || length > INT32_MAX / 8) {
        return 0;
    }
    int most = (int)length + 16;
    *tokens = malloc((size_t)most * sizeof **tokens);
    int n = *tokens ? llama_tokenize(vocab, text, (int32_t)length, *tokens, most, true, false) : 0;
    return n > 0 && spells(vocab, *tokens, n) ? n : 0;
}

static bool from_text(const struct llama_vocab *vocab, const char *text, llama_token *tokens, int n, int *of) {
    llama_token *all = NULL;
    *of = tokenize(vocab, text, &all);
    for (int i = 0; *of > 0 && i < n; i++) {
        tokens[i] = all[i % *of];
    }
    free(all);
    return *of > 0;
}

// ------------------------------------------------------------------------------------------------ pseudo-random

enum { NEIGHBOURS = 64, RUN = 24 };

static uint32_t next(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void pseudo_random(const struct llama_vocab *vocab, llama_token *tokens, int n) {
    uint32_t state = 1, n_vocab = (uint32_t)llama_vocab_n_tokens(vocab), from = 0;
    uint32_t width = n_vocab < NEIGHBOURS ? n_vocab : NEIGHBOURS;
    bool typed = llama_vocab_type(vocab) != LLAMA_VOCAB_TYPE_NONE;
    for (int i = 0; i < n; i++) {
        if (i == 0 || next(&state) % RUN == 0) {
            from = next(&state) % n_vocab / width * width;
        }
        // Control tokens are not what a text has, if there is anything else.
        for (int tries = 0; tries < 64; tries++) {
            tokens[i] = (llama_token)((from + next(&state) % width) % n_vocab);
            if (!typed || llama_vocab_get_attr(vocab, tokens[i]) & LLAMA_TOKEN_ATTR_NORMAL) {
                break;
            }
        }
    }
}

bool bench_tokens(const struct llama_vocab *vocab, const char *text, llama_token *tokens, int n, char *what,
                  size_t what_size, char *why, size_t why_size) {
    int of;
    bool spelled = from_text(vocab, text ? text : bench_text, tokens, n, &of);
    // Our English in shreds of two letters is no text to a model.
    if (spelled && (text || (size_t)of * 5 / 2 < strlen(bench_text))) {
        int used = snprintf(what, what_size, "%s of %d tokens", text ? "the text" : "a text of ours", of);
        if (of < n && used > 0 && (size_t)used < what_size) {
            snprintf(what + used, what_size - (size_t)used, ", repeated");
        }
        return true;
    }
    if (text) {
        snprintf(why, why_size, "the model's vocabulary cannot spell this text (-f); give another, or none");
        return false;
    }
    pseudo_random(vocab, tokens, n);
    snprintf(what, what_size, "pseudo-random tokens, as the vocabulary has no English words");
    return true;
}
