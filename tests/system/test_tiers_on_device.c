// Experts held and computed by a device, on a real model: the same text, right logits whatever fails, never more memory
// than was given, counters that add up. The device may be a software one, which ggml takes only when told so
// (GGML_VK_VISIBLE_DEVICES=0). Skipped where there is none.
//
//     test_tiers_on_device MODEL PLUGIN FOLDER CASE
//
// Every run is a process of its own. All decode the tokens that stock llama.cpp chose, so that logits can be compared.
#include "session.h"

#include "ggml-backend.h"
#include "trace/trace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PROMPT = 24, MOST_STEPS = 160, LONG_PROMPT = 200, MOST_VOCAB = 4096, SKIPPED = 77 };

// A CPU rounds activations to 8 bits for Q4_0, a device does not.
#define BOUND 1e-3

struct result {
    llama_token chosen[MOST_STEPS + 1];             // the likeliest token after the prompt and after each step
    float logits[MOST_STEPS + 1][MOST_VOCAB];       // these tokens' logits
    struct guanaco_stats before, after_prompt, end; // before: the second prompt
    uint64_t most_bytes;                            // gpu_bytes at any time
    int failed_decodes, n_devices;
};

struct run {
    const char *model, *plugin;
    int steps;
    bool dense_on_device, long_prompt, unmapped;
    const struct result *follow; // decode its tokens; NULL: its own
    struct result *result;       // shared with the child
};

static const char *model, *plugin, *folder;
static int failures;

// ---- one run
// ----------------------------------------------------------------------------------------------------------

static int count_devices(void) {
    int n = 0;
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        enum ggml_backend_dev_type type = ggml_backend_dev_type(ggml_backend_dev_get(i));
        n += type == GGML_BACKEND_DEVICE_TYPE_GPU || type == GGML_BACKEND_DEVICE_TYPE_IGPU;
    }
    return n;
}

static int decode_in(struct session *session, int sequence, const llama_token *tokens, int n, int from) {
    struct llama_batch batch = llama_batch_init(n, 0, 1);
    for (int i = 0; i < n; i++) {
        batch.token[i] = tokens[i];
        batch.pos[i] = from + i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = sequence;
        batch.logits[i] = i + 1 == n;
    }
    batch.n_tokens = n;
    int code = llama_decode(session->context, batch);
    llama_batch_free(batch);
    return code;
}

// A batch that fails is tried once more, as a program would.
static bool decode(const struct run *run, struct session *session, int sequence, const llama_token *tokens, int n,
                   int from) {
    int code = decode_in(session, sequence, tokens, n, from);
    if (code) {
        run->result->failed_decodes++;
        llama_memory_seq_rm(llama_get_memory(session->context), sequence, from, -1);
        code = decode_in(session, sequence, tokens, n, from);
    }
    if (run->plugin && !code) {
        uint64_t bytes = session_stats(session).gpu_bytes;
        run->result->most_bytes = bytes > run->result->most_bytes ? bytes : run->result->most_bytes;
    }
    return code == 0;
}

static llama_token keep(const struct run *run, struct session *session, int step) {
    const float *row = llama_get_logits_ith(session->context, -1);
    llama_token best = 0;
    for (int t = 1; t < session->n_vocab; t++) {
        best = row[t] > row[best] ? t : best;
    }
    memcpy(run->result->logits[step], row, (size_t)session->n_vocab * sizeof *row);
    run->result->chosen[step] = best;
    return run->follow ? run->follow->chosen[step] : best;
}

static struct guanaco_stats stats_of(const struct run *run, const struct session *session) {
    return run->plugin ? session_stats(session) : (struct guanaco_stats){0};
}

static bool second_prompt(const struct run *run, struct session *session) {
    llama_token tokens[LONG_PROMPT];
    for (int i = 0; i < LONG_PROMPT; i++) {
        tokens[i] = (i * 53 + 7) % session->n_vocab;
    }
    run->result->before = stats_of(run, session);
    bool good = !run->long_prompt || decode(run, session, 1, tokens, LONG_PROMPT, 0);
    run->result->after_prompt = stats_of(run, session);
    return good;
}

static int body(void *context) {
    const struct run *run = context;
    struct session session;
    struct session_options options = {.model = run->model,
                                      .plugin = run->plugin,
                                      .n_context = 1024,
                                      .n_sequences = 2,
                                      .gpu = run->dense_on_device,
                                      .unmapped = run->unmapped};
    if (session_open(&session, &options)) {
        return 1;
    }
    run->result->n_devices = count_devices();
    llama_token tokens[PROMPT];
    for (int i = 0; i < PROMPT; i++) {
        tokens[i] = (i * 131 + 17) % session.n_vocab;
    }
    if (session.n_vocab > MOST_VOCAB || !decode(run, &session, 0, tokens, PROMPT, 0)) {
        return 2;
    }
    llama_token next = keep(run, &session, 0);
    for (int step = 1; step <= run->steps; step++) {
        if (step == run->steps / 2 + 1 && !second_prompt(run, &session)) {
            return 3;
        }
        if (!decode(run, &session, 0, &next, 1, PROMPT + step - 1)) {
            return 4;
        }
        next = keep(run, &session, step);
    }
    run->result->end = stats_of(run, &session);
    session_close(&session);
    return 0;
}

// ---- checking
// ---------------------------------------------------------------------------------------------------------

static void check(bool good, const char *format, const char *what, double figure) {
    printf("%s: ", good ? "ok" : "FAILED");
    printf(format, what, figure);
    puts("");
    failures += !good;
}

static struct result *new_result(void) {
    return mmap(NULL, sizeof(struct result), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

static double error_of(const struct result *reference, const struct result *result, int steps) {
    double squares = 0, differences = 0;
    for (int s = 0; s <= steps; s++) {
        for (int i = 0; i < MOST_VOCAB; i++) {
            double a = (double)reference->logits[s][i], d = a - (double)result->logits[s][i];
            squares += a * a;
            differences += d * d;
        }
    }
    return squares > 0 ? differences / squares : (double)INFINITY;
}

// Runs; NULL and a failure when that goes wrong.
static struct result *run_once(struct run run, const char *what) {
    run.model = model;
    run.result = new_result();
    int code = in_child(body, &run);
    if (code) {
        check(false, "%s: the run ends with %.0f", what, code);
        munmap(run.result, sizeof *run.result);
        return NULL;
    }
    return run.result;
}

static void let_go(struct result *result) {
    if (result) {
        munmap(result, sizeof *result);
    }
}

static struct result *run_stock(int steps) {
    return run_once((struct run){.steps = steps}, "stock");
}

static struct result *run_tier(const struct result *stock, int steps, const char *cache, const char *what) {
    setenv("GUANACO_GPU_CACHE", cache, 1);
    return run_once((struct run){.plugin = plugin, .steps = steps, .follow = stock}, what);
}

// ---- cases
// ------------------------------------------------------------------------------------------------------------

static void test_text(void) {
    int steps = 64, same = 0;
    struct result *stock = run_stock(steps);
    setenv("GUANACO_GPU_CACHE", "50%", 1);
    struct result *tier = run_once((struct run){.plugin = plugin, .steps = steps}, "with a tier");
    if (stock && tier) {
        for (int s = 0; s < steps; s++) {
            same += stock->chosen[s] == tier->chosen[s];
        }
        check(same == steps, "%s: %.0f of 64 greedy tokens are the same", "with half of the experts", same);
        check(tier->end.gpu_hits > 0 && tier->end.hits > 0, "%s: %.0f hits", "device", (double)tier->end.gpu_hits);
        check(error_of(stock, tier, steps) <= BOUND, "%s: error %.1e", "logits", error_of(stock, tier, steps));
    }
    let_go(stock);
    let_go(tier);
}

static void test_budget(void) {
    static const struct {
        const char *text;
        double bytes;
    } sizes[] = {{"1KiB", 1 << 10},       {"64KiB", 1 << 16},  {"300KiB", 300 << 10}, {"1MiB", 1 << 20},
                 {"1500KiB", 1500 << 10}, {"2MiB", 2 << 20},   {"3MiB", 3 << 20},     {"5MiB", 5 << 20},
                 {"10MiB", 10 << 20},     {"15MiB", 15 << 20}, {"22MiB", 22 << 20},   {"64MiB", 64 << 20}};
    int steps = 8, n_open = 0, n_closed = 0;
    struct result *stock = run_stock(steps);
    for (size_t i = 0; stock && i < sizeof sizes / sizeof *sizes; i++) {
        struct result *tier = run_tier(stock, steps, sizes[i].text, sizes[i].text);
        if (tier) {
            bool fits = (double)tier->most_bytes <= sizes[i].bytes;
            check(fits && error_of(stock, tier, steps) <= BOUND, "%s: %.0f bytes taken", sizes[i].text,
                  (double)tier->most_bytes);
            n_open += tier->end.gpu_slots > 0;
            n_closed += tier->end.gpu_slots == 0;
        }
        let_go(tier);
    }
    check(n_open >= 6 && n_closed >= 2, "%s: %.0f", "sizes with a tier", n_open);
    let_go(stock);
}

// The N-th call to the device fails, for every N until the tier is open and some of what it computes.
static void test_faults(void) {
    int steps = 10, failed_decodes = 0, fell_back = 0;
    struct result *stock = run_stock(steps), *whole = stock ? run_tier(stock, steps, "50%", "without faults") : NULL;
    for (int at = 1; whole && at <= 24; at++) {
        char number[16];
        snprintf(number, sizeof number, "%d", at);
        setenv("GUANACO_FAULT_GPU", number, 1);
        struct result *tier = run_tier(stock, steps, "50%", number);
        if (tier) {
            double error = error_of(stock, tier, steps);
            bool struck = tier->failed_decodes == 1 || tier->end.gpu_hits < whole->end.gpu_hits ||
                          tier->end.gpu_slots < whole->end.gpu_slots;
            check(error <= BOUND && tier->failed_decodes <= 1, "fault %s: error %.1e", number, error);
            check(struck, "fault %s: struck, %.0f decodes failed", number, tier->failed_decodes);
            failed_decodes += tier->failed_decodes;
            fell_back += tier->failed_decodes == 0;
        }
        let_go(tier);
    }
    unsetenv("GUANACO_FAULT_GPU");
    check(failed_decodes >= 3 && fell_back >= 3, "%s: %.0f", "decodes that failed in all runs", failed_decodes);
    let_go(stock);
    let_go(whole);
}

// Experts that the file says were used: once in each event.
static uint64_t uses_in(const char *path) {
    struct gn_trace trace;
    char why[512];
    if (gn_trace_read(path, &trace, why, sizeof why)) {
        fprintf(stderr, "%s\n", why);
        return 0;
    }
    static bool used[4096];
    uint64_t n = 0;
    for (size_t r = 0; r < trace.n_rows; r++) {
        const struct gn_trace_row *row = &trace.rows[r], *last = r ? row - 1 : NULL;
        bool goes_on = last && last->layer == row->layer && last->turn == row->turn && last->decode == row->decode &&
                       (last->step == row->step || !row->decode);
        if (!goes_on) {
            memset(used, 0, sizeof used);
        }
        n += !used[row->expert];
        used[row->expert] = true;
    }
    gn_trace_close(&trace);
    return n;
}

static void test_counters(void) {
    int steps = 160;
    char path[4096];
    snprintf(path, sizeof path, "%s/tiers-%d.csv", folder, getpid());
    struct result *stock = run_stock(steps);
    setenv("GUANACO_TRACE", path, 1);
    setenv("GUANACO_PREFETCH", "off", 1);
    struct result *tier = stock ? run_tier(stock, steps, "50%", "half of the experts") : NULL;
    unsetenv("GUANACO_TRACE");
    unsetenv("GUANACO_PREFETCH");
    if (tier) {
        const struct guanaco_stats *end = &tier->end, *half = &tier->after_prompt;
        uint64_t used = uses_in(path), counted = end->gpu_hits + end->hits + end->misses;
        check(used == counted && used > 0, "%s: %.0f uses", "device, RAM and disk add up to the trace's", (double)used);
        double early = (double)half->gpu_uploads / (steps / 2);
        double late = (double)(end->gpu_uploads - half->gpu_uploads) / (steps / 2);
        double hits = (double)(end->gpu_hits - half->gpu_hits);
        double uses = hits + (double)(end->hits - half->hits + end->misses - half->misses);
        printf("uploads per token: %.2f, then %.2f; hit rate of the device then: %.1f %%\n", early, late,
               100 * hits / uses);
        check(late <= 0.5 && late < early / 4, "%s: %.2f", "uploads per token after warm-up", late);
        check(hits / uses > 0.5, "%s: %.2f", "of the uses after warm-up the device has", hits / uses);
    }
    unlink(path);
    let_go(stock);
    let_go(tier);
}

static double late_hit_rate(const struct result *result) {
    const struct guanaco_stats *end = &result->end, *half = &result->after_prompt;
    double hits = (double)(end->gpu_hits - half->gpu_hits);
    return 100 * hits / (hits + (double)(end->hits - half->hits + end->misses - half->misses));
}

static void test_prefill(void) {
    int steps = 96;
    struct result *stock = run_stock(steps),
                  *without = stock ? run_tier(stock, steps, "40%", "without a prompt") : NULL;
    struct result *with =
        without ? run_once((struct run){.plugin = plugin, .steps = steps, .follow = stock, .long_prompt = true},
                           "with a prompt")
                : NULL;
    if (with) {
        uint64_t uploads = with->after_prompt.gpu_uploads - with->before.gpu_uploads;
        uint64_t hits = with->after_prompt.gpu_hits - with->before.gpu_hits;
        check(uploads == 0, "%s: %.0f", "copies during the prompt", (double)uploads);
        check(hits > 0, "%s: %.0f", "hits of the prompt", (double)hits);
        double change = late_hit_rate(with) - late_hit_rate(without);
        check(fabs(change) <= 1, "%s: %.2f points", "the device's hit rate changes by", change);
        check(error_of(stock, with, steps) <= BOUND, "%s: error %.1e", "logits", error_of(stock, with, steps));
    }
    let_go(stock);
    let_go(without);
    let_go(with);
}

// Tiers that hold nothing: stock's bits.
static void check_none(const struct result *stock, const char *knob, const char *value, int steps) {
    unsetenv("GUANACO_GPU_CACHE");
    setenv(knob, value, 1);
    struct result *tier = run_once((struct run){.plugin = plugin, .steps = steps, .follow = stock}, value);
    if (tier) {
        bool same = memcmp(stock->logits, tier->logits, sizeof stock->logits) == 0;
        check(same && tier->end.gpu_slots == 0 && tier->end.gpu_hits == 0, "%s %.0s: no tier, stock's bits", value, 0);
    }
    unsetenv(knob);
    let_go(tier);
}

static void test_none(void) {
    int steps = 12;
    struct result *stock = run_stock(steps);
    if (stock) {
        check_none(stock, "GUANACO_GPU_CACHE", "0", steps);
        check_none(stock, "GUANACO_GPU_CACHE", "off", steps);
        check_none(stock, "GUANACO_GPU_CACHE", "10KiB", steps);
        check_none(stock, "GUANACO_TIERS", "Nonsense7:auto:1GiB,RAM:auto:auto", steps);
        unsetenv("GUANACO_EXPERT_CACHE");
        check_none(stock, "GUANACO_TIERS", "Vulkan0:auto:0,RAM:auto:8MiB", steps);
        setenv("GUANACO_EXPERT_CACHE", "8MiB", 1);
    }
    let_go(stock);
}

static void test_two(void) {
    int steps = 16;
    setenv("GGML_VK_VISIBLE_DEVICES", "0,0", 1);
    struct result *stock = run_stock(steps);
    if (stock && stock->n_devices < 2) {
        puts("skipped [gpu]: there are no two devices");
        exit(failures ? 1 : SKIPPED);
    }
    unsetenv("GUANACO_EXPERT_CACHE");
    setenv("GUANACO_TIERS", "Vulkan0:auto:25%,Vulkan1:lru:25%,RAM:auto:8MiB", 1);
    struct result *both =
        stock ? run_once((struct run){.plugin = plugin, .steps = steps, .follow = stock}, "two") : NULL;
    setenv("GUANACO_TIERS", "Vulkan0:auto:25%,RAM:auto:8MiB", 1);
    struct result *one = both ? run_once((struct run){.plugin = plugin, .steps = steps, .follow = stock}, "one") : NULL;
    if (one) {
        check(error_of(stock, both, steps) <= BOUND, "%s: error %.1e", "two devices", error_of(stock, both, steps));
        check(both->end.gpu_slots > one->end.gpu_slots * 3 / 2, "%s: %.0f slots", "two devices",
              (double)both->end.gpu_slots);
        check(both->end.gpu_hits > one->end.gpu_hits, "%s: %.0f hits", "two devices", (double)both->end.gpu_hits);
    }
    let_go(stock);
    let_go(both);
    let_go(one);
}

// The tier beside all that else is done.
static void check_odd(const struct result *stock, const char *what, const char *knob, const char *value,
                      struct run run) {
    run.plugin = plugin;
    run.follow = stock;
    setenv("GUANACO_GPU_CACHE", "50%", 1);
    setenv(knob, value, 1);
    struct result *tier = run_once(run, what);
    if (tier) {
        double error = error_of(stock, tier, run.steps);
        check(error <= BOUND && tier->end.gpu_hits > 0, "%s: error %.1e", what, error);
    }
    unsetenv(knob);
    let_go(tier);
}

static void test_odd(void) {
    int steps = 16;
    struct result *stock = run_stock(steps);
    if (stock) {
        check_odd(stock, "mapped", "GUANACO_IO", "mapped", (struct run){.steps = steps});
        check_odd(stock, "spooled", "GUANACO_SPOOL_DIR", folder, (struct run){.steps = steps, .unmapped = true});
        check_odd(stock, "prompts of 2 tokens", "GUANACO_PREFILL_TOKENS", "2", (struct run){.steps = steps});
        check_odd(stock, "all is decode", "GUANACO_PREFILL_TOKENS", "1000",
                  (struct run){.steps = steps, .long_prompt = true});
        check_odd(stock, "one copy a token", "GUANACO_GPU_INSERTS", "1", (struct run){.steps = steps});
        check_odd(stock, "buffers of 2 MiB", "GGML_VK_SUBALLOCATION_BLOCK_SIZE", "2097152",
                  (struct run){.steps = steps});
        check_odd(stock, "pins", "GUANACO_PIN_HOT_EXPERTS", "20", (struct run){.steps = steps});
        setenv("GUANACO_GPU_INSERTS", "32", 1);
    }
    let_go(stock);
}

// All that is not an expert is llama.cpp's on the same device.
static void test_dense(void) {
    int steps = 8;
    struct result *dense = run_once((struct run){.steps = steps, .dense_on_device = true}, "the dense part there");
    if (dense) {
        check_odd(dense, "the dense part there as well", "GUANACO_LOG", "error",
                  (struct run){.steps = steps, .dense_on_device = true});
    }
    let_go(dense);
}

static int ask_for_devices(void *context) {
    (void)context;
    struct session session;
    return session_open(&session, &(struct session_options){.model = model}) ? 1 : 100 + count_devices();
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {{"text", test_text},         {"budget", test_budget},   {"faults", test_faults},
                 {"counters", test_counters}, {"prefill", test_prefill}, {"none", test_none},
                 {"two", test_two},           {"odd", test_odd},         {"dense", test_dense}};
    if (argc != 5) {
        fprintf(stderr, "usage: test_tiers_on_device MODEL PLUGIN FOLDER CASE\n");
        return 2;
    }
    model = argv[1];
    plugin = argv[2];
    folder = argv[3];
    setenv("GUANACO_LOG", "error", 0);
    setenv("GUANACO_EXPERT_CACHE", "8MiB", 1);
    setenv("GUANACO_GPU_INSERTS", "32", 1); // else what comes up is measured
    setenv("LP_NUM_THREADS", "1", 0);       // a software device's threads and the CPU's would only wait for each other
    if (in_child(ask_for_devices, NULL) <= 100) {
        puts("skipped [gpu]: llama.cpp knows of no GPU here");
        return SKIPPED;
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!strcmp(cases[i].name, argv[4])) {
            cases[i].run();
            return failures != 0;
        }
    }
    fprintf(stderr, "no such case: %s\n", argv[4]);
    return 2;
}
