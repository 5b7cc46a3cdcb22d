// The options of `guanaco run`: parsed strictly, explained by --help, both from one table.
#pragma once

#include "config/knobs.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct options {
    const char *model, *prompt, *prompt_file;
    int64_t predict, context, top_k, seed, threads, batch, ubatch, gpu_layers, repeat_last;
    double temperature, top_p, min_p, repeat_penalty;
    bool chat, repack, verbose, help;
    struct gn_knobs knobs;
};

// Reads the environment, then the arguments, argv[1] on. Returns true, or false with one plain line in why.
bool options_parse(struct options *options, int argc, char **argv, char *why, size_t why_size);
void options_print_help(FILE *to);
