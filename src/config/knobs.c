#include "config/knobs.h"

#include "config/log.h"
#include "policy/policy.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>


#define SHARE_STEPS 10000 // shares are kept in hundredths of a percent

extern char **environ;

static const char *const io_names[] = {"auto", "uring", "threads", "null", NULL};
static const char *const dense_names[] = {"auto", "copy", "lock", "mapped", NULL};
static const char *const log_names[] = {"error", "warn", "info", "debug", NULL};

const struct gn_knob_info gn_knob_table[GN_KNOB_COUNT] = {
    [GN_RAM] = {"--ram", "GUANACO_RAM", "SIZE", GN_KIND_SIZE, 0, 0, INT64_MAX, NULL,
                "memory for the whole process: dense weights, KV cache, buffers and experts; automatic: three quarters of "
                "what the machine and its control group have left"},
    [GN_EXPERT_CACHE] = {"--expert-cache", "GUANACO_EXPERT_CACHE", "SIZE", GN_KIND_SHARE, 0, 0, INT64_MAX, NULL,
                         "memory for experts alone, instead of --ram; also N% of all experts, or min"},
    [GN_RESERVE] = {NULL, "GUANACO_RESERVE", "SIZE", GN_KIND_SIZE, 0, 0, INT64_MAX, NULL,
                    "what of --ram the program itself needs (set by guanaco run)"},
    [GN_IO] = {"--io", "GUANACO_IO", "ENGINE", GN_KIND_CHOICE, 0, 0, 3, io_names,
               "how experts are read: uring, threads, auto (uring where the kernel allows it), or null (reads nothing: for "
               "measuring only, the output is garbage)"},
    [GN_IO_DEPTH] = {"--io-depth", "GUANACO_IO_DEPTH", "N", GN_KIND_COUNT, 0, 0, 4096, NULL,
                     "reads in flight at most; 0: the engine's own choice"},
    [GN_DIRECT] = {"--direct", "GUANACO_DIRECT", "on|off", GN_KIND_BOOL, 1, 0, 1, NULL,
                   "read experts past the page cache (O_DIRECT) where the file system can"},
    [GN_DENSE] = {"--dense", "GUANACO_DENSE", "MODE", GN_KIND_CHOICE, 0, 0, 3, dense_names,
                  "how the dense weights stay in memory: copy (out of the page cache), lock, mapped, or auto (copy where the "
                  "budget has room)"},
    [GN_POLICY] = {"--policy", "GUANACO_POLICY", "NAME", GN_KIND_CHOICE, 0, 0, INT64_MAX, gn_policy_names,
                   "which expert makes room for another: lru"},
    [GN_STAGING] = {"--staging", "GUANACO_STAGING", "N", GN_KIND_COUNT, 8, 2, 1024, NULL,
                    "most slots set aside for experts that pass through without being cached"},
    [GN_PREFILL_TOKENS] = {"--prefill-tokens", "GUANACO_PREFILL_TOKENS", "N", GN_KIND_COUNT, 17, 1, 1 << 20, NULL,
                           "a batch of at least N tokens is a prefill: it evicts no expert"},
    [GN_LOG] = {"--log", "GUANACO_LOG", "LEVEL", GN_KIND_CHOICE, GN_LOG_INFO, 0, 3, log_names,
                "how much to say: error, warn, info or debug"},
    [GN_FAULT_AT] = {NULL, "GUANACO_FAULT_AT", "N", GN_KIND_COUNT, 0, 0, INT64_MAX, NULL,
                     "for tests: the N-th read fails"},
    [GN_FAULT_RESULT] = {NULL, "GUANACO_FAULT_RESULT", "N", GN_KIND_SIGNED, -EIO, -4095, INT32_MAX, NULL,
                         "for tests: with this error (negative errno), or after that many bytes"},
};

void gn_knobs_default(struct gn_knobs *knobs) {
    for (int k = 0; k < GN_KNOB_COUNT; k++) {
        knobs->value[k] = gn_knob_table[k].fallback;
        knobs->given[k] = false;
    }
}

// How many bytes a unit stands for; 0 when it is none.
static double unit_bytes(const char *unit) {
    static const struct {
        const char *name;
        double bytes;
    } units[] = {
        {"", 1048576.0},       {"b", 1},
        {"k", 1024.0},         {"kib", 1024.0},         {"kb", 1e3},
        {"m", 1048576.0},      {"mib", 1048576.0},      {"mb", 1e6},
        {"g", 1073741824.0},   {"gib", 1073741824.0},   {"gb", 1e9},
        {"t", 1099511627776.0}, {"tib", 1099511627776.0}, {"tb", 1e12},
    };
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (!strcasecmp(unit, units[i].name)) {
            return units[i].bytes;
        }
    }
    return 0;
}

// A decimal number without sign at the start of text; the rest, blanks skipped, in *rest. False when there is none.
static bool read_number(const char *text, double *number, const char **rest) {
    if (!isdigit((unsigned char)text[0]) && text[0] != '.') {
        return false;
    }
    size_t digits = strspn(text, "0123456789.");
    char *end;
    *number = strtod(text, &end);
    if (end != text + digits) { // hexadecimal, exponents, two points
        return false;
    }
    *rest = end + strspn(end, " ");
    return true;
}

static bool parse_size(const char *text, int64_t *value) {
    double number;
    const char *unit;
    if (!read_number(text, &number, &unit) || unit_bytes(unit) == 0) {
        return false;
    }
    double bytes = floor(number * unit_bytes(unit));
    if (bytes > 9e18) {
        return false;
    }
    *value = (int64_t)bytes;
    return true;
}

static int64_t share_value(double share) { return -1 - (int64_t)(share * SHARE_STEPS + 0.5); }

double gn_knob_share(int64_t value) { return (double)(-1 - value) / SHARE_STEPS; }

static bool parse_share(const char *text, int64_t *value) {
    double number;
    const char *rest;
    if (!strcasecmp(text, "min")) {
        *value = share_value(0);
        return true;
    }
    if (read_number(text, &number, &rest) && !strcmp(rest, "%")) {
        *value = share_value(number / 100);
        return number <= 100;
    }
    return parse_size(text, value) && *value > 0;
}

static bool parse_integer(const char *text, int64_t *value) {
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    *value = number;
    return !errno && end != text && !*end && !isspace((unsigned char)text[0]);
}

static bool parse_bool(const char *text, int64_t *value) {
    static const char *const no[] = {"off", "0", "no", "false"}, *const yes[] = {"on", "1", "yes", "true"};
    for (int i = 0; i < 4; i++) {
        if (!strcasecmp(text, no[i]) || !strcasecmp(text, yes[i])) {
            *value = !strcasecmp(text, yes[i]);
            return true;
        }
    }
    return false;
}

static bool parse_choice(const char *const *choices, const char *text, int64_t *value) {
    for (int i = 0; choices[i]; i++) {
        if (!strcasecmp(text, choices[i])) {
            *value = i;
            return true;
        }
    }
    return false;
}

static bool parse_value(const struct gn_knob_info *info, const char *text, int64_t *value) {
    switch (info->kind) {
    case GN_KIND_SIZE:
        return parse_size(text, value);
    case GN_KIND_SHARE:
        return parse_share(text, value);
    case GN_KIND_BOOL:
        return parse_bool(text, value);
    case GN_KIND_CHOICE:
        return parse_choice(info->choices, text, value);
    default:
        return parse_integer(text, value);
    }
}

// What would have been right, for messages.
static void describe_wanted(const struct gn_knob_info *info, char *text, size_t size) {
    size_t used = 0;
    switch (info->kind) {
    case GN_KIND_SIZE:
        snprintf(text, size, "a size such as 2GiB or 512M");
        break;
    case GN_KIND_SHARE:
        snprintf(text, size, "a size such as 2GiB, a share such as 30%%, or min");
        break;
    case GN_KIND_BOOL:
        snprintf(text, size, "on or off");
        break;
    case GN_KIND_CHOICE:
        for (int i = 0; info->choices[i] && used < size; i++) {
            used += (size_t)snprintf(text + used, size - used, "%s%s", i ? (info->choices[i + 1] ? ", " : " or ") : "",
                                     info->choices[i]);
        }
        break;
    default:
        if (info->most == INT64_MAX) {
            snprintf(text, size, "a whole number from %lld", (long long)info->least);
        } else {
            snprintf(text, size, "a whole number from %lld to %lld", (long long)info->least, (long long)info->most);
        }
    }
}

int gn_knob_parse(struct gn_knobs *knobs, enum gn_knob knob, const char *text, const char *where, char *why,
                  size_t why_size) {
    const struct gn_knob_info *info = &gn_knob_table[knob];
    int64_t value;
    bool ok = parse_value(info, text, &value);
    bool ranged = info->kind == GN_KIND_COUNT || info->kind == GN_KIND_SIGNED || info->kind == GN_KIND_SIZE;
    if (!ok || (ranged && (value < info->least || value > info->most))) {
        char wanted[160];
        describe_wanted(info, wanted, sizeof wanted);
        snprintf(why, why_size, "%s: '%s' will not do; give %s", where, text, wanted);
        return ok ? -ERANGE : -EINVAL;
    }
    knobs->value[knob] = value;
    // A budget of 0 is no budget: the default.
    knobs->given[knob] = !(info->kind == GN_KIND_SIZE && value == 0 && knob != GN_RESERVE);
    return 0;
}

static int find_variable(const char *name, size_t length) {
    for (int k = 0; k < GN_KNOB_COUNT; k++) {
        const char *variable = gn_knob_table[k].environment;
        if (strlen(variable) == length && !strncmp(variable, name, length)) {
            return k;
        }
    }
    return -1;
}

// Variables of ours that are not knobs.
static bool known_elsewhere(const char *name, size_t length) {
    static const char *const others[] = {"GUANACO_PLUGIN", "GUANACO_STREAMING", "GUANACO_TEST_DIR"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (strlen(others[i]) == length && !strncmp(others[i], name, length)) {
            return true;
        }
    }
    return false;
}

int gn_knobs_from_environment(struct gn_knobs *knobs, char *why, size_t why_size) {
    for (char **variable = environ; variable && *variable; variable++) {
        const char *equals = strchr(*variable, '=');
        if (!equals || strncmp(*variable, "GUANACO_", 8) != 0) {
            continue;
        }
        size_t length = (size_t)(equals - *variable);
        int knob = find_variable(*variable, length);
        if (knob < 0 && !known_elsewhere(*variable, length)) {
            gn_warn("there is no setting %.*s; it is ignored (see guanaco run --help)", (int)length, *variable);
        }
        if (knob < 0 || !equals[1]) {
            continue;
        }
        int failed = gn_knob_parse(knobs, (enum gn_knob)knob, equals + 1, gn_knob_table[knob].environment, why, why_size);
        if (failed) {
            return failed;
        }
    }
    return 0;
}

int gn_knobs_from_argument(struct gn_knobs *knobs, int argc, char *const *argv, int *i, char *why, size_t why_size) {
    for (int k = 0; k < GN_KNOB_COUNT; k++) {
        const char *flag = gn_knob_table[k].flag, *argument = argv[*i];
        size_t length = flag ? strlen(flag) : 0;
        if (!flag || strncmp(argument, flag, length) != 0 || (argument[length] && argument[length] != '=')) {
            continue;
        }
        const char *text = argument[length] ? argument + length + 1 : *i + 1 < argc ? argv[++*i] : NULL;
        if (!text) {
            snprintf(why, why_size, "%s: a value is missing (%s)", flag, gn_knob_table[k].value_name);
            return -EINVAL;
        }
        int failed = gn_knob_parse(knobs, (enum gn_knob)k, text, flag, why, why_size);
        return failed ? failed : 1;
    }
    return 0;
}

static void write_value(const struct gn_knob_info *info, int64_t value, char *text, size_t size) {
    if (info->kind == GN_KIND_CHOICE) {
        snprintf(text, size, "%s", info->choices[value]);
    } else if (info->kind == GN_KIND_SHARE && value < 0) {
        snprintf(text, size, "%.2f%%", 100 * gn_knob_share(value));
    } else if (info->kind == GN_KIND_SIZE || info->kind == GN_KIND_SHARE) {
        snprintf(text, size, "%lldB", (long long)value);
    } else {
        snprintf(text, size, "%lld", (long long)value);
    }
}

void gn_knobs_export(const struct gn_knobs *knobs) {
    for (int k = 0; k < GN_KNOB_COUNT; k++) {
        if (knobs->given[k]) {
            char text[64];
            write_value(&gn_knob_table[k], knobs->value[k], text, sizeof text);
            setenv(gn_knob_table[k].environment, text, 1);
        }
    }
}

static void describe_default(const struct gn_knob_info *info, char *text, size_t size) {
    if (info->kind == GN_KIND_CHOICE) {
        snprintf(text, size, "%s", info->choices[info->fallback]);
    } else if (info->kind == GN_KIND_BOOL) {
        snprintf(text, size, "%s", info->fallback ? "on" : "off");
    } else if (info->kind == GN_KIND_SIZE || info->kind == GN_KIND_SHARE) {
        snprintf(text, size, "automatic");
    } else {
        snprintf(text, size, "%lld", (long long)info->fallback);
    }
}

void gn_knobs_print_help(FILE *to) {
    for (int k = 0; k < GN_KNOB_COUNT; k++) {
        const struct gn_knob_info *info = &gn_knob_table[k];
        if (info->flag) {
            char left[64], fallback[32];
            snprintf(left, sizeof left, "%s %s", info->flag, info->value_name);
            describe_default(info, fallback, sizeof fallback);
            fprintf(to, "  %-22s %s\n  %-22s [%s, default %s]\n", left, info->help, "", info->environment, fallback);
        }
    }
}

void gn_knobs_print_markdown(FILE *to) {
    fputs("| flag | variable | default | |\n|---|---|---|---|\n", to);
    for (int k = 0; k < GN_KNOB_COUNT; k++) {
        const struct gn_knob_info *info = &gn_knob_table[k];
        if (info->flag) {
            char fallback[32];
            describe_default(info, fallback, sizeof fallback);
            fprintf(to, "| `%s %s` | `%s` | %s | %s |\n", info->flag, info->value_name, info->environment, fallback,
                    info->help);
        }
    }
}

char *gn_format_bytes(uint64_t bytes, char *buffer) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double number = (double)bytes;
    int unit = 0;
    while (number >= 1024 && unit < 4) {
        number /= 1024;
        unit++;
    }
    snprintf(buffer, 32, unit ? "%.2f %s" : "%.0f %s", number, units[unit]);
    return buffer;
}
