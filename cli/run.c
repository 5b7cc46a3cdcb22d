// guanaco run: check the model, settle the budget, load, generate.
#include "chat.h"
#include "cli.h"
#include "engine.h"
#include "log_filter.h"
#include "model_file.h"
#include "options.h"
#include "plan.h"
#include "session.h"
#include "threads.h"

#include "config/input_file.h"
#include "config/knob_files.h"
#include "config/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_CONTEXT 4096

struct run {
    struct options options;
    struct model_file file;
    struct llama_model_params model_params;
    struct llama_context_params context_params;
    char plugin[PATH_MAX];
    bool streamed;
    struct session session;
    char *prompt; // NULL: ask
    char why[1024];
};

static uint32_t context_size(const struct run *run) {
    uint64_t wanted = (uint64_t)run->options.context, trained = run->file.context;
    if (wanted > 0) {
        return (uint32_t)wanted;
    }
    return (uint32_t)(trained > 0 && trained < DEFAULT_CONTEXT ? trained : DEFAULT_CONTEXT);
}

static void set_params(struct run *run) {
    const struct options *options = &run->options;
    run->model_params = llama_model_default_params();
    run->model_params.load_mode = LLAMA_LOAD_MODE_MMAP;
    run->model_params.use_extra_bufts = options->repack;
    run->model_params.n_gpu_layers = (int32_t)options->gpu_layers;
    run->context_params = llama_context_default_params();
    run->context_params.n_ctx = context_size(run);
    run->context_params.n_batch = (uint32_t)options->batch;
    run->context_params.n_ubatch = (uint32_t)(options->ubatch < options->batch ? options->ubatch : options->batch);
    run->context_params.n_outputs_max = 1; // logits of the last token alone
    run->context_params.n_threads = options->threads > 0 ? (int32_t)options->threads : threads_default();
    run->context_params.n_threads_batch = run->context_params.n_threads;
    run->context_params.no_perf = true;
}

// ------------------------------------------------------------------------------------------------ prompt

static char *read_all(FILE *from) {
    char *text = NULL;
    size_t used = 0, size = 0;
    for (;;) {
        if (used + 1 >= size) {
            size = size ? 2 * size : 4096;
            char *more = size < (size_t)1 << 30 ? realloc(text, size) : NULL;
            if (!more) {
                free(text);
                errno = ENOMEM;
                return NULL;
            }
            text = more;
        }
        size_t got = fread(text + used, 1, size - used - 1, from);
        used += got;
        if (got == 0) {
            text[used] = '\0';
            if (ferror(from)) {
                free(text);
                return NULL;
            }
            return text;
        }
    }
}

static bool read_prompt(struct run *run) {
    const struct options *options = &run->options;
    bool from_stdin = options->prompt && !strcmp(options->prompt, "-");
    from_stdin |= !options->prompt && !options->prompt_file && !isatty(STDIN_FILENO);
    if (options->prompt && !from_stdin) {
        run->prompt = strdup(options->prompt);
        if (!run->prompt) { // none would mean: ask
            snprintf(run->why, sizeof run->why, "cannot take the prompt: %s", strerror(errno));
        }
        return run->prompt;
    } else if (from_stdin || options->prompt_file) {
        const char *name = from_stdin ? "standard input" : options->prompt_file;
        FILE *from = from_stdin ? stdin : gn_input_open(options->prompt_file);
        run->prompt = from ? read_all(from) : NULL;
        if (!run->prompt) {
            snprintf(run->why, sizeof run->why, "cannot read the prompt from %s: %s", name, strerror(errno));
        } else if (!*run->prompt) {
            snprintf(run->why, sizeof run->why, "%s holds no prompt; write one there, or give it after -p", name);
        }
        if (from && !from_stdin) {
            fclose(from);
        }
        return run->prompt && *run->prompt;
    }
    return true;
}

// ------------------------------------------------------------------------------------------------ preparing

static bool open_model_file(struct run *run) {
    const char *path = run->options.model;
    if (!path) {
        path = demo_model();
        if (!path) {
            snprintf(run->why, sizeof run->why, "the demo model is not there; name a model with -m");
            return false;
        }
        gn_info("no model given (-m): running the demo model %s", path);
    }
    return model_file_open(path, &run->file, run->why, sizeof run->why);
}

// Nothing that this run reads is written over.
static bool check_outputs(struct run *run) {
    struct gn_outputs outputs = {0};
    return gn_knobs_outputs(&run->options.knobs, &outputs, run->why, sizeof run->why) &&
           model_file_spared(&run->file, &outputs, run->why, sizeof run->why) &&
           gn_outputs_spare(&outputs, "the prompt", run->options.prompt_file, run->why, sizeof run->why);
}

// A dense model is llama.cpp's alone. Only a --ram that it cannot keep is refused.
static bool check_dense(struct run *run, const struct measured *measured) {
    gn_info("dense model: nothing to stream, running it as llama.cpp does");
    uint64_t need = plan_least(&run->file, measured);
    int64_t ram = run->options.knobs.given[GN_RAM] ? run->options.knobs.value[GN_RAM] : INT64_MAX;
    if (need > (uint64_t)ram) {
        char text[32], have[32];
        snprintf(run->why, sizeof run->why,
                 "this dense model needs %s, all of it in memory; --ram (GUANACO_RAM) gives %s; raise it",
                 gn_format_bytes(need, text), gn_format_bytes((uint64_t)ram, have));
        return false;
    }
    return true;
}

static bool prepare(struct run *run) {
    run->streamed = run->file.n_layers > 0;
    if (run->streamed && !engine_find_plugin(run->plugin, sizeof run->plugin, run->why, sizeof run->why)) {
        return false;
    }
    const char *plugin = run->streamed ? run->plugin : NULL;
    struct gn_knobs *knobs = &run->options.knobs;
    struct measured measured;
    gn_knobs_export(knobs);
    plan_warn_of_group(knobs);
    if (run->streamed && !plan_fits_group(&run->file, run->why, sizeof run->why)) {
        return false;
    }
    if (!plan_measure(&run->file, &run->model_params, &run->context_params, plugin, run->options.verbose, &measured,
                      run->why, sizeof run->why)) {
        return false;
    }
    bool fits = run->streamed ? plan_budget(&run->file, &measured, knobs, run->why, sizeof run->why)
                              : check_dense(run, &measured);
    gn_knobs_export(knobs);
    return fits && engine_load(&run->session.engine, plugin, run->why, sizeof run->why);
}

static bool load(struct run *run) {
    run->session.options = &run->options;
    session_catch_interrupts();
    if (!session_open(&run->session, run->file.shards[0], run->model_params, run->context_params, run->why,
                      sizeof run->why)) {
        return false;
    }
    if (run->streamed && run->session.engine.mode) {
        gn_info("mode: %s", run->session.engine.mode());
    } else if (run->streamed) {
        gn_info("mode: streaming by %s, which does not say how", run->plugin);
    }
    return true;
}

// ------------------------------------------------------------------------------------------------ generating

static char *ask_user(void) {
    char *line = NULL;
    size_t size = 0;
    fputs("> ", stderr);
    ssize_t length = getline(&line, &size, stdin);
    if (length < 0) {
        free(line);
        return NULL;
    }
    line[strcspn(line, "\n")] = '\0';
    return line;
}

// One turn. The text is what the user said.
static enum outcome turn(struct run *run, struct chat *chat, const char *text, bool first) {
    if (!run->options.chat) {
        return session_generate(&run->session, text, first, NULL);
    }
    char *formatted = chat_ask(chat, text), *reply = NULL;
    enum outcome outcome = OUTCOME_FAILED;
    if (formatted) {
        outcome = session_generate(&run->session, formatted, first, &reply);
        chat_answer(chat, reply ? reply : "");
    } else {
        gn_error("the chat template cannot be applied to this text");
    }
    free(formatted);
    free(reply);
    return outcome;
}

static bool may_go_on(enum outcome outcome) {
    return outcome == OUTCOME_END || outcome == OUTCOME_LIMIT;
}

static enum outcome converse(struct run *run, struct chat *chat) {
    enum outcome outcome = OUTCOME_END;
    fputs(run->options.chat ? "Say something; Ctrl-D ends it.\n" : "Begin a text; Ctrl-D ends it.\n", stderr);
    for (bool first = true; may_go_on(outcome);) {
        char *line = ask_user();
        if (!line) {
            fputc('\n', stderr);
            return session_interrupted ? OUTCOME_INTERRUPTED : outcome;
        }
        if (*line) {
            outcome = turn(run, chat, line, first);
            first = false;
        }
        free(line);
    }
    return outcome;
}

static enum outcome generate(struct run *run) {
    struct chat chat = {0};
    if (run->options.chat && !chat_open(&chat, run->session.model, run->why, sizeof run->why)) {
        gn_error("%s", run->why);
        return OUTCOME_FAILED;
    }
    if (run->prompt && !run->options.chat && isatty(STDOUT_FILENO)) {
        fputs(run->prompt, stdout); // so that it reads on
        fflush(stdout);
    }
    enum outcome outcome = run->prompt ? turn(run, &chat, run->prompt, true) : converse(run, &chat);
    chat_close(&chat);
    return outcome;
}

// ------------------------------------------------------------------------------------------------ command

static int exit_code(enum outcome outcome, bool asked) {
    switch (outcome) {
    case OUTCOME_INTERRUPTED:
        return EXIT_SIGNALLED + session_interrupted;
    case OUTCOME_FAILED:
        return EXIT_FAILED;
    case OUTCOME_FULL: // a prompt that did not fit has generated nothing
        return asked ? EXIT_FAILED : EXIT_OK;
    default:
        return EXIT_OK;
    }
}

static int run_all(struct run *run) {
    if (!read_prompt(run) || !open_model_file(run) || !check_outputs(run)) {
        gn_error("%s", run->why);
        return EXIT_FAILED;
    }
    set_params(run);
    if (!prepare(run) || !load(run)) {
        if (session_interrupted) {
            return EXIT_SIGNALLED + session_interrupted;
        }
        if (run->why[0]) {
            gn_error("%s", run->why);
        }
        return EXIT_FAILED;
    }
    log_filter_quiet();
    enum outcome outcome = generate(run);
    session_print_closing_line(&run->session);
    return exit_code(outcome, run->session.decode_tokens == 0);
}

int command_run(int argc, char **argv) {
    static struct run run;
    if (!options_parse(&run.options, argc, argv, run.why, sizeof run.why)) {
        gn_error("%s", run.why);
        return EXIT_USAGE;
    }
    if (run.options.help) {
        options_print_help(stdout);
        return EXIT_OK;
    }
    gn_log_set_level((enum gn_log_level)run.options.knobs.value[GN_LOG]);
    log_filter_install(run.options.verbose);
    int code = run_all(&run);
    session_close(&run.session);
    model_file_close(&run.file);
    free(run.prompt);
    return code;
}
