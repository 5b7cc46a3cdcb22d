// Spare slots: memory beside the cache's slots, for experts that pass through without being kept (staging) and for
// experts read ahead of their use. A spare has the size of one of the cache's size classes. An expert that was read
// ahead into a spare, and is then given a slot, stays where it is: slot and spare exchange their memory.
//
// Knows nothing of when to read; belongs to the stream, under its lock.
#pragma once

#include "cache/cache.h"
#include "exec/load.h"
#include "stats/stats.h"

enum gn_spare_use {
    GN_SPARE_FREE,
    GN_SPARE_STAGED, // holds an expert of the running event
    GN_SPARE_AHEAD,  // holds, or is being read, an expert of an event to come
    GN_SPARE_DOOMED, // nobody wants it any more, but reads are in flight
};

struct gn_spare {
    uint8_t *memory;
    bool touched; // it has been written to
    uint32_t size_class;
    enum gn_spare_use use;
    uint32_t entry;        // the cache's number of the expert, when read ahead
    enum gn_source source; // who guessed it, when read ahead; GN_SOURCES: nobody
    struct gn_load *load;  // its reads; a load of the spare's own, which may be exchanged as the memory is
};

struct gn_spares {
    const struct gn_cache *cache;
    struct gn_spare *spare; // [n]
    uint32_t n;
    uint32_t usable; // no others than the first so many are found free
    uint64_t bytes;  // of them all
    uint32_t ahead;  // how many are GN_SPARE_AHEAD
};

// Plans spares within n slots of the largest class: shared out evenly among the classes, or, where that would leave
// less than two to each, all of the largest class, which serves every layer as staging. Returns 0 or -ENOMEM; memory
// and loads are given by the caller afterwards.
int gn_spares_open(struct gn_spares *spares, const struct gn_cache *cache, uint32_t n);
void gn_spares_close(struct gn_spares *spares);

// A free spare of the class, or, if `larger` will do, of one above it. GN_NONE: there is none now.
uint32_t gn_spares_find(const struct gn_spares *spares, uint32_t size_class, bool larger);

// The spare into which the expert is read ahead, or GN_NONE.
uint32_t gn_spares_find_ahead(const struct gn_spares *spares, uint32_t entry);

// What was read ahead for nothing. The experts may be of several layers, whose sizes differ, and of several plans.
struct gn_dismissed {
    uint32_t n;
    uint64_t bytes;              // of them, on disk
    uint32_t source[GN_SOURCES]; // of them, by who guessed them
};

// Gives up what was read ahead for a layer, or, with NULL, for all. Returns what that was.
struct gn_dismissed gn_spares_dismiss(struct gn_spares *spares, const struct gn_layer *layer);

// Takes in that a load for nobody has ended. Returns true when that made a spare free.
bool gn_spares_ended(struct gn_spares *spares, const struct gn_load *load);
