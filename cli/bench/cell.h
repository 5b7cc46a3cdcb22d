// One run of one cell: a fresh process that loads the model, does the work and reports.
#pragma once

#include "bench/child.h"
#include "bench/options.h"
#include "bench/undo.h"
#include "bench/workload.h"
#include "model_file.h"

// What all cells of a benchmark share.
struct bench_setup {
    const struct bench_options *options;
    const struct model_file *file;
    const char *plugin, *text; // text: NULL for ours
    struct llama_model_params model_params;
    struct llama_context_params context_params;
    struct bench_undo *undo;
    struct bench_read_ahead *read_ahead;
    struct bench_run *run; // shared with the child
    size_t run_bytes;
    void (*watch)(const void *run, void *context); // progress
    void *watch_context;
};

// Runs the cell, whose sample is then in setup->run. Its own messages are in *said (to be freed), NULL when there are
// none. Returns how it ended; unless BENCH_DONE with one plain line in why.
enum bench_end bench_cell_run(const struct bench_setup *setup, const struct bench_cell *cell, char **said, char *why,
                              size_t why_size);
