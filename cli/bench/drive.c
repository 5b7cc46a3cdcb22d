#include "bench/drive.h"

#include "bench/expert_reads.h"

#include <stdio.h>
#include <string.h>

#define NS_PER_DEPTH 250000000u

static const unsigned other_depths[] = {1, 2, 4, 8, 16, 32};
#define OTHER_DEPTHS (sizeof other_depths / sizeof *other_depths)

// The engine's own depth and some others, ascending.
static void choose_depths(struct bench_drive *drive, unsigned engine_depth) {
    drive->engine_depth = engine_depth;
    drive->n_depths = 0;
    for (size_t d = 0; d < OTHER_DEPTHS; d++) {
        unsigned last = d > 0 ? other_depths[d - 1] : 0;
        if (engine_depth > last && engine_depth < other_depths[d]) {
            drive->depths[drive->n_depths++] = engine_depth;
        }
        drive->depths[drive->n_depths++] = other_depths[d];
    }
    if (engine_depth > other_depths[OTHER_DEPTHS - 1]) {
        drive->depths[drive->n_depths++] = engine_depth;
    }
}

static bool measure_depth(struct bench_reads *reads, struct bench_drive *drive, int d, char *why, size_t why_size) {
    if (!bench_reads_set_depth(reads, drive->depths[d], why, why_size)) {
        return false;
    }
    double rate = bench_reads_run(reads, NS_PER_DEPTH);
    if (rate < 0) {
        snprintf(why, why_size, "%s", strerror((int)-rate));
        return false;
    }
    drive->mib_per_second[d][drive->n_rounds] = rate / BENCH_MIB;
    return true;
}

bool bench_drive_measure(const struct model_file *model, const struct gn_knobs *knobs, struct bench_drive *drive) {
    char why[400];
    struct bench_reads *reads = bench_reads_open(model, knobs, (uint64_t)drive->n_rounds, why, sizeof why);
    bool good = reads && bench_reads_set_depth(reads, (unsigned)knobs->value[GN_IO_DEPTH], why, sizeof why);
    if (good) {
        choose_depths(drive, gn_reader_depth(reads->reader));
        snprintf(drive->reader, sizeof drive->reader, "%s", gn_reader_name(reads->reader));
        drive->direct = reads->direct;
        drive->read_mib = (double)reads->map.bytes / (double)reads->n_experts / BENCH_MIB;
    }
    for (int d = 0; good && d < drive->n_depths; d++) {
        good = measure_depth(reads, drive, d, why, sizeof why);
    }
    if (!good) {
        snprintf(drive->why, sizeof drive->why, "the drive cannot be measured: %s", why);
    }
    drive->n_rounds += good;
    drive->measured = drive->n_rounds > 0;
    bench_reads_close(reads);
    return good;
}
