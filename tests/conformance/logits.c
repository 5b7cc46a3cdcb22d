// Runs one fixed scenario through libllama and writes every logit's bits to a file: stock llama.cpp without --plugin,
// streamed with it. The files of two runs of one model are compared byte by byte, or, where a device has computed,
// number by number: then the second run follows the first, since the likeliest token may differ in the last bits.
#include "backends.h"
#include "guanaco.h"

#include <ggml-backend.h>
#include <limits.h>
#include <llama.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// minimax-01 wants a micro-batch to be a multiple of the sequences a context may hold.
enum { SEQUENCES = 4, MOST_SEQUENCES = 8, PER_SEQUENCE = 3, CONTEXT = 512, MOST_PROMPT = 128 };

struct options {
    const char *model, *out, *plugin, *follow;
    uint32_t seed;
    int n_prompt, n_decode, n_ubatch, n_threads;
    enum llama_load_mode load_mode;
    bool again, verbose;
};

struct run {
    const struct options *options;
    struct llama_model *model;
    struct llama_context *context;
    FILE *out, *follow;
    int n_vocab, n_embd;
    bool embeddings; // the model has no logits
    guanaco_stats_fn stats;
};

static const char help[] =
    "usage: conformance-logits MODEL OUT [options]\n"
    "       conformance-logits --has-device   ends with 0 when llama.cpp knows of a GPU\n"
    "  --plugin PATH   stream through this ggml backend\n"
    "  --follow FILE   decode the likeliest tokens by this file, another run's OUT, not by its own\n"
    "  --prompt N      tokens of the first batch (default 40)\n"
    "  --decode N      tokens decoded greedily after it (default 24)\n"
    "  --ubatch N      tokens computed at once (default 16)\n"
    "  --threads N     (default 2)\n"
    "  --seed N        of the prompt (default 1)\n"
    "  --load MODE     mmap, dio (direct I/O) or none (plain reads) (default mmap)\n"
    "  --verbose       llama.cpp's log on standard error\n";

static _Noreturn void fail(const char *what) {
    fprintf(stderr, "conformance-logits: %s\n", what);
    exit(1);
}

// ---- options
// ----------------------------------------------------------------------------------------------------------

static int number(const char *text, int least, int most) {
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end || value < least || value > most) {
        fprintf(stderr, "conformance-logits: %s is not a number from %d to %d\n", text, least, most);
        exit(2);
    }
    return (int)value;
}

static bool parse_flag(struct options *options, const char *flag, const char *value) {
    if (strcmp(flag, "--plugin") == 0) {
        options->plugin = value;
    } else if (strcmp(flag, "--follow") == 0) {
        options->follow = value;
    } else if (strcmp(flag, "--prompt") == 0) {
        options->n_prompt = number(value, 1, MOST_PROMPT);
    } else if (strcmp(flag, "--decode") == 0) {
        options->n_decode = number(value, 0, CONTEXT - MOST_PROMPT);
    } else if (strcmp(flag, "--ubatch") == 0) {
        options->n_ubatch = number(value, 1, CONTEXT);
    } else if (strcmp(flag, "--threads") == 0) {
        options->n_threads = number(value, 1, 512);
    } else if (strcmp(flag, "--seed") == 0) {
        options->seed = (uint32_t)number(value, 0, INT_MAX);
    } else if (strcmp(flag, "--load") == 0) {
        options->load_mode = strcmp(value, "dio") == 0    ? LLAMA_LOAD_MODE_DIRECT_IO
                             : strcmp(value, "none") == 0 ? LLAMA_LOAD_MODE_NONE
                                                          : LLAMA_LOAD_MODE_MMAP;
    } else {
        return false;
    }
    return true;
}

static void parse(struct options *options, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--verbose") == 0) {
            options->verbose = true;
        } else if (strcmp(argv[i], "--again") == 0) {
            options->again = true;
        } else if (strncmp(argv[i], "--", 2) == 0) {
            if (i + 1 == argc || !parse_flag(options, argv[i], argv[i + 1])) {
                fputs(help, stderr);
                exit(2);
            }
            i++;
        } else if (!options->model) {
            options->model = argv[i];
        } else {
            options->out = argv[i];
        }
    }
    if (!options->out) {
        fputs(help, stderr);
        exit(2);
    }
}

// ---- setting up
// -------------------------------------------------------------------------------------------------------

static void log_text(enum ggml_log_level level, const char *text, void *context) {
    const struct options *options = context;
    if (options->verbose || level == GGML_LOG_LEVEL_ERROR) {
        fputs(text, stderr);
    }
}

static void load_plugin(struct run *run) {
    ggml_backend_reg_t registry = ggml_backend_load(run->options->plugin);
    if (!registry) {
        fail("cannot load the plugin");
    }
    *(void **)&run->stats = ggml_backend_reg_get_proc_address(registry, "guanaco_stats");
}

// A plugin that takes no experts would pass every comparison.
static void check_streamed(const struct run *run) {
    struct guanaco_stats stats = {.size = sizeof stats};
    if (run->stats && (run->stats(&stats) || !stats.streamed_layers || !stats.misses || !stats.read_bytes)) {
        fail("nothing was streamed");
    }
    if (run->stats) {
        printf("counters: gpu_slots %llu gpu_hits %llu hits %llu misses %llu gpu_uploads %llu gpu_not_served %llu\n",
               (unsigned long long)stats.gpu_slots, (unsigned long long)stats.gpu_hits, (unsigned long long)stats.hits,
               (unsigned long long)stats.misses, (unsigned long long)stats.gpu_uploads,
               (unsigned long long)stats.gpu_not_served);
    }
}

static void load_model(struct run *run) {
    struct llama_model_params params = llama_model_default_params();
    static ggml_backend_dev_t none[] = {NULL}; // llama.cpp would have a GPU compute some of a prompt, without any layer
    params.devices = none;
    params.n_gpu_layers = 0;
    params.load_mode = run->options->load_mode;
    params.use_extra_bufts = false; // stock would repack experts, which are then computed in another order
    run->model = llama_model_load_from_file(run->options->model, params);
    if (!run->model) {
        fail("cannot load the model");
    }
    char arch[64] = "";
    llama_model_meta_val_str(run->model, "general.architecture", arch, sizeof arch);
    run->embeddings = strstr(arch, "bert") || strstr(arch, "embed");
    run->n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(run->model));
    run->n_embd = llama_model_n_embd(run->model);
}

static void make_context(struct run *run, int n_ubatch) {
    struct llama_context_params params = llama_context_default_params();
    params.n_seq_max = MOST_SEQUENCES;
    params.n_ctx = CONTEXT * params.n_seq_max;
    params.n_batch = CONTEXT;
    params.n_ubatch = (uint32_t)n_ubatch;
    params.n_threads = params.n_threads_batch = run->options->n_threads;
    params.embeddings = run->embeddings;
    params.pooling_type = LLAMA_POOLING_TYPE_NONE;
    run->context = llama_init_from_model(run->model, params);
    if (!run->context) {
        fail("cannot make a context");
    }
}

// ---- the scenario
// -----------------------------------------------------------------------------------------------------

// Tokens are the same for any number of vocabulary entries below 2^16 only if that number is the same.
static llama_token next_token(uint32_t *state, int n_vocab) {
    *state = *state * 1664525u + 1013904223u;
    return (llama_token)((*state >> 16) % (uint32_t)n_vocab);
}

static void add(struct llama_batch *batch, llama_token token, int position, int sequence) {
    int i = batch->n_tokens++;
    batch->token[i] = token;
    batch->pos[i] = position;
    batch->n_seq_id[i] = 1;
    batch->seq_id[i][0] = sequence;
    batch->logits[i] = 1;
}

// The logits of one token, kept in the file.
static const float *keep(const struct run *run, int i) {
    const float *row =
        run->embeddings ? llama_get_embeddings_ith(run->context, i) : llama_get_logits_ith(run->context, i);
    int n = run->embeddings ? run->n_embd : run->n_vocab;
    if (!row) {
        fail("no logits");
    }
    for (int k = 0; k < n; k++) {
        if (!isfinite(row[k])) {
            fail("a logit is not finite"); // comparing such bits would show nothing
        }
    }
    if (fwrite(row, sizeof *row, (size_t)n, run->out) != (size_t)n) {
        fail("cannot write the logits");
    }
    return row;
}

static llama_token likeliest(const float *row, int n) {
    llama_token best = 0;
    for (int i = 1; i < n; i++) {
        best = row[i] > row[best] ? i : best;
    }
    return best;
}

// The row that the followed run has where the last one that was kept is.
static void read_followed(const struct run *run, float *row) {
    long end = ftell(run->out), bytes = (long)sizeof *row * run->n_vocab;
    if (fseek(run->follow, end - bytes, SEEK_SET) ||
        fread(row, sizeof *row, (size_t)run->n_vocab, run->follow) != (size_t)run->n_vocab) {
        fail("the run to follow is another");
    }
}

// Computes the batch, keeps all its logits and returns the likeliest token after its last.
static llama_token compute(const struct run *run, struct llama_batch *batch) {
    int result =
        llama_get_memory(run->context) ? llama_decode(run->context, *batch) : llama_encode(run->context, *batch);
    if (result) {
        fprintf(stderr, "conformance-logits: a batch of %d tokens fails with %d\n", batch->n_tokens, result);
        exit(1);
    }
    const float *row = NULL;
    for (int i = 0; i < batch->n_tokens; i++) {
        row = keep(run, i);
    }
    batch->n_tokens = 0;
    if (run->embeddings) {
        return 0;
    }
    if (!run->follow) {
        return likeliest(row, run->n_vocab);
    }
    static float followed[1 << 16];
    if (run->n_vocab > 1 << 16) {
        fail("too many tokens to follow another run");
    }
    read_followed(run, followed);
    return likeliest(followed, run->n_vocab);
}

static void prompt(const struct run *run, struct llama_batch *batch, int n, int sequence, uint32_t *state) {
    for (int i = 0; i < n; i++) {
        add(batch, next_token(state, run->n_vocab), i, sequence);
    }
}

static void several_sequences(const struct run *run, struct llama_batch *batch, uint32_t *state) {
    for (int sequence = 1; sequence <= SEQUENCES; sequence++) {
        for (int i = 0; i < PER_SEQUENCE; i++) {
            add(batch, next_token(state, run->n_vocab), i, sequence);
        }
    }
    compute(run, batch);
}

static void generate(const struct run *run, struct llama_batch *batch) {
    uint32_t state = run->options->seed;
    prompt(run, batch, run->options->n_prompt, 0, &state);
    llama_token token = compute(run, batch);
    for (int i = 0; i < run->options->n_decode; i++) {
        add(batch, token, run->options->n_prompt + i, 0);
        token = compute(run, batch);
    }
    several_sequences(run, batch, &state);
    if (run->options->again) {
        prompt(run, batch, run->options->n_prompt, SEQUENCES + 1, &state);
        compute(run, batch);
    }
}

// A model without a memory of past tokens sees whole texts only: long ones, short ones, and several at once.
static void encode(const struct run *run, struct llama_batch *batch) {
    uint32_t state = run->options->seed;
    for (int n = run->options->n_prompt; n > 0; n /= 3) {
        prompt(run, batch, n, 0, &state);
        compute(run, batch);
    }
    several_sequences(run, batch, &state);
}

static void run_scenario(struct run *run) {
    make_context(run, run->options->n_ubatch);
    bool remembers = llama_get_memory(run->context) != NULL;
    if (!remembers) {
        llama_free(run->context);
        make_context(run, MOST_PROMPT); // every text must fit
    }
    struct llama_batch batch = llama_batch_init(CONTEXT, 0, 1);
    (remembers ? generate : encode)(run, &batch);
    llama_batch_free(batch);
    llama_free(run->context);
}

static bool has_device(void) {
    if (!load_backends()) {
        return false;
    }
    return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU) ||
           ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_IGPU);
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--has-device") == 0) {
        return !has_device();
    }
    struct options options = {
        .seed = 1, .n_prompt = 40, .n_decode = 24, .n_ubatch = 16, .n_threads = 2, .load_mode = LLAMA_LOAD_MODE_MMAP};
    parse(&options, argc, argv);
    llama_log_set(log_text, &options);
    struct run run = {.options = &options};
    if (!load_backends()) {
        fail("there is no CPU backend beside libllama");
    }
    if (options.plugin) {
        load_plugin(&run);
    }
    load_model(&run);
    run.out = fopen(options.out, "wb");
    run.follow = options.follow ? fopen(options.follow, "rb") : NULL;
    if (!run.out || (options.follow && !run.follow)) {
        fail("cannot open a file of logits");
    }
    run_scenario(&run);
    check_streamed(&run);
    if (fclose(run.out)) {
        fail("cannot write the logits");
    }
    if (run.follow) {
        fclose(run.follow);
    }
    llama_model_free(run.model);
    return 0;
}
