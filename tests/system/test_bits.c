// Stock's bits at cache sizes from the least to everything: a long greedy decode, and batches of 2 to 64 tokens, which
// with a handful of slots must share them. A slot that is used again while a batch still reads it shows at some sizes
// only, so all sizes are tried, or with a STEP every STEP-th.
//
//     test_bits MODEL PLUGIN [STEP [GREEDY [THREADS]]]
#include "session.h"
#include "skip.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PROMPT 24
#define CONTEXT 512
#define MOST_LOGITS ((size_t)CONTEXT * 8192)

static const int batches[] = {2, 3, 4, 7, 8, 16, 17, 33, 64};

struct run {
    const char *model, *plugin;
    int greedy, n_threads;
    float *logits; // shared with the children, from stock
    struct guanaco_stats *stats;
};

struct scenario {
    struct session session;
    const struct run *run;
    int position;
    bool compare;
};

// Keeps stock's logits of one token, or compares with them. Returns whether they are equal.
static bool check(struct scenario *scenario, int i, int position) {
    size_t row = (size_t)scenario->session.n_vocab;
    float *kept = scenario->run->logits + (size_t)position * row;
    const float *logits = session_logits(&scenario->session, i);
    if (!scenario->compare) {
        memcpy(kept, logits, row * sizeof *logits);
        return true;
    }
    if (memcmp(kept, logits, row * sizeof *logits) != 0) {
        fprintf(stderr, "position %d: not stock's logits\n", position);
        return false;
    }
    return true;
}

static bool decode(struct scenario *scenario, const llama_token *tokens, int n) {
    if (session_decode(&scenario->session, tokens, n, scenario->position)) {
        fprintf(stderr, "position %d: decode failed\n", scenario->position);
        return false;
    }
    for (int i = 0; i < n; i++) {
        if (!check(scenario, i, scenario->position + i)) {
            return false;
        }
    }
    scenario->position += n;
    return true;
}

static llama_token most_likely(struct session *session, int i) {
    const float *logits = session_logits(session, i);
    llama_token best = 0;
    for (int t = 1; t < session->n_vocab; t++) {
        best = logits[t] > logits[best] ? t : best;
    }
    return best;
}

static bool play(struct scenario *scenario) {
    struct session *session = &scenario->session;
    llama_token tokens[64];
    for (int i = 0; i < PROMPT; i++) {
        tokens[i] = (i * 131 + 17) % session->n_vocab;
    }
    if (!decode(scenario, tokens, PROMPT)) {
        return false;
    }
    llama_token next = most_likely(session, PROMPT - 1);
    for (int i = 0; i < scenario->run->greedy; i++) {
        if (!decode(scenario, &next, 1)) {
            return false;
        }
        next = most_likely(session, 0);
    }
    for (size_t b = 0; b < sizeof batches / sizeof *batches; b++) {
        for (int i = 0; i < batches[b]; i++) {
            tokens[i] = (i * 37 + batches[b] * 101) % session->n_vocab;
        }
        if (!decode(scenario, tokens, batches[b])) {
            return false;
        }
    }
    return true;
}

static int run_scenario(const struct run *run, bool compare) {
    struct scenario scenario = {.run = run, .compare = compare};
    struct session_options options = {
        .model = run->model, .plugin = run->plugin, .n_context = CONTEXT, .n_ubatch = 48, .n_threads = run->n_threads};
    if (session_open(&scenario.session, &options)) {
        return 1;
    }
    if ((size_t)scenario.session.n_vocab * CONTEXT > MOST_LOGITS) {
        fprintf(stderr, "the vocabulary is too large for this test\n");
        return 1;
    }
    bool ok = play(&scenario);
    if (run->plugin) {
        *run->stats = session_stats(&scenario.session);
    }
    session_close(&scenario.session);
    return !ok;
}

static int stock(void *context) {
    struct run run = *(struct run *)context;
    run.plugin = NULL;
    return run_scenario(&run, false);
}

static int streamed(void *context) {
    return run_scenario(context, true);
}

int main(int argc, char **argv) {
    if (argc < 3 || argc > 6) {
        fprintf(stderr, "usage: test_bits MODEL PLUGIN [STEP [GREEDY [THREADS]]]\n");
        return 2;
    }
    uint64_t step = argc > 3 ? (uint64_t)atoi(argv[3]) : 1;
    size_t bytes = MOST_LOGITS * sizeof(float);
    struct run run = {.model = argv[1], .plugin = argv[2], .greedy = argc > 4 ? atoi(argv[4]) : 256};
    run.n_threads = argc > 5 ? atoi(argv[5]) : 1;
    run.logits = mmap(NULL, bytes + sizeof *run.stats, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    run.stats = (struct guanaco_stats *)((char *)run.logits + bytes);
    const char *uring = uring_or("threads");
    setenv("GUANACO_LOG", "error", 1);
    setenv("GUANACO_EXPERT_CACHE", "100%", 1);
    if (in_child(stock, &run) || in_child(streamed, &run)) {
        fprintf(stderr, "with everything resident the bits differ already\n");
        return 1;
    }
    uint64_t slots = run.stats->slots, slot_bytes = run.stats->slot_bytes / slots;
    uint64_t staging = run.stats->staging_bytes;
    int passed = 1, failed = 0;
    for (uint64_t n = 0; n < slots; n += step) {
        char size[32];
        snprintf(size, sizeof size, "%lluB", (unsigned long long)(staging + n * slot_bytes));
        setenv("GUANACO_EXPERT_CACHE", size, 1);
        setenv("GUANACO_IO", n / step % 2 ? "threads" : uring, 1);
        int code = in_child(streamed, &run);
        if (code) {
            fprintf(stderr, "with a cache of %s (%llu slots): exit code %d\n", size, (unsigned long long)n, code);
        }
        failed += code != 0;
        passed += code == 0;
    }
    fprintf(stderr, "%d passed, %d failed\n", passed, failed);
    return test_result(failed);
}
