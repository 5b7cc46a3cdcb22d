// The dense part on a GPU, experts streamed: the logits of the same placement without us. The device may be a software
// one, which ggml takes only when told so (GGML_VK_VISIBLE_DEVICES=0).
//
//     test_gpu MODEL PLUGIN
#include "session.h"

#include "ggml-backend.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PROMPT = 12, STEPS = 4, MOST_VOCAB = 8192, SKIPPED = 77 };

struct test {
    const char *model, *plugin;
    bool gpu;
    float *logits; // [STEPS + 1][MOST_VOCAB], shared with the parent
};

static bool has_gpu(void) {
    return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU) ||
           ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_IGPU);
}

static int run(void *context) {
    const struct test *test = context;
    struct session session;
    struct session_options options = {.model = test->model, .plugin = test->plugin, .n_context = 64, .gpu = test->gpu};
    if (session_open(&session, &options)) {
        return 1;
    }
    if (test->gpu && !has_gpu()) {
        return SKIPPED;
    }
    int at = 0, n = PROMPT;
    for (int step = 0; step <= STEPS; step++, at += n, n = 1) {
        llama_token tokens[PROMPT];
        for (int i = 0; i < n; i++) {
            tokens[i] = ((at + i) * 131 + 17) % session.n_vocab;
        }
        if (session_decode(&session, tokens, n, at)) {
            return 1;
        }
        memcpy(test->logits + (size_t)step * MOST_VOCAB, session_logits(&session, n - 1),
               (size_t)session.n_vocab * sizeof(float));
    }
    struct guanaco_stats stats = {0};
    if (test->plugin) {
        stats = session_stats(&session);
    }
    session_close(&session);
    if (test->plugin && stats.misses == 0) {
        fprintf(stderr, "nothing was streamed\n");
        return 1;
    }
    return 0;
}

static double difference(const float *a, const float *b) {
    double error = 0, size = 0;
    for (size_t i = 0; i < (size_t)(STEPS + 1) * MOST_VOCAB; i++) {
        error += (double)(a[i] - b[i]) * (double)(a[i] - b[i]);
        size += (double)a[i] * (double)a[i];
    }
    return size > 0 ? error / size : INFINITY;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: test_gpu MODEL PLUGIN\n");
        return 2;
    }
    setenv("GUANACO_EXPERT_CACHE", "10%", 1);
    setenv("GUANACO_LOG", "error", 0);
    float *logits[3];
    int failed = 0;
    for (int i = 0; i < 3 && !failed; i++) {
        size_t bytes = (size_t)(STEPS + 1) * MOST_VOCAB * sizeof(float);
        logits[i] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        struct test test = {.model = argv[1], .plugin = i == 1 ? argv[2] : NULL, .gpu = i < 2, .logits = logits[i]};
        if (!test.gpu) {
            unsetenv("GGML_VK_VISIBLE_DEVICES"); // a software device takes long to start
        }
        failed = in_child(run, &test);
    }
    if (failed) {
        puts(failed == SKIPPED ? "skipped [gpu]: there is none" : "FAILED");
        return failed == SKIPPED ? SKIPPED : 1;
    }
    double ours = difference(logits[0], logits[1]), cpu = difference(logits[0], logits[2]);
    printf("GPU with streaming against GPU alone: %.2g; CPU against GPU: %.2g\n", ours, cpu);
    return !(ours <= 1e-5) || cpu == 0; // 0: the GPU did nothing
}
