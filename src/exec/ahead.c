#include "exec/ahead.h"

#include "exec/growth.h"
#include "stats/stats.h"

void gn_ahead_plan(struct gn_stream *stream, const struct gn_layer *layer, const uint32_t *experts, uint32_t n,
                   enum gn_source source) {
    struct gn_ahead *ahead = &stream->ahead;
    ahead->layer = layer;
    ahead->source = source;
    ahead->n = ahead->next = 0;
    gn_count_of(stream, pilot_calls, 1);
    for (uint32_t i = 0; i < n && ahead->n < stream->spares.n; i++) {
        uint32_t entry = gn_cache_entry(stream->cache, layer->index, experts[i]);
        if (gn_cache_peek(stream->cache, entry) == GN_NONE && gn_spares_find_ahead(&stream->spares, entry) == GN_NONE &&
            !gn_stream_held_above(stream, layer->index, experts[i])) {
            ahead->experts[ahead->n++] = experts[i];
        }
    }
}

void gn_ahead_start(struct gn_stream *stream, uint32_t most) {
    struct gn_ahead *ahead = &stream->ahead;
    uint32_t started = 0;
    while (started < most && ahead->next < ahead->n && gn_reader_room(stream->reader) >= ahead->layer->n_slices) {
        uint32_t size_class = gn_cache_layout(stream->cache)->class_of_layer[ahead->layer->index];
        uint32_t found = gn_spares_find(&stream->spares, size_class, false);
        if (found == GN_NONE) {
            break;
        }
        struct gn_spare *spare = &stream->spares.spare[found];
        uint32_t expert = ahead->experts[ahead->next++];
        spare->use = GN_SPARE_AHEAD;
        spare->source = ahead->source;
        spare->entry = gn_cache_entry(stream->cache, ahead->layer->index, expert);
        stream->spares.ahead++;
        gn_growth_touch(stream, &spare->touched, gn_cache_layout(stream->cache)->classes[size_class].slot_bytes);
        gn_load_prepare(spare->load, ahead->layer, expert, spare->memory, ~0u);
        gn_load_queue(spare->load, stream->reader, false);
        gn_load_queue(spare->load, stream->reader, true);
        started++;
        gn_count_of(stream, pilot_slices, ahead->layer->n_slices);
    }
    if (started > 0) {
        gn_reader_start(stream->reader);
    }
}

void gn_ahead_count_useful(struct gn_stream *stream, enum gn_source source) {
    gn_count_of(stream, prefetch_useful, 1);
    if (source < GN_SOURCES) {
        gn_count_of(stream, source[source].useful, 1);
    }
}

void gn_ahead_count_guesses(struct gn_stream *stream, const struct gn_layer *layer, enum gn_source source,
                            uint64_t used, uint64_t foreseen) {
    gn_count_of(stream, source[source].used, used);
    gn_count_of(stream, source[source].foreseen, foreseen);
    struct gn_foreseen *figures = &stream->ahead.foreseen[layer->index * GN_SOURCES + source];
    figures->used += used;
    figures->foreseen += foreseen;
}

void gn_ahead_dismiss(struct gn_stream *stream, const struct gn_layer *layer) {
    struct gn_ahead *ahead = &stream->ahead;
    if (!layer || ahead->layer == layer) {
        ahead->n = ahead->next = 0;
    }
    struct gn_dismissed wasted = gn_spares_dismiss(&stream->spares, layer);
    if (wasted.n > 0) {
        gn_count_of(stream, prefetch_wasted, wasted.n);
        gn_count_of(stream, prefetch_wasted_bytes, wasted.bytes);
        for (int s = 0; s < GN_SOURCES; s++) {
            gn_count_of(stream, source[s].wasted, wasted.source[s]);
        }
    }
}
