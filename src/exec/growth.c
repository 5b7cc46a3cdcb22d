#include "exec/growth.h"

#include "config/log.h"
#include "config/memory.h"
#include "exec/models.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MIB ((int64_t)1 << 20)

// Allocators and graphs reserve some dozen megabytes that they never use: counted in less memory than this, they would
// leave nothing for experts. A program is not watched there.
#define LEAST_WATCHED (128 * MIB)

#define LOOK_NS 20000000u           // from one look at the process to the next
#define TAKE_AGAIN_NS 1000000000u   // after slots were given back, before any are taken
#define TAKE_AGAIN_PART 16          // of what was cut: less is not worth it
#define SAY_NS ((uint64_t)10 << 30) // from one line to the next

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif

// Of the process. Written with the models' lock, but for `touched`; read by whoever computes.
static struct {
    _Atomic int64_t ram; // 0: nothing is watched
    _Atomic int64_t expected;
    _Atomic int64_t in_files; // what is held beside anonymous memory: dense weights left mapped, programs
    _Atomic int64_t all, touched;
} process;

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

// What may come between two looks: a part of the memory, little where there is little.
static int64_t margin(int64_t ram) {
    return smaller(ram / 64, 8 * MIB);
}

// What comes that is not reserved beforehand: work space of large batches, requests, what is said.
static int64_t later(int64_t ram) {
    return smaller(ram / 16, 32 * MIB);
}

// ------------------------------------------------------------------------------------------------- what is expected

static int64_t dense_left(void) {
    int64_t bytes = 0;
    for (const struct gn_stream *stream = gn_models_first(); stream; stream = stream->next_model) {
        bytes += stream->dense == GN_DENSE_COPY ? 0 : (int64_t)stream->dense_bytes;
    }
    return bytes;
}

static int64_t find_ram(const struct gn_stream *stream, const struct gn_knobs *knobs) {
    struct gn_taken taken;
    if ((knobs->given[GN_EXPERT_CACHE] && !knobs->given[GN_RAM]) || gn_models_taken(stream, &taken)) {
        return 0;
    }
    int64_t ram = (int64_t)gn_budget_ram(knobs, &taken);
    gn_models_forget(&taken);
    return ram < LEAST_WATCHED ? 0 : ram;
}

void gn_growth_begin(struct gn_stream *stream, const struct gn_knobs *knobs) {
    if (process.all == 0) {
        process.ram = find_ram(stream, knobs);
        process.expected = 0;
    }
    process.in_files = dense_left();
    if (knobs->given[GN_RESERVE]) { // measured before anything was loaded
        process.expected += knobs->value[GN_RESERVE] + (int64_t)stream->dense_bytes;
    }
    stream->growth = (struct gn_stream_growth){.cut = gn_stream_memory(stream), .bytes = gn_stream_memory(stream)};
    process.all += (int64_t)stream->growth.cut;
}

void gn_growth_end(struct gn_stream *stream) {
    process.all -= (int64_t)stream->growth.cut;
    process.touched -= (int64_t)stream->growth.touched;
    stream->growth = (struct gn_stream_growth){0};
}

void gn_growth_measure(const struct gn_knobs *knobs, const struct gn_memory_range *left_out, uint32_t n) {
    if (process.ram == 0 || knobs->given[GN_RESERVE]) {
        return;
    }
    uint32_t n_models = 0;
    for (const struct gn_stream *stream = gn_models_first(); stream; stream = stream->next_model) {
        n_models++;
    }
    struct gn_memory_range *ranges = calloc((size_t)n + n_models + 1, sizeof *ranges);
    if (!ranges) {
        return;
    }
    memcpy(ranges, left_out, n * sizeof *ranges);
    for (const struct gn_stream *stream = gn_models_first(); stream; stream = stream->next_model) {
        uintptr_t start = (uintptr_t)stream->region;
        ranges[n++] = (struct gn_memory_range){start, start + gn_stream_region_bytes(stream), stream->growth.touched};
    }
    int64_t anonymous = (int64_t)gn_memory_anonymous();
    struct gn_memory_map map = gn_memory_map(ranges, n);
    free(ranges);
    process.in_files = dense_left() + (int64_t)map.programs;
    process.expected = anonymous - process.touched + process.in_files + (int64_t)map.untouched +
                       knobs->value[GN_PROGRAM_CACHE] + later(process.ram);
    char taken[32], reserved[32], cache[32], ram[32];
    gn_debug("memory: the program has %s, and %s more reserved; its caches may take %s; --ram is %s",
             gn_format_bytes((uint64_t)(anonymous - process.touched + process.in_files), taken),
             gn_format_bytes(map.untouched, reserved), gn_format_bytes((uint64_t)knobs->value[GN_PROGRAM_CACHE], cache),
             gn_format_bytes((uint64_t)process.ram, ram));
}

// ------------------------------------------------------------------------------------------------- memory of slots

void gn_growth_touch_new(struct gn_stream *stream, bool *touched, uint64_t bytes) {
    if (!stream->held) { // else it is in the page cache, and nothing is written to
        *touched = true;
        stream->growth.touched += bytes;
        process.touched += (int64_t)bytes;
    }
}

// Gives the memory back to the kernel. No huge page may come back to it by itself.
static void release(struct gn_stream *stream, uint8_t *memory, bool *touched, uint64_t bytes) {
    if (!*touched) {
        return;
    }
    (void)madvise(memory, bytes, MADV_NOHUGEPAGE);
    if (madvise(memory, bytes, MADV_DONTNEED) && madvise(memory, bytes, MADV_DONTNEED_LOCKED)) {
        gn_debug("memory of an expert slot is not given back: %s", strerror(errno));
        return;
    }
    *touched = false;
    stream->growth.touched -= bytes;
    process.touched -= (int64_t)bytes;
}

static void on_change(void *context, uint32_t slot, bool open) {
    struct gn_stream *stream = context;
    uint64_t bytes = gn_layout_slot_bytes(gn_cache_layout(stream->cache), slot);
    if (!open) {
        release(stream, stream->slot_memory[slot], &stream->slot_touched[slot], bytes);
        gn_stream_hold(stream, slot, NULL, 0);
    } else if (!stream->held && gn_stream_wants_huge_pages(stream)) {
        (void)madvise(stream->slot_memory[slot], bytes, MADV_HUGEPAGE);
    }
}

static void release_spares(struct gn_stream *stream) {
    struct gn_spares *spares = &stream->spares;
    for (uint32_t i = spares->usable; i < spares->n; i++) {
        struct gn_spare *spare = &spares->spare[i];
        if (spare->use == GN_SPARE_FREE) {
            uint64_t bytes = gn_cache_layout(stream->cache)->classes[spare->size_class].slot_bytes;
            release(stream, spare->memory, &spare->touched, bytes);
        }
    }
}

static void say(struct gn_stream *stream, const struct gn_growth *growth, uint64_t now) {
    if (stream->growth.said && now - stream->growth.said < SAY_NS) {
        return;
    }
    stream->growth.said = now;
    char beside[32], ram[32], bytes[32];
    gn_info("memory: the program takes, or may take, %s beside the experts, of %s (--ram); %u of %u slots are in use "
            "(%s)",
            gn_format_bytes((uint64_t)larger(growth->expected, growth->beside), beside),
            gn_format_bytes((uint64_t)growth->ram, ram), gn_cache_open_slots(stream->cache),
            gn_cache_slots(stream->cache), gn_format_bytes(gn_cache_open_bytes(stream->cache), bytes));
}

static void warn_of_too_little(struct gn_stream *stream, const struct gn_growth *growth) {
    if (stream->growth.warned || growth->beside + (int64_t)stream->growth.touched <= growth->ram) {
        return;
    }
    stream->growth.warned = true;
    char beside[32], ram[32];
    gn_warn("the program takes %s beside the experts, more than --ram (GUANACO_RAM), %s, has room for; all slots but "
            "those that it cannot go without are given back: raise --ram, or take a smaller context (-c), batch (-ub) "
            "or prompt cache (--cache-ram)",
            gn_format_bytes((uint64_t)growth->beside, beside), gn_format_bytes((uint64_t)growth->ram, ram));
}

// Holds experts in so many bytes from now on.
static void resize(struct gn_stream *stream, int64_t bytes) {
    struct gn_spares *spares = &stream->spares;
    uint64_t slots = UINT64_MAX / 2;
    uint32_t usable = spares->n;
    if (bytes < (int64_t)stream->growth.cut) {
        uint64_t largest = gn_cache_layout(stream->cache)->classes[0].slot_bytes;
        struct gn_budget budget = gn_budget_split(bytes > 0 ? (uint64_t)bytes : 0, largest, spares->n);
        slots = budget.slots;
        usable = budget.n_staging;
    }
    uint32_t slots_before = gn_cache_open_slots(stream->cache);
    uint64_t bytes_before = gn_cache_open_bytes(stream->cache);
    spares->usable = usable;
    release_spares(stream);
    gn_cache_resize(stream->cache, slots, on_change, stream);
    // Modulo 2^64: there may be less.
    gn_count(slots, (uint64_t)gn_cache_open_slots(stream->cache) - slots_before);
    gn_count(slot_bytes, gn_cache_open_bytes(stream->cache) - bytes_before);
    stream->growth.bytes = (uint64_t)larger(bytes, 0);
}

// ------------------------------------------------------------------------------------------------- deciding

int64_t gn_growth_allowed(const struct gn_growth *growth, int64_t own, int64_t own_touched) {
    int64_t beside = larger(growth->expected, growth->beside + margin(growth->ram));
    int64_t left = growth->ram - beside;
    int64_t share = growth->all > left ? (int64_t)((double)own * (double)left / (double)growth->all) : own;
    // What others still hold beyond their shares is not there yet.
    return smaller(share, left - (growth->touched - own_touched));
}

void gn_growth_step(struct gn_stream *stream) {
    struct gn_stream_growth *own = &stream->growth;
    struct gn_growth growth = {.ram = process.ram};
    if (growth.ram == 0) {
        return;
    }
    uint64_t now = gn_now_ns();
    if (now < own->next_look) {
        return;
    }
    own->next_look = now + LOOK_NS;
    growth.expected = process.expected;
    growth.all = process.all;
    growth.touched = process.touched;
    growth.beside = (int64_t)gn_memory_anonymous() - growth.touched + process.in_files;
    int64_t allowed = gn_growth_allowed(&growth, (int64_t)own->cut, (int64_t)own->touched);
    allowed = larger(smaller(allowed, (int64_t)own->cut), 0);
    uint32_t before = gn_cache_open_slots(stream->cache);
    if (allowed < (int64_t)own->bytes) {
        own->given_back = now;
        resize(stream, allowed);
    } else if (own->bytes < own->cut && now - own->given_back >= TAKE_AGAIN_NS &&
               (allowed == (int64_t)own->cut || allowed - (int64_t)own->bytes >= (int64_t)own->cut / TAKE_AGAIN_PART)) {
        resize(stream, allowed);
    }
    if (gn_cache_open_slots(stream->cache) != before) {
        say(stream, &growth, now);
    }
    if (allowed == 0) {
        warn_of_too_little(stream, &growth);
    }
}
