// guanaco exec [OPTION…] -- PROGRAM ARGUMENT…: runs a llama.cpp program as it is, with experts streamed. This process
// becomes that program: signals, standard streams and the exit code are its own. guanaco server is short for
// llama-server.
#include "cli.h"
#include "engine.h"
#include "model_file.h"
#include "plan.h"
#include "probe.h"
#include "program_cache.h"
#include "router.h"
#include "translate.h"

#include "config/knob_files.h"
#include "config/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_NOT_FOUND = 127 };

struct launch {
    struct gn_knobs knobs;
    enum streaming streaming; // what the environment says, then the arguments
    struct arguments arguments;
    struct probe probe;
    char *first_shard; // of the model, when another was given
    char program[PATH_MAX], plugin[PATH_MAX];
    char why[1024];
};

// Programs of llama.cpp whose arguments we add to. Those that read llama.cpp's common arguments read its LLAMA_ARG_…
// variables too.
static const struct known {
    const char *name;
    bool common, warms_up;
    bool routes;  // starts servers for models, when it is given none
    bool devices; // serves devices to others: the CPU alone, unless another is named
} known[] = {
    {"llama-server", .common = true, .warms_up = true, .routes = true},
    {"llama-cli", .common = true, .warms_up = true},
    {"llama-completion", .common = true, .warms_up = true},
    {"llama-perplexity", .common = true, .warms_up = true},
    {"llama-embedding", .common = true, .warms_up = true},
    {"llama-imatrix", .common = true},
    {"llama-bench", .warms_up = true},
    {"ggml-rpc-server", .devices = true},
};

static const struct known *find_known(const char *program) {
    const char *slash = strrchr(program, '/'), *name = slash ? slash + 1 : program;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (!strcmp(known[i].name, name)) {
            return &known[i];
        }
    }
    return NULL;
}

static void print_help(FILE *to, bool server) {
    if (server) {
        fputs("usage: guanaco server ARGUMENT...\n\n"
              "Short for: guanaco exec -- llama-server ARGUMENT... (the llama-server on PATH).\n",
              to);
        return;
    }
    fputs("usage: guanaco exec [OPTION...] -- PROGRAM ARGUMENT...\n\n"
          "Runs a llama.cpp program (llama-server, llama-cli, llama-completion, llama-bench, llama-perplexity, or\n"
          "another that is linked to libllama) just as it is, its experts streamed from disk. A line that begins with\n"
          "'guanaco: mode:' says what applies, or why nothing is streamed.\n\n"
          "  guanaco exec --ram 8GiB -- llama-server -m model.gguf\n"
          "  guanaco exec --expert-cache 50% -- llama-perplexity -m model.gguf -f text.txt\n\n"
          "Among the program's arguments these are understood as well, as earlier tools had them:\n\n"
          "  --load-mode streaming, --guanaco-streaming, -gs     stream (so it does without them)\n"
          "  --no-guanaco-streaming, -ngs                        run the program alone\n"
          "  --load-mode mmap+pin or mmap+lockhot, --pin-hot-experts N, --pin-hot-experts-budget-mib N,\n"
          "  --pin-hot-experts-stats-interval N, --guanaco-max-experts N, --moe-expert-cache-size N,\n"
          "  --moe-expert-cache N, --moe-expert-cache-policy NAME\n\n"
          "and in the environment LOAD_MODE=streaming, GUANACO_STREAMING=on or off, GUANACO_IO_URING=1 or 0.\n"
          "What this version cannot do is an error, not ignored. Options:\n\n",
          to);
    gn_knobs_print_help(to);
}

// Reads our own options. Returns the index of the program's name, or -1 with a line in why, or 0 for --help.
static int read_options(struct launch *launch, int argc, char **argv) {
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        if (!strcmp(argv[i], "--")) {
            i++;
            break;
        }
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            return 0;
        }
        int taken = gn_knobs_from_argument(&launch->knobs, argc, argv, &i, launch->why, sizeof launch->why);
        if (taken == 0) {
            snprintf(
                launch->why, sizeof launch->why,
                "there is no option '%.40s' here; the program's own go after --, and guanaco exec --help lists ours",
                argv[i]);
        }
        if (taken != 1) {
            return -1;
        }
    }
    if (i >= argc) {
        snprintf(launch->why, sizeof launch->why,
                 "no program is given; for example: guanaco exec -- llama-server -m FILE");
        return -1;
    }
    return i;
}

// Looks at the model that the arguments name. Of shards any may be given: llama.cpp wants the first. Returns why it has
// nothing to stream, in text; NULL when it has, or nobody can tell yet. *spared: whether no output is one of its files.
static const char *look_at_model(struct launch *launch, const struct gn_outputs *outputs, bool *spared, char *text,
                                 size_t size) {
    char **path = arguments_value(&launch->arguments, "-m");
    path = path ? path : arguments_value(&launch->arguments, "--model");
    struct model_file file = {0};
    char unused[1024];
    *spared = true;
    if (!path || !model_file_open(*path, &file, unused, sizeof unused)) {
        return NULL; // the program says itself what is the matter with its model
    }
    if (strcmp(*path, file.shards[0]) != 0) {
        launch->first_shard = strdup(file.shards[0]);
        *path = launch->first_shard ? launch->first_shard : *path;
    }
    *spared = model_file_spared(&file, outputs, launch->why, sizeof launch->why);
    bool none = file.n_layers == 0;
    model_file_close(&file);
    snprintf(text, size, "%s has no routed experts", *path);
    return none ? text : NULL;
}

// Names a file for the environment, where a space or a colon would end it.
static bool is_plain_path(const char *path) {
    return !strpbrk(path, " :");
}

static bool set_environment(struct launch *launch) {
    char preload[PATH_MAX], entry[PATH_MAX], list[2 * PATH_MAX];
    const char *others = getenv("LD_PRELOAD"), *backend = getenv("GGML_BACKEND_PATH");
    const char *plugin = launch->plugin;
    // What loads libllama later may keep its symbols from the plugin: the entry finds them.
    bool has_entry = beside_program("../lib/libguanaco-entry.so", entry, sizeof entry) && !access(entry, R_OK);
    if (launch->probe.kind == PROBE_LATER && has_entry) {
        plugin = entry;
    }
    if (backend && *backend && strcmp(backend, launch->plugin) != 0 && !(has_entry && !strcmp(backend, entry))) {
        snprintf(launch->why, sizeof launch->why,
                 "GGML_BACKEND_PATH names %.200s already, and llama.cpp loads only one plugin that way; unset it",
                 backend);
        return false;
    }
    if (!beside_program("../lib/libguanaco-preload.so", preload, sizeof preload) || access(preload, R_OK)) {
        snprintf(launch->why, sizeof launch->why, "the interposer is not at %.400s; build it with make", preload);
        return false;
    }
    if (!is_plain_path(preload)) {
        snprintf(launch->why, sizeof launch->why,
                 "the path %.400s has a space or a colon in it, which LD_PRELOAD cannot take; install it elsewhere",
                 preload);
        return false;
    }
    snprintf(list, sizeof list, "%s%s%s", preload, others && *others ? ":" : "", others ? others : "");
    setenv("LD_PRELOAD", list, 1);
    setenv("GGML_BACKEND_PATH", plugin, 1);
    setenv("GUANACO_STREAMING", "on", 1);
    gn_knobs_export(&launch->knobs);
    return true;
}

static bool has_any(const struct arguments *arguments, const char *const flags[]) {
    for (; *flags; flags++) {
        if (arguments_have(arguments, *flags)) {
            return true;
        }
    }
    return false;
}

// Where the experts would go to a GPU, they stay with the CPU, and so come to us; and the file is mapped.
static void set_placement(const struct launch *launch) {
    static const char *const placement[] = {
        "-ot", "--override-tensor", "-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe", "-ncffn", "--n-cpu-ffn", NULL};
    static const char *const loading[] = {"-lm",  "--load-mode", "--mmap", "--no-mmap",      "--mlock",
                                          "-dio", "--direct-io", "-ndio",  "--no-direct-io", NULL};
    if (launch->probe.gpu && !has_any(&launch->arguments, placement)) {
        setenv("LLAMA_ARG_CPU_MOE", "1", 0);
    }
    if (!has_any(&launch->arguments, loading)) {
        setenv("LLAMA_ARG_LOAD_MODE", "mmap", 0);
    }
}

// Adds a flag with a value, or without, unless the program does not know it or the user has it.
static bool add_flag(struct launch *launch, const char *flag, const char *opposite, const char *value) {
    struct arguments *arguments = &launch->arguments;
    if (arguments_have(arguments, flag) || (opposite && arguments_have(arguments, opposite)) ||
        !probe_contains(&launch->probe, flag)) {
        return true;
    }
    return arguments_add(arguments, (char *)flag) && (!value || arguments_add(arguments, (char *)value));
}

static bool set_arguments(struct launch *launch) {
    const struct known *program = find_known(launch->program);
    bool added = true;
    if (!program || launch->probe.kind != PROBE_LINKED) {
        return true;
    }
    if (program->warms_up) { // a warm-up uses every expert: it would read the whole model
        added = add_flag(launch, "--no-warmup", "--warmup", NULL);
    }
    // The program's threads would spin while the plugin's compute: on two cores that cost three quarters of the speed.
    added = added && add_flag(launch, "--poll", NULL, "0");
    if (program->devices && !launch->probe.gpu) { // a GPU would be left out
        added = added && add_flag(launch, "--device", "-d", "GUANACO");
    }
    if (program->common) {
        set_placement(launch);
    } else if (launch->probe.gpu) {
        added =
            added && (arguments_have(&launch->arguments, "-ot") || add_flag(launch, "--n-cpu-moe", "-ncmoe", "999"));
    }
    if (!added) {
        snprintf(launch->why, sizeof launch->why, "memory is short");
    }
    return added;
}

// Whether nothing that the program's words name would be written over: its prompt, its model, its own outputs.
static bool check_outputs(struct launch *launch, struct gn_outputs *outputs) {
    if (!gn_knobs_outputs(&launch->knobs, outputs, launch->why, sizeof launch->why)) {
        return false;
    }
    for (int w = 1; w < launch->arguments.count; w++) {
        const char *word = launch->arguments.words[w], *value = word[0] == '-' ? strchr(word, '=') : NULL;
        if (!gn_outputs_spare(outputs, "a file that the program is given", value ? value + 1 : word, launch->why,
                              sizeof launch->why)) {
            return false;
        }
    }
    return true;
}

// Whether there is something to stream, and says why not when there is not. *good: false when an output would overwrite
// the model.
static bool wants_streaming(struct launch *launch, const struct gn_outputs *outputs, bool *good) {
    char text[PATH_MAX + 64];
    const char *because = NULL;
    enum streaming by_arguments = launch->arguments.streaming;
    if (by_arguments == STREAMING_OFF) {
        snprintf(text, sizeof text, "%s switches it off", launch->arguments.off_by);
        because = text;
    } else if (by_arguments == STREAMING_BY_DEFAULT && launch->streaming == STREAMING_OFF) {
        because = "GUANACO_STREAMING switches it off";
    } else {
        because = look_at_model(launch, outputs, good, text, sizeof text);
    }
    if (because) {
        gn_info("mode: nothing is streamed: %s; the program runs alone", because);
    }
    return !because;
}

static bool prepare(struct launch *launch) {
    struct gn_outputs outputs = {0};
    bool good = check_outputs(launch, &outputs);
    if (!good || !wants_streaming(launch, &outputs, &good)) {
        return good;
    }
    if (!good || !engine_find_plugin(launch->plugin, sizeof launch->plugin, launch->why, sizeof launch->why) ||
        !probe_program(launch->program, launch->plugin, &launch->probe, launch->why, sizeof launch->why)) {
        return false;
    }
    if (launch->probe.kind == PROBE_LATER) {
        gn_info("%s itself is not linked to libllama: what it loads or starts later is streamed, if that is",
                launch->arguments.words[0]);
    }
    const struct known *program = find_known(launch->program);
    if (program && program->routes) {
        router_divide_budget(&launch->arguments, &launch->knobs);
    }
    plan_warn_of_group(&launch->knobs);
    if (program && program->common && probe_contains(&launch->probe, "--cache-ram")) {
        program_cache_limit(&launch->arguments, &launch->knobs);
    }
    return set_arguments(launch) && set_environment(launch);
}

static int fail(struct launch *launch, int code) {
    gn_error("%s", launch->why);
    arguments_free(&launch->arguments);
    probe_free(&launch->probe);
    free(launch->first_shard);
    return code;
}

// Runs argv[0], a program.
static int start(struct launch *launch, int argc, char **argv) {
    if (!translate_arguments(argc, argv, &launch->knobs, &launch->arguments, launch->why, sizeof launch->why)) {
        return fail(launch, EXIT_USAGE);
    }
    if (!probe_find(argv[0], launch->program, launch->why, sizeof launch->why)) {
        return fail(launch, EXIT_NOT_FOUND);
    }
    if (!prepare(launch)) {
        return fail(launch, EXIT_FAILED);
    }
    execv(launch->program, launch->arguments.words);
    snprintf(launch->why, sizeof launch->why, "cannot run %.400s: %s", launch->program, strerror(errno));
    return fail(launch, EXIT_FAILED);
}

// Reads the settings that the environment has.
static bool begin(struct launch *launch) {
    gn_knobs_default(&launch->knobs);
    return translate_environment(&launch->streaming, launch->why, sizeof launch->why) &&
           gn_knobs_from_environment(&launch->knobs, launch->why, sizeof launch->why) == 0;
}

int command_exec(int argc, char **argv) {
    struct launch launch = {0};
    if (!begin(&launch)) {
        return fail(&launch, EXIT_USAGE);
    }
    int program = read_options(&launch, argc, argv);
    if (program == 0) {
        print_help(stdout, false);
        return EXIT_OK;
    }
    gn_log_set_level((enum gn_log_level)launch.knobs.value[GN_LOG]);
    return program < 0 ? fail(&launch, EXIT_USAGE) : start(&launch, argc - program, argv + program);
}

int command_server(int argc, char **argv) {
    static char name[] = "llama-server";
    struct launch launch = {0};
    if (!begin(&launch)) {
        return fail(&launch, EXIT_USAGE);
    }
    gn_log_set_level((enum gn_log_level)launch.knobs.value[GN_LOG]);
    char **words = calloc((size_t)argc + 1, sizeof *words);
    if (!words) {
        snprintf(launch.why, sizeof launch.why, "memory is short");
        return fail(&launch, EXIT_FAILED);
    }
    memcpy(words, argv, (size_t)argc * sizeof *words);
    words[0] = name;
    int code = start(&launch, argc, words);
    free(words);
    return code;
}
