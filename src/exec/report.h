// The lines that tell how one model's cache is doing, since it has had its slots: now and then, if asked for, and when
// the model is closed. All of them go to standard error as log lines, and none is written for every token.
//
//   pin cache: 79% resident (52% hot-pinned), 1470657/1861566 expert accesses, distinct experts pinned=3372, …
//       resident: of the experts used, how many were in memory; hot-pinned: in memory and pinned. Distinct: experts
//       that were pinned at any time. Per-layer budget: the fewest and the most experts that a layer has in memory. In
//       the last line also evict_hot, pinned experts evicted; evict_reread, misses soon after an eviction; churn, those
//       as a share of all misses, as `guanaco simulate` has it.
//   pins: obs=… | locked=… MiB | moe_layers=… | pinned=n/m | distinct (layer,expert) seen=… | …
//       obs: uses counted; pinned: in memory, of those that are to be; count range: of the pinned ones' decayed counts.
#pragma once

#include "exec/stream.h"

// After each event, under the stream's lock. Writes the lines when another knobs->value[GN_STATS_INTERVAL] tokens,
// steps of decode, are over.
void gn_report_step(struct gn_stream *stream, const struct gn_layer *layer, bool prefill);

// When the model is closed. Nothing if nothing was computed.
void gn_report_final(const struct gn_stream *stream);

// What tiers above the RAM have done, of both lines: ", on the GPU (layers 0-3,7) hits/uses (…%), … held, … copied".
// Uses are those of experts of the layers that they serve, by blocks. Nothing where there is no tier. Returns its
// length.
size_t gn_report_tiers(const struct gn_stream *stream, char *text, size_t size);
