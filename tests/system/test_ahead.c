// Reading ahead changes when experts come, and nothing else: the same logits, hits, misses and evictions as without it;
// and on a real model some of what it reads is used. Whoever guesses.
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

enum { TOKENS = 120 };

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
    struct session_options options = {.model = model, .plugin = plugin, .n_ubatch = 16, .n_context = 128};
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

// setting: "NAME=VALUE", in the environment of this run alone.
static int run_child(const char *model, const char *plugin, const char *setting, struct outcome *outcome) {
    pid_t child = fork();
    if (child == 0) {
        putenv((char *)(uintptr_t)setting);
        _exit(decode_all(model, plugin, outcome));
    }
    int status;
    return child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

// share: of the misses, at least, that are to have been read ahead.
static int compare(const struct outcome *off, const struct outcome *ahead, double share) {
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
    if ((double)ahead->stats.prefetch_useful < share * (double)ahead->stats.misses) {
        fprintf(stderr, "only %llu of %llu misses had been read ahead\n",
                (unsigned long long)ahead->stats.prefetch_useful, (unsigned long long)ahead->stats.misses);
        wrong++;
    }
    return wrong;
}

// What the sources are counted for adds up to the whole, and who is not asked has no say.
static int check_sources(const char *prefetch, const struct guanaco_stats *stats) {
    bool by_router = strcmp(prefetch, "pilot") != 0, by_pilot = strcmp(prefetch, "router") != 0;
    bool whole = stats->router_useful + stats->pilot_useful == stats->prefetch_useful &&
                 stats->router_wasted + stats->pilot_wasted == stats->prefetch_wasted &&
                 (stats->prefetch_wasted > 0) == (stats->prefetch_wasted_bytes > 0);
    bool asked = (stats->router_used > 0) == by_router && (stats->pilot_used > 0) == by_pilot;
    bool sound = stats->router_foreseen <= stats->router_used && stats->pilot_foreseen <= stats->pilot_used;
    if (!whole || !asked || !sound) {
        fprintf(stderr, "--prefetch %s: the counters of router and pilot do not fit together\n", prefetch);
    }
    return !whole || !asked || !sound;
}

static void describe(const char *budget, const char *setting, const struct guanaco_stats *stats) {
    fprintf(stderr,
            "%s, %s: %llu of %llu misses were read ahead, %llu in vain; router named %.0f%%, pilot %.0f%% of the "
            "experts\n",
            budget, setting, (unsigned long long)stats->prefetch_useful, (unsigned long long)stats->misses,
            (unsigned long long)stats->prefetch_wasted,
            100 * (double)stats->router_foreseen / (double)(stats->router_used + !stats->router_used),
            100 * (double)stats->pilot_foreseen / (double)(stats->pilot_used + !stats->pilot_used));
}

static int try_all(const char *model, const char *plugin, struct outcome *outcomes, const char *budget) {
    // auto stops where tokens are no faster for it, which a test cannot know.
    static const struct {
        const char *setting, *prefetch;
        double share;
    } ways[] = {{"GUANACO_PREFETCH=router", "router", 0.1},
                {"GUANACO_PREFETCH=pilot", "pilot", 0},
                {"GUANACO_PREFETCH=auto", "auto", 0},
                {"GUANACO_PILOT=1", "auto", 0}};
    setenv("GUANACO_EXPERT_CACHE", budget, 1);
    int wrong = run_child(model, plugin, "GUANACO_PREFETCH=off", &outcomes[0]);
    for (size_t w = 0; w < sizeof ways / sizeof *ways && !wrong; w++) {
        wrong += run_child(model, plugin, ways[w].setting, &outcomes[1]) ||
                 compare(&outcomes[0], &outcomes[1], ways[w].share) ||
                 check_sources(ways[w].prefetch, &outcomes[1].stats);
        describe(budget, ways[w].setting, &outcomes[1].stats);
    }
    return wrong;
}

// How earlier tools switch it off, or nearly.
static int try_off(const char *model, const char *plugin, struct outcome *outcome) {
    setenv("GUANACO_EXPERT_CACHE", "25%", 1);
    int wrong = run_child(model, plugin, "GUANACO_PILOT=0", outcome);
    if (wrong || outcome->stats.pilot_calls > 0 || outcome->stats.pilot_used > 0 || outcome->stats.router_used > 0) {
        fputs("GUANACO_PILOT=0 does not switch reading ahead off\n", stderr);
        return 1;
    }
    setenv("GUANACO_PREFETCH", "pilot", 1);
    wrong = run_child(model, plugin, "GUANACO_PILOT_MASS=1", outcome);
    uint64_t all = outcome->stats.pilot_foreseen;
    wrong = wrong || run_child(model, plugin, "GUANACO_PILOT_MASS=0.1", outcome);
    uint64_t some = outcome->stats.pilot_foreseen;
    wrong = wrong || run_child(model, plugin, "GUANACO_PILOT_MASS=0", outcome);
    if (wrong || all <= some || some == 0 || outcome->stats.pilot_foreseen > 0 || outcome->stats.pilot_slices > 0) {
        fprintf(stderr, "GUANACO_PILOT_MASS=1, 0.1 and 0 foresee %llu, %llu and %llu experts\n",
                (unsigned long long)all, (unsigned long long)some, (unsigned long long)outcome->stats.pilot_foreseen);
        wrong = 1;
    }
    unsetenv("GUANACO_PREFETCH");
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
        wrong += try_all(argv[1], argv[2], outcomes, budgets[b]);
    }
    wrong += !wrong && try_off(argv[1], argv[2], outcomes);
    return wrong != 0;
}
