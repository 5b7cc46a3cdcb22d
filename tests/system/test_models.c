// Two models in one process share one budget: each holds the same share of its experts, whichever came first, and all
// logits are stock's.
//
//     test_models ONE OTHER PLUGIN
#include "session.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PROMPT = 40, STEPS = 10, MOST_VOCAB = 8192 };

enum order {
    ONE_FIRST,   // one is loaded and used, then the other
    OTHER_FIRST, // the other way round
    BOTH_LOADED, // both are loaded before a context is made
};

struct test {
    const char *path[2], *plugin;
    enum order order;
    uint64_t most, ram; // bytes that slots and spares of both, or the whole process, may take; 0: that is not asked
    float *logits;      // [2 models][2 rounds][STEPS][MOST_VOCAB], shared with the children
};

static struct session load(const struct test *test, int model, bool first) {
    struct session session = {0};
    struct session_options options = {.model = test->path[model], .plugin = test->plugin, .n_context = 128};
    if (first && session_open(&session, &options)) {
        exit(1);
    }
    if (!first) { // the backends are there already
        struct llama_model_params params = llama_model_default_params();
        params.n_gpu_layers = 0;
        params.load_mode = LLAMA_LOAD_MODE_MMAP;
        params.use_extra_bufts = false;
        session.model = llama_model_load_from_file(test->path[model], params);
        session.n_vocab = session.model ? llama_vocab_n_tokens(llama_model_get_vocab(session.model)) : 0;
    }
    return session;
}

static void make_context(struct session *session) {
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = 128;
    params.n_threads = params.n_threads_batch = 1;
    session->context = session->context ? session->context : llama_init_from_model(session->model, params);
}

// A prompt and some tokens; keeps or compares the logits. Round 1 goes on where round 0 ended.
static bool compute(struct session *session, const struct test *test, int model, int round) {
    llama_token tokens[PROMPT];
    int at = round ? PROMPT + STEPS - 1 : 0, n = round ? 1 : PROMPT;
    for (int step = 0; step < STEPS; step++, at += n, n = 1) {
        for (int i = 0; i < n; i++) {
            tokens[i] = ((at + i) * 131 + 17 + model * 7) % session->n_vocab;
        }
        if (session_decode(session, tokens, n, at)) {
            fprintf(stderr, "model %d does not compute\n", model);
            return false;
        }
        float *kept = test->logits + (size_t)((model * 2 + round) * STEPS + step) * MOST_VOCAB;
        size_t bytes = (size_t)session->n_vocab * sizeof *kept;
        if (!test->plugin) {
            memcpy(kept, session_logits(session, n - 1), bytes);
        } else if (memcmp(kept, session_logits(session, n - 1), bytes) != 0) {
            fprintf(stderr, "model %d, round %d, step %d: other logits than stock's\n", model, round, step);
            return false;
        }
    }
    return true;
}

// What the line of a model says that it holds, per cent of its experts; -1 when there is none.
static double held(const char *mode, const char *path) {
    const char *name = strrchr(path, '/') + 1, *end = strstr(mode, name), *percent = NULL;
    double value = -1;
    for (const char *at = mode; end && (at = strstr(at, " % of the experts")) && at < end; at++) {
        percent = at;
    }
    while (percent && percent > mode && percent[-1] != ' ') {
        percent--;
    }
    return percent && sscanf(percent, "%lf", &value) == 1 ? value : -1;
}

static uint64_t anonymous_bytes(void) {
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    unsigned long long kib = 0;
    while (file && fgets(line, sizeof line, file) && sscanf(line, "RssAnon: %llu", &kib) != 1) {
    }
    if (file) {
        fclose(file);
    }
    return kib * 1024;
}

static bool shared_fairly(const struct test *test, const struct session *first) {
    const char *mode = first->mode();
    double one = held(mode, test->path[0]), other = held(mode, test->path[1]);
    struct guanaco_stats stats = session_stats(first);
    uint64_t bytes = stats.slot_bytes + stats.staging_bytes;
    // Staging slots are not in proportion: a few per cent of these small models.
    bool fair = one >= 10 && other >= 10 && fabs(one - other) <= 8;
    // What the program takes beside slots is estimated, to an eighth.
    bool within =
        (test->most == 0 || bytes <= test->most) && (test->ram == 0 || anonymous_bytes() <= test->ram + test->ram / 8);
    if (!fair || !within) {
        fprintf(stderr, "%.0f %% and %.0f %% of the experts, %.1f MiB in slots, %.1f MiB in all: %s\n", one, other,
                (double)bytes / (1 << 20), (double)anonymous_bytes() / (1 << 20), mode);
    }
    return fair && within;
}

static int run(void *arg) {
    const struct test *test = arg;
    int first = test->order == OTHER_FIRST, second = !first;
    struct session sessions[2];
    sessions[first] = load(test, first, true); // its context is made with it, unless both are to be loaded before
    if (test->order == BOTH_LOADED) {
        llama_free(sessions[first].context);
        sessions[first].context = NULL;
    }
    bool good = test->order == BOTH_LOADED || compute(&sessions[first], test, first, 0);
    sessions[second] = load(test, second, false);
    make_context(&sessions[second]);
    make_context(&sessions[first]);
    good = good && sessions[first].context && sessions[second].context && compute(&sessions[second], test, second, 0);
    good = good && (test->order != BOTH_LOADED || compute(&sessions[first], test, first, 0));
    good = good && compute(&sessions[first], test, first, 1) && compute(&sessions[second], test, second, 1);
    good = good && (!test->plugin || shared_fairly(test, &sessions[first]));
    llama_free(sessions[second].context);
    llama_model_free(sessions[second].model);
    session_close(&sessions[first]);
    return !good;
}

static int check(const char *name, struct test test) {
    int code = in_child(run, &test);
    printf("%s: %s\n", name, code ? "FAILED" : "ok");
    return code != 0;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: test_models ONE OTHER PLUGIN\n");
        return 2;
    }
    struct test test = {.path = {argv[1], argv[2]}};
    size_t bytes = (size_t)2 * 2 * STEPS * MOST_VOCAB * sizeof(float);
    test.logits = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    setenv("GUANACO_LOG", "error", 0);
    int failures = check("stock", test);
    test.plugin = argv[3];
    static const char *const names[] = {"one, then the other", "the other, then one", "both loaded first"};
    for (test.order = ONE_FIRST; test.order <= BOTH_LOADED; test.order++) {
        setenv("GUANACO_EXPERT_CACHE", "16MiB", 1);
        test.most = (uint64_t)16 << 20, test.ram = 0;
        failures += check(names[test.order], test);
        unsetenv("GUANACO_EXPERT_CACHE");
        test.most = 0, test.ram = (uint64_t)52 << 20;
        setenv("GUANACO_RAM", "52MiB", 1);
        failures += check("the same with --ram", test);
        unsetenv("GUANACO_RAM");
    }
    return failures != 0;
}
