#include "config/knobs.h"

#include "cache/shares.h"
#include "config/log.h"
#include "config/parse.h"
#include "config/tier_knobs.h"
#include "io/reader.h"
#include "policy/policy.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define KIB ((int64_t)1 << 10)
#define MIB ((int64_t)1 << 20)
#define PIB ((int64_t)1 << 50)

static const char *const io_names[] = {"auto", "uring", "threads", "mapped", "null", NULL};
static const char *const dense_names[] = {"auto", "copy", "lock", "mapped", NULL};
static const char *const prefetch_names[] = {"off", "router", "pilot", "auto", NULL};
static const char *const lock_names[] = {"none", "dense", "hot", "all", NULL};
static const char *const log_names[] = {"error", "warn", "info", "debug", NULL};
static const char *const admission_names[] = {"off", "second-miss", NULL};
static const char *const bool_names[] = {"off", "on", NULL};

const struct gn_knob_info gn_knob_table[GN_KNOB_COUNT] = {
    [GN_RAM] = {.flag = "--ram",
                .environment = "GUANACO_RAM",
                .value_name = "SIZE",
                .kind = GN_KIND_SIZE,
                .least = MIB,
                .most = PIB,
                .help =
                    "memory for the whole process: dense weights, KV cache, compute buffers and experts. auto: at most "
                    "three quarters of what the machine, or the control group, can spare"},
    [GN_EXPERT_CACHE] = {.flag = "--expert-cache",
                         .environment = "GUANACO_EXPERT_CACHE",
                         .value_name = "SIZE",
                         .kind = GN_KIND_SHARE,
                         .least = KIB,
                         .most = PIB,
                         .help = "memory for experts alone: a size, a share of all experts such as 50%, or min for the "
                                 "least that works. auto: what --ram leaves"},
    [GN_RESERVE] = {.environment = "GUANACO_RESERVE",
                    .value_name = "SIZE",
                    .kind = GN_KIND_SIZE,
                    .most = PIB,
                    .help = "what the program itself takes of the memory given with --ram; guanaco run measures it"},
    [GN_PROGRAM_CACHE] = {.environment = "GUANACO_PROGRAM_CACHE",
                          .value_name = "SIZE",
                          .kind = GN_KIND_SIZE,
                          .most = PIB,
                          .help = "what caches of the program, such as llama-server's prompt cache, may come to take "
                                  "of the memory given with --ram; guanaco exec sets it"},
    [GN_IO] = {.flag = "--io",
               .environment = "GUANACO_IO",
               .value_name = "ENGINE",
               .kind = GN_KIND_CHOICE,
               .choices = io_names,
               .most = GN_READER_NULL,
               .help =
                   "how experts are read: auto takes uring, or threads where the kernel refuses it; mapped leaves them "
                   "in the page cache, which several processes share; null reads nothing and gives garbage, to measure "
                   "all but the reading"},
    [GN_IO_DEPTH] = {.flag = "--io-depth",
                     .environment = "GUANACO_IO_DEPTH",
                     .value_name = "N",
                     .kind = GN_KIND_COUNT,
                     .most = 1024,
                     .help = "reads in flight at most; 0: the engine's own choice"},
    [GN_DIRECT] = {.flag = "--direct",
                   .environment = "GUANACO_DIRECT",
                   .value_name = "on|off",
                   .kind = GN_KIND_BOOL,
                   .choices = bool_names,
                   .fallback = 1,
                   .most = 1,
                   .help = "read past the page cache (O_DIRECT) where the file system can"},
    [GN_SPOOL_DIR] = {.flag = "--spool-dir",
                      .environment = "GUANACO_SPOOL_DIR",
                      .value_name = "DIR",
                      .kind = GN_KIND_TEXT,
                      .wanted = "a directory",
                      .help = "where experts are written that do not come from a mapped file, to be read from there; "
                              "none: TMPDIR, or /var/tmp"},
    [GN_DENSE] = {.flag = "--dense",
                  .environment = "GUANACO_DENSE",
                  .value_name = "MODE",
                  .kind = GN_KIND_CHOICE,
                  .choices = dense_names,
                  .most = GN_DENSE_MAPPED,
                  .help =
                      "how the weights that every token needs are kept: copy into memory, lock where they are mapped, "
                      "leave mapped; auto copies them when they fit"},
    [GN_POLICY] = {.flag = "--policy",
                   .environment = "GUANACO_POLICY",
                   .value_name = "NAME",
                   .kind = GN_KIND_TEXT,
                   .wanted = "expected-wait, lru, slru, lfu, lfu-plain, fifo, random, or the path of one of your own "
                             "(./mine.so)",
                   .fallback_text = "expected-wait",
                   .fits = gn_policy_is_named,
                   .help = "which expert leaves when room is needed"},
    [GN_POLICY_OPTIONS] = {.flag = "--policy-options",
                           .environment = "GUANACO_POLICY_OPTIONS",
                           .value_name = "LIST",
                           .kind = GN_KIND_TEXT,
                           .wanted = "key=value,key=value",
                           .help = "parameters of the policy; a wrong key lists those that there are"},
    [GN_ADMISSION] = {.flag = "--admission",
                      .environment = "GUANACO_ADMISSION",
                      .value_name = "MODE",
                      .kind = GN_KIND_CHOICE,
                      .choices = admission_names,
                      .most = GN_ADMISSION_SECOND_MISS,
                      .help = "who may push another expert out: off: all that come; second-miss: those that missed "
                              "before, not long ago. The others are read, used and dropped"},
    [GN_ADMISSION_WINDOW] = {.flag = "--admission-window",
                             .environment = "GUANACO_ADMISSION_WINDOW",
                             .value_name = "N",
                             .kind = GN_KIND_COUNT,
                             .fallback = 32,
                             .least = 1,
                             .most = 1 << 20,
                             .help = "tokens between the two misses, at most"},
    [GN_MAX_EXPERTS] = {.flag = "--guanaco-max-experts",
                        .environment = "GUANACO_MAX_EXPERTS",
                        .value_name = "N",
                        .kind = GN_KIND_COUNT,
                        .most = 1 << 20,
                        .environment_first = true,
                        .help = "experts in memory, at most, of each layer, and so of each expert tensor; layers may "
                                "share them, see --layer-shares. 0: as many as the memory allows. The environment has "
                                "its way over the option"},
    [GN_LAYER_SHARES] = {.flag = "--layer-shares",
                         .environment = "GUANACO_LAYER_SHARES",
                         .value_name = "KIND",
                         .kind = GN_KIND_CHOICE,
                         .choices = gn_shares_names,
                         .most = GN_SHARES_KINDS - 1,
                         .help = "how the layers share the memory for experts: any takes what it can use (global), "
                                 "equal shares, or in proportion to the different experts used lately (demand)"},
    [GN_PIN_HOT] = {.flag = "--pin-hot-experts",
                    .environment = "GUANACO_PIN_HOT_EXPERTS",
                    .value_name = "N",
                    .kind = GN_KIND_COUNT,
                    .most = 1 << 24,
                    .help = "experts, of all layers together, that stay in memory because they are used most, whatever "
                            "the policy says"},
    [GN_PIN_HOT_BUDGET] = {.flag = "--pin-hot-experts-budget",
                           .environment = "GUANACO_PIN_HOT_EXPERTS_BUDGET",
                           .value_name = "SIZE",
                           .kind = GN_KIND_SIZE,
                           .most = PIB,
                           .help = "memory for such experts. auto: as --pin-hot-experts says"},
    [GN_PIN_DECAY] = {.flag = "--pin-decay",
                      .environment = "GUANACO_PIN_DECAY",
                      .value_name = "PERCENT",
                      .kind = GN_KIND_COUNT,
                      .fallback = 95,
                      .least = 1,
                      .most = 100,
                      .help = "how much a past use counts from one choice of them to the next, 200 layer steps later"},
    [GN_PIN_WARM_UP] = {.flag = "--pin-warm-up",
                        .environment = "GUANACO_PIN_WARM_UP",
                        .value_name = "N",
                        .kind = GN_KIND_COUNT,
                        .fallback = 200,
                        .least = 1,
                        .most = 1 << 24,
                        .help = "layer steps before the first choice of them"},
    [GN_LOCK] = {.flag = "--lock",
                 .environment = "GUANACO_LOCK",
                 .value_name = "WHAT",
                 .kind = GN_KIND_CHOICE,
                 .choices = lock_names,
                 .most = GN_LOCK_ALL,
                 .help =
                     "what the kernel may never page out: the weights that every token needs (dense), these and the "
                     "slots of pinned experts (hot), or these and all slots (all)"},
    [GN_IMATRIX] = {.flag = "--imatrix",
                    .environment = "GUANACO_IMATRIX",
                    .value_name = "FILE",
                    .kind = GN_KIND_TEXT,
                    .wanted = "a file, auto, off",
                    .fallback_text = "auto",
                    .help = "an imatrix of the model (GGUF, with counts): its most used experts are read ahead of use. "
                            "auto: MODEL.imatrix.gguf beside MODEL.gguf, if there is one"},
    [GN_HOT_SET] = {.flag = "--hot-set",
                    .environment = "GUANACO_HOT_SET",
                    .value_name = "FILE",
                    .kind = GN_KIND_TEXT,
                    .wanted = "a file, auto, off",
                    .fallback_text = "off",
                    .help = "where to keep, from run to run, how much each expert is used, so that the next run begins "
                            "with the hot ones. auto: MODEL.guanaco-hot beside MODEL.gguf"},
    [GN_TIERS] = {.flag = "--tiers",
                  .environment = "GUANACO_TIERS",
                  .value_name = "LIST",
                  .kind = GN_KIND_TEXT,
                  .wanted = "NAME:POLICY:SIZE for each tier, fastest first, such as Vulkan0:auto:2GiB,RAM:auto:8GiB",
                  .fits = gn_tiers_are,
                  .help = "where experts are held: devices by llama.cpp's names, then RAM; a policy or auto; a size, a "
                          "share of all experts such as 25%, or auto. Instead of --gpu-cache, --policy and "
                          "--expert-cache"},
    [GN_GPU_CACHE] = {.flag = "--gpu-cache",
                      .environment = "GUANACO_GPU_CACHE",
                      .value_name = "SIZE",
                      .kind = GN_KIND_TEXT,
                      .wanted = "a size, a share of all experts such as 25%, auto, off",
                      .fallback_text = "off",
                      .fits = gn_tier_size_is,
                      .help =
                          "memory of the first GPU for experts: the most used are held and computed there, while the "
                          "CPU computes the others. auto: what is free there, less 1 GiB"},
    [GN_GPU_SLOTS] = {.flag = "--gpu-slots",
                      .environment = "GUANACO_GPU_SLOTS",
                      .value_name = "N",
                      .kind = GN_KIND_COUNT,
                      .most = 1 << 20,
                      .help = "the same as a number of experts of each layer, on average; 0: as --gpu-cache says"},
    [GN_GPU_INSERTS] = {.flag = "--gpu-inserts",
                        .environment = "GUANACO_GPU_INSERTS",
                        .value_name = "N",
                        .kind = GN_KIND_COUNT,
                        .most = 1 << 16,
                        .help = "experts that are copied to a GPU for each token, at most; 0: as many as pay, and what "
                                "of a prompt the GPU computes is measured as well"},
    [GN_STAGING] = {.flag = "--staging",
                    .environment = "GUANACO_STAGING",
                    .value_name = "N",
                    .kind = GN_KIND_COUNT,
                    .fallback = 16,
                    .least = 2,
                    .most = 1024,
                    .help =
                        "spare slots, at most: for experts that are used once and not kept, and for those read ahead"},
    [GN_PREFETCH] = {.flag = "--prefetch",
                     .environment = "GUANACO_PREFETCH",
                     .value_name = "WAY",
                     .kind = GN_KIND_CHOICE,
                     .choices = prefetch_names,
                     .fallback = GN_PREFETCH_AUTO,
                     .most = GN_PREFETCH_AUTO,
                     .help = "how the next layer's experts are guessed, to be read while a layer computes: router runs "
                             "that layer's router early, pilot has learnt which experts go with this layer's; auto "
                             "takes for each layer what brings more, and stops where tokens are no faster for it. "
                             "Guesses that do not come true stop by themselves"},
    [GN_PILOT] = {.flag = "--pilot",
                  .environment = "GUANACO_PILOT",
                  .value_name = "on|off",
                  .kind = GN_KIND_BOOL,
                  .choices = bool_names,
                  .fallback = 1,
                  .most = 1,
                  .help = "as in an earlier tool, 0 is --prefetch off and 1 is --prefetch auto; --prefetch has its way "
                          "over it"},
    [GN_PILOT_MASS] = {.flag = "--pilot-mass",
                       .environment = "GUANACO_PILOT_MASS",
                       .value_name = "N",
                       .kind = GN_KIND_FRACTION,
                       .fallback = 9000,
                       .most = 10000,
                       .help = "pilot guesses the likeliest experts that have together this much of the probability; "
                               "less reads less in vain, 1 guesses as many as are ever read"},
    [GN_PREFILL_TOKENS] = {.flag = "--prefill-tokens",
                           .environment = "GUANACO_PREFILL_TOKENS",
                           .value_name = "N",
                           .kind = GN_KIND_COUNT,
                           .fallback = 17,
                           .least = 2,
                           .most = 1 << 20,
                           .help =
                               "a batch of at least this many tokens is a prompt: it reads experts in file order and "
                               "pushes none out"},
    [GN_TRACE] = {.flag = "--trace",
                  .environment = "GUANACO_TRACE",
                  .value_name = "FILE",
                  .kind = GN_KIND_TEXT,
                  .wanted = "a file",
                  .help = "write down which experts each layer used, for guanaco simulate"},
    [GN_STATS_INTERVAL] = {.flag = "--stats-interval",
                           .environment = "GUANACO_STATS_INTERVAL",
                           .value_name = "N",
                           .kind = GN_KIND_COUNT,
                           .most = 1 << 30,
                           .help = "tokens from one line about the cache to the next; 0: one at the end alone"},
    [GN_LOG] = {.flag = "--log",
                .environment = "GUANACO_LOG",
                .value_name = "LEVEL",
                .kind = GN_KIND_CHOICE,
                .choices = log_names,
                .fallback = GN_LOG_INFO,
                .most = GN_LOG_DEBUG,
                .help = "least important lines that are still printed"},
    [GN_FAULT_AT] = {.environment = "GUANACO_FAULT_AT",
                     .value_name = "N",
                     .kind = GN_KIND_COUNT,
                     .most = INT64_MAX,
                     .help = "tests: make the N-th read fail"},
    [GN_FAULT_GPU] = {.environment = "GUANACO_FAULT_GPU",
                      .value_name = "N",
                      .kind = GN_KIND_COUNT,
                      .most = INT64_MAX,
                      .help = "tests: make the N-th call to a GPU fail"},
    [GN_FAULT_RESULT] = {.environment = "GUANACO_FAULT_RESULT",
                         .value_name = "N",
                         .kind = GN_KIND_SIGNED,
                         .fallback = -EIO,
                         .least = -4095,
                         .most = INT32_MAX,
                         .help = "tests: with this negative errno, or after this many bytes"},
};

void gn_knobs_default(struct gn_knobs *knobs) {
    memset(knobs, 0, sizeof *knobs);
    for (int k = 0; k < GN_KNOB_COUNT; k++) {
        knobs->value[k] = gn_knob_table[k].fallback;
        knobs->text[k] = gn_knob_table[k].fallback_text;
    }
}

void gn_knob_set(struct gn_knobs *knobs, enum gn_knob knob, int64_t value) {
    knobs->value[knob] = value;
    knobs->given[knob] = true;
}

// A share is kept as -1 - hundredths of a per cent, so that "min" (0) is negative as well.
#define WHOLE 10000

double gn_knob_share(int64_t value) {
    return (double)(-1 - value) / WHOLE;
}

// "min" or "12.5%". Returns -EINVAL when the text is neither.
static int parse_share(const char *text, int64_t *value) {
    if (!strcasecmp(text, "min")) {
        *value = -1;
        return 0;
    }
    long double percent;
    const char *end = gn_parse_number(text, &percent);
    if (!end || strcmp(end, "%") != 0) {
        return -EINVAL;
    }
    if (percent > 100) {
        return -ERANGE;
    }
    *value = -1 - (int64_t)(percent * WHOLE / 100 + 0.5L);
    return 0;
}

double gn_knob_fraction(int64_t value) {
    return (double)value / WHOLE;
}

static int parse_fraction(const char *text, int64_t *value) {
    double number;
    int failed = gn_parse_decimal(text, &number);
    if (failed) {
        return failed;
    }
    *value = number >= 0 && number <= 1 ? (int64_t)(number * WHOLE + 0.5) : -1;
    return 0;
}

static int parse_choice(const struct gn_knob_info *info, const char *text, int64_t *value) {
    for (int64_t i = 0; info->choices[i]; i++) {
        if (!strcasecmp(text, info->choices[i])) {
            *value = i;
            return 0;
        }
    }
    static const char *const also[] = {"0", "1", "no", "yes", "false", "true"};
    for (size_t i = 0; info->kind == GN_KIND_BOOL && i < sizeof also / sizeof *also; i++) {
        if (!strcasecmp(text, also[i])) {
            *value = (int64_t)(i % 2);
            return 0;
        }
    }
    return -EINVAL;
}

static int parse_value(const struct gn_knob_info *info, const char *text, int64_t *value) {
    int failed;
    switch (info->kind) {
    case GN_KIND_SHARE:
        failed = parse_share(text, value);
        return failed == -EINVAL ? gn_parse_size(text, value) : failed;
    case GN_KIND_SIZE:
        return gn_parse_size(text, value);
    case GN_KIND_BOOL:
    case GN_KIND_CHOICE:
        return parse_choice(info, text, value);
    case GN_KIND_TEXT: // anything that fits on a line
        return *text && !text[strcspn(text, "\r\n")] && (!info->fits || info->fits(text)) ? 0 : -EINVAL;
    case GN_KIND_FRACTION:
        return parse_fraction(text, value);
    case GN_KIND_COUNT:
    case GN_KIND_SIGNED:
        break;
    }
    return gn_parse_integer(text, value);
}

static void list_choices(const struct gn_knob_info *info, char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; info->choices[i] && used < size; i++) {
        const char *joint = i == 0 ? "" : info->choices[i + 1] ? ", " : " or ";
        used += (size_t)snprintf(text + used, size - used, "%s%s", joint, info->choices[i]);
    }
}

// What would have been right.
static void describe_wanted(const struct gn_knob_info *info, char *text, size_t size) {
    char least[32], most[32];
    switch (info->kind) {
    case GN_KIND_SIZE:
        snprintf(text, size, "a size such as 512MiB or 1.5GiB (%s to %s), or auto",
                 gn_format_bytes((uint64_t)info->least, least), gn_format_bytes((uint64_t)info->most, most));
        return;
    case GN_KIND_SHARE:
        snprintf(text, size, "a size such as 512MiB or 1.5GiB, a share from 0%% to 100%%, min or auto");
        return;
    case GN_KIND_BOOL:
    case GN_KIND_CHOICE:
        list_choices(info, text, size);
        return;
    case GN_KIND_TEXT:
        snprintf(text, size, "%s", info->wanted);
        return;
    case GN_KIND_FRACTION:
        snprintf(text, size, "a number from 0 to 1 such as 0.9");
        return;
    case GN_KIND_COUNT:
    case GN_KIND_SIGNED:
        break;
    }
    snprintf(text, size, "a whole number from %" PRId64 " to %" PRId64, info->least, info->most);
}

// The start of the text, fit for one line.
static const char *quote(const char *text, char quoted[static 44]) {
    size_t i = 0;
    for (; text[i] && i < 40; i++) {
        quoted[i] = (unsigned char)text[i] < ' ' ? '?' : text[i];
    }
    memcpy(quoted + i, text[i] ? "..." : "\0\0\0", 4);
    return quoted;
}

int gn_knob_parse(struct gn_knobs *knobs, enum gn_knob knob, const char *text, const char *where, char *why,
                  size_t why_size) {
    const struct gn_knob_info *info = &gn_knob_table[knob];
    bool size = info->kind == GN_KIND_SIZE || info->kind == GN_KIND_SHARE;
    if (size && !strcasecmp(text, "auto")) {
        knobs->value[knob] = info->fallback;
        knobs->given[knob] = false;
        return 0;
    }
    int64_t value = 0;
    int failed = parse_value(info, text, &value);
    bool share = info->kind == GN_KIND_SHARE && value < 0;
    if (!failed && !share && (value < info->least || value > info->most)) {
        failed = -ERANGE;
    }
    if (failed) {
        char wanted[160], quoted[44];
        describe_wanted(info, wanted, sizeof wanted);
        snprintf(why, why_size, "%s: '%s' %s; give %s", where, quote(text, quoted),
                 failed == -ERANGE ? "is out of range" : "will not do", wanted);
        return failed;
    }
    gn_knob_set(knobs, knob, value);
    if (info->kind == GN_KIND_TEXT) {
        knobs->text[knob] = text;
    }
    return 0;
}

// Variables of ours that are no knobs.
static const char *const other_variables[] = {"GUANACO_PLUGIN", "GUANACO_STREAMING", "GUANACO_TEST_DIR"};

extern char **environ;

static void warn_of_unknown(const char *variable) {
    size_t length = strcspn(variable, "=");
    for (int k = 0; k < GN_KNOB_COUNT; k++) {
        if (strlen(gn_knob_table[k].environment) == length &&
            !strncmp(variable, gn_knob_table[k].environment, length)) {
            return;
        }
    }
    for (size_t i = 0; i < sizeof other_variables / sizeof *other_variables; i++) {
        if (strlen(other_variables[i]) == length && !strncmp(variable, other_variables[i], length)) {
            return;
        }
    }
    gn_warn("environment variable %.*s is not known and changes nothing", (int)length, variable);
}

int gn_knobs_from_environment(struct gn_knobs *knobs, char *why, size_t why_size) {
    for (char **variable = environ; variable && *variable; variable++) {
        if (!strncmp(*variable, "GUANACO_", strlen("GUANACO_"))) {
            warn_of_unknown(*variable);
        }
    }
    for (int k = 0; k < GN_KNOB_COUNT; k++) {
        const char *name = gn_knob_table[k].environment, *text = getenv(name);
        if (!text || !*text) {
            continue; // empty is as good as none
        }
        int failed = gn_knob_parse(knobs, (enum gn_knob)k, text, name, why, why_size);
        if (failed) {
            return failed;
        }
    }
    return 0;
}

static int take_flag(struct gn_knobs *knobs, enum gn_knob knob, const char *text, char *why, size_t why_size) {
    const struct gn_knob_info *info = &gn_knob_table[knob];
    const char *stronger = info->environment_first ? getenv(info->environment) : NULL;
    struct gn_knobs unused = *knobs;
    bool overruled = stronger && *stronger;
    int failed = gn_knob_parse(overruled ? &unused : knobs, knob, text, info->flag, why, why_size);
    if (!failed && overruled && unused.value[knob] != knobs->value[knob]) {
        gn_info("%s %s is left out: %s=%s has its way", info->flag, text, info->environment, stronger);
    }
    return failed ? failed : 1;
}

int gn_knobs_from_argument(struct gn_knobs *knobs, int argc, char *const *argv, int *i, char *why, size_t why_size) {
    const char *word = argv[*i];
    for (int k = 0; k < GN_KNOB_COUNT; k++) {
        const struct gn_knob_info *info = &gn_knob_table[k];
        size_t length = info->flag ? strlen(info->flag) : 0;
        if (length == 0 || strncmp(word, info->flag, length) != 0 || (word[length] && word[length] != '=')) {
            continue;
        }
        const char *text = word + length + 1;
        if (!word[length]) {
            if (*i + 1 >= argc) {
                snprintf(why, why_size, "%s needs a value: %s %s", info->flag, info->flag, info->value_name);
                return -EINVAL;
            }
            text = argv[++*i];
        }
        return take_flag(knobs, (enum gn_knob)k, text, why, why_size);
    }
    return 0;
}

void gn_knobs_export(const struct gn_knobs *knobs) {
    char buffer[32];
    for (int k = 0; k < GN_KNOB_COUNT; k++) {
        if (knobs->given[k]) {
            bool is_text = gn_knob_table[k].kind == GN_KIND_TEXT;
            const char *text = is_text ? knobs->text[k] : gn_knob_format((enum gn_knob)k, knobs->value[k], buffer);
            setenv(gn_knob_table[k].environment, text, 1);
        } else {
            unsetenv(gn_knob_table[k].environment);
        }
    }
}

enum gn_prefetch gn_knobs_prefetch(const struct gn_knobs *knobs) {
    enum gn_prefetch prefetch = (enum gn_prefetch)knobs->value[GN_PREFETCH];
    if (knobs->given[GN_PREFETCH] || !knobs->given[GN_PILOT]) {
        return prefetch;
    }
    return knobs->value[GN_PILOT] ? GN_PREFETCH_AUTO : GN_PREFETCH_OFF;
}
