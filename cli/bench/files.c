// The figures for other programs: JSON with every round, CSV with the medians.
#include "bench/report.h"
#include "bench/summary.h"
#include "json.h"

static const char *engine_name(const struct bench_cell *cell) {
    static const char *const names[] = {"resident", "resident_busy", "mmap", "streamed"};
    return names[cell->engine];
}

// ------------------------------------------------------------------------------------------------ JSON

static void write_model(struct json *json, const struct bench *bench) {
    json_string(json, "model", bench->model);
    json_string(json, "architecture", bench->architecture);
    json_integer(json, "file_bytes", bench->file_bytes);
    json_integer(json, "expert_bytes", bench->expert_bytes);
    json_integer(json, "dense_bytes", bench->dense_bytes);
    json_integer(json, "layers", bench->n_layers);
    json_integer(json, "experts", bench->n_experts);
    json_integer(json, "experts_used", bench->top_k);
    json_string(json, "cpu", bench->cpu);
    json_string(json, "kernel", bench->kernel);
    json_integer(json, "memory_bytes", bench->memory_bytes);
    json_integer(json, "threads", (uint64_t)bench->threads);
    json_string(json, "workload", bench->workload);
    json_integer(json, "prompt_tokens", bench->prompt);
    json_integer(json, "warm_up_tokens", bench->warm_up);
    json_integer(json, "timed_tokens", bench->predict);
    json_integer(json, "ubatch", bench->ubatch);
    json_integer(json, "rounds", (uint64_t)bench->rounds);
}

static void write_drive(struct json *json, const struct bench *bench) {
    const struct bench_drive *drive = &bench->drive;
    int best = bench_best_depth(drive);
    json_open(json, "drive", '{');
    if (best < 0) {
        json_string(json, "left_out", drive->why);
    } else {
        json_number(json, "mib_per_second", bench_median(drive->mib_per_second[best], drive->n_rounds));
        json_integer(json, "depth", drive->depths[best]);
        json_integer(json, "engine_depth", drive->engine_depth);
        json_number(json, "expert_mib", drive->read_mib);
        json_string(json, "reader", drive->reader);
        json_boolean(json, "direct", drive->direct);
        json_open(json, "depths", '[');
        for (int d = 0; d < drive->n_depths; d++) {
            json_open(json, NULL, '{');
            json_integer(json, "depth", drive->depths[d]);
            json_open(json, "mib_per_second", '[');
            for (int r = 0; r < drive->n_rounds; r++) {
                json_number(json, NULL, drive->mib_per_second[d][r]);
            }
            json_close(json, ']');
            json_close(json, '}');
        }
        json_close(json, ']');
    }
    json_close(json, '}');
    json_open(json, "read_ahead", '{');
    json_boolean(json, "known", bench->read_ahead.path[0] != '\0');
    json_integer(json, "kib", bench->read_ahead.kib);
    json_integer(json, "mapped_baseline_kib", bench->read_ahead.used_kib);
    json_close(json, '}');
}

static void write_round(struct json *json, const char *key, const struct bench_phase *phase) {
    json_open(json, key, '{');
    json_integer(json, "tokens", phase->tokens);
    json_integer(json, "ns", phase->ns);
    json_integer(json, "hits", phase->hits);
    json_integer(json, "misses", phase->misses);
    json_integer(json, "read_bytes", phase->read_bytes);
    json_integer(json, "experts_read_in_vain", phase->wasted);
    json_integer(json, "kernel_read_bytes", phase->kernel_read_bytes);
    json_integer(json, "stall_ns", phase->stall_ns);
    json_integer(json, "compute_ns", phase->compute_ns);
    json_integer(json, "lookup_ns", phase->lookup_ns);
    json_integer(json, "total_ns", phase->total_ns);
    json_integer(json, "major_faults", phase->major_faults);
    json_close(json, '}');
}

static void write_medians(struct json *json, const char *key, const struct bench_phase_figures *figures,
                          bool streamed) {
    json_open(json, key, '{');
    json_number(json, "tokens_per_second", figures->tokens_per_second.median);
    json_number(json, "least", figures->tokens_per_second.least);
    json_number(json, "most", figures->tokens_per_second.most);
    json_number(json, "mib_per_token", figures->mib_per_token);
    json_number(json, "major_faults_per_token", figures->faults_per_token);
    if (figures->hit_rate >= 0) {
        json_number(json, "hit_rate", figures->hit_rate);
    }
    if (streamed) {
        json_number(json, "stall_ms", figures->stall_ms);
        json_number(json, "compute_ms", figures->compute_ms);
        json_number(json, "manage_ms", figures->manage_ms);
    }
    json_number(json, "rest_ms", figures->rest_ms);
    if (figures->roof.known) {
        json_number(json, "roof_tokens_per_second", figures->roof.tokens_per_second);
        json_string(json, "roof_by", figures->roof.by_drive ? "drive" : "cores");
        json_number(json, "roof_reached", figures->roof.reached);
    }
    if (figures->both.known) {
        json_number(json, "both_tokens_per_second", figures->both.tokens_per_second);
        json_number(json, "both_reached", figures->both.reached);
    }
    json_close(json, '}');
}

static void write_cell(struct json *json, const struct bench *bench, const struct bench_cell *cell) {
    json_open(json, NULL, '{');
    json_string(json, "engine", engine_name(cell));
    json_string(json, "label", cell->label);
    json_integer(json, "budget_bytes", cell->budget_bytes);
    json_integer(json, "limit_bytes", cell->limit_bytes);
    if (cell->left_out[0]) {
        json_string(json, "left_out", cell->left_out);
    }
    if (cell->mode[0]) {
        json_string(json, "mode", cell->mode);
    }
    if (cell->n_samples > 0) {
        struct bench_figures figures = bench_summarise(bench, cell);
        json_integer(json, "peak_bytes", figures.peak_bytes);
        json_integer(json, "group_peak_bytes", figures.group_peak_bytes);
        json_number(json, "load_seconds", figures.load_seconds);
        write_medians(json, "decode", &figures.decode, cell->engine == BENCH_OURS);
        write_medians(json, "prefill", &figures.prefill, cell->engine == BENCH_OURS);
    }
    json_open(json, "rounds", '[');
    for (int r = 0; r < cell->n_samples; r++) {
        json_open(json, NULL, '{');
        json_number(json, "load_seconds", cell->samples[r].load_seconds);
        json_integer(json, "peak_bytes", cell->samples[r].peak_bytes);
        json_boolean(json, "cut", cell->samples[r].cut);
        write_round(json, "decode", &cell->samples[r].decode);
        write_round(json, "prefill", &cell->samples[r].prefill);
        json_close(json, '}');
    }
    json_close(json, ']');
    json_close(json, '}');
}

void bench_write_json(const struct bench *bench, FILE *to) {
    struct json json = {.to = to};
    json_open(&json, NULL, '{');
    write_model(&json, bench);
    write_drive(&json, bench);
    json_open(&json, "logits", '{');
    json_boolean(&json, "same", !bench->logits.differ[0]);
    json_integer(&json, "runs_compared", (uint64_t)bench->logits.runs);
    json_integer(&json, "steps", bench->logits.steps);
    if (bench->logits.differ[0]) {
        json_string(&json, "differ", bench->logits.differ);
    }
    json_close(&json, '}');
    json_open(&json, "cells", '[');
    for (int c = 0; c < bench->n_cells; c++) {
        write_cell(&json, bench, &bench->cells[c]);
    }
    json_close(&json, ']');
    json_close(&json, '}');
}

// ------------------------------------------------------------------------------------------------ CSV

static void write_column(bool known, double number, FILE *to) {
    if (known) {
        fprintf(to, ",%.4f", number);
    } else {
        fputc(',', to);
    }
}

static void write_columns(const struct bench_phase_figures *figures, bool streamed, FILE *to) {
    write_column(true, figures->tokens_per_second.median, to);
    write_column(true, figures->tokens_per_second.least, to);
    write_column(true, figures->tokens_per_second.most, to);
    write_column(figures->hit_rate >= 0, figures->hit_rate, to);
    write_column(true, figures->mib_per_token, to);
    write_column(streamed, figures->stall_ms, to);
    write_column(streamed, figures->compute_ms, to);
    write_column(streamed, figures->manage_ms, to);
    write_column(true, figures->rest_ms, to);
    write_column(true, figures->faults_per_token, to);
    write_column(figures->roof.known, figures->roof.tokens_per_second, to);
    write_column(figures->roof.known, figures->roof.reached, to);
    write_column(figures->both.known, figures->both.tokens_per_second, to);
    write_column(figures->both.known, figures->both.reached, to);
}

void bench_write_csv(const struct bench *bench, FILE *to) {
    static const char *const columns[] = {"tokens_per_second",
                                          "least",
                                          "most",
                                          "hit_rate",
                                          "mib_per_token",
                                          "stall_ms",
                                          "compute_ms",
                                          "manage_ms",
                                          "rest_ms",
                                          "major_faults_per_token",
                                          "roof_tokens_per_second",
                                          "roof_reached",
                                          "both_tokens_per_second",
                                          "both_reached"};
    fputs("engine,label,budget_bytes,limit_bytes,rounds,peak_bytes,load_seconds", to);
    for (int phase = 0; phase < 2; phase++) {
        for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
            fprintf(to, ",%s_%s", phase == 0 ? "decode" : "prefill", columns[i]);
        }
    }
    fputc('\n', to);
    for (int c = 0; c < bench->n_cells; c++) {
        const struct bench_cell *cell = &bench->cells[c];
        if (cell->n_samples == 0) {
            continue;
        }
        struct bench_figures figures = bench_summarise(bench, cell);
        fprintf(to, "%s,\"%s\",%llu,%llu,%d,%llu,%.4f", engine_name(cell), cell->label,
                (unsigned long long)cell->budget_bytes, (unsigned long long)cell->limit_bytes, cell->n_samples,
                (unsigned long long)figures.peak_bytes, figures.load_seconds);
        write_columns(&figures.decode, cell->engine == BENCH_OURS, to);
        write_columns(&figures.prefill, cell->engine == BENCH_OURS, to);
        fputc('\n', to);
    }
}
