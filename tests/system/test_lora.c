// A LoRA adapter on the experts, and two contexts that take turns on one model: every logit as stock has it.
//
//     test_lora MODEL PLUGIN FOLDER
#include "session.h"

#include "gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PROMPT = 12, STEPS = 12, RANK = 4 };

struct test {
    const char *model, *plugin, *adapter;
    char path[4096];
    float *logits, *plain; // [2 contexts][PROMPT + STEPS][n_vocab], shared with the children; with and without adapter
};

static void fill(struct ggml_tensor *tensor, uint32_t seed) {
    float *data = tensor->data;
    for (int64_t i = 0; i < ggml_nelements(tensor); i++) {
        seed = seed * 1664525u + 1013904223u;
        data[i] = ((float)(seed >> 8) / (float)(1 << 24) - 0.5f) * 0.1f;
    }
}

// An adapter for all expert weights of the model. Returns how many those are.
static int write_adapter(const char *model, const char *path) {
    struct ggml_context *shapes;
    struct gguf_context *from = gguf_init_from_file(model, (struct gguf_init_params){.no_alloc = true, .ctx = &shapes});
    struct ggml_context *tensors = ggml_init((struct ggml_init_params){.mem_size = (size_t)256 << 20});
    struct gguf_context *file = gguf_init_empty();
    int64_t architecture = gguf_find_key(from, "general.architecture");
    gguf_set_val_str(file, "general.architecture", gguf_get_val_str(from, architecture));
    gguf_set_val_str(file, "general.type", "adapter");
    gguf_set_val_str(file, "adapter.type", "lora");
    gguf_set_val_f32(file, "adapter.lora.alpha", 8);
    int n = 0;
    for (struct ggml_tensor *t = ggml_get_first_tensor(shapes); t; t = ggml_get_next_tensor(shapes, t)) {
        if (!strstr(t->name, "exps.weight")) {
            continue;
        }
        struct ggml_tensor *a = ggml_new_tensor_3d(tensors, GGML_TYPE_F32, t->ne[0], RANK, t->ne[2]);
        struct ggml_tensor *b = ggml_new_tensor_3d(tensors, GGML_TYPE_F32, RANK, t->ne[1], t->ne[2]);
        ggml_format_name(a, "%s.lora_a", t->name);
        ggml_format_name(b, "%s.lora_b", t->name);
        fill(a, (uint32_t)n);
        fill(b, (uint32_t)n + 1000);
        gguf_add_tensor(file, a);
        gguf_add_tensor(file, b);
        n++;
    }
    if (!gguf_write_to_file(file, path, false)) {
        n = 0;
    }
    gguf_free(file);
    gguf_free(from);
    ggml_free(tensors);
    ggml_free(shapes);
    return n;
}

// Decodes tokens at..at+n in one of the contexts, and keeps or compares their logits.
static bool step(struct session *session, const struct test *test, int context, int at, int n) {
    llama_token tokens[PROMPT];
    for (int i = 0; i < n; i++) {
        tokens[i] = ((at + i) * 131 + 17 + context * 7) % session->n_vocab;
    }
    if (session_decode(session, tokens, n, at)) {
        return false;
    }
    size_t row = (size_t)session->n_vocab;
    bool same = true;
    for (int i = 0; i < n; i++) {
        float *kept = test->logits + ((size_t)context * (PROMPT + STEPS) + (size_t)(at + i)) * row;
        const float *logits = session_logits(session, i);
        if (!session->stats) {
            memcpy(kept, logits, row * sizeof *logits);
        }
        same = same && memcmp(kept, logits, row * sizeof *logits) == 0;
    }
    return same;
}

static int run(void *arg) {
    const struct test *test = arg;
    struct session sessions[2];
    struct session_options options = {.model = test->model, .plugin = test->plugin, .n_context = 64};
    if (session_open(&sessions[0], &options)) {
        return 1;
    }
    sessions[1] = sessions[0];
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = 64;
    params.n_threads = params.n_threads_batch = 1;
    sessions[1].context = llama_init_from_model(sessions[0].model, params);
    struct llama_adapter_lora *adapter =
        test->adapter ? llama_adapter_lora_init(sessions[0].model, test->adapter) : NULL;
    float scale = 1;
    for (int c = 0; c < 2; c++) {
        if (test->adapter && (!adapter || llama_set_adapters_lora(sessions[c].context, &adapter, 1, &scale))) {
            return 2;
        }
    }
    bool same = true;
    for (int at = 0; at < PROMPT + STEPS && same; at += at ? 1 : PROMPT) {
        for (int c = 0; c < 2 && same; c++) {
            same = step(&sessions[c], test, c, at, at ? 1 : PROMPT);
        }
    }
    if (test->plugin && session_stats(&sessions[0]).misses == 0) {
        fprintf(stderr, "nothing was streamed\n");
        same = false;
    }
    llama_free(sessions[1].context);
    session_close(&sessions[0]);
    return same ? 0 : 3;
}

static int check(const char *name, struct test test) {
    int code = in_child(run, &test);
    printf("%s: %s\n", name, code ? "FAILED" : "ok");
    return code != 0;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: test_lora MODEL PLUGIN FOLDER\n");
        return 2;
    }
    struct test test = {.model = argv[1]};
    snprintf(test.path, sizeof test.path, "%s/experts-lora.gguf", argv[3]);
    size_t bytes = (size_t)2 * (PROMPT + STEPS) * 4096 * sizeof(float);
    test.plain = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    test.logits = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int failures = write_adapter(test.model, test.path) == 0;
    setenv("GUANACO_EXPERT_CACHE", "5%", 1);
    setenv("GUANACO_LOG", "error", 1);
    float *with = test.logits;
    test.logits = test.plain;
    failures += check("stock", test);
    test.plugin = argv[2];
    failures += check("two contexts", test);
    test.adapter = test.path;
    test.logits = with;
    test.plugin = NULL;
    failures += check("stock with the adapter", test);
    test.plugin = argv[2];
    failures += check("two contexts with the adapter", test);
    if (memcmp(test.plain, with, bytes) == 0) {
        puts("the adapter changes nothing: FAILED");
        failures++;
    }
    unlink(test.path);
    return failures != 0;
}
