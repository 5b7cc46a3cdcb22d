// Keeps the drive busy from a thread of its own, at the engine's depth, while something else computes.
#pragma once

#include "bench/expert_reads.h"

#include <pthread.h>

struct bench_busy {
    struct bench_reads *reads;
    pthread_t thread;
    int error; // of the reads, once stopped: a negative errno, or 0
};

// Reads from now on. Returns false with one plain line in why.
bool bench_busy_start(struct bench_busy *busy, const struct model_file *model, const struct gn_knobs *knobs, char *why,
                      size_t why_size);

// Returns false with one plain line in why when a read failed, after which the drive had rest.
bool bench_busy_stop(struct bench_busy *busy, char *why, size_t why_size);
