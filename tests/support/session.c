#include "session.h"

#include "backends.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static bool be_verbose;

static void on_log(enum ggml_log_level level, const char *text, void *context) {
    (void)context;
    if (be_verbose || level == GGML_LOG_LEVEL_ERROR) {
        fputs(text, stderr);
    }
}

static int load_plugin(struct session *session, const char *path) {
    ggml_backend_reg_t registry = ggml_backend_load(path);
    if (!registry) {
        fprintf(stderr, "cannot load %s\n", path);
        return -1;
    }
    *(void **)&session->stats = ggml_backend_reg_get_proc_address(registry, "guanaco_stats");
    *(void **)&session->last_error = ggml_backend_reg_get_proc_address(registry, "guanaco_last_error");
    *(void **)&session->mode = ggml_backend_reg_get_proc_address(registry, "guanaco_mode");
    return 0;
}

int session_open(struct session *session, const struct session_options *options) {
    memset(session, 0, sizeof *session);
    be_verbose = options->verbose;
    llama_log_set(on_log, NULL);
    if (!load_backends()) {
        fprintf(stderr, "there is no CPU backend beside libllama\n");
        return -1;
    }
    if (options->plugin && load_plugin(session, options->plugin)) {
        return -1;
    }
    if (options->loaded && !options->loaded(options->context)) {
        fprintf(stderr, "what was to be done with the plugin failed\n");
        return -1;
    }
    struct llama_model_params model_params = llama_model_default_params();
    static ggml_backend_dev_t none[] = {NULL}; // llama.cpp would have a GPU compute some of a prompt, without any layer
    // As --cpu-moe has it.
    struct llama_model_tensor_buft_override overrides[] = {
        {"\\.ffn_(up|down|gate|gate_up)_(ch|)exps", ggml_backend_cpu_buffer_type()}, {0}};
    model_params.n_gpu_layers = options->gpu ? 999 : 0;
    model_params.tensor_buft_overrides = options->gpu ? overrides : NULL;
    model_params.devices = options->gpu ? NULL : none;
    model_params.load_mode = options->unmapped ? LLAMA_LOAD_MODE_NONE : LLAMA_LOAD_MODE_MMAP;
    model_params.load_mtp = options->mtp;
    model_params.use_extra_bufts = false; // repacking changes the last bits
    session->model = llama_model_load_from_file(options->model, model_params);
    if (!session->model) {
        fprintf(stderr, "cannot load %s\n", options->model);
        return -1;
    }
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = options->n_context ? options->n_context : 512;
    params.n_batch = params.n_ctx;
    params.n_ubatch = options->n_ubatch ? options->n_ubatch : 512;
    params.n_seq_max = options->n_sequences ? options->n_sequences : 1;
    params.n_threads = params.n_threads_batch = options->n_threads ? options->n_threads : 1;
    params.op_offload = false; // a GPU would take the dense part of a prompt
    session->context = llama_init_from_model(session->model, params);
    session->n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(session->model));
    if (!session->context) {
        fprintf(stderr, "cannot make a context for %s\n", options->model);
        return -1;
    }
    return 0;
}

void session_close(struct session *session) {
    llama_free(session->context);
    llama_model_free(session->model);
}

int session_decode(struct session *session, const llama_token *tokens, int n, int from) {
    struct llama_batch batch = llama_batch_init(n, 0, 1);
    for (int i = 0; i < n; i++) {
        batch.token[i] = tokens[i];
        batch.pos[i] = from + i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    batch.n_tokens = n;
    int result = llama_decode(session->context, batch);
    llama_batch_free(batch);
    return result;
}

const float *session_logits(struct session *session, int i) {
    return llama_get_logits_ith(session->context, i);
}

struct guanaco_stats session_stats(const struct session *session) {
    struct guanaco_stats stats = {.size = sizeof stats};
    if (!session->stats || session->stats(&stats)) {
        fprintf(stderr, "no counters\n");
        exit(1);
    }
    return stats;
}

int in_child(int (*body)(void *context), void *context) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        _exit(body(context));
    }
    int status;
    if (pid < 0 || waitpid(pid, &status, 0) != pid) {
        return -1;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}
