#include "bench/rounds.h"

#include "bench/drive.h"
#include "bench/logits.h"
#include "bench/page_cache.h"
#include "bench/progress.h"
#include "bench/summary.h"

#include "config/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct rounds {
    struct bench *bench;
    struct bench_setup *setup;
    struct bench_progress progress;
    struct bench_reference reference;
    bool cached_told;
};

// ------------------------------------------------------------------------------------------------ drive

struct drive_body {
    const struct model_file *file;
    const struct gn_knobs *knobs;
};

static bool measure_drive(void *shared, void *context) {
    const struct drive_body *body = context;
    return bench_drive_measure(body->file, body->knobs, shared);
}

// In a child process: it takes memory, and cells inherit what we have taken.
static bool run_drive(struct rounds *rounds) {
    struct bench_drive *drive = &rounds->bench->drive, *shared = bench_child_share(sizeof *shared);
    struct drive_body body = {rounds->setup->file, &rounds->setup->options->knobs};
    struct bench_child child = {
        .body = measure_drive,
        .shared = shared,
        .context = &body,
        .timeout = (int)rounds->setup->options->timeout,
        .let_through = rounds->setup->options->verbose,
    };
    int signal_number;
    char *said = NULL;
    enum bench_end end = BENCH_FAILED;
    bench_progress_begin(&rounds->progress, "drive");
    if (shared) {
        *shared = *drive;
        end = bench_child_run(&child, &signal_number, &said);
        if (end == BENCH_DONE || shared->why[0]) {
            *drive = *shared;
        } else {
            snprintf(drive->why, sizeof drive->why, "measuring it did not end well");
        }
    }
    bench_child_unshare(shared, sizeof *shared);
    bench_progress_clear(&rounds->progress);
    if (said && rounds->progress.round == 0) {
        fputs(said, stderr);
    }
    free(said);
    return end != BENCH_INTERRUPTED;
}

// ------------------------------------------------------------------------------------------------ cells

static void drop_page_cache(struct rounds *rounds) {
    double left = bench_page_cache_drop(rounds->setup->file);
    if (left > 0.01 && !rounds->cached_told) {
        rounds->cached_told = true;
        bench_progress_clear(&rounds->progress);
        gn_warn(
            "%.0f %% of the model stays in the page cache, since another process has it in use: what is mapped reads "
            "less than it would alone",
            100 * left);
    }
}

static bool run_cell(struct rounds *rounds, struct bench_cell *cell) {
    char *said, why[512], name[BENCH_NAME];
    struct bench_setup *setup = rounds->setup;
    bench_progress_begin(&rounds->progress, bench_cell_name(cell, name));
    drop_page_cache(rounds);
    enum bench_end end = bench_cell_run(setup, cell, &said, why, sizeof why);
    bench_progress_clear(&rounds->progress);
    if (said && (rounds->progress.round == 0 || end == BENCH_FAILED) && end != BENCH_INTERRUPTED) {
        fputs(said, stderr);
    }
    free(said);
    if (end == BENCH_INTERRUPTED) {
        return false;
    }
    if (end != BENCH_DONE) {
        snprintf(cell->left_out, sizeof cell->left_out, "%s", why);
        cell->failed = true;
        return true;
    }
    cell->samples[cell->n_samples++] = setup->run->sample;
    snprintf(cell->mode, sizeof cell->mode, "%s", setup->run->mode);
    snprintf(rounds->bench->workload, sizeof rounds->bench->workload, "%s", setup->run->workload);
    bench_logits_compare(&rounds->reference, &rounds->bench->logits, name, setup->run->tokens_sum, setup->run->sums,
                         setup->run->n_sums);
    return true;
}

static bool run_round(struct rounds *rounds) {
    struct bench *bench = rounds->bench;
    rounds->progress.part = 0;
    rounds->progress.parts = 1;
    for (int c = 0; c < bench->n_cells; c++) {
        rounds->progress.parts += !bench->cells[c].left_out[0];
    }
    if (!run_drive(rounds)) {
        return false;
    }
    for (int c = 0; c < bench->n_cells; c++) {
        if (!bench->cells[c].left_out[0] && !run_cell(rounds, &bench->cells[c])) {
            return false;
        }
    }
    return true;
}

bool bench_run_rounds(struct bench *bench, struct bench_setup *setup) {
    struct rounds rounds = {
        .bench = bench,
        .setup = setup,
        .progress =
            {
                .rounds = bench->rounds,
                .prompt = bench->prompt,
                .warm_up = bench->warm_up,
                .predict = bench->predict,
                .terminal = isatty(STDERR_FILENO) && !setup->options->verbose,
            },
    };
    setup->watch = bench_progress_watch;
    setup->watch_context = &rounds.progress;
    for (int c = 0; c < bench->n_cells; c++) {
        char name[BENCH_NAME];
        if (bench->cells[c].left_out[0]) {
            gn_info("%s is left out: %s", bench_cell_name(&bench->cells[c], name), bench->cells[c].left_out);
        }
    }
    bool good = bench_reference_open(&rounds.reference, setup->run->most_sums) == 0;
    for (int r = 0; good && r < bench->rounds; r++) {
        rounds.progress.round = r;
        good = run_round(&rounds);
    }
    bench_reference_close(&rounds.reference);
    return good;
}
