// The functions that guanaco.h promises to any thread, called by several while a model decodes, fails once and is
// closed: no text is ever half of one, counters only grow, and the logits have stock's bits. Under the thread sanitizer
// (-DGUANACO_SANITIZE=thread) it also shows races.
//
//     test_threads MODEL PLUGIN
#include "session.h"

#include "ggml-backend.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PROMPT = 12, STEPS = 12, THREADS = 3 };

static const char *model, *plugin;
static float (*expected)[4096]; // [STEPS] stock's logits, shared with the children

static guanaco_stats_fn stats_of;
static guanaco_layer_stats_fn layer_stats;
static guanaco_mode_fn mode_of;
static guanaco_last_error_fn last_error;
static guanaco_register_policy_fn register_policy;
static atomic_bool ends;
static atomic_int wrong, calls;

static void complain(const char *what, const char *text) {
    if (atomic_fetch_add(&wrong, 1) < 10) {
        fprintf(stderr, "%s: '%s'\n", what, text);
    }
}

// What the mode is before, while and after there is a model.
static bool is_mode(const char *text) {
    bool none = !strcmp(text, "nothing is streamed: no model with routed experts in mapped files is loaded");
    size_t length = strlen(text);
    static const char end[] = "dense copied";
    bool streams = !strncmp(text, "streaming ", 10) && length > sizeof end && !strcmp(text + length - strlen(end), end);
    return none || streams;
}

static bool is_failure(const char *text) {
    static const char begin[] = "cannot read expert ", end[] = ": Input/output error";
    size_t length = strlen(text);
    return !strncmp(text, begin, strlen(begin)) && length > sizeof end && !strcmp(text + length - strlen(end), end);
}

// Once the model streams it does so until it is closed: a text that is being written by another thread would say less.
static void *ask(void *unused) {
    (void)unused;
    uint64_t events = 0;
    while (!atomic_load(&ends)) {
        const char *text = mode_of();
        if (!is_mode(text)) {
            complain("no mode", text);
        }
        const char *error = last_error();
        if (error[0] && !is_failure(error)) {
            complain("not the failure of this run", error);
        }
        struct guanaco_stats stats = {.size = sizeof stats};
        if (stats_of(&stats) || stats.events < events) {
            complain("counters", "they shrink");
        }
        events = stats.events;
        struct guanaco_layer_stats layer = {.size = sizeof layer};
        for (uint32_t l = 0; l < 64 && layer_stats(0, l, &layer) == 0; l++) {
            if (layer.hits + layer.misses < layer.inserts) {
                complain("counters of a layer", "more inserts than misses");
            }
        }
        atomic_fetch_add(&calls, 1);
    }
    return NULL;
}

static void *register_policies(void *unused) {
    static const struct guanaco_policy bad = {.version = GUANACO_POLICY_VERSION + 1, .name = "bad"};
    (void)unused;
    for (int i = 0; i < 20 && !atomic_load(&ends); i++) {
        if (register_policy(&bad) != -1 || register_policy(NULL) != 0) {
            complain("a policy", "taken though it is of another version");
        }
    }
    return NULL;
}

static bool find_functions(void *unused) {
    (void)unused;
    ggml_backend_reg_t registry = ggml_backend_reg_by_name("GUANACO");
    *(void **)&stats_of = ggml_backend_reg_get_proc_address(registry, "guanaco_stats");
    *(void **)&layer_stats = ggml_backend_reg_get_proc_address(registry, "guanaco_layer_stats");
    *(void **)&mode_of = ggml_backend_reg_get_proc_address(registry, "guanaco_mode");
    *(void **)&last_error = ggml_backend_reg_get_proc_address(registry, "guanaco_last_error");
    *(void **)&register_policy = ggml_backend_reg_get_proc_address(registry, "guanaco_register_policy");
    return stats_of && layer_stats && mode_of && last_error && register_policy;
}

static int decode(const char *with_plugin, bool threads) {
    struct session session;
    struct session_options options = {.model = model, .plugin = with_plugin, .n_context = 64};
    pthread_t asking[THREADS], registering;
    options.loaded = with_plugin ? find_functions : NULL;
    if (session_open(&session, &options)) {
        return 1;
    }
    for (int t = 0; threads && t < THREADS; t++) {
        pthread_create(&asking[t], NULL, ask, NULL);
    }
    if (threads) {
        pthread_create(&registering, NULL, register_policies, NULL);
    }
    llama_token tokens[PROMPT + STEPS];
    for (int i = 0; i < PROMPT + STEPS; i++) {
        tokens[i] = (i * 131 + 17) % session.n_vocab;
    }
    int failed = session_decode(&session, tokens, PROMPT, 0), n_failed = 0;
    size_t bytes = (size_t)session.n_vocab * sizeof(float);
    for (int step = 0; step < STEPS && !failed; step++) {
        failed = session_decode(&session, &tokens[PROMPT + step], 1, PROMPT + step);
        if (failed && with_plugin && n_failed++ == 0) { // the read that was to fail
            failed = session_decode(&session, &tokens[PROMPT + step], 1, PROMPT + step);
        }
        if (!failed && with_plugin) {
            failed = memcmp(expected[step], session_logits(&session, 0), bytes) != 0;
        } else if (!failed) {
            memcpy(expected[step], session_logits(&session, 0), bytes);
        }
    }
    session_close(&session); // while they go on asking
    atomic_store(&ends, true);
    for (int t = 0; threads && t < THREADS; t++) {
        pthread_join(asking[t], NULL);
    }
    if (threads) {
        pthread_join(registering, NULL);
        fprintf(stderr, "%d rounds of questions, %d wrong answers\n", atomic_load(&calls), atomic_load(&wrong));
    }
    failed = failed || (with_plugin && n_failed != 1);
    return failed || atomic_load(&wrong) > 0 || (threads && atomic_load(&calls) == 0);
}

static int stock(void *unused) {
    (void)unused;
    return decode(NULL, false);
}

static int streamed(void *unused) {
    (void)unused;
    return decode(plugin, true);
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: test_threads MODEL PLUGIN\n");
        return 2;
    }
    model = argv[1];
    plugin = argv[2];
    setenv("GUANACO_EXPERT_CACHE", "20%", 1);
    setenv("GUANACO_DENSE", "copy", 1);
    setenv("GUANACO_LOG", "warn", 1);
    setenv("GUANACO_PREFETCH", "off", 1); // what is read ahead may fail unnoticed
    setenv("GUANACO_IMATRIX", "off", 1);
    setenv("GUANACO_FAULT_AT", "700", 1);
    setenv("GUANACO_FAULT_RESULT", "-5", 1);
    expected = mmap(NULL, sizeof *expected * STEPS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (expected == MAP_FAILED || in_child(stock, NULL)) {
        fprintf(stderr, "stock does not run\n");
        return 1;
    }
    return in_child(streamed, NULL) != 0;
}
