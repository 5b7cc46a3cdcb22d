// The simulator tells what the engine does: streamed runs write traces, and each trace, replayed at the same budget
// with the same policy, gives the engine's hits, misses, insertions and evictions, to the last one; and what PILOT
// names. With a device: tier by tier.
//
//     test_simulator MODEL PLUGIN FOLDER [DEVICE]
#include "exec/budget.h"
#include "session.h"
#include "trace/foresee.h"
#include "trace/replay_tiers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char *const budgets[] = {"6%", "25%", "7MiB", "100%"};

struct run {
    const char *model, *plugin;
    struct guanaco_stats *stats; // shared with the child
};

static bool feed(struct session *session, int *position, int n, int seed) {
    llama_token tokens[128];
    for (int i = 0; i < n; i++) {
        tokens[i] = (i * 131 + seed) % session->n_vocab;
    }
    bool good = session_decode(session, tokens, n, *position) == 0;
    *position += n;
    return good;
}

static bool generate(struct session *session, int *position, int n) {
    for (int i = 0; i < n; i++) {
        const float *logits = session_logits(session, 0);
        llama_token best = 0;
        for (int t = 1; t < session->n_vocab; t++) {
            best = logits[t] > logits[best] ? t : best;
        }
        if (session_decode(session, &best, 1, (*position)++)) {
            return false;
        }
    }
    return true;
}

// A prompt of several batches, text, a prompt, text, and a batch of a few tokens, such as several users make.
static int stream(void *context) {
    const struct run *run = context;
    struct session session;
    struct session_options options = {.model = run->model, .plugin = run->plugin, .n_ubatch = 48};
    if (session_open(&session, &options)) {
        return 1;
    }
    int position = 0;
    bool good = feed(&session, &position, 100, 17) && generate(&session, &position, 24) &&
                feed(&session, &position, 90, 5) && generate(&session, &position, 24) &&
                feed(&session, &position, 5, 11) && generate(&session, &position, 3);
    *run->stats = session_stats(&session);
    session_close(&session);
    return !good;
}

// What the engine makes of --expert-cache.
static uint64_t slot_budget(const struct gn_replay_events *events, const char *text) {
    uint64_t all = gn_replay_all_bytes(events), largest = 0;
    if (strchr(text, '%')) {
        return (uint64_t)((double)all * atof(text) / 100);
    }
    for (uint32_t l = 0; l < events->n_layers; l++) {
        uint64_t bytes = gn_trace_slot_bytes(&events->layers[l]);
        largest = bytes > largest ? bytes : largest;
    }
    uint32_t staging = (uint32_t)gn_knob_table[GN_STAGING].fallback;
    return gn_budget_split((uint64_t)atoi(text) << 20, largest, staging).slots;
}

static bool same(const char *name, uint64_t engine, uint64_t replay) {
    if (engine != replay) {
        fprintf(stderr, "%s: %llu in the engine, %llu in the replay\n", name, (unsigned long long)engine,
                (unsigned long long)replay);
    }
    return engine == replay;
}

static bool compare(const struct gn_trace *trace, const struct guanaco_policy *policy, const char *budget,
                    const struct guanaco_stats *stats) {
    struct gn_replay_events events;
    struct gn_replay_result result;
    if (gn_replay_open(trace, &events)) {
        fprintf(stderr, "the trace cannot be replayed\n");
        return false;
    }
    bool good = gn_replay_policy(&events, policy, slot_budget(&events, budget), &result) == 0;
    good = same("slots", stats->slots, result.slots) && good;
    good = same("events", stats->events, result.totals.events) && good;
    good = same("hits", stats->hits, result.totals.hits) && good;
    good = same("misses", stats->misses, result.totals.misses) && good;
    good = same("insertions", stats->inserts, result.totals.inserts) && good;
    good = same("evictions", stats->evictions, result.totals.evictions) && good;
    good = same("misses, as traced", stats->misses, result.prefill_misses + result.misses) && good;
    gn_replay_close(&events);
    return good;
}

struct tier_case {
    const char *policy, *ram_policy;
    int percent, ram_percent; // of all experts
    uint32_t inserts;
};
static const struct tier_case tier_cases[] = {
    {"slru", "expected-wait", 50, 25, 32},
    {"slru", "expected-wait", 20, 25, 4},
    {"lfu", "lru", 10, 10, 100},
    {"lru", "slru", 75, 20, 8},
    {"slru", "lru", 0, 25, 32},
};

static const struct guanaco_policy *policy_of(const char *name) {
    const struct guanaco_policy *policy = NULL;
    char why[256];
    return gn_policy_find(name, &policy, why, sizeof why) ? NULL : policy;
}

// The device may round its size down to whole slots in another way: its slots are taken as they are.
static bool compare_tiers(const struct gn_trace *trace, const struct tier_case *c, const struct guanaco_stats *stats) {
    struct gn_replay_events events;
    struct gn_replay_tiers_result result;
    if (gn_replay_open(trace, &events)) {
        fprintf(stderr, "the trace cannot be replayed\n");
        return false;
    }
    struct gn_replay_tiers_options options = {
        .n_devices = 1,
        .device = {{.budget = stats->gpu_slots * trace->layers[0].expert_bytes,
                    .policy = policy_of(c->policy),
                    .inserts = c->inserts,
                    .margin = GN_TIER_MARGIN}},
        .ram = {.budget = gn_replay_all_bytes(&events) * (uint64_t)c->ram_percent / 100,
                .policy = policy_of(c->ram_policy)},
        .top_k = trace->top_k,
    };
    bool good = gn_replay_tiers(&events, &options, &result) == 0;
    const struct gn_replay_tier *device = &result.device[0], *ram = &result.ram;
    good = same("slots of the device", stats->gpu_slots, device->slots) && good;
    good = same("hits on the device", stats->gpu_hits, device->hits + device->prefill_hits) && good;
    good = same("copies", stats->gpu_uploads, device->inserts) && good;
    good = same("slots", stats->slots, ram->slots) && good;
    good = same("hits", stats->hits, ram->hits + ram->prefill_hits) && good;
    good = same("misses", stats->misses, ram->misses + ram->prefill_misses) && good;
    good = same("insertions", stats->inserts, ram->inserts) && good;
    good = same("evictions", stats->evictions, ram->evictions) && good;
    uint64_t all = stats->gpu_hits + stats->hits + stats->misses;
    good = same("all uses", all, result.uses + result.prefill_uses) && good;
    if ((c->percent > 0) != (device->hits > 0 && device->prefill_hits > 0)) {
        fprintf(stderr, "the run shows nothing: %llu hits on the device\n", (unsigned long long)device->hits);
        good = false;
    }
    gn_replay_close(&events);
    return good;
}

// The file's own record of what hit, beside the counters.
static bool check_rows(const struct gn_trace *trace, const struct guanaco_stats *stats) {
    uint64_t bytes = 0;
    bool decode = false;
    uint32_t last_turn = 0;
    for (size_t r = 0; r < trace->n_rows; r++) {
        bytes += trace->rows[r].bytes;
        decode |= trace->rows[r].decode;
        last_turn = trace->rows[r].turn;
    }
    bool good = same("bytes of misses", stats->misses * trace->layers[0].expert_bytes, bytes);
    return same("turns", 1, last_turn) && decode && good;
}

static bool trace_run(const struct run *run, const char *path, struct gn_trace *trace) {
    char why[512];
    if (in_child(stream, (void *)run)) {
        fprintf(stderr, "the run failed\n");
        return false;
    }
    if (gn_trace_read(path, trace, why, sizeof why)) {
        fprintf(stderr, "%s\n", why);
        return false;
    }
    return true;
}

static bool try(const struct run *run, const struct guanaco_policy *policy, const char *budget, const char *path) {
    setenv("GUANACO_POLICY", policy->name, 1);
    setenv("GUANACO_EXPERT_CACHE", budget, 1);
    struct gn_trace trace;
    if (!trace_run(run, path, &trace)) {
        return false;
    }
    bool good = compare(&trace, policy, budget, run->stats);
    good = check_rows(&trace, run->stats) && good; // both say what is wrong
    gn_trace_close(&trace);
    if (run->stats->hits == 0 || (run->stats->evictions == 0) != !strcmp(budget, "100%")) {
        fprintf(stderr, "the run shows nothing: %llu hits, %llu evictions\n", (unsigned long long)run->stats->hits,
                (unsigned long long)run->stats->evictions);
        return false;
    }
    return good;
}

// A prompt of whole batches, and text: tokens of decode that share a batch cannot be told apart in a trace.
static int stream_one_by_one(void *context) {
    const struct run *run = context;
    struct session session;
    struct session_options options = {.model = run->model, .plugin = run->plugin, .n_ubatch = 48};
    if (session_open(&session, &options)) {
        return 1;
    }
    int position = 0;
    bool good = feed(&session, &position, 96, 17) && generate(&session, &position, 60);
    *run->stats = session_stats(&session);
    session_close(&session);
    return !good;
}

static bool foresees(const struct run *run, const char *path) {
    struct gn_trace trace;
    struct gn_replay_events events;
    char why[512];
    setenv("GUANACO_POLICY", "lru", 1);
    setenv("GUANACO_EXPERT_CACHE", "25%", 1);
    setenv("GUANACO_PREFETCH", "pilot", 1);
    if (in_child(stream_one_by_one, (void *)run) || gn_trace_read(path, &trace, why, sizeof why)) {
        fprintf(stderr, "the run with PILOT failed\n");
        return false;
    }
    const struct guanaco_policy *lru = NULL;
    bool good = gn_replay_open(&trace, &events) == 0 && gn_policy_find("lru", &lru, why, sizeof why) == 0;
    if (good) {
        struct gn_cache_options options = {.budget = slot_budget(&events, "25%"), .policy = lru};
        struct gn_foresee_options how = {.mass = gn_knob_fraction(gn_knob_table[GN_PILOT_MASS].fallback),
                                         .bar = GN_GUESS_LOW_BAR};
        struct gn_foresight result;
        good = gn_foresee(&trace, &events, &options, &how, &result, NULL) == 0;
        good = good && same("experts with a guess", run->stats->pilot_used, result.used);
        good = good && same("experts foreseen", run->stats->pilot_foreseen, result.foreseen);
        if (good && (result.foreseen == 0 || result.foreseen == result.used)) {
            fprintf(stderr, "PILOT foresaw %llu of %llu\n", (unsigned long long)result.foreseen,
                    (unsigned long long)result.used);
            good = false;
        }
        gn_replay_close(&events);
    }
    gn_trace_close(&trace);
    return good;
}

static int try_all(const struct run *run, const char *path, int *n) {
    int failed = 0;
    for (int p = 0; gn_policies[p]; p++) {
        for (size_t b = 0; b < sizeof budgets / sizeof *budgets; b++, ++*n) {
            if (!try(run, gn_policies[p], budgets[b], path)) {
                fprintf(stderr, "with %s at %s\n", gn_policies[p]->name, budgets[b]);
                failed++;
            }
        }
    }
    return failed;
}

static int try_tiers(const struct run *run, const char *device, const char *path, int *n) {
    int failed = 0;
    for (size_t c = 0; c < sizeof tier_cases / sizeof *tier_cases; c++, ++*n) {
        const struct tier_case *tier = &tier_cases[c];
        char list[256], inserts[16];
        struct gn_trace trace;
        snprintf(list, sizeof list, "%s:%s:%d%%,RAM:%s:%d%%", device, tier->policy, tier->percent, tier->ram_policy,
                 tier->ram_percent);
        snprintf(inserts, sizeof inserts, "%u", tier->inserts);
        setenv("GUANACO_TIERS", list, 1);
        setenv("GUANACO_GPU_INSERTS", inserts, 1);
        bool good = trace_run(run, path, &trace);
        if (good) {
            good = compare_tiers(&trace, tier, run->stats);
            gn_trace_close(&trace);
        }
        if (!good) {
            fprintf(stderr, "with %s\n", list);
            failed++;
        }
    }
    return failed;
}

int main(int argc, char **argv) {
    if (argc < 4 || argc > 5) {
        fprintf(stderr, "usage: test_simulator MODEL PLUGIN FOLDER [DEVICE]\n");
        return 2;
    }
    struct run run = {.model = argv[1], .plugin = argv[2]};
    run.stats = mmap(NULL, sizeof *run.stats, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char path[4096];
    snprintf(path, sizeof path, "%s/simulator-%d.csv", argv[3], getpid());
    setenv("GUANACO_LOG", "error", 1);
    setenv("GUANACO_TRACE", path, 1);
    int n = 0;
    int failed = argc > 4 ? try_tiers(&run, argv[4], path, &n) : try_all(&run, path, &n);
    if (argc <= 4) {
        failed += !foresees(&run, path);
        n++;
    }
    unlink(path);
    fprintf(stderr, "%d of %d runs replayed exactly\n", n - failed, n);
    return failed != 0;
}
