// The figures as text, for a terminal of 136 columns.
#include "bench/report.h"
#include "bench/summary.h"

#include "config/printable.h"

#include <stdio.h>

static void print_facts(const struct bench *bench, FILE *to) {
    char all[32], experts[32], dense[32], memory[32];
    fputs("model     ", to);
    gn_put_printable(bench->model, to);
    fputs("\n          ", to);
    gn_put_printable(bench->architecture, to);
    fprintf(to, ", %s: experts %s (%u layers of %u, %u used by a token), dense weights %s\n",
            gn_format_bytes(bench->file_bytes, all), gn_format_bytes(bench->expert_bytes, experts), bench->n_layers,
            bench->n_experts, bench->top_k, gn_format_bytes(bench->dense_bytes, dense));
    fprintf(to, "machine   %s%s%d %s, %s of memory, Linux %s\n", bench->cpu, bench->cpu[0] ? ", " : "", bench->threads,
            bench->threads == 1 ? "thread" : "threads", gn_format_bytes(bench->memory_bytes, memory), bench->kernel);
    fprintf(to, "workload  prompt of %u tokens, %u to warm up, %u timed; %s; %d %s\n", bench->prompt, bench->warm_up,
            bench->predict, bench->workload, bench->rounds, bench->rounds == 1 ? "round" : "rounds, medians");
}

static void print_drive(const struct bench *bench, FILE *to) {
    const struct bench_drive *drive = &bench->drive;
    int best = bench_best_depth(drive);
    if (best < 0) {
        fprintf(to, "drive     not measured: %s\n", drive->why);
    } else {
        fprintf(to, "drive     %.0f MiB/s in reads of whole experts of %.2f MiB, %s, %s, %u in flight",
                bench_median(drive->mib_per_second[best], drive->n_rounds), drive->read_mib, drive->reader,
                drive->direct ? "page cache bypassed" : "through the page cache, which was emptied first",
                drive->depths[best]);
        for (int d = 0; d < drive->n_depths; d++) {
            fprintf(to, "%s%u: %.0f", d == 0 ? " (" : ", ", drive->depths[d],
                    bench_median(drive->mib_per_second[d], drive->n_rounds));
        }
        fprintf(to, ")\n");
    }
    const struct bench_read_ahead *ahead = &bench->read_ahead;
    if (!ahead->path[0]) {
        fprintf(to, "          its read-ahead cannot be seen\n");
    } else if (ahead->used_kib != ahead->kib) {
        fprintf(to, "          read-ahead %u KiB; %u KiB for the mapped baseline\n", ahead->kib, ahead->used_kib);
    } else {
        fprintf(to, "          read-ahead %u KiB%s\n", ahead->kib,
                ahead->kib == 128 ? "" : ", for the mapped baseline too: it cannot be changed here; 128 KiB is usual");
    }
}

static void print_name(const struct bench_cell *cell, FILE *to) {
    char name[BENCH_NAME];
    fprintf(to, "  %-22.22s", bench_cell_name(cell, name));
}

static void print_percent(double share, bool known, int width, FILE *to) {
    if (known) {
        fprintf(to, " %*.1f", width, 100 * share);
    } else {
        fprintf(to, " %*s", width, "-");
    }
}

static void print_phase(const struct bench_phase_figures *figures, bool streamed, FILE *to) {
    const struct bench_spread *speed = &figures->tokens_per_second;
    fprintf(to, " %8.2f %4.0f%%", speed->median,
            speed->median > 0 ? 50 * (speed->most - speed->least) / speed->median : 0);
    print_percent(figures->hit_rate, figures->hit_rate >= 0, 6, to);
    fprintf(to, " %9.2f", figures->mib_per_token);
    if (streamed) {
        fprintf(to, " %8.3f %8.3f %7.3f %8.3f", figures->stall_ms, figures->compute_ms, figures->manage_ms,
                figures->rest_ms);
    } else {
        fprintf(to, " %8s %8s %7s %8.3f", "-", "-", "-", figures->rest_ms);
    }
    fprintf(to, " %7.1f", figures->faults_per_token);
    if (figures->roof.known) {
        fprintf(to, " %8.2f %-5s", figures->roof.tokens_per_second, figures->roof.by_drive ? "drive" : "cores");
    } else {
        fprintf(to, " %8s %-5s", "-", "");
    }
    print_percent(figures->roof.reached, figures->roof.known, 6, to);
    if (figures->both.known) {
        fprintf(to, " %7.2f", figures->both.tokens_per_second);
    } else {
        fprintf(to, " %7s", "-");
    }
    print_percent(figures->both.reached, figures->both.known, 6, to);
    putc('\n', to);
}

static void print_phases(const struct bench *bench, bool decode, FILE *to) {
    fprintf(to, "\n%-24s %8s %5s %6s %9s %8s %8s %7s %8s %7s %8s %-5s %6s %7s %6s\n", decode ? "decode" : "prefill",
            "tokens/s", "+-", "hit %", "MiB/token", "stall", "compute", "manage", "rest", "faults", "roof", "by",
            "of it%", "both", "of it%");
    for (int c = 0; c < bench->n_cells; c++) {
        const struct bench_cell *cell = &bench->cells[c];
        if (cell->n_samples > 0) {
            struct bench_figures figures = bench_summarise(bench, cell);
            print_name(cell, to);
            print_phase(decode ? &figures.decode : &figures.prefill, cell->engine == BENCH_OURS, to);
        }
    }
}

static void print_memory(const struct bench *bench, FILE *to) {
    fprintf(to, "\n%-24s %14s %14s %14s %9s\n", "memory", "budget", "peak", "group's peak", "load s");
    for (int c = 0; c < bench->n_cells; c++) {
        const struct bench_cell *cell = &bench->cells[c];
        char budget[32] = "-", peak[32], group[32] = "-";
        if (cell->n_samples == 0) {
            continue;
        }
        struct bench_figures figures = bench_summarise(bench, cell);
        print_name(cell, to);
        fprintf(to, " %14s %14s %14s %9.2f\n", cell->budget_bytes ? gn_format_bytes(cell->budget_bytes, budget) : "-",
                gn_format_bytes(figures.peak_bytes, peak),
                figures.group_peak_bytes ? gn_format_bytes(figures.group_peak_bytes, group) : "-",
                figures.load_seconds);
    }
}

static void print_notes(const struct bench *bench, FILE *to) {
    fputs(
        "\nstall, compute, manage, rest: milliseconds for a token: waiting for experts, their products, finding and "
        "evicting\nthem, all outside the expert layers. faults: major ones for a token. roof: tokens/s that reading as "
        "much would\nallow, bounded by the drive or the cores, if these did not disturb each other. both: the same, "
        "each "
        "as slow as the\nother makes it, by what 'stock resident+reads' computed and read. of it%: what was reached of "
        "either.\n",
        to);
    if (!bench_find(bench, BENCH_RESIDENT)) {
        fputs("Computing with everything resident was not measured: the roof is the drive's alone.\n", to);
    }
    for (int c = 0; c < bench->n_cells; c++) {
        const struct bench_cell *cell = &bench->cells[c];
        char name[BENCH_NAME];
        bench_cell_name(cell, name);
        if (cell->left_out[0]) {
            fprintf(to, "%s %s: %s\n", name, cell->n_samples > 0 ? "stopped early" : "left out", cell->left_out);
        }
        uint32_t least = UINT32_MAX;
        for (int r = 0; r < cell->n_samples; r++) {
            const struct bench_sample *sample = &cell->samples[r];
            least = sample->cut && sample->decode.tokens < least ? sample->decode.tokens : least;
        }
        if (least < UINT32_MAX) {
            fprintf(to, "%s: decoded only %u tokens in its time (--seconds)\n", name, least);
        }
    }
    if (bench->logits.differ[0]) {
        fprintf(to, "LOGITS DIFFER: %s\n", bench->logits.differ);
    } else if (bench->logits.runs > 0) {
        fprintf(to, "same logits: every bit, in %d runs at up to %u steps each\n", bench->logits.runs + 1,
                bench->logits.steps);
    }
}

void bench_print_table(const struct bench *bench, FILE *to) {
    print_facts(bench, to);
    print_drive(bench, to);
    print_phases(bench, true, to);
    print_phases(bench, false, to);
    print_memory(bench, to);
    print_notes(bench, to);
}
