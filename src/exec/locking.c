#include "exec/locking.h"

#include "config/log.h"
#include "stats/stats.h"

#include <errno.h>
#include <stdlib.h>

static void count(struct gn_stream *stream) {
    gn_count(locked_bytes, stream->locks.bytes - stream->locked_counted); // modulo 2^64: may be less
    stream->locked_counted = stream->locks.bytes;
}

static void fail(struct gn_stream *stream, const char *what, uint64_t bytes, int error) {
    char why[400];
    gn_lock_explain(what, bytes, error, why, sizeof why); // with the limit as it is
    gn_locks_drop(&stream->locks);
    gn_warn("%s", why);
    free(stream->locked_slots);
    stream->locked_slots = NULL;
    count(stream);
}

void gn_locking_open(struct gn_stream *stream, const struct gn_knobs *knobs) {
    enum gn_lock wish = (enum gn_lock)knobs->value[GN_LOCK];
    count(stream);
    if (stream->lock_failed || wish < GN_LOCK_HOT) {
        return;
    }
    if (stream->held) {
        gn_warn(
            "--lock (GUANACO_LOCK): with --io mapped experts stay in the page cache, where they are not locked; only "
            "the dense weights are");
        return;
    }
    if (wish == GN_LOCK_ALL) {
        int failed = gn_locks_add(&stream->locks, stream->memory, stream->memory_bytes, true);
        if (failed) {
            fail(stream, "the dense weights and all slots", stream->locks.bytes + stream->memory_bytes, failed);
        }
        count(stream);
        return;
    }
    if (!knobs->value[GN_PIN_HOT] && !knobs->value[GN_PIN_HOT_BUDGET]) {
        gn_warn("--lock hot (GUANACO_LOCK): no experts are pinned, so only the dense weights are locked; pin some with "
                "--pin-hot-experts");
        return;
    }
    stream->locked_slots = calloc(gn_cache_slots(stream->cache) + 1, sizeof *stream->locked_slots);
    if (!stream->locked_slots) {
        gn_warn("--lock hot (GUANACO_LOCK): no memory to note which slots are locked, so only the dense weights are");
    }
}

void gn_locking_end(struct gn_stream *stream) {
    gn_locks_drop(&stream->locks);
    count(stream);
}

void gn_locking_close(struct gn_stream *stream) {
    for (uint32_t slot = 0; stream->locked_slots && slot < gn_cache_slots(stream->cache); slot++) {
        if (stream->locked_slots[slot]) {
            gn_locks_remove(&stream->locks, stream->locked_slots[slot]);
        }
    }
    free(stream->locked_slots);
    stream->locked_slots = NULL;
    gn_locks_remove(&stream->locks, stream->memory);
    count(stream);
}

// What memory of a slot is to be locked; NULL: none. Slots and spares exchange their memory, so it may have moved.
static uint8_t *wanted(const struct gn_stream *stream, uint32_t slot) {
    return gn_cache_slot_hot(stream->cache, slot) ? stream->slot_memory[slot] : NULL;
}

void gn_locking_step(struct gn_stream *stream) {
    if (!stream->locked_slots || gn_cache_choices(stream->cache) == stream->locked_choice) {
        return;
    }
    stream->locked_choice = gn_cache_choices(stream->cache);
    const struct gn_layout *layout = gn_cache_layout(stream->cache);
    uint32_t n = layout->n_slots;
    uint8_t **locked = stream->locked_slots;
    for (uint32_t slot = 0; slot < n; slot++) {
        if (locked[slot] && locked[slot] != wanted(stream, slot)) {
            gn_locks_remove(&stream->locks, locked[slot]);
            locked[slot] = NULL;
        }
    }
    uint64_t before = stream->locks.bytes, all = before;
    for (uint32_t slot = 0; slot < n; slot++) {
        all += wanted(stream, slot) && !locked[slot] ? gn_layout_slot_bytes(layout, slot) : 0;
    }
    for (uint32_t slot = 0; slot < n; slot++) {
        uint8_t *memory = wanted(stream, slot);
        if (!memory || locked[slot]) {
            continue;
        }
        int failed = gn_locks_add(&stream->locks, memory, gn_layout_slot_bytes(layout, slot), false);
        if (failed) {
            fail(stream, "the dense weights and the slots of pinned experts", all, failed);
            return;
        }
        locked[slot] = memory;
    }
    count(stream);
}
