// What is being done, on standard error: one line that is rewritten on a terminal, a line for each run elsewhere.
#pragma once

#include "bench/workload.h"

struct bench_progress {
    const char *label;
    int round, rounds, part, parts;
    uint32_t prompt, warm_up, predict;
    bool terminal;
    char shown[160];
};

void bench_progress_begin(struct bench_progress *progress, const char *label);
// The run as it goes; fits struct bench_child.watch.
void bench_progress_watch(const void *run, void *progress);
// Takes the line away, for other lines to be written.
void bench_progress_clear(struct bench_progress *progress);
