// What a benchmark consists of: cells (an engine and its budget), and for each the samples of several rounds. The parts
// that measure fill these in; the parts that summarise and print only read them.
#pragma once

#include "config/knobs.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#define BENCH_CELLS 35 // three baselines and 32 budgets
#define BENCH_ROUNDS 64
#define BENCH_DEPTHS 8
#define BENCH_MIB 1048576.0

enum bench_engine {
    BENCH_RESIDENT, // stock llama.cpp, every page of the model in memory
    BENCH_BUSY,     // the same, while something else reads from the drive all the time
    BENCH_MMAP,     // stock llama.cpp, mapped, in a memory control group that is smaller than the model
    BENCH_OURS,     // streamed
};

// Counters over one phase of one run, prefill or decode. Those of the plugin are 0 for the baselines.
struct bench_phase {
    uint32_t tokens;
    uint64_t ns;
    uint64_t hits, misses, read_bytes, wasted, stall_ns, compute_ns, lookup_ns, total_ns; // the plugin's
    uint64_t kernel_read_bytes; // read from the drive by this process, as /proc counts
    uint64_t major_faults;
};

struct bench_sample {
    struct bench_phase prefill, decode;
    double load_seconds;
    uint64_t peak_bytes;       // resident set at its highest
    uint64_t group_peak_bytes; // of the control group; 0 without
    bool cut;                  // decode was stopped by --seconds
};

struct bench_cell {
    enum bench_engine engine;
    char label[40];        // "25 %", "2.00 GiB", "resident", "resident+reads", "mmap 2.00 GiB"
    struct gn_knobs knobs; // of ours
    uint64_t budget_bytes; // memory for the whole process that the budget stands for; 0: no bound
    uint64_t limit_bytes;  // of the control group; 0: none
    bool failed;           // it ran and did not end well
    char left_out[512];    // why it gives no figures, ""
    char mode[256];        // what the plugin says of itself
    int n_samples;         // one a round
    struct bench_sample samples[BENCH_ROUNDS];
};

// The drive alone: whole experts in random order, past the page cache.
struct bench_drive {
    bool measured, direct;
    char reader[16], why[512]; // why it was not measured
    unsigned engine_depth;     // reads in flight of the engine
    int n_depths, n_rounds;
    unsigned depths[BENCH_DEPTHS];
    double mib_per_second[BENCH_DEPTHS][BENCH_ROUNDS];
    double read_mib; // one expert, mean
};

struct bench_read_ahead {
    char path[PATH_MAX];    // its setting, "" when there is none
    unsigned kib, used_kib; // as found; as set for the mapped baseline
};

struct bench_logits {
    uint32_t steps;   // compared
    int runs;         // that agree with the first
    char differ[256]; // where they do not, ""
};

struct bench {
    char model[PATH_MAX], architecture[64], workload[128], cpu[128], kernel[128];
    uint64_t file_bytes, expert_bytes, dense_bytes, memory_bytes;
    uint32_t n_layers, n_experts, top_k;
    uint64_t all_experts; // of all layers
    int threads, rounds;
    uint32_t prompt, warm_up, predict, ubatch;
    struct bench_drive drive;
    struct bench_read_ahead read_ahead;
    struct bench_logits logits;
    int n_cells;
    struct bench_cell cells[BENCH_CELLS];
};
