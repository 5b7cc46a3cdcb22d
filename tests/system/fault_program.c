// Another program for the fault matrix (fault_matrix.py): it knows libllama, loads the plugin, and generates greedily.
// Without a plugin it says what stock says.
//
//     fault_program MODEL PLUGIN|- TOKENS TEXT [unmapped]
//
// On standard output: the text, a line end, and a sum over the bits of all logits.
#include "session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_TOKENS 128

// FNV-1a.
static uint64_t add_bits(uint64_t sum, const float *logits, int n) {
    for (int i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &logits[i], sizeof bits);
        sum = (sum ^ bits) * UINT64_C(0x100000001b3);
    }
    return sum;
}

static llama_token likeliest(const float *logits, int n) {
    int best = 0;
    for (int i = 1; i < n; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    return best;
}

static void print_token(const struct llama_vocab *vocab, llama_token token) {
    char piece[256];
    int n = llama_token_to_piece(vocab, token, piece, sizeof piece, 0, false);
    fwrite(piece, 1, n > 0 ? (size_t)n : 0, stdout);
}

static int generate(struct session *session, const char *text, int n_predict) {
    const struct llama_vocab *vocab = llama_model_get_vocab(session->model);
    llama_token tokens[MOST_TOKENS];
    int n = llama_tokenize(vocab, text, (int)strlen(text), tokens, MOST_TOKENS, true, false);
    uint64_t sum = UINT64_C(0xcbf29ce484222325);
    for (int from = 0, made = 0; n > 0; made++) {
        if (session_decode(session, tokens, n, from)) {
            fprintf(stderr, "decoding stopped\n");
            return 1;
        }
        from += n;
        const float *logits = session_logits(session, n - 1);
        for (int i = 0; i < n; i++) {
            sum = add_bits(sum, session_logits(session, i), session->n_vocab);
        }
        tokens[0] = likeliest(logits, session->n_vocab);
        n = made < n_predict ? 1 : 0;
        if (n > 0) {
            print_token(vocab, tokens[0]);
        }
    }
    printf("\nbits %016llx\n", (unsigned long long)sum);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 5) {
        fprintf(stderr, "usage: fault_program MODEL PLUGIN|- TOKENS TEXT [unmapped]\n");
        return 2;
    }
    struct session session;
    struct session_options options = {
        .model = argv[1],
        .plugin = strcmp(argv[2], "-") != 0 ? argv[2] : NULL,
        .n_context = 64,
        .n_ubatch = 32,
        .unmapped = argc > 5,
    };
    int code = session_open(&session, &options) ? 1 : generate(&session, argv[4], (int)strtol(argv[3], NULL, 10));
    session_close(&session);
    return code;
}
