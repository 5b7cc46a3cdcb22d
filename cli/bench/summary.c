#include "bench/summary.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(const double *numbers, int n) {
    double sorted[BENCH_ROUNDS];
    if (n <= 0) {
        return 0;
    }
    n = n > BENCH_ROUNDS ? BENCH_ROUNDS : n;
    memcpy(sorted, numbers, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

const struct bench_cell *bench_find(const struct bench *bench, enum bench_engine engine) {
    for (int c = 0; c < bench->n_cells; c++) {
        if (bench->cells[c].engine == engine && bench->cells[c].n_samples > 0) {
            return &bench->cells[c];
        }
    }
    return NULL;
}

char *bench_cell_name(const struct bench_cell *cell, char *buffer) {
    snprintf(buffer, BENCH_NAME, "%s %s", cell->engine == BENCH_OURS ? "streamed" : "stock", cell->label);
    return buffer;
}

int bench_best_depth(const struct bench_drive *drive) {
    double most = 0;
    int best = -1;
    for (int d = 0; d < drive->n_depths; d++) {
        double rate = bench_median(drive->mib_per_second[d], drive->n_rounds);
        best = rate > most ? d : best;
        most = rate > most ? rate : most;
    }
    return best;
}

static const struct bench_phase *phase_of(const struct bench_sample *sample, bool decode) {
    return decode ? &sample->decode : &sample->prefill;
}

static double seconds_per_token(const struct bench_phase *phase) {
    return phase->tokens > 0 ? 1e-9 * (double)phase->ns / phase->tokens : 0;
}

static double bytes_per_token(const struct bench_cell *cell, const struct bench_phase *phase) {
    uint64_t bytes = cell->engine == BENCH_OURS ? phase->read_bytes : phase->kernel_read_bytes;
    return phase->tokens > 0 ? (double)bytes / phase->tokens : 0;
}

// ------------------------------------------------------------------------------------------------ roof

// The drive at its best depth, in one round; 0 when it was not measured.
static double drive_rate(const struct bench_drive *drive, int round) {
    int best = bench_best_depth(drive);
    return best >= 0 && round < drive->n_rounds ? BENCH_MIB * drive->mib_per_second[best][round] : 0;
}

// What was read ahead in vain need not have been read, and must not lower the roof.
static double needed_bytes_per_token(const struct bench *bench, const struct bench_cell *cell,
                                     const struct bench_phase *phase) {
    double expert = bench->all_experts > 0 ? (double)bench->expert_bytes / (double)bench->all_experts : 0;
    double vain = phase->tokens > 0 ? expert * (double)phase->wasted / phase->tokens : 0;
    double bytes = bytes_per_token(cell, phase);
    return bytes > vain ? bytes - vain : 0;
}

// Of a baseline in one round; a phase of nothing when it was not measured.
static struct bench_phase baseline_phase(const struct bench *bench, enum bench_engine engine, bool decode, int round) {
    const struct bench_cell *cell = bench_find(bench, engine);
    return cell && round < cell->n_samples ? *phase_of(&cell->samples[round], decode) : (struct bench_phase){0};
}

// Seconds that a token takes at least, in one round.
struct least {
    double seconds; // 0: not known
    bool by_drive;
};

static struct least least_alone(const struct bench *bench, const struct bench_cell *cell, bool decode, int round) {
    struct bench_phase resident = baseline_phase(bench, BENCH_RESIDENT, decode, round);
    double compute = seconds_per_token(&resident), rate = drive_rate(&bench->drive, round);
    double bytes = needed_bytes_per_token(bench, cell, phase_of(&cell->samples[round], decode));
    if (rate <= 0 && bytes > 0) {
        return (struct least){0};
    }
    double reading = bytes > 0 ? bytes / rate : 0;
    return (struct least){reading > compute ? reading : compute, reading > compute};
}

static struct least least_together(const struct bench *bench, const struct bench_cell *cell, bool decode, int round) {
    struct bench_phase resident = baseline_phase(bench, BENCH_RESIDENT, decode, round);
    struct bench_phase busy = baseline_phase(bench, BENCH_BUSY, decode, round);
    double alone = seconds_per_token(&resident), beside = seconds_per_token(&busy);
    double bytes = needed_bytes_per_token(bench, cell, phase_of(&cell->samples[round], decode));
    if (alone <= 0 || beside <= 0 || (bytes > 0 && busy.kernel_read_bytes == 0)) {
        return (struct least){0};
    }
    double reading = bytes > 0 ? bytes / (1e9 * (double)busy.kernel_read_bytes / (double)busy.ns) : 0;
    beside = beside > alone ? beside : alone; // reads make nothing faster: that is noise
    // What is left to compute when the drive has done its part goes at the pace without reads.
    return reading >= beside ? (struct least){reading, true}
                             : (struct least){reading + (1 - reading / beside) * alone, false};
}

static struct bench_roof find_roof(const struct bench *bench, const struct bench_cell *cell, bool decode,
                                   struct least (*find)(const struct bench *bench, const struct bench_cell *cell,
                                                        bool decode, int round)) {
    double roofs[BENCH_ROUNDS], reached[BENCH_ROUNDS];
    int n = 0, by_drive = 0;
    for (int r = 0; cell->engine == BENCH_OURS && r < cell->n_samples; r++) {
        double seconds = seconds_per_token(phase_of(&cell->samples[r], decode));
        struct least least = find(bench, cell, decode, r);
        if (least.seconds > 0 && seconds > 0) {
            by_drive += least.by_drive;
            roofs[n] = 1 / least.seconds;
            reached[n++] = least.seconds / seconds;
        }
    }
    return (struct bench_roof){n > 0, 2 * by_drive > n, bench_median(roofs, n), bench_median(reached, n)};
}

// ------------------------------------------------------------------------------------------------ phases

static struct bench_phase_figures summarise(const struct bench *bench, const struct bench_cell *cell, bool decode) {
    enum { SPEED, HITS, READ, STALL, COMPUTE, MANAGE, REST, FAULTS, FIGURES };
    double values[FIGURES][BENCH_ROUNDS];
    struct bench_phase_figures figures = {.roof = find_roof(bench, cell, decode, least_alone),
                                          .both = find_roof(bench, cell, decode, least_together)};
    struct bench_spread *speed = &figures.tokens_per_second;
    for (int r = 0; r < cell->n_samples; r++) {
        const struct bench_phase *phase = phase_of(&cell->samples[r], decode);
        uint64_t looked_up = phase->hits + phase->misses;
        double tokens = phase->tokens ? phase->tokens : 1, ms = 1e-6 / tokens;
        double manage = (double)phase->total_ns - (double)phase->compute_ns - (double)phase->stall_ns;
        values[SPEED][r] = phase->ns > 0 ? 1e9 * phase->tokens / (double)phase->ns : 0;
        values[HITS][r] = looked_up > 0 ? (double)phase->hits / (double)looked_up : -1;
        values[READ][r] = bytes_per_token(cell, phase) / BENCH_MIB;
        values[STALL][r] = ms * (double)phase->stall_ns;
        values[COMPUTE][r] = ms * (double)phase->compute_ns;
        values[MANAGE][r] = ms * manage;
        values[REST][r] = ms * ((double)phase->ns - (double)phase->total_ns);
        values[FAULTS][r] = (double)phase->major_faults / tokens;
        speed->least = r == 0 || values[SPEED][r] < speed->least ? values[SPEED][r] : speed->least;
        speed->most = values[SPEED][r] > speed->most ? values[SPEED][r] : speed->most;
    }
    double *const to[FIGURES] = {&speed->median,    &figures.hit_rate,        &figures.mib_per_token,
                                 &figures.stall_ms, &figures.compute_ms,      &figures.manage_ms,
                                 &figures.rest_ms,  &figures.faults_per_token};
    for (int f = 0; f < FIGURES; f++) {
        *to[f] = bench_median(values[f], cell->n_samples);
    }
    return figures;
}

struct bench_figures bench_summarise(const struct bench *bench, const struct bench_cell *cell) {
    struct bench_figures figures = {
        .decode = summarise(bench, cell, true),
        .prefill = summarise(bench, cell, false),
    };
    double load[BENCH_ROUNDS];
    for (int r = 0; r < cell->n_samples; r++) {
        const struct bench_sample *sample = &cell->samples[r];
        load[r] = sample->load_seconds;
        figures.peak_bytes = sample->peak_bytes > figures.peak_bytes ? sample->peak_bytes : figures.peak_bytes;
        figures.group_peak_bytes =
            sample->group_peak_bytes > figures.group_peak_bytes ? sample->group_peak_bytes : figures.group_peak_bytes;
    }
    figures.load_seconds = bench_median(load, cell->n_samples);
    return figures;
}
