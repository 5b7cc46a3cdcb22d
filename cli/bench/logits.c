#include "bench/logits.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int bench_reference_open(struct bench_reference *reference, uint32_t most) {
    *reference = (struct bench_reference){.most = most, .sums = calloc(most ? most : 1, sizeof(uint64_t))};
    return reference->sums ? 0 : -ENOMEM;
}

void bench_reference_close(struct bench_reference *reference) {
    free(reference->sums);
    *reference = (struct bench_reference){0};
}

void bench_logits_compare(struct bench_reference *reference, struct bench_logits *logits, const char *name,
                          uint64_t tokens_sum, const uint64_t *sums, uint32_t n) {
    uint32_t both = n < reference->n ? n : reference->n, at = 0;
    while (at < both && sums[at] == reference->sums[at]) {
        at++;
    }
    if (reference->n > 0 && !logits->differ[0]) {
        if (tokens_sum != reference->tokens_sum) {
            snprintf(logits->differ, sizeof logits->differ, "'%s' and '%s' were given other tokens", reference->name,
                     name);
        } else if (at < both) {
            snprintf(logits->differ, sizeof logits->differ,
                     "'%s' and '%s' differ in step %" PRIu32 " (first the prompt's batches, then a step a token)",
                     reference->name, name, at + 1);
        }
    }
    logits->runs += reference->n > 0;
    if (n > reference->n) {
        reference->n = n < reference->most ? n : reference->most;
        reference->tokens_sum = tokens_sum;
        memcpy(reference->sums, sums, reference->n * sizeof *sums);
        snprintf(reference->name, sizeof reference->name, "%s", name);
    }
    logits->steps = reference->n;
}
