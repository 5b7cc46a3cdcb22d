#include "stats/stats.h"

#include <time.h>

struct gn_stats gn_stats;

int gn_stats_snapshot(struct guanaco_stats *stats) {
    if (stats->size != sizeof *stats) {
        return -1;
    }
#define COPY(counter) stats->counter = atomic_load_explicit(&gn_stats.counter, memory_order_relaxed)
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
#undef COPY
    return 0;
}

uint64_t gn_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
