#include "bench/workload.h"

#include "log_filter.h"

#include "stats/stats.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

// ------------------------------------------------------------------------------------------------ counters

struct counters {
    struct guanaco_stats plugin;
    uint64_t kernel_read_bytes, major_faults;
};

static uint64_t kernel_read_bytes(void) {
    FILE *file = fopen("/proc/self/io", "re");
    char line[128];
    uint64_t bytes = 0;
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "read_bytes: %" SCNu64, &bytes) == 1) {
            break;
        }
    }
    if (file) {
        fclose(file);
    }
    return bytes;
}

static struct counters take_counters(const struct session *session) {
    struct counters now = {.plugin.size = sizeof now.plugin, .kernel_read_bytes = kernel_read_bytes()};
    struct rusage usage;
    if (session->engine.stats && session->engine.stats(&now.plugin)) {
        now.plugin = (struct guanaco_stats){0};
    }
    now.major_faults = getrusage(RUSAGE_SELF, &usage) == 0 ? (uint64_t)usage.ru_majflt : 0;
    return now;
}

static void end_phase(const struct session *session, const struct counters *before, struct bench_phase *phase) {
    struct counters after = take_counters(session);
    phase->hits = after.plugin.hits - before->plugin.hits;
    phase->misses = after.plugin.misses - before->plugin.misses;
    phase->read_bytes = after.plugin.read_bytes - before->plugin.read_bytes;
    phase->wasted = after.plugin.prefetch_wasted - before->plugin.prefetch_wasted;
    phase->lookup_ns = after.plugin.manage_ns - before->plugin.manage_ns;
    phase->stall_ns = after.plugin.io_wait_ns - before->plugin.io_wait_ns;
    phase->compute_ns = after.plugin.compute_ns - before->plugin.compute_ns;
    phase->total_ns = after.plugin.total_ns - before->plugin.total_ns;
    phase->kernel_read_bytes = after.kernel_read_bytes - before->kernel_read_bytes;
    phase->major_faults = after.major_faults - before->major_faults;
}

// ------------------------------------------------------------------------------------------------ steps

static uint64_t sum_of(const void *data, size_t bytes) {
    uint64_t sum = 0xcbf29ce484222325u;
    const unsigned char *at = data;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        uint64_t word;
        memcpy(&word, at, sizeof word);
        sum = (sum ^ word) * 0x9e3779b97f4a7c15u;
        sum ^= sum >> 29;
    }
    for (; bytes > 0; bytes--, at++) {
        sum = (sum ^ *at) * 0x9e3779b97f4a7c15u;
    }
    return sum;
}

// Computes n tokens. Adds the time to *ns; the sum over the logits (when `keep`) is not in it.
static bool step(const struct session *session, const llama_token *tokens, uint32_t n, bool keep, uint64_t *ns,
                 struct bench_run *run) {
    uint64_t start = gn_now_ns();
    // The interface takes tokens that may be changed, and does not change them.
    int code = llama_decode(session->context, llama_batch_get_one((llama_token *)(uintptr_t)tokens, (int32_t)n));
    const float *logits = code ? NULL : llama_get_logits_ith(session->context, -1);
    *ns += gn_now_ns() - start;
    if (!logits) {
        const char *said = session->engine.last_error ? session->engine.last_error() : "";
        snprintf(run->why, sizeof run->why, "%s", said && *said ? "" : log_filter_last_error());
        return false;
    }
    run->step += n;
    if (keep && run->n_sums < run->most_sums) {
        size_t n_vocab = (size_t)llama_vocab_n_tokens(session->vocab);
        run->sums[run->n_sums++] = sum_of(logits, n_vocab * sizeof *logits);
    }
    return true;
}

static bool read_prompt(const struct session *session, const struct bench_workload *workload, bool keep,
                        struct bench_phase *phase, struct bench_run *run) {
    uint32_t most = llama_n_ubatch(session->context);
    struct counters before = take_counters(session);
    llama_memory_clear(llama_get_memory(session->context), true);
    for (uint32_t done = 0; done < workload->prompt;) {
        uint32_t now = workload->prompt - done < most ? workload->prompt - done : most;
        if (!step(session, workload->tokens + done, now, keep, &phase->ns, run)) {
            return false;
        }
        done += now;
    }
    phase->tokens = workload->prompt;
    end_phase(session, &before, phase);
    return true;
}

static bool decode(const struct session *session, const struct bench_workload *workload, const llama_token *tokens,
                   uint32_t n, struct bench_phase *phase, struct bench_run *run) {
    struct counters before = take_counters(session);
    while (phase->tokens < n && (phase->tokens == 0 || (double)phase->ns < 1e9 * workload->seconds)) {
        if (!step(session, tokens + phase->tokens, 1, true, &phase->ns, run)) {
            return false;
        }
        phase->tokens++;
    }
    run->sample.cut |= phase->tokens < n;
    end_phase(session, &before, phase);
    return true;
}

static void begin(struct bench_run *run, enum bench_stage stage) {
    run->step = 0;
    run->stage = stage;
}

uint32_t bench_workload_steps(uint32_t prompt, uint32_t ubatch, uint32_t warm_up, uint32_t predict) {
    return (prompt + ubatch - 1) / ubatch + warm_up + predict;
}

bool bench_workload_run(struct session *session, const struct bench_workload *workload, struct bench_run *run) {
    struct bench_phase first = {0}, warm_up = {0};
    if (!llama_get_memory(session->context)) {
        snprintf(run->why, sizeof run->why, "this model does not generate text; give one that does");
        return false;
    }
    run->tokens_sum = sum_of(workload->tokens, ((size_t)workload->prompt + workload->warm_up + workload->predict) *
                                                   sizeof *workload->tokens);
    begin(run, BENCH_FIRST_PROMPT);
    if (!read_prompt(session, workload, false, &first, run)) {
        return false;
    }
    begin(run, BENCH_PROMPT);
    if (!read_prompt(session, workload, true, &run->sample.prefill, run)) {
        return false;
    }
    begin(run, BENCH_WARM_UP);
    const llama_token *at = workload->tokens + workload->prompt;
    if (!decode(session, workload, at, workload->warm_up, &warm_up, run)) {
        return false;
    }
    begin(run, BENCH_DECODE);
    return decode(session, workload, at + warm_up.tokens, workload->predict, &run->sample.decode, run);
}
