// The lines about the cache: that they come when they should, that their figures add up and are the counters', and that
// nothing of them lands in the program's own output.
//
//     test_report MODEL PLUGIN DIRECTORY
#include "session.h"

#include "ggml-backend.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { TOKENS = 95, INTERVAL = 20, PINNED = 25 };

struct outcome {
    struct guanaco_stats stats;
    int n_layers;
    struct guanaco_layer_stats layers[64];
};

struct run {
    const char *model, *plugin;
    struct outcome *outcome; // shared
    char out[4096], errors[4096];
};

static int to_file(const char *path, int as) {
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    return fd < 0 ? -1 : dup2(fd, as);
}

static int decode(void *context) {
    struct run *run = context;
    struct session session;
    struct session_options options = {.model = run->model, .plugin = run->plugin};
    if (to_file(run->errors, STDERR_FILENO) < 0 || to_file(run->out, STDOUT_FILENO) < 0 ||
        session_open(&session, &options)) {
        return 1;
    }
    for (int i = 0; i < TOKENS; i++) {
        llama_token token = (i * i * 131 + 17) % session.n_vocab;
        if (session_decode(&session, &token, 1, i)) {
            return 1;
        }
    }
    struct outcome *outcome = run->outcome;
    outcome->stats = session_stats(&session);
    guanaco_layer_stats_fn layer_stats;
    *(void **)&layer_stats =
        ggml_backend_reg_get_proc_address(ggml_backend_reg_by_name("GUANACO"), "guanaco_layer_stats");
    if (!layer_stats) {
        return 1;
    }
    struct guanaco_layer_stats *layers = outcome->layers;
    for (outcome->n_layers = 0; outcome->n_layers < 64; outcome->n_layers++) {
        layers[outcome->n_layers].size = sizeof *layers;
        if (layer_stats(0, (uint32_t)outcome->n_layers, &layers[outcome->n_layers])) {
            break;
        }
    }
    struct guanaco_layer_stats none = {.size = sizeof none}, odd = {.size = 8};
    if (layer_stats(1, 0, &none) == 0 || layer_stats(0, 0, &odd) == 0) {
        return 1;
    }
    session_close(&session);
    return 0;
}

// The same model twice in one process: the counters of the second time alone are in the outcome.
static int decode_twice(void *context) {
    struct run *run = context;
    struct guanaco_stats before = {0}, after;
    if (to_file(run->errors, STDERR_FILENO) < 0) {
        return 1;
    }
    for (int time = 0; time < 2; time++) {
        struct session session;
        struct session_options options = {.model = run->model, .plugin = run->plugin};
        if (session_open(&session, &options)) {
            return 1;
        }
        // A prompt evicts nothing and so misses the same experts again and again.
        for (int i = 0, n; i < TOKENS; i += n) {
            llama_token tokens[24];
            n = i % 25 == 0 ? 24 : 1;
            for (int t = 0; t < n; t++) {
                tokens[t] = ((i + t) * (i + t) * 131 + 17) % session.n_vocab;
            }
            if (session_decode(&session, tokens, n, i)) {
                return 1;
            }
        }
        after = session_stats(&session);
        session_close(&session);
        before = time == 0 ? after : before;
    }
    run->outcome->stats = (struct guanaco_stats){
        .misses = after.misses - before.misses,
        .evictions = after.evictions - before.evictions,
        .rereads = after.rereads - before.rereads,
        .pilot_calls = after.pilot_calls - before.pilot_calls,
        .pilot_slices = after.pilot_slices - before.pilot_slices,
        .prefetch_useful = after.prefetch_useful - before.prefetch_useful,
        .prefetch_wasted = after.prefetch_wasted - before.prefetch_wasted,
    };
    return 0;
}

static int failures;

static void expect(bool good, const char *what) {
    if (!good) {
        fprintf(stderr, "not so: %s\n", what);
        failures++;
    }
}

// Reads the number after `mark` in the line.
static double number(const char *line, const char *mark) {
    const char *at = strstr(line, mark);
    return at ? strtod(at + strlen(mark), NULL) : NAN;
}

static bool is(double number, uint64_t expected) {
    return fabs(number - (double)expected) < 0.5;
}

static void check_percent(double shown, uint64_t part, uint64_t whole, const char *what) {
    expect(fabs(shown - 100 * (double)part / (double)whole) <= 0.51, what);
}

static void check_accesses(const char *line, uint64_t hits, uint64_t used, uint64_t pinned_hits) {
    double shown_hits = number(line, "hot-pinned), ");
    expect(is(shown_hits, hits), "hits");
    char mark[64];
    snprintf(mark, sizeof mark, "), %.0f/", shown_hits);
    expect(is(number(line, mark), used), "expert accesses");
    check_percent(number(line, strstr(line, "in all: ") ? "in all: " : "pin cache: "), hits, used, "resident");
    check_percent(number(line, "resident ("), pinned_hits, used, "hot-pinned");
}

static void check_final(const char *line, const struct outcome *outcome) {
    const struct guanaco_stats *stats = &outcome->stats;
    check_accesses(line, stats->hits, stats->hits + stats->misses, stats->pinned_hits);
    expect(is(number(line, "evictions="), stats->evictions), "evictions");
    expect(is(number(line, "evict_hot="), stats->pinned_evictions), "evict_hot");
    expect(is(number(line, "evict_reread="), stats->rereads), "evict_reread");
    expect(fabs(number(line, "churn ") - 100 * (double)stats->rereads / (double)stats->misses) < 0.06, "churn");
    expect(is(number(line, "pilot calls="), stats->pilot_calls), "pilot calls");
    expect(is(number(line, "pilot slices="), stats->pilot_slices), "pilot slices");
    expect(is(number(line, "read ahead: used="), stats->prefetch_useful), "experts read ahead");
    expect(is(number(line, "wasted="), stats->prefetch_wasted), "experts read ahead in vain");
    check_percent(number(line, "router foresaw "), stats->router_foreseen, stats->router_used,
                  "what the router foresaw");
    check_percent(number(line, "pilot foresaw "), stats->pilot_foreseen, stats->pilot_used, "what PILOT foresaw");
    expect(strstr(line, "seed: none") != NULL, "the seed");
    uint64_t least = UINT64_MAX, most = 0;
    for (int l = 0; l < outcome->n_layers; l++) {
        uint64_t resident = outcome->layers[l].resident;
        least = resident < least ? resident : least;
        most = resident > most ? resident : most;
    }
    char range[80];
    snprintf(range, sizeof range, "per-layer budget=[%" PRIu64 ", %" PRIu64 "]", least, most);
    expect(strstr(line, range) != NULL, range);
}

static void check_pins(const char *line, const struct outcome *outcome) {
    uint64_t pinned = 0;
    for (int l = 0; l < outcome->n_layers; l++) {
        char mark[64];
        snprintf(mark, sizeof mark, "L%" PRIu64 "=", outcome->layers[l].block);
        expect(outcome->layers[l].pinned == 0 || is(number(line, mark), outcome->layers[l].pinned), mark);
        pinned += outcome->layers[l].pinned;
    }
    expect(pinned > PINNED / 2, "pins");
    expect(is(number(line, "pinned="), pinned), "pinned");
    char mark[64];
    snprintf(mark, sizeof mark, "pinned=%" PRIu64 "/", pinned);
    expect(is(number(line, mark), PINNED), "pinned, of how many");
    expect(is(number(line, "obs="), outcome->stats.hits + outcome->stats.misses), "obs");
    expect(is(number(line, "moe_layers="), (uint64_t)outcome->n_layers), "moe_layers");
    expect(number(line, "count range=[") > 0, "count range");
    expect(number(line, "locked=") < 0.05, "locked");
}

static void check_layers(const struct outcome *outcome) {
    struct guanaco_stats sum = {0};
    uint64_t resident = 0;
    for (int l = 0; l < outcome->n_layers; l++) {
        const struct guanaco_layer_stats *layer = &outcome->layers[l];
        expect(layer->events == TOKENS, "events of a layer");
        expect(layer->pinned <= layer->resident && layer->resident <= layer->experts, "pinned, resident, experts");
        sum.events += layer->events;
        sum.hits += layer->hits;
        sum.misses += layer->misses;
        sum.inserts += layer->inserts;
        sum.evictions += layer->evictions;
        sum.pinned_hits += layer->pinned_hits;
        sum.pinned_evictions += layer->pinned_evictions;
        sum.rereads += layer->rereads;
        sum.router_used += layer->router_used;
        sum.router_foreseen += layer->router_foreseen;
        sum.pilot_used += layer->pilot_used;
        sum.pilot_foreseen += layer->pilot_foreseen;
        resident += layer->resident;
    }
    const struct guanaco_stats *all = &outcome->stats;
    expect(sum.events == all->events && sum.hits == all->hits && sum.misses == all->misses, "hits by layer");
    expect(sum.inserts == all->inserts && sum.evictions == all->evictions, "evictions by layer");
    expect(sum.pinned_hits == all->pinned_hits && sum.pinned_evictions == all->pinned_evictions, "pins by layer");
    expect(sum.rereads == all->rereads && resident == all->slots, "resident by layer");
    expect(sum.router_used == all->router_used && sum.router_foreseen == all->router_foreseen, "the router by layer");
    expect(sum.pilot_used == all->pilot_used && sum.pilot_foreseen == all->pilot_foreseen, "PILOT by layer");
    expect(all->pilot_used > 0 && all->router_used > 0, "both are asked");
    expect(all->io_wait_ns + all->compute_ns + all->manage_ns <= all->total_ns, "times");
    expect(all->manage_ns > 0, "time managing");
}

// Reads what the run said. Returns how many lines about the cache there are.
static int read_lines(const struct run *run, bool check) {
    FILE *file = fopen(run->errors, "re");
    char line[2048], pins[2048] = "", final[2048] = "";
    int n = 0, periodic = 0, models = 0;
    while (file && fgets(line, sizeof line, file)) {
        bool cache = strstr(line, "guanaco: pin cache: ") == line,
             end = strstr(line, "guanaco: pin cache, in all: ") == line;
        bool pinned = strstr(line, "guanaco: pins: ") == line;
        bool model = strstr(line, "guanaco: model: qwen3moe, 64 experts, top-4, 6 layers, hidden size 256; 18 expert "
                                  "tensors in 6 layers, 1 shard\n") == line;
        n += cache + end + pinned + model;
        models += model;
        periodic += cache;
        if (cache) {
            uint64_t tokens = (uint64_t)periodic * INTERVAL, used = tokens * 6 * 4;
            double hits = number(line, "hot-pinned), ");
            char mark[64];
            snprintf(mark, sizeof mark, "), %.0f/", hits);
            expect(!check || is(number(line, mark), used), "accesses so far");
        }
        if (end || pinned) {
            memcpy(end ? final : pins, line, sizeof line);
        }
    }
    if (file) {
        fclose(file);
    }
    if (check) {
        expect(models == 1, "a line about the model");
        expect(periodic == TOKENS / INTERVAL, "a line for every interval");
        check_final(final, run->outcome);
        check_pins(pins, run->outcome);
    }
    return n;
}

// The last line of a process is about the model that it closed last.
static void check_second(const struct run *run) {
    FILE *file = fopen(run->errors, "re");
    char line[2048], final[2048] = "";
    while (file && fgets(line, sizeof line, file)) {
        if (strstr(line, "pin cache, in all: ")) {
            memcpy(final, line, sizeof line);
        }
    }
    if (file) {
        fclose(file);
    }
    const struct guanaco_stats *stats = &run->outcome->stats;
    expect(is(number(final, "evictions="), stats->evictions), "evictions of the second model");
    expect(is(number(final, "evict_reread="), stats->rereads), "evict_reread of the second model");
    expect(fabs(number(final, "churn ") - 100 * (double)stats->rereads / (double)stats->misses) < 0.06, "its churn");
    expect(number(final, "churn ") <= 100, "churn is a share");
    expect(is(number(final, "pilot calls="), stats->pilot_calls), "pilot calls of the second model");
    expect(is(number(final, "pilot slices="), stats->pilot_slices), "pilot slices of the second model");
    expect(is(number(final, "read ahead: used="), stats->prefetch_useful), "experts read ahead for the second model");
    expect(is(number(final, "wasted="), stats->prefetch_wasted), "and in vain");
}

static bool is_empty(const char *path) {
    FILE *file = fopen(path, "re");
    bool empty = file && fgetc(file) == EOF;
    if (file) {
        fclose(file);
    }
    return empty;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: test_report MODEL PLUGIN DIRECTORY\n");
        return 2;
    }
    struct run run = {.model = argv[1], .plugin = argv[2]};
    run.outcome = mmap(NULL, sizeof *run.outcome, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    snprintf(run.out, sizeof run.out, "%s/report-test.out", argv[3]);
    snprintf(run.errors, sizeof run.errors, "%s/report-test.log", argv[3]);
    setenv("GUANACO_EXPERT_CACHE", "25%", 1);
    setenv("GUANACO_IMATRIX", "off", 1);
    char value[16];
    snprintf(value, sizeof value, "%d", PINNED);
    setenv("GUANACO_PIN_HOT_EXPERTS", value, 1);
    snprintf(value, sizeof value, "%d", INTERVAL);
    setenv("GUANACO_STATS_INTERVAL", value, 1);
    if (in_child(decode, &run)) {
        fprintf(stderr, "the run failed\n");
        return 1;
    }
    read_lines(&run, true);
    check_layers(run.outcome);
    expect(is_empty(run.out), "nothing in the program's own output");
    setenv("GUANACO_STATS_INTERVAL", "0", 1);
    setenv("GUANACO_PIN_HOT_EXPERTS", "0", 1);
    expect(in_child(decode, &run) == 0 && read_lines(&run, false) == 2,
           "the model and a summary, when not asked for more");
    expect(in_child(decode_twice, &run) == 0, "the model can be loaded twice");
    check_second(&run);
    setenv("GUANACO_LOG", "warn", 1);
    expect(in_child(decode, &run) == 0 && read_lines(&run, false) == 0, "nothing with GUANACO_LOG=warn");
    unlink(run.out);
    unlink(run.errors);
    return failures > 0;
}
