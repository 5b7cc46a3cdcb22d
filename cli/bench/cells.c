#include "bench/cells.h"

#include "bench/expert_reads.h"

#include "config/log.h"
#include "config/memory.h"
#include "io/reader.h"

#include <stdio.h>

#define MIB ((uint64_t)1 << 20)

// What a group counts beside the process's own memory: the kernel's, page tables, pages on their way.
static uint64_t with_margin(uint64_t bytes) {
    return bytes + (bytes / 16 > 32 * MIB ? bytes / 16 : 32 * MIB);
}

static void name_budget(const struct bench_budget *budget, char *label, size_t size) {
    char bytes[32];
    if (budget->value < 0) {
        double share = gn_knob_share(budget->value);
        snprintf(label, size, share > 0 ? "%.4g %%" : "min", 100 * share);
    } else {
        snprintf(label, size, "%s%s", gn_format_bytes((uint64_t)budget->value, bytes),
                 budget->knob == GN_RAM ? "" : " cache");
    }
}

// Memory of the whole process that a budget comes to.
static uint64_t budget_bytes(const struct bench_budget *budget, const struct model_file *file,
                             const struct measured *measured) {
    uint64_t least = plan_least(file, measured), least_experts = 2 * model_largest_slot(file);
    if (budget->knob == GN_RAM) {
        return (uint64_t)budget->value;
    }
    if (budget->value < 0) {
        return least + (uint64_t)(gn_knob_share(budget->value) * (double)model_all_slots(file));
    }
    return least + ((uint64_t)budget->value > least_experts ? (uint64_t)budget->value - least_experts : 0);
}

static void add_streamed(struct bench *bench, const struct bench_options *options, const struct bench_budget *budget,
                         const struct model_file *file, const struct measured *measured) {
    struct bench_cell *cell = &bench->cells[bench->n_cells++];
    char need[32], have[32];
    uint64_t available = gn_memory_available();
    cell->engine = BENCH_OURS;
    name_budget(budget, cell->label, sizeof cell->label);
    cell->knobs = options->knobs;
    cell->budget_bytes = budget_bytes(budget, file, measured);
    gn_knob_set(&cell->knobs, budget->knob, budget->value);
    if (!options->knobs.given[GN_LOG]) {
        gn_knob_set(&cell->knobs, GN_LOG, GN_LOG_WARN); // its remarks would come in every round
    }
    if (cell->budget_bytes > available) {
        snprintf(cell->left_out, sizeof cell->left_out, "it needs %s, and this machine can spare %s",
                 gn_format_bytes(cell->budget_bytes, need), gn_format_bytes(available, have));
        return;
    }
    if (budget->knob != GN_RAM) {
        // The rest of the process is given what it needs, however much the machine could spare.
        gn_knob_set(&cell->knobs, GN_RAM, (int64_t)cell->budget_bytes);
    }
    if (plan_budget(file, measured, &cell->knobs, cell->left_out, sizeof cell->left_out)) {
        cell->left_out[0] = '\0';
    }
    cell->limit_bytes = options->limit_bytes > 0 ? with_margin(cell->budget_bytes) : 0;
}

// extra: memory that it takes beside the model's.
static struct bench_cell *add_resident(struct bench *bench, enum bench_engine engine, const char *label,
                                       const struct model_file *file, const struct measured *measured, uint64_t extra) {
    char need_text[32], have[32];
    uint64_t need = file->file_bytes + measured->kv + measured->compute + measured->overhead + extra;
    uint64_t available = gn_memory_available();
    struct bench_cell *cell = &bench->cells[bench->n_cells++];
    cell->engine = engine;
    snprintf(cell->label, sizeof cell->label, "%s", label);
    if (need > available) {
        snprintf(cell->left_out, sizeof cell->left_out, "the model needs %s in memory, and this machine can spare %s",
                 gn_format_bytes(need, need_text), gn_format_bytes(available, have));
    }
    return cell;
}

// Reads that are not direct would find the resident model in the page cache.
static bool reads_directly(const struct model_file *model, bool wanted) {
    bool direct = wanted;
    for (uint32_t s = 0; direct && s < model->n_shards; s++) {
        struct gn_file *file;
        direct = gn_file_open(model->shards[s], true, 0, 0, &file) == 0 && gn_file_direct(file);
        gn_file_close(file);
    }
    return direct;
}

static void add_busy(struct bench *bench, const struct bench_options *options, const struct model_file *file,
                     const struct measured *measured) {
    struct bench_cell *cell = add_resident(bench, BENCH_BUSY, "resident+reads", file, measured, BENCH_READS_MEMORY);
    if (!cell->left_out[0] && !reads_directly(file, options->knobs.value[GN_DIRECT])) {
        snprintf(cell->left_out, sizeof cell->left_out,
                 "%s, so that its reads would come from the page cache, not from the drive",
                 options->knobs.value[GN_DIRECT] ? "this file system has no direct I/O"
                                                 : "direct I/O is off (--direct)");
    }
}

// Without --limit the mapped baseline gets the memory of the middle budget.
static void add_mapped(struct bench *bench, const struct bench_options *options, const struct model_file *file,
                       const struct measured *measured) {
    char limit[32];
    if (options->no_mmap) {
        return;
    }
    struct bench_cell *cell = &bench->cells[bench->n_cells++];
    const struct bench_budget *middle = &options->budgets[(options->n_budgets - 1) / 2];
    cell->engine = BENCH_MMAP;
    cell->limit_bytes =
        options->limit_bytes > 0 ? (uint64_t)options->limit_bytes : budget_bytes(middle, file, measured);
    cell->budget_bytes = cell->limit_bytes;
    snprintf(cell->label, sizeof cell->label, "mmap %s", gn_format_bytes(cell->limit_bytes, limit));
}

void bench_make_cells(struct bench *bench, const struct bench_options *options, const struct model_file *file,
                      const struct measured *measured) {
    bench->n_cells = 0;
    if (!options->no_resident) {
        add_resident(bench, BENCH_RESIDENT, "resident", file, measured, 0);
    }
    if (!options->no_busy) {
        add_busy(bench, options, file, measured);
    }
    add_mapped(bench, options, file, measured);
    for (int b = 0; b < options->n_budgets; b++) {
        add_streamed(bench, options, &options->budgets[b], file, measured);
    }
}
