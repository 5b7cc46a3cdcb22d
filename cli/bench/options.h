// The options of `guanaco bench`.
#pragma once

#include "config/knobs.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define BENCH_BUDGETS 32

// One budget of ours: a value of GN_RAM or of GN_EXPERT_CACHE.
struct bench_budget {
    enum gn_knob knob;
    int64_t value;
};

struct bench_options {
    const char *model, *text_file, *ram, *expert_cache, *limit, *json, *csv, *svg;
    int64_t predict, prompt, warm_up, rounds, threads, ubatch, seconds, timeout;
    bool no_stock, no_resident, no_busy, no_mmap, verbose, help;
    int64_t limit_bytes; // 0: chosen
    struct gn_knobs knobs;
    struct bench_budget budgets[BENCH_BUDGETS];
    int n_budgets;
};

// Reads the environment, then the arguments, argv[1] on. Returns true, or false with one plain line in why.
bool bench_options_parse(struct bench_options *options, int argc, char **argv, char *why, size_t why_size);
void bench_options_print_help(FILE *to);
