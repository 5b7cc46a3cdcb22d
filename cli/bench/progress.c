#include "bench/progress.h"

#include "config/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void show(struct bench_progress *progress, const char *what) {
    char line[160];
    snprintf(line, sizeof line, "round %d of %d, %d of %d: %s%s", progress->round + 1, progress->rounds, progress->part,
             progress->parts, progress->label, what);
    if (strcmp(line, progress->shown) != 0) {
        snprintf(progress->shown, sizeof progress->shown, "%s", line);
        fprintf(stderr, "\r\033[Kguanaco: %s", line);
    }
}

void bench_progress_begin(struct bench_progress *progress, const char *label) {
    progress->label = label;
    progress->part++;
    if (progress->terminal) {
        show(progress, "");
    } else {
        gn_info("round %d of %d, %d of %d: %s", progress->round + 1, progress->rounds, progress->part, progress->parts,
                label);
    }
}

void bench_progress_watch(const void *shared, void *context) {
    const volatile struct bench_run *run = shared;
    struct bench_progress *progress = context;
    enum bench_stage stage = run->stage;
    uint32_t done = run->step;
    char what[80];
    if (!progress->terminal) {
        return;
    }
    switch (stage) {
    case BENCH_LOADING:
        snprintf(what, sizeof what, ", loading");
        break;
    case BENCH_FIRST_PROMPT:
        snprintf(what, sizeof what, ", prompt (untimed), %" PRIu32 " of %" PRIu32, done, progress->prompt);
        break;
    case BENCH_PROMPT:
        snprintf(what, sizeof what, ", prompt, %" PRIu32 " of %" PRIu32, done, progress->prompt);
        break;
    case BENCH_WARM_UP:
        snprintf(what, sizeof what, ", warming up, %" PRIu32 " of %" PRIu32, done, progress->warm_up);
        break;
    default:
        snprintf(what, sizeof what, ", decoding, %" PRIu32 " of %" PRIu32, done, progress->predict);
    }
    show(progress, what);
}

void bench_progress_clear(struct bench_progress *progress) {
    if (progress->terminal && progress->shown[0]) {
        fputs("\r\033[K", stderr);
        progress->shown[0] = '\0';
    }
}
