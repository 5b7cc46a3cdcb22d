// Keeps the process within --ram while it grows. Slots are cut once, when a model starts; what the program takes after
// that (compute buffers, prompt caches, states) is watched, and slots are given back to the kernel for it: those of the
// policy's victims. They are taken again when there is room, up to what was cut.
//
// What the process holds beside experts is its anonymous memory (/proc/self/statm) without slots and spares, the dense
// weights that are left in the page cache, and what is in memory of its program and libraries. More of it is expected
// than is there: what is reserved and not touched yet, and caches that guanaco exec has set a limit to.
//
// --expert-cache without --ram is taken as it is: nothing is watched then, nor where --ram is less than 128 MiB.
#pragma once

#include "exec/stream.h"

#include "config/memory_map.h"

// A model starts: its slots count from now on. With the models' lock. The first one finds out what --ram is.
void gn_growth_begin(struct gn_stream *stream, const struct gn_knobs *knobs);
void gn_growth_end(struct gn_stream *stream); // it has given everything back; does nothing if it had not begun

// Measures what the program has reserved, when all is there that a context needs: before its first graph. left_out:
// [n] ranges of weights that never come into memory. With the models' lock.
void gn_growth_measure(const struct gn_knobs *knobs, const struct gn_memory_range *left_out, uint32_t n);

// Between two events, under the stream's lock: gives slots back, or takes them again. Looks at the clock, and a few
// dozen times a second at what the process holds.
void gn_growth_step(struct gn_stream *stream);

// Notes that memory of a slot or a spare is going to be written to. touched: of that memory.
void gn_growth_touch_new(struct gn_stream *stream, bool *touched, uint64_t bytes);
static inline void gn_growth_touch(struct gn_stream *stream, bool *touched, uint64_t bytes) {
    if (!*touched) {
        gn_growth_touch_new(stream, touched, bytes);
    }
}

// What experts may take, by figures in bytes; arithmetic only. For gn_growth_step(), and for tests.
struct gn_growth {
    int64_t ram;
    int64_t expected; // by everything but experts, in the end
    int64_t beside;   // that is there, experts left out
    int64_t all;      // slots and spares of all models, as they were cut
    int64_t touched;  // of these, in memory
};
// For a model with `own` bytes of slots and spares, `own_touched` of them in memory. May be negative.
int64_t gn_growth_allowed(const struct gn_growth *growth, int64_t own, int64_t own_touched);
