// Reading ahead changes when experts come, and nothing else: the same logits, hits, misses and evictions as without it;
// and on a real model some of what it reads is used.
//
//     test_ahead MODEL PLUGIN
#include "../support/session.h"

#include "llama.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TOKENS = 60 };

// Shared with the children.
struct outcome {
    struct guanaco_stats stats;
    uint64_t bits; // of all logits
};

static uint64_t mix(uint64_t hash, const float *logits, int n) {
    for (int i = 0; i < n; i++) {
        uint32_t word;
        memcpy(&word, &logits[i], sizeof word);
        hash = (hash ^ word) * 1099511628211u;
    }
    return hash;
}

static int decode_all(const char *model, const char *plugin, struct outcome *outcome) {
    struct session session;
    struct session_options options = {.model = model, .plugin = plugin, .n_ubatch = 16, .n_context = 64};
    if (session_open(&session, &options)) {
        return 1;
    }
    outcome->bits = 14695981039346656037u;
    for (int i = 0; i < TOKENS; i++) {
        llama_token token = (i * 131 + 17) % session.n_vocab;
        if (session_decode(&session, &token, 1, i)) {
            return 1;
        }
        outcome->bits = mix(outcome->bits, session_logits(&session, 0), session.n_vocab);
    }
    outcome->stats = session_stats(&session);
    session_close(&session);
    return 0;
}

static int run_child(const char *model, const char *plugin, const char *prefetch, struct outcome *outcome) {
    setenv("GUANACO_PREFETCH", prefetch, 1);
    pid_t child = fork();
    if (child == 0) {
        _exit(decode_all(model, plugin, outcome));
    }
    int status;
    return child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

static int compare(const struct outcome *off, const struct outcome *ahead) {
    int wrong = 0;
#define EQUAL(counter)                                                                                                 \
    if (off->stats.counter != ahead->stats.counter) {                                                                  \
        fprintf(stderr, #counter ": %llu without reading ahead, %llu with it\n",                                       \
                (unsigned long long)off->stats.counter, (unsigned long long)ahead->stats.counter);                     \
        wrong++;                                                                                                       \
    }
    EQUAL(hits)
    EQUAL(misses)
    EQUAL(inserts)
    EQUAL(evictions)
#undef EQUAL
    if (off->bits != ahead->bits) {
        fputs("other logits with reading ahead\n", stderr);
        wrong++;
    }
    if (off->stats.prefetch_useful != 0 || off->stats.prefetch_wasted != 0) {
        fputs("experts were read ahead though that was off\n", stderr);
        wrong++;
    }
    if (ahead->stats.prefetch_useful < ahead->stats.misses / 10) {
        fprintf(stderr, "only %llu of %llu misses had been read ahead\n",
                (unsigned long long)ahead->stats.prefetch_useful, (unsigned long long)ahead->stats.misses);
        wrong++;
    }
    return wrong;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fputs("usage: test_ahead MODEL PLUGIN\n", stderr);
        return 2;
    }
    struct outcome *outcomes =
        mmap(NULL, 2 * sizeof *outcomes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    static const char *const budgets[] = {"12%", "25%", "60%"};
    int wrong = outcomes == MAP_FAILED;
    setenv("GUANACO_LOG", "error", 1);
    setenv("GUANACO_IMATRIX", "off", 1);
    for (size_t b = 0; b < sizeof budgets / sizeof *budgets && !wrong; b++) {
        setenv("GUANACO_EXPERT_CACHE", budgets[b], 1);
        wrong += run_child(argv[1], argv[2], "off", &outcomes[0]) ||
                 run_child(argv[1], argv[2], "router", &outcomes[1]) || compare(&outcomes[0], &outcomes[1]);
        fprintf(stderr, "%s: %llu of %llu misses were read ahead, %llu in vain\n", budgets[b],
                (unsigned long long)outcomes[1].stats.prefetch_useful, (unsigned long long)outcomes[1].stats.misses,
                (unsigned long long)outcomes[1].stats.prefetch_wasted);
    }
    return wrong != 0;
}
