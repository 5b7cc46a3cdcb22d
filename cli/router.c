#include "router.h"

#include "plan.h"

#include "config/log.h"

#include <stdio.h>
#include <stdlib.h>

#define USUAL_MODELS 4 // llama.cpp's own default

static bool is_set(const char *variable) {
    const char *text = getenv(variable);
    return text && *text;
}

static bool names_model(const struct arguments *arguments) {
    static const char *const flags[] = {"-m",     "--model",   "-mu",           "--model-url",   "-hf",
                                        "-hfr",   "--hf-repo", "-dr",           "--docker-repo", "-h",
                                        "--help", "--version", "--list-devices"};
    static const char *const variables[] = {"LLAMA_ARG_MODEL", "LLAMA_ARG_MODEL_URL", "LLAMA_ARG_HF_REPO",
                                            "LLAMA_ARG_DOCKER_REPO"};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        if (arguments_have(arguments, flags[i])) {
            return true;
        }
    }
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        if (is_set(variables[i])) {
            return true;
        }
    }
    return false;
}

static long models_at_once(const struct arguments *arguments) {
    char **value = arguments_value(arguments, "--models-max");
    const char *text = value ? *value : getenv("LLAMA_ARG_MODELS_MAX");
    return text && *text ? strtol(text, NULL, 10) : USUAL_MODELS;
}

void router_divide_budget(const struct arguments *arguments, struct gn_knobs *knobs) {
    if (names_model(arguments)) {
        return;
    }
    long n = models_at_once(arguments);
    if (n < 1) {
        gn_info("router: --models-max sets no limit, so the memory cannot be divided: every model has the same budget, "
                "whatever others take");
        return;
    }
    int64_t ram = (int64_t)plan_ram(knobs);
    gn_knob_set(knobs, GN_RAM, ram / n);
    if (knobs->given[GN_EXPERT_CACHE] && knobs->value[GN_EXPERT_CACHE] > 0) {
        gn_knob_set(knobs, GN_EXPERT_CACHE, knobs->value[GN_EXPERT_CACHE] / n);
    }
    char bytes[32];
    gn_info("router: up to %ld models at once (--models-max), each in a process of its own with %s of memory", n,
            gn_format_bytes((uint64_t)(ram / n), bytes));
}
