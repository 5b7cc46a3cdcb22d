// Traces, in both formats: read, replayed in every way there is, and put through `guanaco simulate` with options.
#include "fuzz.h"

#include "cli.h"
#include "predict/guesses.h"
#include "trace/facts.h"
#include "trace/foresee.h"
#include "trace/replay.h"
#include "trace/replay_tiers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ------------------------------------------------------------------------------------------------ inputs

struct shape {
    unsigned layers, experts, top_k, tokens, prompt;
};

static struct shape choose_shape(struct random *random) {
    struct shape shape = {.layers = 1 + (unsigned)random_below(random, 3),
                          .experts = 2 + (unsigned)random_below(random, 7),
                          .tokens = 1 + (unsigned)random_below(random, 6),
                          .prompt = (unsigned)random_below(random, 4)};
    shape.top_k = 1 + (unsigned)random_below(random, shape.experts < 3 ? shape.experts : 3);
    return shape;
}

// Lines before the rows. Returns how many experts a layer has.
static unsigned add_head(struct random *random, struct bytes *out, const struct shape *shape) {
    bytes_printf(out, "# route_trace v1\n# model=m arch=x n_layer=%u n_expert=%u n_expert_used=%u\n", shape->layers,
                 shape->experts, shape->top_k);
    bool slots = random_percent(random, 50);
    for (unsigned l = 0; l < shape->layers; l++) {
        bytes_printf(out, "# layer=%u expert_bytes=%u dense_bytes=100%s\n", l, 1000 + 500 * (l % 2),
                     slots ? " slot_bytes=4096 n_expert=2" : "");
    }
    bytes_add_text(out, "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n");
    return slots ? 2 : shape->experts;
}

static void add_rows(struct random *random, struct bytes *out, const struct shape *shape, unsigned experts) {
    for (unsigned t = 0; t < shape->prompt + shape->tokens; t++) {
        for (unsigned l = 0; l < shape->layers; l++) {
            for (unsigned k = 0; k < shape->top_k; k++) {
                bytes_printf(out, "%u,%u,%u,%u,%u,%u,0.%u,%u,%u\n", t / 5, t >= shape->prompt, t, l, k,
                             (unsigned)random_below(random, experts), (unsigned)random_below(random, 100),
                             (unsigned)random_below(random, 3), 1000);
            }
        }
    }
}

static void add_jsonl(struct random *random, struct bytes *out, const struct shape *shape) {
    for (unsigned t = 0; t < shape->tokens; t++) {
        bytes_printf(out, "{\"tok\": %u, \"layers\": [", t);
        for (unsigned l = 0; l < shape->layers; l++) {
            bytes_printf(out, "%s[", l ? ", " : "");
            for (unsigned k = 0; k < shape->top_k; k++) {
                bytes_printf(out, "%s%u", k ? ", " : "", (unsigned)random_below(random, shape->experts));
            }
            bytes_add_text(out, "]");
        }
        bytes_add_text(out, "]}\n");
    }
}

static const char *const words[] = {"# layer=7 expert_bytes=1 dense_bytes=0\n",
                                    " slot_bytes=9223372036854775807",
                                    "65536",
                                    "9223372036854775807",
                                    "4611686018427387904",
                                    "4096",
                                    "n_expert=0",
                                    "# route_trace v1\n",
                                    "1e40",
                                    "-1e-40",
                                    "nan",
                                    "inf",
                                    "[[1]]",
                                    "[0,0]",
                                    "{}",
                                    "\r\n",
                                    "4294967295",
                                    "65535",
                                    "dropped",
                                    NULL};

static void make_trace(struct random *random, struct bytes *input) {
    struct shape shape = choose_shape(random);
    if (random_percent(random, 70)) {
        unsigned experts = add_head(random, input, &shape);
        if (random_percent(random, 50)) {
            text_mutate(random, input, words, 1 + (unsigned)random_below(random, 3));
        }
        add_rows(random, input, &shape, experts);
    } else {
        add_jsonl(random, input, &shape);
    }
    text_mutate(random, input, words, (unsigned)random_below(random, 3));
}

// ------------------------------------------------------------------------------------------------ replays

// Hits and misses are what was asked for, whoever chooses the victims.
static void check_sum(const struct gn_replay_result *result, const struct gn_replay_result *other) {
    if (result->hits + result->misses != other->hits + other->misses) {
        fuzz_fail("%llu uses, and %llu by another policy", (unsigned long long)(result->hits + result->misses),
                  (unsigned long long)(other->hits + other->misses));
    }
    if (result->misses == 0 && result->missed_bytes > 0) {
        fuzz_fail("bytes without a miss");
    }
}

// By all policies, or one where a number in the trace makes tables long.
static void replay_policies(const struct gn_trace *trace, const struct gn_replay_events *events, uint64_t budget) {
    struct gn_replay_result best, result;
    int failed = gn_replay_belady(events, budget, &best);
    size_t n = events->n_entries > 4096 ? 1 : SIZE_MAX;
    for (size_t p = 0; !failed && p < n && gn_policies[p]; p++) {
        failed = gn_replay_policy(events, gn_policies[p], budget, &result);
        if (!failed) {
            check_sum(&result, &best);
        }
        failed = failed ? failed : gn_replay_pool(trace, events, gn_policies[p], budget, &result);
    }
    failed = failed ? failed : gn_replay_pool(trace, events, NULL, budget, &result);
    if (failed) {
        fuzz_fail("a replay fails with %d", failed);
    }
}

static void replay_others(const struct gn_trace *trace, const struct gn_replay_events *events, uint64_t budget) {
    struct gn_cache_options options = {.budget = budget, .policy = gn_policies[0]};
    struct gn_foresight foresight;
    int failed = gn_foresee(trace, events, &options, &(struct gn_foresee_options){0.9, 0.5}, &foresight, NULL);
    struct gn_replay_tiers_options tiers = {.n_devices = 1,
                                            .ram = options,
                                            .top_k = trace->top_k,
                                            .device[0] = {.budget = budget, .policy = gn_policies[1]}};
    struct gn_replay_tiers_result result;
    failed = failed ? failed : gn_replay_tiers(events, &tiers, &result);
    if (failed) {
        fuzz_fail("a replay fails with %d", failed);
    }
    struct gn_trace_facts facts;
    if (gn_trace_find_facts(events, &facts) || !isfinite(facts.gini) || !isfinite(facts.overlap)) {
        fuzz_fail("facts that are none");
    }
}

static bool run_trace(const uint8_t *data, size_t n) {
    struct gn_trace trace;
    struct gn_replay_events events;
    char why[512] = "";
    if (gn_trace_read(fuzz_file(0, data, n), &trace, why, sizeof why)) {
        fuzz_check_reason(why, sizeof why);
        return false;
    }
    int failed = gn_replay_open(&trace, &events);
    if (failed) {
        fuzz_fail("a trace that is taken cannot be replayed: %d", failed);
    }
    uint64_t all = gn_replay_all_bytes(&events);
    if (all == 0 || all > (uint64_t)INT64_MAX) {
        fuzz_fail("all experts have %llu bytes", (unsigned long long)all);
    }
    replay_policies(&trace, &events, all / 3);
    replay_others(&trace, &events, all / 2);
    gn_replay_close(&events);
    gn_trace_close(&trace);
    return true;
}

const struct fuzz_target fuzz_trace = {"trace", make_trace, run_trace};

// ------------------------------------------------------------------------------------------------ the command

// The input: options, a line each, an empty line, the trace. "@" stands for the trace's path.
static void make_simulate(struct random *random, struct bytes *input) {
    static const char *const options[] = {"--csv",
                                          "--json",
                                          "--rules=pool",
                                          "--rules=engine",
                                          "--policy=lru",
                                          "--policy=slru",
                                          "--policy=all",
                                          "--policy=expected-wait",
                                          "--policy-options=protected=50",
                                          "--budget=10%,3slots,2KiB",
                                          "--budget=0.5%",
                                          "--budget=1slots",
                                          "--budget=1000000slots,100%",
                                          "--expert-bytes=3MiB",
                                          "--admission=second-miss",
                                          "--admission-window=3",
                                          "--staging=4",
                                          "--pin-hot-experts=3",
                                          "--pin-hot-experts-budget=1",
                                          "--pin-decay=50",
                                          "--pin-warm-up=2",
                                          "--layer-shares=equal",
                                          "--layer-shares=demand",
                                          "--prefetch=pilot",
                                          "--pilot-mass=0.5",
                                          "--tiers=GPU:auto:25%,RAM:auto:25%",
                                          "--tiers=GPU:lru:1KiB,X:fifo:2KiB,RAM:auto:auto",
                                          "--gpu-rate=500",
                                          "--ram-rate=10",
                                          "--disk-rate=1",
                                          "--link-rate=20",
                                          "--dense-ms=6",
                                          "--gpu-inserts=2",
                                          "--top-k=2",
                                          "--svg=out.svg",
                                          "--help",
                                          "--",
                                          "@"};
    static const char *const more[] = {
        "1e9", "99999999999999999999", "0", "-1", "%", "slots", "KiB", "auto", ",,", "nan", "off", "=", NULL};
    bytes_add_text(input, "@\n");
    for (size_t n = random_below(random, 5); n > 0; n--) {
        bytes_printf(input, "%s\n", options[random_below(random, sizeof options / sizeof *options)]);
    }
    if (random_percent(random, 40)) {
        text_mutate(random, input, more, 1);
    }
    bytes_add_text(input, "\n");
    if (random_percent(random, 30)) {
        make_trace(random, input);
    } else {
        struct shape shape = choose_shape(random);
        add_rows(random, input, &shape, add_head(random, input, &shape));
    }
}

static bool run_simulate(const uint8_t *data, size_t n) {
    enum { MOST = 24 };
    char *text = fuzz_text(data, n), *words_of[MOST], *arguments[MOST + 2] = {"simulate"};
    char *trace = strstr(text, "\n\n");
    bool taken = false;
    if (trace) {
        *trace = '\0';
        size_t at = (size_t)(trace + 2 - text);
        int count = fuzz_words(text, words_of, MOST);
        const char *path = fuzz_file(0, data + at, n - at);
        for (int i = 0; i < count; i++) {
            bool safe = !strchr(words_of[i], '/') && strncmp(words_of[i], "--model", 7) != 0;
            arguments[i + 1] = !strcmp(words_of[i], "@") ? (char *)path : safe ? words_of[i] : "--csv";
        }
        taken = command_simulate(count + 1, arguments) == EXIT_OK;
    }
    free(text);
    return taken;
}

const struct fuzz_target fuzz_simulate = {"simulate", make_simulate, run_simulate};
