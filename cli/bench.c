// guanaco bench: how fast a model runs on this machine at several budgets, and how near that is to what the drive and
// the cores allow. Here: check, prepare, report; the measuring is in bench/.
#include "bench/bench.h"
#include "bench/cells.h"
#include "bench/facts.h"
#include "bench/options.h"
#include "bench/report.h"
#include "bench/rounds.h"
#include "bench/summary.h"
#include "cli.h"
#include "log_filter.h"
#include "report_file.h"
#include "threads.h"

#include "config/input_file.h"
#include "config/knob_files.h"
#include "config/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MOST (16 << 20)
#define USUAL_PROMPT 512

struct output {
    const char *path;
    void (*write)(const struct bench *bench, FILE *to);
    const char *option;
};

struct work {
    struct bench_options options;
    struct model_file file;
    char plugin[PATH_MAX];
    char *text;
    struct measured measured;
    struct output outputs[3];
    struct bench_undo undo;
    struct bench_setup setup;
    char why[1024];
};

// ------------------------------------------------------------------------------------------------ preparing

static bool read_text(struct work *work) {
    const char *path = work->options.text_file;
    if (!path) {
        return true;
    }
    FILE *file = gn_input_open(path);
    work->text = file ? calloc(1, TEXT_MOST + 1) : NULL;
    size_t got = work->text ? fread(work->text, 1, TEXT_MOST, file) : 0;
    bool failed = !work->text || ferror(file);
    if (failed || got == 0) {
        snprintf(work->why, sizeof work->why, "cannot read a text from %s: %s", path,
                 failed ? strerror(errno) : "it is empty");
    }
    if (file) {
        fclose(file);
    }
    return !failed && got > 0;
}

static bool open_model(struct work *work) {
    const char *path = work->options.model ? work->options.model : demo_model();
    if (!path) {
        snprintf(work->why, sizeof work->why, "the demo model is not there; name a model");
        return false;
    }
    if (!model_file_open(path, &work->file, work->why, sizeof work->why)) {
        return false;
    }
    if (work->file.n_layers == 0) {
        snprintf(work->why, sizeof work->why,
                 "%s has no experts, so there is nothing to stream; give a "
                 "Mixture-of-Experts model",
                 path);
        return false;
    }
    return true;
}

// Now, and not when all the work is done, comes out what cannot be written, or would be written over.
static bool check_outputs(struct work *work) {
    struct gn_outputs outputs = {0};
    bool good = gn_knobs_outputs(&work->options.knobs, &outputs, work->why, sizeof work->why);
    for (size_t o = 0; good && o < sizeof work->outputs / sizeof *work->outputs; o++) {
        good = gn_outputs_add(&outputs, GN_OUTPUT_REPLACED, work->outputs[o].option, work->outputs[o].path, work->why,
                              sizeof work->why);
    }
    const struct gn_knobs *knobs = &work->options.knobs;
    return good && model_file_spared(&work->file, &outputs, work->why, sizeof work->why) &&
           gn_outputs_spare(&outputs, "the text", work->options.text_file, work->why, sizeof work->why) &&
           gn_outputs_spare(&outputs, "the imatrix", gn_knob_path(knobs, GN_IMATRIX), work->why, sizeof work->why) &&
           gn_outputs_spare(&outputs, "the policy", gn_knob_path(knobs, GN_POLICY), work->why, sizeof work->why);
}

// All tokens must fit into the context that the model was trained for.
static bool choose_lengths(struct work *work) {
    struct bench_options *options = &work->options;
    int64_t context = work->file.context > 0 ? (int64_t)work->file.context : INT64_MAX;
    int64_t others = options->warm_up + options->predict;
    if (options->prompt == 0) {
        options->prompt = others < context && context - others < USUAL_PROMPT ? context - others : USUAL_PROMPT;
    }
    if (options->prompt + others > context) {
        snprintf(work->why, sizeof work->why,
                 "prompt (--prompt), --warm-up and -n come to %" PRId64
                 " tokens, but this model was trained for %" PRId64 "; lower "
                 "one of them",
                 options->prompt + others, context);
        return false;
    }
    return true;
}

static void set_params(struct work *work) {
    const struct bench_options *options = &work->options;
    struct bench_setup *setup = &work->setup;
    uint32_t ubatch = (uint32_t)(options->ubatch < options->prompt ? options->ubatch : options->prompt);
    setup->model_params = llama_model_default_params();
    setup->model_params.load_mode = LLAMA_LOAD_MODE_MMAP;
    setup->model_params.use_extra_bufts = false; // the file's bytes as they are, in all engines
    setup->model_params.n_gpu_layers = 0;
    setup->context_params = llama_context_default_params();
    setup->context_params.n_ctx = (uint32_t)(options->prompt + options->warm_up + options->predict);
    setup->context_params.n_batch = ubatch;
    setup->context_params.n_ubatch = ubatch;
    setup->context_params.n_outputs_max = 1;
    setup->context_params.n_threads = options->threads > 0 ? (int32_t)options->threads : threads_default();
    setup->context_params.n_threads_batch = setup->context_params.n_threads;
    setup->context_params.no_perf = true;
}

// At least one budget must be one that can run.
static bool check_budgets(struct work *work, const struct bench *bench) {
    const struct bench_cell *last = NULL;
    char name[BENCH_NAME];
    for (int c = 0; c < bench->n_cells; c++) {
        const struct bench_cell *cell = &bench->cells[c];
        if (cell->engine == BENCH_OURS && !cell->left_out[0]) {
            return true;
        }
        last = cell;
    }
    snprintf(work->why, sizeof work->why, "no budget can be run; %s: %s", last ? bench_cell_name(last, name) : "",
             last ? last->left_out : "");
    return false;
}

static bool prepare(struct work *work, struct bench *bench) {
    if (!read_text(work) || !open_model(work) || !choose_lengths(work) ||
        !engine_find_plugin(work->plugin, sizeof work->plugin, work->why, sizeof work->why) || !check_outputs(work)) {
        return false;
    }
    struct bench_setup *setup = &work->setup;
    set_params(work);
    gn_knobs_export(&work->options.knobs);
    if (!plan_measure(&work->file, &setup->model_params, &setup->context_params, work->plugin, work->options.verbose,
                      &work->measured, work->why, sizeof work->why)) {
        return false;
    }
    bench_find_facts(bench, &work->options, &work->file, &setup->context_params);
    bench_make_cells(bench, &work->options, &work->file, &work->measured);
    if (!check_budgets(work, bench)) {
        return false;
    }
    uint32_t steps = bench_workload_steps(bench->prompt, bench->ubatch, bench->warm_up, bench->predict);
    setup->run_bytes = sizeof *setup->run + steps * sizeof(uint64_t);
    setup->run = bench_child_share(setup->run_bytes);
    if (!setup->run) {
        snprintf(work->why, sizeof work->why, "memory is short");
        return false;
    }
    setup->run->most_sums = steps;
    setup->options = &work->options;
    setup->file = &work->file;
    setup->plugin = work->plugin;
    setup->text = work->text;
    setup->undo = &work->undo;
    setup->read_ahead = &bench->read_ahead;
    return true;
}

// ------------------------------------------------------------------------------------------------ reporting

static bool write_outputs(struct work *work, const struct bench *bench) {
    bool good = true;
    for (size_t o = 0; o < sizeof work->outputs / sizeof *work->outputs; o++) {
        const struct output *output = &work->outputs[o];
        struct report_file report = {.option = output->option, .path = output->path};
        if (output->path && report_file_begin(&report)) {
            output->write(bench, report.to);
        }
        good = (!output->path || report_file_end(&report)) && good;
    }
    return good;
}

// What cannot run here is a remark; a budget that began and did not end well is a failure.
static bool all_went_well(const struct bench *bench) {
    bool good = true;
    for (int c = 0; c < bench->n_cells; c++) {
        const struct bench_cell *cell = &bench->cells[c];
        char name[BENCH_NAME];
        bool ours = cell->engine == BENCH_OURS;
        if (ours && cell->failed) {
            gn_error("%s: %s", bench_cell_name(cell, name), cell->left_out);
            good = false;
        }
    }
    if (bench->logits.differ[0]) {
        gn_error("the logits differ: %s", bench->logits.differ);
        good = false;
    }
    return good;
}

static int run_all(struct work *work, struct bench *bench) {
    if (!prepare(work, bench)) {
        gn_error("%s", work->why);
        return EXIT_FAILED;
    }
    bench_catch_signals();
    if (!bench_undo_start(&work->undo, work->why, sizeof work->why)) {
        gn_error("%s", work->why);
        return EXIT_FAILED;
    }
    bool whole = bench_run_rounds(bench, &work->setup);
    bench_undo_finish(&work->undo);
    if (!whole) {
        gn_error("interrupted: no figures");
        return EXIT_INTERRUPTED;
    }
    bench_print_table(bench, stdout);
    fflush(stdout);
    bool written = write_outputs(work, bench);
    return all_went_well(bench) && written ? EXIT_OK : EXIT_FAILED;
}

int command_bench(int argc, char **argv) {
    static struct work work;
    static struct bench bench;
    if (!bench_options_parse(&work.options, argc, argv, work.why, sizeof work.why)) {
        gn_error("%s", work.why);
        return EXIT_USAGE;
    }
    if (work.options.help) {
        bench_options_print_help(stdout);
        return EXIT_OK;
    }
    work.outputs[0] = (struct output){work.options.json, bench_write_json, "--json"};
    work.outputs[1] = (struct output){work.options.csv, bench_write_csv, "--csv"};
    work.outputs[2] = (struct output){work.options.svg, bench_write_svg, "--svg"};
    gn_log_set_level((enum gn_log_level)work.options.knobs.value[GN_LOG]);
    log_filter_install(work.options.verbose);
    int code = run_all(&work, &bench);
    bench_child_unshare(work.setup.run, work.setup.run_bytes);
    model_file_close(&work.file);
    free(work.text);
    return code;
}
