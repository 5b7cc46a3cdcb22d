// What one run does with a loaded model: reads the prompt once untimed, so that nothing happens for the first time,
// then again timed, decodes the warm-up and then the timed tokens, all of a given sequence.
#pragma once

#include "bench/bench.h"
#include "session.h"

enum bench_stage { BENCH_LOADING, BENCH_FIRST_PROMPT, BENCH_PROMPT, BENCH_WARM_UP, BENCH_DECODE };

// What a run tells, in memory that the parent can see.
struct bench_run {
    enum bench_stage stage;
    uint32_t step; // tokens done in this stage
    struct bench_sample sample;
    char why[512]; // "" when the plugin has said it
    char mode[256], workload[128];
    uint64_t tokens_sum; // of the token sequence
    // One sum over the logits' bits for each micro-batch of the timed prompt and for each token decoded after it.
    uint32_t n_sums, most_sums;
    uint64_t sums[];
};

struct bench_workload {
    const llama_token *tokens; // [prompt + warm_up + predict]
    uint32_t prompt, warm_up, predict;
    double seconds; // decode no longer than that, in warm-up and after it
};

// Micro-batches of the prompt and tokens decoded: the most sums that a run can give.
uint32_t bench_workload_steps(uint32_t prompt, uint32_t ubatch, uint32_t warm_up, uint32_t predict);

// Returns true, or false with one plain line in run->why.
bool bench_workload_run(struct session *session, const struct bench_workload *workload, struct bench_run *run);
