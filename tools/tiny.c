// Writes a tiny model of any Mixture-of-Experts architecture that llama.cpp knows, for comparing streamed against stock
// logits. llama.cpp itself says which tensors an architecture has: given metadata alone it builds the model and asks
// for each tensor's data. The file is written through the gguf API, because llama.cpp's own saver refuses some
// architectures.
#include "backends.h"
#include "tiny_archs.h"
#include "tiny_model.h"

#include <ggml-backend.h>
#include <limits.h>
#include <llama.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UNKNOWN = 77 }; // exit code: this llama.cpp is older than the architecture

struct options {
    const char *arch, *out, *type;
    uint32_t n_experts, n_used, alignment;
    uint64_t seed;
    int zero_layer, zero_expert, n_shards;
    bool zero, fused, text, mtp, widen;
};

static const char help[] =
    "usage: guanaco-tiny ARCH OUT.gguf [options]\n"
    "       guanaco-tiny --list\n"
    "\n"
    "Writes a tiny Mixture-of-Experts model (a few MB) with random weights.\n"
    "\n"
    "  --list                  print the architectures\n"
    "  --type TYPE             of the experts: Q4_0 Q8_0 Q4_K Q5_K Q6_K IQ4_XS MXFP4 F16 BF16 F32 TQ1_0, or\n"
    "                          mixed, which differs between layers and between down and the others\n"
    "                          (default Q4_K; MXFP4 for gpt-oss)\n"
    "  --experts N             experts of a layer (default 8)\n"
    "  --used N                experts a token uses (default 3)\n"
    "  --seed N                the same seed makes the same file (default 1)\n"
    "  --zero-expert LAYER:N   zero the weights of one expert; LAYER is a number or 'last'\n"
    "  --widen                 store all in F32, with the values that their types leave of them\n"
    "  --fused                 gate and up in one tensor; refused where the architecture knows no such thing\n"
    "  --shards N              write OUT-00001-of-0000N.gguf and so on\n"
    "  --alignment N           tensors start at odd multiples of N bytes (default 32)\n"
    "  --text                  a vocabulary of ASCII characters and pairs of letters, so that programs can run it\n"
    "  --mtp                   with a layer for multi-token prediction (qwen35moe alone)\n"
    "  --help\n";

// ---- options
// ----------------------------------------------------------------------------------------------------------

static _Noreturn void refuse(const char *what, const char *value) {
    fprintf(stderr, "guanaco-tiny: %s: %s\n", value, what);
    exit(2);
}

static uint64_t number(const char *text, uint64_t least, uint64_t most) {
    char *end;
    uint64_t value = strtoull(text, &end, 10);
    if (*end || end == text || value < least || value > most) {
        refuse("not a number in range", text);
    }
    return value;
}

static void parse_zero_expert(struct options *options, const char *text) {
    const char *colon = strchr(text, ':');
    if (!colon) {
        refuse("expected LAYER:EXPERT", text);
    }
    options->zero = true;
    options->zero_expert = (int)number(colon + 1, 0, INT_MAX);
    options->zero_layer = strncmp(text, "last:", 5) == 0 ? -1 : atoi(text);
}

static bool parse_flag(struct options *options, const char *flag, const char *value) {
    if (strcmp(flag, "--type") == 0) {
        options->type = value;
    } else if (strcmp(flag, "--experts") == 0) {
        options->n_experts = (uint32_t)number(value, 2, 512);
    } else if (strcmp(flag, "--used") == 0) {
        options->n_used = (uint32_t)number(value, 1, 512);
    } else if (strcmp(flag, "--seed") == 0) {
        options->seed = number(value, 0, UINT64_MAX);
    } else if (strcmp(flag, "--zero-expert") == 0) {
        parse_zero_expert(options, value);
    } else if (strcmp(flag, "--shards") == 0) {
        options->n_shards = (int)number(value, 1, 99);
    } else if (strcmp(flag, "--alignment") == 0) {
        options->alignment = (uint32_t)number(value, 32, 65536);
    } else {
        return false;
    }
    return true;
}

static void list(void) {
    for (size_t i = 0; i < tiny_arch_count(); i++) {
        puts(tiny_arch_get(i)->name);
    }
}

static void parse(struct options *options, int argc, char **argv) {
    const char *positional[2] = {NULL};
    int n = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            fputs(help, stdout);
            exit(0);
        } else if (strcmp(argv[i], "--list") == 0) {
            list();
            exit(0);
        } else if (strcmp(argv[i], "--fused") == 0) {
            options->fused = true;
        } else if (strcmp(argv[i], "--text") == 0) {
            options->text = true;
        } else if (strcmp(argv[i], "--mtp") == 0) {
            options->mtp = true;
        } else if (strcmp(argv[i], "--widen") == 0) {
            options->widen = true;
        } else if (strncmp(argv[i], "--", 2) == 0) {
            if (i + 1 == argc || !parse_flag(options, argv[i], argv[i + 1])) {
                refuse("unknown option, or its value is missing", argv[i]);
            }
            i++;
        } else if (n < 2) {
            positional[n++] = argv[i];
        } else {
            refuse("unexpected", argv[i]);
        }
    }
    if (n < 2) {
        fputs(help, stderr);
        exit(2);
    }
    options->arch = positional[0];
    options->out = positional[1];
}

static void check(struct options *options) {
    if (!options->type) {
        options->type = strcmp(options->arch, "gpt-oss") == 0 ? "MXFP4" : "Q4_K";
    }
    if (!tiny_arch_find(options->arch)) {
        refuse("unknown architecture, see --list", options->arch);
    }
    if (options->mtp && strcmp(options->arch, "qwen35moe") != 0) {
        refuse("only qwen35moe is made with it", "--mtp");
    }
    if (!tiny_type_known(options->type)) {
        refuse("unknown type", options->type);
    }
    if (options->alignment & (options->alignment - 1)) {
        refuse("not a power of two", "--alignment");
    }
    if (options->n_used > options->n_experts) {
        refuse("more experts used than there are", "--used");
    }
}

// ---- building
// ---------------------------------------------------------------------------------------------------------

// Some builds of llama.cpp compare the tensors that the metadata lists with those it made, and give up when they
// differ. Their message is the only place that says how many it made.
struct complaint {
    int expected, made;
    char text[256];
};

static void note_complaint(enum ggml_log_level level, const char *text, void *context) {
    struct complaint *complaint = context;
    if (level != GGML_LOG_LEVEL_ERROR) {
        return;
    }
    const char *numbers = strstr(text, "expected ");
    if (numbers && sscanf(numbers, "expected %d, got %d", &complaint->expected, &complaint->made) == 2) {
        return;
    }
    if (!complaint->text[0]) {
        snprintf(complaint->text, sizeof complaint->text, "%s", text);
    }
}

static bool no_progress(float done, void *unused) {
    (void)done;
    (void)unused;
    return true;
}

static bool collect(struct tiny_model *model, struct gguf_context *metadata) {
    struct llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 0;
    params.load_mtp = true;
    params.progress_callback = no_progress;
    struct llama_model *built = llama_model_init_from_user(metadata, tiny_model_add, model, params);
    if (!built) {
        return false;
    }
    llama_model_free(built);
    return true;
}

static struct gguf_context *list_tensors(const struct gguf_context *metadata, const struct options *options,
                                         int n_fillers) {
    struct gguf_context *listed = gguf_init_empty();
    gguf_set_kv(listed, metadata);
    tiny_arch_list_optional(tiny_arch_find(options->arch), options->fused, options->mtp, listed);
    struct ggml_tensor filler = {.type = GGML_TYPE_F32, .ne = {1, 1, 1, 1}, .nb = {4, 4, 4, 4}};
    for (int i = 0; i < n_fillers; i++) {
        ggml_format_name(&filler, "filler.%d", i);
        gguf_add_tensor(listed, &filler);
    }
    return listed;
}

// At most twice: the second time with as many tensors listed as the first one made.
static bool collect_all(struct tiny_model *model, const struct gguf_context *metadata, const struct options *options) {
    bool collected = false;
    struct complaint complaint = {0};
    llama_log_set(note_complaint, &complaint);
    for (int tries = 0, n_fillers = 0; !collected && tries < 2 && n_fillers >= 0; tries++) {
        struct gguf_context *listed = list_tensors(metadata, options, n_fillers);
        model->metadata = listed;
        complaint = (struct complaint){0};
        collected = collect(model, listed);
        n_fillers = complaint.made > complaint.expected ? complaint.made - complaint.expected : -1;
        gguf_free(listed);
    }
    if (!collected) {
        fprintf(stderr, "guanaco-tiny: cannot build %s: %s\n", options->arch, complaint.text);
        exit(strstr(complaint.text, "unknown model architecture") ? UNKNOWN : 1);
    }
    return true;
}

static bool build(struct tiny_model *model, struct gguf_context *metadata, const struct options *options) {
    const struct tiny_arch *arch = tiny_arch_find(options->arch);
    model->seed = options->seed;
    if (!tiny_arch_metadata(arch, options->n_experts, options->n_used, options->mtp, metadata)) {
        return false;
    }
    if (options->text) {
        tiny_vocabulary(metadata);
    }
    if (!collect_all(model, metadata, options)) {
        return false;
    }
    if (options->fused && !tiny_model_has_fused(model)) {
        fprintf(stderr, "guanaco-tiny: %s has no fused gate and up\n", options->arch);
        return false;
    }
    if (!options->fused) {
        tiny_model_unfuse(model);
    }
    if (options->zero && !tiny_model_zero_expert(model, options->zero_layer, options->zero_expert)) {
        fprintf(stderr, "guanaco-tiny: no such expert\n");
        return false;
    }
    tiny_model_store(model, options->type, options->widen);
    return true;
}

// ---- writing
// ----------------------------------------------------------------------------------------------------------

// A gguf context lays tensors out by the alignment of the file it was read from, and only by that.
static struct gguf_context *make_empty(uint32_t alignment) {
    struct gguf_context *empty = gguf_init_empty(), *aligned = NULL;
    gguf_set_val_u32(empty, "general.alignment", alignment);
    FILE *file = tmpfile();
    if (file && gguf_write_to_file_ptr(empty, file, true)) {
        rewind(file);
        aligned = gguf_init_from_file_ptr(file, (struct gguf_init_params){.no_alloc = true});
    }
    if (file) {
        fclose(file);
    }
    gguf_free(empty);
    return aligned;
}

// Tensors start at the first multiple of the alignment behind the metadata: make that an odd one.
static void make_start_odd(struct gguf_context *gguf, uint32_t alignment) {
    for (int i = 0; gguf_get_meta_size(gguf) / alignment % 2 == 0; i++) {
        char key[32];
        snprintf(key, sizeof key, "general.padding.%d", i);
        gguf_set_val_str(gguf, key, "");
    }
}

static bool write_tensors(struct gguf_context *gguf, const struct tiny_model *model, int from, int to, const char *path,
                          uint32_t alignment) {
    for (int i = from; i < to; i++) {
        gguf_add_tensor(gguf, &model->tensors[i].shape);
    }
    make_start_odd(gguf, alignment);
    if (!gguf_write_to_file(gguf, path, false)) {
        fprintf(stderr, "guanaco-tiny: cannot write %s\n", path);
        return false;
    }
    return true;
}

// The first shard carries the metadata, each its place among all.
static struct gguf_context *make_shard(const struct gguf_context *metadata, const struct tiny_model *model,
                                       const struct options *options, int shard) {
    struct gguf_context *gguf = make_empty(options->alignment);
    if (gguf && shard == 0) {
        gguf_set_kv(gguf, metadata);
        gguf_set_val_u32(gguf, "general.alignment", options->alignment);
    }
    if (gguf && options->n_shards > 1) {
        gguf_set_val_u16(gguf, "split.no", (uint16_t)shard);
        gguf_set_val_u16(gguf, "split.count", (uint16_t)options->n_shards);
        gguf_set_val_i32(gguf, "split.tensors.count", model->count);
    }
    return gguf;
}

static void name_shard(char *path, const struct options *options, int shard) {
    snprintf(path, PATH_MAX, "%s", options->out);
    if (options->n_shards > 1) {
        char prefix[PATH_MAX];
        size_t length = strlen(path);
        bool suffix = length > 5 && strcmp(path + length - 5, ".gguf") == 0;
        snprintf(prefix, sizeof prefix, "%.*s", (int)(suffix ? length - 5 : length), options->out);
        llama_split_path(path, PATH_MAX, prefix, shard, options->n_shards);
    }
}

static bool write_all(const struct gguf_context *metadata, const struct tiny_model *model,
                      const struct options *options) {
    bool written = true;
    for (int shard = 0; written && shard < options->n_shards; shard++) {
        char path[PATH_MAX];
        name_shard(path, options, shard);
        struct gguf_context *gguf = make_shard(metadata, model, options, shard);
        int from = model->count * shard / options->n_shards, to = model->count * (shard + 1) / options->n_shards;
        written = gguf && write_tensors(gguf, model, from, to, path, options->alignment);
        gguf_free(gguf);
    }
    return written;
}

int main(int argc, char **argv) {
    struct options options = {.n_experts = 8, .n_used = 3, .alignment = 32, .seed = 1, .n_shards = 1};
    parse(&options, argc, argv);
    check(&options);

    llama_log_set(note_complaint, &(struct complaint){0});
    if (!load_backends()) {
        fprintf(stderr, "guanaco-tiny: there is no CPU backend beside libllama\n");
        return 1;
    }
    struct tiny_model model = {0};
    struct gguf_context *metadata = gguf_init_empty();
    bool done = build(&model, metadata, &options) && write_all(metadata, &model, &options);
    gguf_free(metadata);
    tiny_model_free(&model);
    return done ? 0 : 1;
}
