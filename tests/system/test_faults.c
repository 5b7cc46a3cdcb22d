// A read error at the N-th read, for every N of a short run: the decode fails with an error that names file and expert,
// the process lives, the same decode succeeds when tried again, and every logit has stock's bits.
//
//     test_faults MODEL PLUGIN
#include "session.h"
#include "skip.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PROMPT 24
#define STEPS 6

struct run {
    const char *model, *plugin, *uring; // the reader where the kernel lets us
    bool ahead;                         // experts are read ahead
    bool faulty;
    float *logits;   // shared with the children: [PROMPT + STEPS][n_vocab], from stock
    uint64_t *reads; // shared: of a clean run
};

static llama_token token_at(const struct session *session, int i) {
    return (i * 131 + 17) % session->n_vocab;
}

// Decodes until it succeeds; at most one failure is allowed, and only where one was ordered.
static int decode(struct run *run, struct session *session, int from, int n, int *failures) {
    llama_token tokens[PROMPT];
    for (int i = 0; i < n; i++) {
        tokens[i] = token_at(session, from + i);
    }
    if (session_decode(session, tokens, n, from) == 0) {
        return 0;
    }
    const char *why = session->last_error ? session->last_error() : "";
    if (!run->faulty || ++*failures > 1 || !strstr(why, "expert") || !strstr(why, ".gguf")) {
        fprintf(stderr, "unexpected failure: '%s'\n", why);
        return 1;
    }
    // What earlier ubatches of the failed batch left in the KV cache goes, as any program would do before it tries
    // again.
    llama_memory_seq_rm(llama_get_memory(session->context), 0, from, -1);
    return session_decode(session, tokens, n, from) != 0;
}

static int run_session(struct run *run, bool compare) {
    struct session session;
    struct session_options options = {.model = run->model, .plugin = run->plugin, .n_ubatch = 16, .n_context = 64};
    if (session_open(&session, &options)) {
        return 1;
    }
    size_t row = (size_t)session.n_vocab;
    int failures = 0;
    for (int at = 0; at < PROMPT + STEPS;) {
        int n = at == 0 ? PROMPT : 1;
        if (decode(run, &session, at, n, &failures)) {
            return 1;
        }
        for (int i = 0; i < n; i++, at++) {
            const float *logits = session_logits(&session, i);
            if (!compare) {
                memcpy(run->logits + (size_t)at * row, logits, row * sizeof *logits);
            } else if (memcmp(run->logits + (size_t)at * row, logits, row * sizeof *logits) != 0) {
                fprintf(stderr, "token %d: not stock's logits\n", at);
                return 1;
            }
        }
    }
    if (run->plugin) {
        *run->reads = session_stats(&session).reads;
        if (run->faulty && failures != 1 && !(run->ahead && failures == 0)) {
            fprintf(stderr, "the fault did not strike\n");
            return 1;
        }
    }
    session_close(&session);
    return 0;
}

static int stock(void *context) {
    struct run run = *(struct run *)context;
    run.plugin = NULL;
    return run_session(&run, false);
}

static int streamed(void *context) {
    return run_session(context, true);
}

static int one_fault(struct run *run, uint64_t at, const char *result) {
    char number[32];
    snprintf(number, sizeof number, "%llu", (unsigned long long)at);
    setenv("GUANACO_FAULT_AT", number, 1);
    setenv("GUANACO_FAULT_RESULT", result, 1);
    setenv("GUANACO_IO", at % 4 < 2 ? run->uring : "threads", 1);
    int code = in_child(streamed, run);
    if (code) {
        fprintf(stderr, "read %s of %llu failed with %s: exit code %d\n", number, (unsigned long long)*run->reads,
                result, code);
    }
    return code != 0;
}

// Counts the reads of a run without faults, then lets every read near the start fail, where the prefill ends and
// decoding begins, and after that one of `step`, so that all phases are met. Returns how many runs went wrong.
static int sweep(struct run *run, uint64_t every, uint64_t step) {
    unsetenv("GUANACO_FAULT_AT");
    run->faulty = false;
    if (in_child(streamed, run)) {
        fprintf(stderr, "the run without faults fails\n");
        return 1;
    }
    run->faulty = true;
    uint64_t reads = *run->reads;
    int failed = 0, passed = 0;
    char eio[16];
    snprintf(eio, sizeof eio, "%d", -EIO);
    for (uint64_t at = 1; at <= reads; at += at < every ? 1 : step) {
        int bad = one_fault(run, at, at % 2 ? eio : "4096");
        failed += bad;
        passed += !bad;
    }
    fprintf(stderr, "%d passed, %d failed, reading ahead %s\n", passed, failed, run->ahead ? "on" : "off");
    return failed;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: test_faults MODEL PLUGIN\n");
        return 2;
    }
    size_t bytes = (size_t)(PROMPT + STEPS) * 4096 * sizeof(float);
    struct run run = {.model = argv[1], .plugin = argv[2], .uring = uring_or("threads")};
    run.logits = mmap(NULL, bytes + 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    run.reads = (uint64_t *)((char *)run.logits + bytes);
    setenv("GUANACO_EXPERT_CACHE", "20%", 1);
    setenv("GUANACO_LOG", "error", 1);
    if (in_child(stock, &run)) {
        fprintf(stderr, "the run without faults fails\n");
        return 1;
    }
    // What is read ahead may fail unnoticed: it is read again when it is needed.
    setenv("GUANACO_PREFETCH", "off", 1);
    int failed = sweep(&run, 24, 31);
    setenv("GUANACO_PREFETCH", "router", 1);
    run.ahead = true;
    return test_result(failed + sweep(&run, 6, 61));
}
