// Values and the table of knobs as text.
#include "config/knobs.h"
#include "config/numbers.h"

#include <inttypes.h>
#include <string.h>

char *gn_format_bytes(uint64_t bytes, char *buffer) {
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (bytes < 1024) {
        snprintf(buffer, 32, "%" PRIu64 " B", bytes);
        return buffer;
    }
    double number = (double)bytes / 1024;
    size_t unit = 0;
    // 1023.995 would be printed as 1024.00
    for (; number >= 1023.995 && unit + 1 < sizeof units / sizeof *units; unit++) {
        number /= 1024;
    }
    gn_format(buffer, 32, "%.2f %s", number, units[unit]);
    return buffer;
}

// With a point in every locale, and no zeros at its end.
static void format_fraction(int64_t value, char *buffer) {
    int length = snprintf(buffer, 32, "%" PRId64 ".%04" PRId64, value / 10000, value % 10000);
    while (buffer[length - 1] == '0') {
        buffer[--length] = '\0';
    }
    if (buffer[length - 1] == '.') {
        buffer[length - 1] = '\0';
    }
}

char *gn_knob_format(enum gn_knob knob, int64_t value, char *buffer) {
    const struct gn_knob_info *info = &gn_knob_table[knob];
    if (info->choices) {
        snprintf(buffer, 32, "%s", info->choices[value]);
    } else if (info->kind == GN_KIND_SHARE && value < 0) {
        value == -1 ? snprintf(buffer, 32, "min") : gn_format(buffer, 32, "%.2f%%", gn_knob_share(value) * 100);
    } else if (info->kind == GN_KIND_FRACTION) {
        format_fraction(value, buffer);
    } else {
        snprintf(buffer, 32, "%" PRId64 "%s", value, info->kind <= GN_KIND_SHARE ? "B" : "");
    }
    return buffer;
}

static const char *default_text(enum gn_knob knob, char *buffer) {
    const struct gn_knob_info *info = &gn_knob_table[knob];
    if (info->kind == GN_KIND_SIZE || info->kind == GN_KIND_SHARE) {
        return info->fallback ? gn_format_bytes((uint64_t)info->fallback, buffer) : "auto";
    }
    if (info->kind == GN_KIND_TEXT) {
        return info->fallback_text ? info->fallback_text : "none";
    }
    return gn_knob_format(knob, info->fallback, buffer);
}

// "auto, uring, threads, null"; for a number its range; for text what is wanted; "" for the rest.
static void values_text(enum gn_knob knob, char *text, size_t size) {
    const struct gn_knob_info *info = &gn_knob_table[knob];
    text[0] = '\0';
    if (info->kind == GN_KIND_CHOICE) {
        for (size_t i = 0, used = 0; info->choices[i] && used < size; i++) {
            used += (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "", info->choices[i]);
        }
    } else if (info->kind == GN_KIND_COUNT) {
        snprintf(text, size, "%" PRId64 " to %" PRId64, info->least, info->most);
    } else if (info->kind == GN_KIND_FRACTION) {
        snprintf(text, size, "0 to 1");
    } else if (info->kind == GN_KIND_TEXT) {
        snprintf(text, size, "%s", info->wanted);
    }
}

void gn_print_wrapped(FILE *to, int column, int from, const char *text) {
    if (column >= from - 1) {
        fputc('\n', to);
        column = 0;
    }
    fprintf(to, "%*s", from - column, "");
    column = from;
    while (*text) {
        int length = (int)strcspn(text, " ");
        if (column > from && column + 1 + length > 100) {
            fprintf(to, "\n%*s", from, "");
            column = from;
        }
        column += fprintf(to, "%s%.*s", column > from ? " " : "", length, text);
        text += length + (text[length] == ' ');
    }
    fputc('\n', to);
}

void gn_knobs_print_help(FILE *to) {
    for (int k = 0; k < GN_KNOB_COUNT; k++) {
        const struct gn_knob_info *info = &gn_knob_table[k];
        if (!info->flag) {
            continue;
        }
        char fallback[32], values[128], text[600];
        values_text((enum gn_knob)k, values, sizeof values);
        snprintf(text, sizeof text, "%s [%s%sdefault %s; %s]", info->help, values, values[0] ? "; " : "",
                 default_text((enum gn_knob)k, fallback), info->environment);
        gn_print_wrapped(to, fprintf(to, "  %s %s", info->flag, info->value_name), 28, text);
    }
}

// A table cell: "|" would end it.
static void print_cell(FILE *to, const char *text) {
    for (; *text; text++) {
        fprintf(to, *text == '|' ? "\\%c" : "%c", *text);
    }
}

void gn_knobs_print_markdown(FILE *to) {
    fputs("| option | environment | default | values | |\n|---|---|---|---|---|\n", to);
    for (int k = 0; k < GN_KNOB_COUNT; k++) {
        const struct gn_knob_info *info = &gn_knob_table[k];
        if (!info->flag) {
            continue;
        }
        char fallback[32], values[128], text[128];
        values_text((enum gn_knob)k, values, sizeof values);
        snprintf(text, sizeof text, "`%s %s`", info->flag, info->value_name);
        fputs("| ", to);
        print_cell(to, text);
        fprintf(to, " | `%s` | %s | ", info->environment, default_text((enum gn_knob)k, fallback));
        print_cell(to, values[0] ? values : info->kind == GN_KIND_BOOL ? "on, off" : "a size");
        fputs(" | ", to);
        print_cell(to, info->help);
        fputs(" |\n", to);
    }
}
