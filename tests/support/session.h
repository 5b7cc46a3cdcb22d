// What the tests need of libllama: a model opened as stock does or through the plugin, fed with given tokens, its
// logits kept. One session per process: the plugin, once loaded, takes part in everything, so stock must run in a
// process of its own.
#pragma once

#include "guanaco.h"
#include "llama.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct session {
    struct llama_model *model;
    struct llama_context *context;
    int n_vocab;
    // From the plugin; NULL in a stock session.
    guanaco_stats_fn stats;
    guanaco_last_error_fn last_error;
    guanaco_mode_fn mode;
};

struct session_options {
    const char *model;
    const char *plugin; // NULL: stock
    unsigned n_context, n_ubatch, n_sequences;
    int n_threads; // 0: one, since several spin against each other on a busy machine
    bool gpu;      // all layers on the first GPU, their experts not
    bool mtp;      // with the layers for multi-token prediction, which no context runs
    bool unmapped; // load_mode none: weights pass through a heap buffer
    bool verbose;
    bool (*loaded)(void *context); // called when the plugin is there and no model yet; false: that is an error
    void *context;
};

// Returns 0, or -1 after a line on standard error.
int session_open(struct session *session, const struct session_options *options);
void session_close(struct session *session);

// Decodes n tokens of sequence 0 from position `from` on; all their logits are kept until the next decode. Returns
// llama_decode()'s result.
int session_decode(struct session *session, const llama_token *tokens, int n, int from);

// The logits of the i-th token of the last decode: n_vocab floats.
const float *session_logits(struct session *session, int i);

struct guanaco_stats session_stats(const struct session *session);

// Runs body(context) in a child process; returns its exit code, or 256 + the signal that killed it.
int in_child(int (*body)(void *context), void *context);
