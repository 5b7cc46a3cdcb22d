// From samples to figures: medians over the rounds, and how near they come to the roof. Only arithmetic.
#pragma once

#include "bench/bench.h"

struct bench_spread {
    double median, least, most;
};

struct bench_roof {
    bool known;
    bool by_drive;            // the drive is what bounds, not computing
    double tokens_per_second; // median
    double reached;           // measured / roof, each in the same round; median, 1 = at the roof
};

// One phase. Times are for one token, milliseconds, and with the rest make up its whole time; all medians.
struct bench_phase_figures {
    struct bench_spread tokens_per_second;
    double hit_rate;      // 0 … 1, of the experts looked up; negative when there were none
    double mib_per_token; // read: by the plugin, or, for stock, by the process as the kernel counts
    double stall_ms, compute_ms, manage_ms, rest_ms;
    double faults_per_token; // major ones
    struct bench_roof roof;  // computing and reading as if they did not disturb each other
    struct bench_roof both;  // each as slow as the other makes it
};

struct bench_figures {
    struct bench_phase_figures decode, prefill;
    double load_seconds;
    uint64_t peak_bytes, group_peak_bytes; // the highest of all rounds
};

double bench_median(const double *numbers, int n); // 0 for none

// One of bench->cells with at least one sample. The roof of a streamed cell is the slower of two: stock's time for a
// token with everything resident, and the bytes that this cell read divided by what the drive gave in the same round.
// Where stock's time is not known the drive alone makes the roof. For the roof of both, the drive gives what it gave
// beside stock computing, and as long as it has to work for a token, computing goes at stock's pace beside reads; not
// known without those two baselines.
struct bench_figures bench_summarise(const struct bench *bench, const struct bench_cell *cell);

// The cell of that baseline, if it has samples, or NULL.
const struct bench_cell *bench_find(const struct bench *bench, enum bench_engine engine);

// Which of drive->depths is the fastest, by its median over the rounds; -1 when the drive was not measured.
int bench_best_depth(const struct bench_drive *drive);

// "stock resident", "streamed 25 %". Returns buffer, of at least BENCH_NAME bytes.
#define BENCH_NAME 64
char *bench_cell_name(const struct bench_cell *cell, char *buffer);
