#include "translate.h"

#include "config/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

// A flag with a value, and the knob, by its environment variable, that does what the flag did.
struct familiar {
    const char *flag, *environment;
    bool environment_wins; // over the flag, as it did there
    bool zero_is_none;     // 0 stood for "not at all" or "no limit": the knob keeps its default
    const char *note;      // what is different here; NULL: nothing
};

static const struct familiar flags[] = {
    {"--guanaco-max-experts", "GUANACO_MAX_EXPERTS", true, false, NULL},
    {"--pin-hot-experts", "GUANACO_PIN_HOT_EXPERTS", false, true, NULL},
    {"--pin-hot-experts-budget-mib", "GUANACO_PIN_HOT_EXPERTS_BUDGET", false, true, NULL},
    {"--pin-hot-experts-stats-interval", "GUANACO_STATS_INTERVAL", false, true, NULL},
    {"--moe-expert-cache-size", "GUANACO_GPU_SLOTS", false, true, NULL},
    {"--moe-expert-cache", "GUANACO_GPU_SLOTS", false, true, NULL},
    {"--moe-expert-cache-policy", "GUANACO_POLICY", false, false, NULL},
};
#define FLAGS (sizeof flags / sizeof *flags)

static bool is_any_of(const char *text, const char *const words[]) {
    for (; *words; words++) {
        if (!strcasecmp(text, *words)) {
            return true;
        }
    }
    return false;
}

static bool means_off(const char *text) {
    static const char *const words[] = {"off", "0", "no", "false", NULL};
    return is_any_of(text, words);
}

static bool means_on(const char *text) {
    static const char *const words[] = {"on", "1", "yes", "true", NULL};
    return is_any_of(text, words);
}

// GN_KNOB_COUNT when there is none.
static enum gn_knob find_knob(const char *environment) {
    int k = 0;
    while (k < GN_KNOB_COUNT && strcmp(gn_knob_table[k].environment, environment) != 0) {
        k++;
    }
    return (enum gn_knob)k;
}

// Load modes of earlier tools: mapped, and streamed or with experts held.
static bool is_streaming_mode(const char *mode) {
    static const char *const modes[] = {"streaming", "mmap+pin", "mmap+lockhot", NULL};
    return is_any_of(mode, modes);
}

// ---- the environment

static bool refuse_missing(const char *what, char *why, size_t why_size) {
    snprintf(why, why_size, "%s: this version has nothing that does that; leave it out", what);
    return false;
}

static bool translate_io_uring(char *why, size_t why_size) {
    const char *text = getenv("GUANACO_IO_URING");
    if (!text) {
        return true;
    }
    if (*text && !means_on(text) && !means_off(text)) {
        snprintf(why, why_size, "GUANACO_IO_URING: '%.40s' will not do; give 1 or 0, or set GUANACO_IO instead", text);
        return false;
    }
    if (*text) {
        setenv("GUANACO_IO", means_on(text) ? "uring" : "threads", 0);
    }
    unsetenv("GUANACO_IO_URING");
    return true;
}

bool translate_environment(enum streaming *streaming, char *why, size_t why_size) {
    *streaming = STREAMING_BY_DEFAULT;
    if (!translate_io_uring(why, why_size)) {
        return false;
    }
    const char *mode = getenv("LOAD_MODE"), *wanted = getenv("GUANACO_STREAMING");
    if (mode && is_streaming_mode(mode)) {
        *streaming = STREAMING_ON;
    }
    if (wanted && *wanted) {
        if (!means_on(wanted) && !means_off(wanted)) {
            snprintf(why, why_size, "GUANACO_STREAMING: '%.40s' will not do; give on or off", wanted);
            return false;
        }
        *streaming = means_on(wanted) ? STREAMING_ON : STREAMING_OFF;
    }
    return true;
}

// ---- the arguments

bool arguments_add(struct arguments *arguments, char *word) {
    char **grown = realloc(arguments->words, ((size_t)arguments->count + 2) * sizeof *grown);
    if (!grown) {
        return false;
    }
    grown[arguments->count++] = word;
    grown[arguments->count] = NULL;
    arguments->words = grown;
    return true;
}

void arguments_free(struct arguments *arguments) {
    free(arguments->words);
    *arguments = (struct arguments){0};
}

static bool is_flag(const char *word, const char *flag) {
    size_t length = strlen(flag);
    return !strncmp(word, flag, length) && (!word[length] || word[length] == '=');
}

bool arguments_have(const struct arguments *arguments, const char *flag) {
    for (int i = 1; i < arguments->count; i++) {
        if (is_flag(arguments->words[i], flag)) {
            return true;
        }
    }
    return false;
}

char **arguments_value(const struct arguments *arguments, const char *flag) {
    for (int i = 1; i + 1 < arguments->count; i++) {
        if (!strcmp(arguments->words[i], flag)) {
            return &arguments->words[i + 1];
        }
    }
    return NULL;
}

static bool set_knob(const struct familiar *familiar, const char *text, struct gn_knobs *knobs, char *why,
                     size_t why_size) {
    enum gn_knob knob = find_knob(familiar->environment);
    if (knob == GN_KNOB_COUNT) {
        return refuse_missing(familiar->flag, why, why_size);
    }
    const char *set = getenv(familiar->environment);
    if ((familiar->environment_wins && set && *set) || (familiar->zero_is_none && !strcmp(text, "0"))) {
        return true;
    }
    if (familiar->note) {
        gn_info("%s: %s", familiar->flag, familiar->note);
    }
    return gn_knob_parse(knobs, knob, text, familiar->flag, why, why_size) == 0;
}

// The value of "flag value" or "flag=value"; moves *i to its last word. NULL with a line in why when it is missing.
static const char *take_value(int argc, char **argv, int *i, char *why, size_t why_size) {
    const char *equals = strchr(argv[*i], '=');
    if (equals) {
        return equals + 1;
    }
    if (*i + 1 >= argc) {
        snprintf(why, why_size, "%s: a value is missing", argv[*i]);
        return NULL;
    }
    return argv[++*i];
}

enum taken { TAKEN, NOT_OURS, BAD };

static enum taken take_familiar(int argc, char **argv, int *i, struct gn_knobs *knobs, char *why, size_t why_size) {
    for (size_t f = 0; f < FLAGS; f++) {
        if (is_flag(argv[*i], flags[f].flag)) {
            const char *text = take_value(argc, argv, i, why, why_size);
            return text && set_knob(&flags[f], text, knobs, why, why_size) ? TAKEN : BAD;
        }
    }
    return NOT_OURS;
}

static enum taken take_switch(char *word, struct arguments *arguments) {
    static const char *const on[] = {"--guanaco-streaming", "-gs", NULL};
    static const char *const off[] = {"--no-guanaco-streaming", "-ngs", NULL};
    if (!is_any_of(word, on) && !is_any_of(word, off)) {
        return NOT_OURS;
    }
    arguments->streaming = is_any_of(word, on) ? STREAMING_ON : STREAMING_OFF;
    arguments->off_by = arguments->streaming == STREAMING_OFF ? word : NULL;
    return TAKEN;
}

// Modes that llama.cpp does not have become the one that they were built on.
static char *plain_mode(char *mode, struct arguments *arguments) {
    static char mapped[] = "mmap";
    if (!is_streaming_mode(mode)) {
        return mode;
    }
    arguments->streaming = STREAMING_ON;
    return mapped;
}

bool translate_arguments(int argc, char **argv, struct gn_knobs *knobs, struct arguments *arguments, char *why,
                         size_t why_size) {
    // What follows these is text, whatever it looks like.
    static const char *const before_text[] = {"-p", "--prompt", "-sys", "--system-prompt", NULL};
    static const char *const before_mode[] = {"-lm", "--load-mode", NULL};
    *arguments = (struct arguments){0};
    bool added = true;
    for (int i = 0; i < argc && added; i++) {
        bool pair = i > 0 && i + 1 < argc && (is_any_of(argv[i], before_text) || is_any_of(argv[i], before_mode));
        if (pair) {
            bool mode = is_any_of(argv[i], before_mode);
            added = arguments_add(arguments, argv[i]);
            i++;
            added = added && arguments_add(arguments, mode ? plain_mode(argv[i], arguments) : argv[i]);
            continue;
        }
        enum taken taken = i > 0 ? take_switch(argv[i], arguments) : NOT_OURS;
        if (taken == NOT_OURS && i > 0) {
            taken = take_familiar(argc, argv, &i, knobs, why, why_size);
        }
        if (taken == BAD) {
            return false;
        }
        added = taken == TAKEN || arguments_add(arguments, argv[i]);
    }
    if (!added) {
        snprintf(why, why_size, "memory is short");
    }
    return added;
}
