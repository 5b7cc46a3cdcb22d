// One model, one context, one conversation: text in, text out, and the counters of both.
#pragma once

#include "engine.h"
#include "options.h"

#include "llama.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

struct session {
    const struct options *options;
    bool quiet; // no progress while loading
    struct engine engine;
    struct llama_model *model;
    struct llama_context *context;
    const struct llama_vocab *vocab;
    struct llama_sampler *sampler;
    ggml_threadpool_t pool;
    int64_t used; // tokens in the context
    // for the closing line
    uint64_t prefill_tokens, prefill_ns, decode_tokens, decode_ns;
    struct guanaco_stats decoding; // of the plugin, while decoding alone
};

enum outcome { OUTCOME_END, OUTCOME_LIMIT, OUTCOME_FULL, OUTCOME_INTERRUPTED, OUTCOME_FAILED };

// The number of the first signal of those that ask a run to end: SIGINT (Ctrl-C), SIGTERM, SIGHUP. 0: none came. The
// run then ends in order, so that its trace and its hot set are whole. The exit code is EXIT_SIGNALLED and this.
extern volatile sig_atomic_t session_interrupted;
void session_catch_interrupts(void);

// Loads the model. The engine is loaded by now. Returns true, or false with one plain line in why, ""
// when the plugin has said it.
bool session_open(struct session *session, const char *path, struct llama_model_params model_params,
                  struct llama_context_params context_params, char *why, size_t why_size);
void session_close(struct session *session);

// Appends the text to the context and generates. What is generated goes to standard output as it comes and, when reply
// is not NULL, into *reply (to be freed). Says in one line what went wrong.
enum outcome session_generate(struct session *session, const char *text, bool first, char **reply);

// One line on standard error: speeds, hit rate, bytes read, peak memory.
void session_print_closing_line(const struct session *session);
