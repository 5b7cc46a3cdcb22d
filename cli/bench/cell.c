#include "bench/cell.h"

#include "bench/busy.h"
#include "bench/group.h"
#include "bench/page_cache.h"
#include "bench/read_ahead.h"
#include "bench/tokens.h"

#include "config/log.h"
#include "config/memory.h"
#include "stats/stats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct body {
    const struct bench_setup *setup;
    const struct bench_cell *cell;
    const struct bench_group *group; // NULL: none
};

// ------------------------------------------------------------------------------------------------ in the child

// What streams takes its settings from the environment. Stock must load as it does everywhere: without our interposer.
static void set_environment(const struct bench_cell *cell) {
    if (cell->engine == BENCH_OURS) {
        gn_knobs_export(&cell->knobs);
        unsetenv("GUANACO_STREAMING");
    } else {
        setenv("GUANACO_STREAMING", "off", 1);
    }
}

static bool load(const struct body *body, struct session *session, struct bench_run *run) {
    const struct bench_setup *setup = body->setup;
    static const struct options greedy = {.repeat_penalty = 1};
    const char *plugin = body->cell->engine == BENCH_OURS ? setup->plugin : NULL;
    uint64_t start = gn_now_ns();
    session->options = &greedy;
    session->quiet = true;
    if (!engine_load(&session->engine, plugin, run->why, sizeof run->why) ||
        !session_open(session, setup->file->shards[0], setup->model_params, setup->context_params, run->why,
                      sizeof run->why)) {
        return false;
    }
    if (body->cell->engine == BENCH_RESIDENT || body->cell->engine == BENCH_BUSY) {
        bench_page_cache_touch(setup->file);
    }
    run->sample.load_seconds = 1e-9 * (double)(gn_now_ns() - start);
    return true;
}

static bool work(const struct body *body, struct session *session, struct bench_run *run) {
    const struct bench_options *options = body->setup->options;
    struct bench_workload workload = {.prompt = (uint32_t)options->prompt,
                                      .warm_up = (uint32_t)options->warm_up,
                                      .predict = (uint32_t)options->predict,
                                      .seconds = (double)options->seconds};
    int n = (int)(workload.prompt + workload.warm_up + workload.predict);
    llama_token *tokens = calloc((size_t)n, sizeof *tokens);
    workload.tokens = tokens;
    bool good = tokens && bench_tokens(session->vocab, body->setup->text, tokens, n, run->workload,
                                       sizeof run->workload, run->why, sizeof run->why);
    good = good && bench_workload_run(session, &workload, run);
    free(tokens);
    return good;
}

// The same while the drive has to read all the time.
static bool work_beside_reads(const struct body *body, struct session *session, struct bench_run *run) {
    const struct bench_setup *setup = body->setup;
    struct bench_busy busy;
    if (!bench_busy_start(&busy, setup->file, &setup->options->knobs, run->why, sizeof run->why)) {
        return false;
    }
    bool good = work(body, session, run);
    return bench_busy_stop(&busy, run->why, sizeof run->why) && good;
}

static bool child_body(void *shared, void *context) {
    struct bench_run *run = shared;
    const struct body *body = context;
    struct session session = {0};
    int failed = body->group ? bench_group_enter(body->group) : 0;
    if (failed) {
        snprintf(run->why, sizeof run->why, "cannot enter the control group: %s", strerror(-failed));
        return false;
    }
    set_environment(body->cell);
    bool busy = body->cell->engine == BENCH_BUSY;
    bool good = load(body, &session, run) && (busy ? work_beside_reads : work)(body, &session, run);
    if (good && session.engine.mode) {
        snprintf(run->mode, sizeof run->mode, "%s", session.engine.mode());
    }
    run->sample.peak_bytes = gn_memory_peak();
    return good; // the process ends here: nothing needs to be given back
}

// ------------------------------------------------------------------------------------------------ in the parent

// The mapped baseline runs at Linux's usual read-ahead, where we may set it.
static bool set_read_ahead(const struct bench_setup *setup, bool usual) {
    struct bench_read_ahead *setting = setup->read_ahead;
    if (!setting->path[0] || setting->kib == BENCH_USUAL_READ_AHEAD) {
        return true;
    }
    char text[32];
    snprintf(text, sizeof text, "%u", setting->kib);
    if (usual && !bench_undo_value(setup->undo, setting->path, text)) {
        return false;
    }
    bool good = bench_read_ahead_set(setting, usual ? BENCH_USUAL_READ_AHEAD : setting->kib) == 0;
    if (usual) {
        setting->used_kib = good ? BENCH_USUAL_READ_AHEAD : setting->kib;
    }
    return good;
}

static void explain(const struct bench_setup *setup, enum bench_end end, int signal_number, bool limited, char *why,
                    size_t why_size) {
    static const char *const stages[] = {"while loading", "at the prompt", "at the prompt", "while decoding",
                                         "while decoding"};
    const char *stage = stages[setup->run->stage];
    switch (end) {
    case BENCH_KILLED:
        snprintf(why, why_size, "it was killed %s by signal %d%s", stage, signal_number,
                 signal_number == SIGKILL && limited ? ": the limit is too small for it"
                 : signal_number == SIGKILL          ? ": memory is short"
                                                     : "");
        break;
    case BENCH_TIMED_OUT:
        snprintf(why, why_size, "it was not done after %d s (%s); raise --timeout", (int)setup->options->timeout,
                 stage);
        break;
    case BENCH_FAILED:
        snprintf(why, why_size, "%s", setup->run->why[0] ? setup->run->why : "it failed, see above");
        break;
    default:
        why[0] = '\0';
    }
}

static void say_unlimited(const char *why) {
    static bool said;
    if (!said) {
        gn_warn("--limit holds for no streamed run: %s", why);
    }
    said = true;
}

enum bench_end bench_cell_run(const struct bench_setup *setup, const struct bench_cell *cell, char **said, char *why,
                              size_t why_size) {
    struct bench_group group;
    bool limited = cell->limit_bytes > 0, mapped = cell->engine == BENCH_MMAP;
    *said = NULL;
    if (limited && !bench_group_open(&group, cell->limit_bytes, setup->undo, why, why_size)) {
        if (mapped) {
            return BENCH_FAILED;
        }
        say_unlimited(why); // it keeps to its budget without a group too
        limited = false;
    }
    uint32_t most_sums = setup->run->most_sums;
    memset(setup->run, 0, sizeof *setup->run);
    setup->run->most_sums = most_sums;
    if (mapped) {
        set_read_ahead(setup, true);
    }
    struct body body = {setup, cell, limited ? &group : NULL};
    struct bench_child child = {
        .body = child_body,
        .shared = setup->run,
        .context = &body,
        .watch = setup->watch,
        .watch_context = setup->watch_context,
        .timeout = (int)setup->options->timeout,
        .let_through = setup->options->verbose,
    };
    int signal_number;
    enum bench_end end = bench_child_run(&child, &signal_number, said);
    if (mapped) {
        set_read_ahead(setup, false);
    }
    if (limited) {
        setup->run->sample.group_peak_bytes = bench_group_peak(&group);
        bench_group_close(&group);
    }
    explain(setup, end, signal_number, limited, why, why_size);
    return end;
}
