// Eviction policies that are not ours: a good one works as the simulator says, from a file or registered; one with a
// flaw stops the model with a line that says what is wrong, and nothing worse.
//
//     test_own_policy MODEL PLUGIN GOOD.so FLAW0.so FLAW1.so …
#include "policy/policy.h"
#include "session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const lines[] = {
    "does not export guanaco_policy", "is of another version",      "lacks a function",
    "a victim that is in use",        "a victim that is not there", "a victim that is not there"};
#define FLAWS (sizeof lines / sizeof *lines)

struct run {
    const char *model, *plugin, *policy;
    const char *line; // the error that must come; NULL: none
    bool registered;  // by the program
};

// Tokens of a fixed text that goes through many experts. Returns llama_decode()'s last result.
static int decode(struct session *session, int n) {
    for (int i = 0; i < n; i++) {
        llama_token token = (i * 131 + 17) % session->n_vocab;
        int result = session_decode(session, &token, 1, i);
        if (result) {
            return result;
        }
    }
    return 0;
}

// Registers a policy: first one of another version, which is refused.
static bool register_policy(void *path) {
    const struct guanaco_policy *policy;
    char why[512];
    guanaco_register_policy_fn function;
    ggml_backend_reg_t registry = ggml_backend_reg_by_name("GUANACO");
    *(void **)&function = registry ? ggml_backend_reg_get_proc_address(registry, "guanaco_register_policy") : NULL;
    if (!function || gn_policy_find(path, &policy, why, sizeof why)) {
        return false;
    }
    struct guanaco_policy old = *policy;
    old.version = 0;
    return function(&old) == -1 && function(policy) == 0;
}

static int body(void *context) {
    const struct run *run = context;
    setenv("GUANACO_POLICY", run->registered ? "lru" : run->policy, 1);
    setenv("GUANACO_EXPERT_CACHE", "20%", 1);
    setenv("GUANACO_LOG", "error", 1);
    struct session session;
    struct session_options options = {.model = run->model,
                                      .plugin = run->plugin,
                                      .loaded = run->registered ? register_policy : NULL,
                                      .context = (void *)run->policy};
    if (session_open(&session, &options)) {
        bool good = run->line && session.last_error && strstr(session.last_error(), run->line);
        fprintf(stderr, "%s: cannot begin%s\n", run->policy, good ? ", as it should be" : "");
        session_close(&session);
        return !good;
    }
    int result = decode(&session, 100);
    struct guanaco_stats stats = session_stats(&session);
    bool good = result == 0 && stats.hits > 0 && stats.evictions > 0 && strstr(session.mode(), "clock");
    if (run->line) { // and it stays stopped
        good = result != 0 && strstr(session.last_error(), run->line) && decode(&session, 1) != 0;
    }
    if (!good) {
        fprintf(stderr, "%s: decode gives %d, '%s', %s\n", run->policy, result, session.last_error(), session.mode());
    }
    session_close(&session);
    return !good;
}

int main(int argc, char **argv) {
    if (argc != 4 + (int)FLAWS) {
        fprintf(stderr, "usage: test_own_policy MODEL PLUGIN GOOD FLAW...\n");
        return 2;
    }
    struct run run = {.model = argv[1], .plugin = argv[2], .policy = argv[3]};
    int failed = in_child(body, &run) != 0;
    run.registered = true;
    failed += in_child(body, &run) != 0;
    run.registered = false;
    for (size_t f = 0; f < FLAWS; f++) {
        run.policy = argv[4 + f];
        run.line = lines[f];
        failed += in_child(body, &run) != 0;
    }
    run.policy = "/nowhere/mine.so";
    run.line = "cannot load it";
    failed += in_child(body, &run) != 0;
    fprintf(stderr, "%d failed\n", failed);
    return failed != 0;
}
