#include "stats/stats.h"

#include <stddef.h>
#include <string.h>
#include <time.h>

struct gn_stats gn_stats;

int gn_stats_snapshot(struct guanaco_stats *stats) {
    if (stats->size < offsetof(struct guanaco_stats, pinned_hits) || stats->size > sizeof *stats ||
        stats->size % sizeof(uint64_t)) {
        return -1;
    }
    struct guanaco_stats all = {.size = stats->size};
#define COPY(counter) all.counter = atomic_load_explicit(&gn_stats.counter, memory_order_relaxed)
    COPY(streamed_layers);
    COPY(resident_tensors);
    COPY(expert_bytes);
    COPY(dense_bytes);
    COPY(slots);
    COPY(slot_bytes);
    COPY(staging_bytes);
    COPY(events);
    COPY(hits);
    COPY(misses);
    COPY(inserts);
    COPY(evictions);
    COPY(staged);
    COPY(reads);
    COPY(read_bytes);
    COPY(failures);
    COPY(io_wait_ns);
    COPY(compute_ns);
    COPY(total_ns);
    COPY(pinned_hits);
    COPY(pinned_evictions);
    COPY(rereads);
    COPY(prefetch_useful);
    COPY(prefetch_wasted);
    COPY(seeded);
    COPY(manage_ns);
    COPY(locked_bytes);
    COPY(pilot_calls);
    COPY(pilot_slices);
    COPY(gpu_slots);
    COPY(gpu_bytes);
    COPY(gpu_hits);
    COPY(gpu_uploads);
    COPY(gpu_upload_bytes);
    COPY(gpu_not_served);
    COPY(gpu_wait_ns);
    COPY(prefetch_wasted_bytes);
#undef COPY
#define COPY_SOURCE(name, number)                                                                                      \
    all.name##_used = atomic_load_explicit(&gn_stats.source[number].used, memory_order_relaxed);                       \
    all.name##_foreseen = atomic_load_explicit(&gn_stats.source[number].foreseen, memory_order_relaxed);               \
    all.name##_useful = atomic_load_explicit(&gn_stats.source[number].useful, memory_order_relaxed);                   \
    all.name##_wasted = atomic_load_explicit(&gn_stats.source[number].wasted, memory_order_relaxed)
    COPY_SOURCE(router, GN_SOURCE_ROUTER);
    COPY_SOURCE(pilot, GN_SOURCE_PILOT);
#undef COPY_SOURCE
    memcpy(stats, &all, all.size);
    return 0;
}

uint64_t gn_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
