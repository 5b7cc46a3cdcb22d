#include "bench/busy.h"

#include <stdio.h>
#include <string.h>

static void *read_on(void *context) {
    struct bench_busy *busy = context;
    double rate = bench_reads_run(busy->reads, UINT64_MAX);
    busy->error = rate < 0 ? (int)rate : 0;
    return NULL;
}

bool bench_busy_start(struct bench_busy *busy, const struct model_file *model, const struct gn_knobs *knobs, char *why,
                      size_t why_size) {
    char reason[256];
    *busy = (struct bench_busy){.reads = bench_reads_open(model, knobs, 0, reason, sizeof reason)};
    bool good =
        busy->reads && bench_reads_set_depth(busy->reads, (unsigned)knobs->value[GN_IO_DEPTH], reason, sizeof reason);
    if (good) {
        int failed = pthread_create(&busy->thread, NULL, read_on, busy);
        good = !failed;
        snprintf(reason, sizeof reason, "%s", strerror(failed));
    }
    if (!good) {
        snprintf(why, why_size, "the drive cannot be kept busy: %s", reason);
        bench_reads_close(busy->reads);
    }
    return good;
}

bool bench_busy_stop(struct bench_busy *busy, char *why, size_t why_size) {
    bench_reads_stop(busy->reads);
    pthread_join(busy->thread, NULL);
    bench_reads_close(busy->reads);
    if (busy->error) {
        snprintf(why, why_size, "a read that keeps the drive busy failed: %s", strerror(-busy->error));
    }
    return busy->error == 0;
}
