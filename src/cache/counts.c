#include "cache/counts.h"

#include <stdlib.h>

bool gn_counts_open(struct gn_counts *counts, uint32_t n_layers, uint32_t n_entries) {
    *counts = (struct gn_counts){.n_layers = n_layers};
    counts->of_layer = calloc(n_layers, sizeof *counts->of_layer);
    counts->last_event = calloc(n_layers, sizeof *counts->last_event);
    counts->evicted_at = calloc(n_entries, sizeof *counts->evicted_at);
    counts->uses = calloc(n_entries, sizeof *counts->uses);
    return counts->of_layer && counts->last_event && counts->evicted_at && counts->uses;
}

void gn_counts_close(struct gn_counts *counts) {
    free(counts->of_layer);
    free(counts->last_event);
    free(counts->evicted_at);
    free(counts->uses);
}
