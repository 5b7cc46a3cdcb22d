#include "plan.h"

#include "ending.h"
#include "engine.h"
#include "log_filter.h"

#include "config/log.h"
#include "config/memory.h"
#include "exec/budget.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)

// What a run touches beyond what the measuring process does: stacks, samplers, rings of the reader, allocator slack.
#define RUN_OVERHEAD (6 * MIB)

struct report {
    struct measured measured;
    bool good;
    char why[512];
};

// llama.cpp tells buffer sizes in its log alone: "… compute buffer size = 12.34 MiB". Without weights its KV buffers
// are empty, and the line "size = 12.34 MiB (4096 cells, …" has the size.
static void read_sizes(const char *line, void *context) {
    struct measured *measured = context;
    double mib;
    const char *at = strstr(line, "size = ");
    if (!at || strstr(line, "model buffer size") || sscanf(at, "size = %lf MiB", &mib) != 1) {
        return;
    }
    uint64_t bytes = (uint64_t)(mib * (double)MIB) + MIB / 64; // the line is rounded
    bool recurrent = strstr(line, "RS buffer size = ") || strstr(line, "state buffer size = ");
    if (strstr(line, "compute buffer size = ") || strstr(line, "output buffer size = ")) {
        measured->compute += bytes;
    } else if (recurrent || (strstr(line, " cells") && strstr(line, "K ("))) {
        measured->kv += bytes;
    }
}

// Work space for each token of a step: operands of products in 8 bits, and the rows that the plugin gathers for an
// expert.
static uint64_t work_per_token(const struct model_file *file) {
    uint64_t expert_ff = file->expert_ff ? file->expert_ff : file->dense_ff;
    uint64_t widest = file->width > file->dense_ff ? file->width : file->dense_ff;
    uint64_t bytes = 2 * widest + sizeof(float) * (2 * file->width + 3 * expert_ff);
    return bytes < MIB ? bytes : MIB; // a header may say anything
}

static void build_without_weights(const struct model_file *file, struct llama_model_params model_params,
                                  struct llama_context_params context_params, const char *plugin,
                                  struct report *report) {
    struct engine engine;
    if (!engine_load(&engine, plugin, report->why, sizeof report->why)) {
        return;
    }
    model_params.no_alloc = true;
    model_params.load_mode = LLAMA_LOAD_MODE_NONE;
    log_filter_forget();
    struct llama_model *model = llama_model_load_from_file(file->shards[0], model_params);
    if (!model) {
        snprintf(report->why, sizeof report->why, "llama.cpp cannot load %s: %s", file->shards[0],
                 log_filter_last_error());
        return;
    }
    log_filter_listen(read_sizes, &report->measured);
    struct llama_context *context = llama_init_from_model(model, context_params);
    log_filter_listen(NULL, NULL);
    if (!context) {
        snprintf(report->why, sizeof report->why, "llama.cpp cannot make a context for %s: %s", file->shards[0],
                 log_filter_last_error());
        return;
    }
    uint64_t recurrent = llama_model_is_recurrent(model) || llama_model_is_hybrid(model) ? report->measured.kv : 0;
    uint64_t peak = gn_memory_peak();
    // A recurrent state is really taken even now. Nothing else of a tensor is.
    report->measured.overhead = (peak > recurrent ? peak - recurrent : peak) + RUN_OVERHEAD +
                                work_per_token(file) * context_params.n_ubatch +
                                (uint64_t)llama_vocab_n_tokens(llama_model_get_vocab(model)) * 32;
    report->good = true;
}

// The child's part. Never returns.
static void measure_and_exit(const struct model_file *file, const struct llama_model_params *model_params,
                             const struct llama_context_params *context_params, const char *plugin, bool verbose,
                             int to) {
    if (!verbose) {
        int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
        dup2(null, STDERR_FILENO);
    }
    setenv("GGML_NO_BACKTRACE", "1", 1);
    unsetenv("GUANACO_RAM");
    unsetenv("GUANACO_RESERVE");
    static struct report report;
    build_without_weights(file, *model_params, *context_params, plugin, &report);
    ssize_t written = write(to, &report, sizeof report);
    _exit(written == (ssize_t)sizeof report ? 0 : 1);
}

static bool read_report(int from, struct report *report) {
    size_t got = 0;
    while (got < sizeof *report) {
        ssize_t n = read(from, (char *)report + got, sizeof *report - got);
        if (n <= 0 && !(n < 0 && errno == EINTR)) {
            return false;
        }
        got += n > 0 ? (size_t)n : 0;
    }
    return true;
}

// Why the child told nothing. What it died of tells the difference between a bad model, little memory and somebody's
// kill.
static void explain_death(const char *path, int status, char *why, size_t why_size) {
    char ending[128];
    bool crashed = WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL && WTERMSIG(status) != SIGTERM;
    const char *advice = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                             ? "; free some memory, or take a smaller context (-c)"
                         : crashed ? "; it is damaged, or of a kind that this llama.cpp does not know; -v shows where"
                                   : "; -v may show why";
    snprintf(why, why_size, "the process that measures %s %s%s", path, describe_ending(status, ending, sizeof ending),
             advice);
}

bool plan_measure(const struct model_file *model, const struct llama_model_params *model_params,
                  const struct llama_context_params *context_params, const char *plugin, bool verbose,
                  struct measured *measured, char *why, size_t why_size) {
    int ends[2];
    fflush(NULL);
    if (pipe2(ends, O_CLOEXEC)) {
        snprintf(why, why_size, "cannot make a pipe: %s", strerror(errno));
        return false;
    }
    pid_t child = fork();
    int error = errno;
    if (child == 0) {
        close(ends[0]);
        measure_and_exit(model, model_params, context_params, plugin, verbose, ends[1]);
    }
    close(ends[1]);
    static struct report report;
    bool whole = child > 0 && read_report(ends[0], &report);
    close(ends[0]);
    int status = 0;
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (child < 0) {
        snprintf(why, why_size, "cannot start a process to measure %s: %s; free some memory", model->shards[0],
                 strerror(error));
        return false;
    }
    if (!whole) {
        explain_death(model->shards[0], status, why, why_size);
        return false;
    }
    *measured = report.measured;
    snprintf(why, why_size, "%s", report.why);
    return report.good;
}

// ------------------------------------------------------------------------------------------------ budget

static uint64_t reserve(const struct measured *measured) {
    return measured->kv + measured->compute + measured->overhead;
}

uint64_t plan_least(const struct model_file *model, const struct measured *measured) {
    return model->dense_bytes + reserve(measured) + 2 * model_largest_slot(model);
}

// Bytes that the user wants for experts by --expert-cache, what it cannot go without included.
static uint64_t wanted_for_experts(const struct model_file *model, const struct gn_knobs *knobs) {
    uint64_t least = 2 * model_largest_slot(model);
    int64_t wish = knobs->given[GN_EXPERT_CACHE] ? knobs->value[GN_EXPERT_CACHE] : 0;
    if (wish < 0) {
        return least + (uint64_t)(gn_knob_share(wish) * (double)model_all_slots(model));
    }
    return (uint64_t)wish > least ? (uint64_t)wish : least;
}

uint64_t plan_ram(const struct gn_knobs *knobs) {
    struct gn_taken taken = {.available = gn_memory_available(), .group = gn_memory_group()};
    return gn_budget_ram(knobs, &taken);
}

void plan_warn_of_group(const struct gn_knobs *knobs) {
    uint64_t group = gn_memory_group();
    if (knobs->given[GN_RAM] && group < (uint64_t)knobs->value[GN_RAM]) {
        char have[32], left[32];
        gn_warn("--ram (GUANACO_RAM) gives %s, but the control group of this process allows only %s more, and that "
                "counts; raise the limit of the group, or lower --ram",
                gn_format_bytes((uint64_t)knobs->value[GN_RAM], have), gn_format_bytes(group, left));
    }
}

bool plan_fits_group(const struct model_file *model, char *why, size_t why_size) {
    uint64_t group = gn_memory_group(), experts = 2 * model_largest_slot(model);
    if (model->dense_bytes + experts <= group) {
        return true;
    }
    char left[32], dense[32], two[32];
    snprintf(why, why_size,
             "the control group of this process allows only %s more, less than the dense weights (%s) and two experts "
             "(%s) of this model; raise the limit of the group (memory.max, or memory.limit_in_bytes)",
             gn_format_bytes(group, left), gn_format_bytes(model->dense_bytes, dense), gn_format_bytes(experts, two));
    return false;
}

static void explain_need(const struct model_file *model, const struct measured *measured, const struct gn_knobs *knobs,
                         uint64_t ram, char *why, size_t why_size) {
    char need[32], dense[32], kv[32], compute[32], overhead[32], experts[32], have[32];
    uint64_t for_experts = wanted_for_experts(model, knobs);
    bool automatic = !knobs->given[GN_RAM], grouped = !automatic && ram < (uint64_t)knobs->value[GN_RAM];
    snprintf(why, why_size,
             "this needs at least %s: dense weights %s, KV cache %s, compute buffers %s, the program %s, experts %s; "
             "%s %s; %s",
             gn_format_bytes(model->dense_bytes + reserve(measured) + for_experts, need),
             gn_format_bytes(model->dense_bytes, dense), gn_format_bytes(measured->kv, kv),
             gn_format_bytes(measured->compute, compute), gn_format_bytes(measured->overhead, overhead),
             gn_format_bytes(for_experts, experts),
             automatic ? "the machine, or the control group, can spare"
             : grouped ? "of --ram (GUANACO_RAM) the control group allows"
                       : "--ram (GUANACO_RAM) gives",
             gn_format_bytes(ram, have),
             automatic ? "free some memory, take a smaller context (-c), or set --ram (GUANACO_RAM) yourself"
             : grouped ? "raise the group's limit or take a smaller context (-c)"
                       : "raise it or take a smaller context (-c)");
}

bool plan_budget(const struct model_file *model, const struct measured *measured, struct gn_knobs *knobs, char *why,
                 size_t why_size) {
    uint64_t least_experts = 2 * model_largest_slot(model);
    int64_t wish = knobs->given[GN_EXPERT_CACHE] ? knobs->value[GN_EXPERT_CACHE] : 0;
    if (wish > 0 && (uint64_t)wish < least_experts) {
        char have[32], need[32], one[32];
        snprintf(why, why_size,
                 "--expert-cache (GUANACO_EXPERT_CACHE) gives %s, but this model needs at least %s (2 experts of %s); "
                 "raise it",
                 gn_format_bytes((uint64_t)wish, have), gn_format_bytes(least_experts, need),
                 gn_format_bytes(least_experts / 2, one));
        return false;
    }
    // The three quarters are nobody's wish: they do not stand in the way of what was asked for.
    bool cache_alone = knobs->given[GN_EXPERT_CACHE] && !knobs->given[GN_RAM];
    uint64_t ram = cache_alone ? gn_memory_available() : plan_ram(knobs);
    if (model->dense_bytes + reserve(measured) + wanted_for_experts(model, knobs) > ram) {
        explain_need(model, measured, knobs, ram, why, why_size);
        return false;
    }
    gn_knob_set(knobs, GN_RAM, (int64_t)ram);
    gn_knob_set(knobs, GN_RESERVE, (int64_t)reserve(measured));
    return true;
}
