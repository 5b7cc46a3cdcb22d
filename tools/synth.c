// guanaco-synth: writes a Mixture-of-Experts model of random weights, of any shape and size, that any llama.cpp runs.
#include "synth_model.h"
#include "synth_write.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char help[] =
    "usage: guanaco-synth OUT.gguf [options]\n"
    "\n"
    "Writes a Mixture-of-Experts model (architecture qwen3moe) with random weights: for tests and\n"
    "measurements at any size, without a download. Needs no memory to speak of. Text works, but means nothing.\n"
    "\n"
    "shape (the defaults are Qwen3-30B-A3B's, with a small vocabulary):\n"
    "  --layers N      layers, 1 to 512 (48)\n"
    "  --embd N        width of the hidden state, a multiple of 256 (2048)\n"
    "  --ff N          width of an expert, a multiple of 256, or of 32 for types without K (768)\n"
    "  --experts N     experts in a layer, 2 to 1024 (128)\n"
    "  --used N        experts used by a token (8)\n"
    "  --size SIZE     instead of --layers: as many layers as come near it (20GiB, 500MB)\n"
    "  --vocab N       tokens, 512 to 400000 (4096)\n"
    "  --context N     context length it claims (4096)\n"
    "\n"
    "weights:\n"
    "  --type T        of experts: Q4_K, Q4_0, Q8_0, Q5_K, Q6_K, IQ4_XS, MXFP4, F16, or mixed: Q4_K with part of\n"
    "                  the down projections in Q6_K, as Q4_K_M has it (Q4_K)\n"
    "  --dense-type T  of attention, embedding and output (Q8_0)\n"
    "  --seed N        other weights (1)\n"
    "\n"
    "routing:\n"
    "  --skew X        0 to 1.5: use falls with an expert's rank, each layer with a ranking of its own. 0: about\n"
    "                  even; 1: the busiest fifth of 128 experts has about half of the use (0)\n"
    "  --locality X    0 to 1: tokens 64 i to 64 i + 63 are routed alike, the more the larger X, and generated text\n"
    "                  tends to stay among them, so that consecutive tokens share experts. Above 0.5 greedy\n"
    "                  text soon repeats itself: sample (0)\n"
    "\n"
    "output:\n"
    "  --shards N      N files OUT-00001-of-0000N.gguf; load the first (1)\n"
    "  --dry-run       only say what would be written\n"
    "\n"
    "examples:\n"
    "  guanaco-synth big.gguf --size 20GiB --type mixed --skew 1 --locality 0.5\n"
    "  guanaco-synth tiny.gguf --layers 4 --embd 256 --ff 256 --experts 16 --used 4 --vocab 512\n";

enum { WHY = 512 };

static void *field(struct synth_options *options, size_t offset) {
    return (char *)options + offset;
}

static const struct count_option {
    const char *flag;
    size_t offset;
    int64_t least, most;
} count_options[] = {
    {"--layers", offsetof(struct synth_options, layers), 1, 512},
    {"--embd", offsetof(struct synth_options, embd), 256, 65536},
    {"--ff", offsetof(struct synth_options, ff), 32, 262144},
    {"--experts", offsetof(struct synth_options, experts), 2, 1024},
    {"--used", offsetof(struct synth_options, used), 1, 1024},
    {"--vocab", offsetof(struct synth_options, vocab), SYNTH_VOCAB_LEAST, SYNTH_VOCAB_MOST},
    {"--context", offsetof(struct synth_options, context), 16, 1 << 24},
    {"--shards", offsetof(struct synth_options, shards), 1, 999},
};

static const struct number_option {
    const char *flag;
    size_t offset;
    double most;
} number_options[] = {
    {"--skew", offsetof(struct synth_options, skew), 1.5},
    {"--locality", offsetof(struct synth_options, locality), 1},
};

static int parse_count(const char *text, int64_t least, int64_t most, int64_t *value) {
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (errno || end == text || *end || number < least || number > most) {
        return -1;
    }
    *value = number;
    return 0;
}

static int parse_size(const char *text, uint64_t *bytes) {
    static const struct {
        const char *name;
        double factor;
    } units[] = {{"GiB", 1 << 30}, {"G", 1 << 30}, {"GB", 1e9}, {"MiB", 1 << 20}, {"M", 1 << 20}, {"MB", 1e6}};
    char *end;
    double number = strtod(text, &end);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        double size = number * units[i].factor;
        if (end != text && strcasecmp(end, units[i].name) == 0 && size >= 1 && size < 1e15) {
            *bytes = (uint64_t)size;
            return 0;
        }
    }
    return -1;
}

static int parse_seed(const char *text, uint64_t *seed) {
    int64_t value = 0;
    int failed = parse_count(text, 0, INT64_MAX, &value);
    *seed = (uint64_t)value;
    return failed;
}

static int parse_known_type(const char *flag, const char *text, const struct synth_type **type, char *why) {
    *type = synth_type_find(text);
    if (*type) {
        return 0;
    }
    snprintf(why, WHY, "%s %s: not one of %s", flag, text, synth_type_names());
    return -1;
}

// Returns 0, or -1 with a line in why.
static int parse_option(struct synth_options *options, const char *flag, const char *text, char *why) {
    for (size_t i = 0; i < sizeof count_options / sizeof *count_options; i++) {
        const struct count_option *option = &count_options[i];
        if (strcmp(option->flag, flag) == 0) {
            int64_t *value = field(options, option->offset);
            snprintf(why, WHY, "%s %s: not a whole number from %lld to %lld", flag, text, (long long)option->least,
                     (long long)option->most);
            return parse_count(text, option->least, option->most, value);
        }
    }
    for (size_t i = 0; i < sizeof number_options / sizeof *number_options; i++) {
        const struct number_option *option = &number_options[i];
        if (strcmp(option->flag, flag) == 0) {
            char *end;
            double value = strtod(text, &end);
            snprintf(why, WHY, "%s %s: not a number from 0 to %g", flag, text, option->most);
            *(double *)field(options, option->offset) = value;
            return end != text && !*end && value >= 0 && value <= option->most ? 0 : -1;
        }
    }
    if (strcmp(flag, "--type") == 0) {
        return parse_known_type(flag, text, &options->type, why);
    }
    if (strcmp(flag, "--dense-type") == 0) {
        return parse_known_type(flag, text, &options->dense_type, why);
    }
    if (strcmp(flag, "--seed") == 0) {
        snprintf(why, WHY, "--seed %s: not a whole number", text);
        return parse_seed(text, &options->seed);
    }
    snprintf(why, WHY, "--size %s: not a size such as 20GiB or 500MB", text);
    return parse_size(text, &options->size);
}

static bool takes_value(const char *flag) {
    static const char *const others[] = {"--skew", "--locality", "--type", "--dense-type", "--seed", "--size"};
    for (size_t i = 0; i < sizeof count_options / sizeof *count_options; i++) {
        if (strcmp(count_options[i].flag, flag) == 0) {
            return true;
        }
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (strcmp(others[i], flag) == 0) {
            return true;
        }
    }
    return false;
}

static int check_multiple(const char *flag, int64_t value, enum ggml_type type, char *why) {
    int64_t block = ggml_blck_size(type);
    if (value % block == 0) {
        return 0;
    }
    snprintf(why, WHY, "%s %lld: %s needs a multiple of %lld", flag, (long long)value, ggml_type_name(type),
             (long long)block);
    return -1;
}

static int check(const struct synth_options *o, char *why) {
    if (!o->path) {
        snprintf(why, WHY, "no file to write is given");
        return -1;
    }
    if (o->layers && o->size) {
        snprintf(why, WHY, "--layers and --size exclude each other");
        return -1;
    }
    if (o->used > o->experts) {
        snprintf(why, WHY, "--used %lld: there are only %lld experts", (long long)o->used, (long long)o->experts);
        return -1;
    }
    if (strcmp(o->dense_type->name, "mixed") == 0) {
        snprintf(why, WHY, "--dense-type mixed: only experts can be mixed");
        return -1;
    }
    if (o->embd % 256 != 0) {
        snprintf(why, WHY, "--embd %lld: not a multiple of 256", (long long)o->embd);
        return -1;
    }
    return check_multiple("--ff", o->ff, o->type->larger, why);
}

// Returns 0, or -1 with a line in why; 1 after --help.
static int parse(int argc, char **argv, struct synth_options *options, bool *dry_run, char *why) {
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            return 1;
        }
        if (strcmp(word, "--dry-run") == 0) {
            *dry_run = true;
        } else if (word[0] != '-') {
            if (options->path) {
                snprintf(why, WHY, "two files are given: %.200s and %.200s", options->path, word);
                return -1;
            }
            options->path = word;
        } else if (!takes_value(word)) {
            snprintf(why, WHY, "unknown option %.200s", word);
            return -1;
        } else if (i + 1 >= argc) {
            snprintf(why, WHY, "%s needs a value", word);
            return -1;
        } else if (parse_option(options, word, argv[++i], why) != 0) {
            return -1;
        }
    }
    return check(options, why);
}

static void describe(const struct synth_model *model) {
    const struct synth_options *o = &model->options;
    uint64_t bytes = 0;
    for (int64_t shard = 0; shard < o->shards; shard++) {
        bytes += synth_file_bytes(model, shard);
    }
    char path[4096] = "";
    synth_path(o, 0, path, sizeof path);
    printf("%s: %lld bytes (%.2f GiB) in %lld file%s, %lld layers of %lld experts, %lld used, %s\n", path,
           (long long)bytes, (double)bytes / (1 << 30), (long long)o->shards, o->shards == 1 ? "" : "s",
           (long long)o->layers, (long long)o->experts, (long long)o->used, o->type->name);
    printf("one expert %.2f MiB, experts used by one token %.1f MiB\n", (double)model->expert_bytes / (1 << 20),
           (double)model->cycle_bytes / (1 << 20));
}

int main(int argc, char **argv) {
    struct synth_options options = {
        .embd = 2048, .ff = 768, .experts = 128, .used = 8, .vocab = 4096, .context = 4096, .shards = 1, .seed = 1};
    options.type = synth_type_find("Q4_K");
    options.dense_type = synth_type_find("Q8_0");
    char why[WHY] = "";
    bool dry_run = false;
    int result = parse(argc, argv, &options, &dry_run, why);
    if (result > 0) {
        fputs(help, stdout);
        return 0;
    }
    struct synth_model model;
    options.layers = options.layers || options.size ? options.layers : 48;
    if (result < 0 || synth_model_make(&model, &options, why, sizeof why) != 0) {
        fprintf(stderr, "guanaco-synth: %s (--help tells more)\n", why);
        return 2;
    }
    describe(&model);
    fflush(stdout);
    int failed = dry_run ? 0 : synth_write(&model, why, sizeof why);
    synth_model_free(&model);
    if (failed) {
        fprintf(stderr, "guanaco-synth: %s\n", why);
    }
    return failed ? 1 : 0;
}
