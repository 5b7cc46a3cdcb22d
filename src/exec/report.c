#include "exec/report.h"

#include "config/log.h"
#include "config/numbers.h"
#include "exec/seed.h"
#include "stats/stats.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

static double percent(uint64_t part, uint64_t whole) {
    return whole ? 100 * (double)part / (double)whole : 0;
}

static uint64_t counter(const _Atomic uint64_t *value) {
    return atomic_load_explicit(value, memory_order_relaxed);
}

// Appends to text[size], of which `used` bytes are taken, in C's numbers. What has no room is cut. Returns what is
// taken then, always less than size.
static size_t append(char *text, size_t size, size_t used, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static size_t append(char *text, size_t size, size_t used, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = gn_vformat(text + used, size - used, format, arguments);
    va_end(arguments);
    used += length > 0 ? (size_t)length : 0;
    return used < size ? used : size - 1;
}

// What every such line begins with. Returns its length.
static size_t put_common(const struct gn_stream *stream, char *line, size_t size) {
    struct gn_cache_totals totals = gn_cache_totals(stream->cache);
    uint32_t least = UINT32_MAX, most = 0;
    for (uint32_t l = 0; l < stream->map.n_layers; l++) {
        uint32_t resident = gn_cache_layer_totals(stream->cache, l).resident;
        least = resident < least ? resident : least;
        most = resident > most ? resident : most;
    }
    uint64_t used = totals.hits + totals.misses;
    return append(line, size, 0,
                  "%.0f%% resident (%.0f%% hot-pinned), %" PRIu64 "/%" PRIu64
                  " expert accesses, distinct experts pinned=%u, per-layer budget=[%u, %u]",
                  percent(totals.hits, used), percent(totals.hot_hits, used), totals.hits, used,
                  gn_cache_pins(stream->cache).distinct, least, most);
}

// Where the time of its graphs went.
static size_t put_times(const struct gn_stream *stream, char *text, size_t size) {
    uint64_t all = counter(&stream->counts.total_ns);
    return append(text, size, 0, ", stalled %.0f%%, computing %.0f%%, managing %.1f%%",
                  percent(counter(&stream->counts.io_wait_ns), all), percent(counter(&stream->counts.compute_ns), all),
                  percent(counter(&stream->counts.manage_ns), all));
}

// The blocks of the layers that tiers serve, such as "0-3,7"; a range is of layers that follow one another, whatever
// lies between their blocks. "..." ends a list that has no room.
static void put_layers(const struct gn_stream *stream, char *text, size_t size) {
    size_t used = 0;
    for (uint32_t l = 0; l < stream->map.n_layers; l++) {
        if (!stream->tiers[l]) {
            continue;
        }
        uint32_t first = l;
        while (l + 1 < stream->map.n_layers && stream->tiers[l + 1]) {
            l++;
        }
        char range[32] = "";
        if (l > first) {
            snprintf(range, sizeof range, "-%u", stream->map.layers[l]->block);
        }
        const char *joint = used > 0 ? "," : "";
        if (used + 32 > size) {
            append(text, size, used, "%s...", joint);
            return;
        }
        used = append(text, size, used, "%s%u%s", joint, stream->map.layers[first]->block, range);
    }
}

// Whether layer l is the first that its tier serves.
static bool is_first_of_tier(const struct gn_stream *stream, uint32_t l) {
    uint32_t first = 0;
    while (stream->tiers[first] != stream->tiers[l]) {
        first++;
    }
    return stream->tiers[l] && first == l;
}

size_t gn_report_tiers(const struct gn_stream *stream, char *text, size_t size) {
    uint64_t hits = 0, used = 0, copied = 0;
    uint32_t held = 0, n_tiers = 0;
    for (uint32_t l = 0; stream->tiers && l < stream->map.n_layers; l++) {
        if (is_first_of_tier(stream, l)) {
            struct gn_cache_totals totals = gn_cache_totals(stream->tiers[l]->cache);
            hits += totals.hits;
            used += totals.hits + totals.misses;
            copied += totals.inserts;
            held += totals.resident;
            n_tiers++;
        }
    }
    text[0] = '\0';
    if (n_tiers == 0) {
        return 0;
    }
    char layers[160];
    put_layers(stream, layers, sizeof layers);
    return append(text, size, 0,
                  ", on the GPU (layers %s) %" PRIu64 "/%" PRIu64 " (%.0f%%), %u held, %" PRIu64 " copied", layers,
                  hits, used, percent(hits, used), held, copied);
}

// What reading ahead brought, by who guessed; nothing when there was none.
static size_t put_prefetch(const struct gn_stream *stream, char *text, size_t size) {
    static const char *const names[GN_SOURCES] = {"router", "pilot"};
    uint64_t useful = counter(&stream->counts.prefetch_useful), wasted = counter(&stream->counts.prefetch_wasted);
    size_t used = 0;
    text[0] = '\0';
    if (useful + wasted > 0) {
        used = append(text, size, 0, ", read ahead: used=%" PRIu64 ", wasted=%" PRIu64 " (%.1f MiB)", useful, wasted,
                      (double)counter(&stream->counts.prefetch_wasted_bytes) / (1 << 20));
    }
    for (int s = 0; s < GN_SOURCES; s++) {
        uint64_t all = counter(&stream->counts.source[s].used);
        if (all > 0) {
            used = append(text, size, used, ", %s foresaw %.0f%% (used=%" PRIu64 ", wasted=%" PRIu64 ")", names[s],
                          percent(counter(&stream->counts.source[s].foreseen), all),
                          counter(&stream->counts.source[s].useful), counter(&stream->counts.source[s].wasted));
        }
    }
    if (stream->ahead.gain != 0) {
        used = append(text, size, used, ", reading ahead gains %.0f%%", 100 * stream->ahead.gain);
    }
    return used;
}

// The same for each layer.
static void say_foreseen(const struct gn_stream *stream) {
    static const char *const names[GN_SOURCES] = {"router", "pilot"};
    for (int s = 0; s < GN_SOURCES; s++) {
        char line[900];
        size_t used = 0;
        for (uint32_t l = 0; l < stream->map.n_layers && used + 16 < sizeof line; l++) {
            const struct gn_foreseen *figures = &stream->ahead.foreseen[l * GN_SOURCES + (uint32_t)s];
            if (figures->used > 0) {
                used = append(line, sizeof line, used, "%sL%u=%.0f", used ? ", " : "", stream->map.layers[l]->block,
                              percent(figures->foreseen, figures->used));
            }
        }
        if (used > 0) {
            gn_info("%s foresaw, %% of the experts of each layer: {%s}", names[s], line);
        }
    }
}

static void say_pins(const struct gn_stream *stream) {
    struct gn_pins_figures pins = gn_cache_pins(stream->cache);
    if (pins.most == 0 && !stream->has_pins) {
        return;
    }
    char line[900];
    struct gn_cache_totals totals = gn_cache_totals(stream->cache);
    size_t used = append(line, sizeof line, 0,
                         "pins: obs=%" PRIu64 " | locked=%.1f MiB | moe_layers=%u | pinned=%u/%u | distinct "
                         "(layer,expert) seen=%u | pinned count range=[%.1f, %.1f] | per-layer: {",
                         pins.uses, (double)stream->locks.bytes / (1 << 20), stream->map.n_layers, totals.hot_resident,
                         pins.most, pins.seen, (double)pins.least, (double)pins.greatest);
    const char *joint = "";
    for (uint32_t l = 0; l < stream->map.n_layers && used < sizeof line - 32; l++) {
        uint32_t hot = gn_cache_layer_totals(stream->cache, l).hot_resident;
        if (hot > 0) {
            used = append(line, sizeof line, used, "%sL%u=%u", joint, stream->map.layers[l]->block, hot);
            joint = ", ";
        }
    }
    append(line, sizeof line, used, "}");
    gn_info("%s", line);
}

void gn_report_step(struct gn_stream *stream, const struct gn_layer *layer, bool prefill) {
    if (stream->report_interval == 0 || prefill || layer->index + 1 < stream->map.n_layers ||
        ++stream->report_tokens < stream->report_interval) {
        return;
    }
    stream->report_tokens = 0;
    char line[800];
    size_t used = put_common(stream, line, sizeof line);
    used = append(line, sizeof line, used, ", evictions=%" PRIu64, gn_cache_totals(stream->cache).evictions);
    used += gn_report_tiers(stream, line + used, sizeof line - used);
    put_times(stream, line + used, sizeof line - used);
    gn_info("pin cache: %s", line);
    say_pins(stream);
}

void gn_report_final(const struct gn_stream *stream) {
    struct gn_cache_totals totals = gn_cache_totals(stream->cache);
    if (totals.events == 0) {
        return;
    }
    char line[1500];
    size_t used = put_common(stream, line, sizeof line);
    used = append(line, sizeof line, used,
                  ", evictions=%" PRIu64 ", pilot calls=%" PRIu64 ", pilot slices=%" PRIu64 ", evict_hot=%" PRIu64
                  ", evict_reread=%" PRIu64 " (churn %.1f%%), seed: %s",
                  totals.evictions, counter(&stream->counts.pilot_calls), counter(&stream->counts.pilot_slices),
                  totals.hot_evictions, totals.rereads, percent(totals.rereads, totals.misses), gn_seed_source(stream));
    used += gn_report_tiers(stream, line + used, sizeof line - used);
    used += put_times(stream, line + used, sizeof line - used);
    put_prefetch(stream, line + used, sizeof line - used);
    gn_info("pin cache, in all: %s", line);
    say_pins(stream);
    say_foreseen(stream);
}
