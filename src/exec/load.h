// The reads that bring one expert from disk to one place in memory.
#pragma once

#include "model/expert_map.h"

#include <stdatomic.h>

#define GN_NO_ITEM UINT32_MAX

struct gn_load {
    const struct gn_layer *layer;
    uint32_t expert;
    uint32_t item;      // which expert of the running event waits for it; GN_NO_ITEM: none, it is read ahead
    uint32_t in_flight; // reads not yet complete
    uint32_t n_reads;
    _Atomic uint32_t arrived; // bit s: slice s is complete in memory; written by the reading thread, read by any
    _Atomic uint32_t awaited; // bit s: another thread sleeps until slice s is
    int error;                // of the first read that failed, a negative errno
    struct gn_read reads[GN_MAX_SLICES];
    uint8_t slice[GN_MAX_SLICES]; // which slice each read is of
};

// Describes the reads of those slices of an expert whose bits are set, into `memory`, which has room for a whole slot.
// Starts none.
void gn_load_prepare(struct gn_load *load, const struct gn_layer *layer, uint32_t expert, uint8_t *memory,
                     uint32_t slices);

// Queues the load's reads of slices that are needed last in a layer, or of the others.
void gn_load_queue(struct gn_load *load, struct gn_reader *reader, bool last);

// Writes why the load failed: which expert, where, what happened.
void gn_load_explain(const struct gn_load *load, const struct gn_read *read, char *why, size_t why_size);
