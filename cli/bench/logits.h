// Whether all runs computed the same: sums over the bits of their logits, compared step by step with those of the run
// that went furthest.
#pragma once

#include "bench/bench.h"
#include "bench/summary.h"

struct bench_reference {
    char name[BENCH_NAME]; // whose sums these are
    uint64_t tokens_sum;
    uint32_t n, most;
    uint64_t *sums; // [most]
};

// Returns 0 or -ENOMEM.
int bench_reference_open(struct bench_reference *reference, uint32_t most);
void bench_reference_close(struct bench_reference *reference);

// Compares a run of n steps, and keeps it if it is the longest yet. The first difference of all is told in
// logits->differ. tokens_sum: over the tokens that the run was given.
void bench_logits_compare(struct bench_reference *reference, struct bench_logits *logits, const char *name,
                          uint64_t tokens_sum, const uint64_t *sums, uint32_t n);
