#include "trace/parse.h"

#include "config/input_file.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

int gn_trace_refuse(const struct gn_trace_reading *reading, const char *format, ...) {
    va_list arguments;
    int used = snprintf(reading->why, reading->why_size, "%s, line %lu: ", reading->path, reading->line);
    if (used >= 0 && (size_t)used < reading->why_size) {
        va_start(arguments, format);
        vsnprintf(reading->why + used, reading->why_size - (size_t)used, format, arguments);
        va_end(arguments);
    }
    return -EINVAL;
}

static int no_memory(const struct gn_trace_reading *reading) {
    gn_trace_refuse(reading, "no memory for so long a trace");
    return -ENOMEM;
}

int gn_trace_add_row(struct gn_trace_reading *reading, const struct gn_trace_row *row) {
    struct gn_trace *trace = reading->trace;
    if (trace->n_rows == reading->rows_capacity) {
        size_t capacity = reading->rows_capacity ? 2 * reading->rows_capacity : 4096;
        struct gn_trace_row *rows = realloc(trace->rows, capacity * sizeof *rows);
        if (!rows) {
            return no_memory(reading);
        }
        trace->rows = rows;
        reading->rows_capacity = capacity;
    }
    trace->rows[trace->n_rows++] = *row;
    return 0;
}

int gn_trace_add_layer(struct gn_trace_reading *reading, const struct gn_trace_layer *layer) {
    struct gn_trace *trace = reading->trace;
    if (trace->n_layers == GN_TRACE_LAYERS) {
        return gn_trace_refuse(reading, "more than %d layers", GN_TRACE_LAYERS);
    }
    if (trace->n_layers == reading->layers_capacity) {
        uint32_t capacity = reading->layers_capacity ? 2 * reading->layers_capacity : 64;
        struct gn_trace_layer *layers = realloc(trace->layers, capacity * sizeof *layers);
        if (!layers) {
            return no_memory(reading);
        }
        trace->layers = layers;
        reading->layers_capacity = capacity;
    }
    trace->layers[trace->n_layers++] = *layer;
    return 0;
}

int gn_trace_check_experts(const struct gn_trace_reading *reading) {
    uint64_t n = 0;
    for (uint32_t l = 0; l < reading->trace->n_layers; l++) {
        n += reading->trace->layers[l].n_experts;
    }
    return n <= GN_TRACE_ALL_EXPERTS ? 0
                                     : gn_trace_refuse(reading, "more than %u experts in all", GN_TRACE_ALL_EXPERTS);
}

const char *gn_trace_whole(const char *text, uint64_t most, uint64_t *value) {
    const char *start = text;
    for (*value = 0; *text >= '0' && *text <= '9'; text++) {
        uint64_t digit = (uint64_t)(*text - '0');
        if (digit > most || *value > (most - digit) / 10) {
            return NULL;
        }
        *value = *value * 10 + digit;
    }
    return text > start ? text : NULL;
}

// Reads up to the end of the line, of the file, or of the room. Returns how many bytes.
static size_t read_line(FILE *file, char text[static GN_TRACE_LINE]) {
    size_t n = 0;
    for (int byte; n < GN_TRACE_LINE && (byte = getc_unlocked(file)) != EOF;) {
        text[n++] = (char)byte;
        if (byte == '\n') {
            break;
        }
    }
    return n;
}

static int read_lines(struct gn_trace_reading *reading, FILE *file, char *line) {
    bool jsonl = false;
    for (size_t length; (length = read_line(file, line)) > 0;) {
        reading->line++;
        if (memchr(line, '\0', length)) {
            return gn_trace_refuse(reading, "a zero byte: this is no text");
        }
        if (line[length - 1] != '\n') {
            return gn_trace_refuse(reading, length == GN_TRACE_LINE ? "the line is longer than any of a trace"
                                                                    : "the line does not end: the file was cut off");
        }
        line[length - 1 - (length > 1 && line[length - 2] == '\r')] = '\0';
        jsonl = jsonl || (reading->line == 1 && *line == '{');
        int failed = jsonl ? gn_trace_jsonl_line(reading, line) : gn_trace_csv_line(reading, line);
        if (failed) {
            return failed;
        }
    }
    return ferror(file) ? -EIO : 0;
}

int gn_trace_read(const char *path, struct gn_trace *trace, char *why, size_t why_size) {
    struct gn_trace_reading reading = {.trace = trace, .path = path, .why = why, .why_size = why_size};
    memset(trace, 0, sizeof *trace);
    FILE *file = gn_input_open(path);
    if (!file) {
        int failed = -errno;
        snprintf(why, why_size, "%s: %s", path, strerror(-failed));
        return failed;
    }
    char *line = malloc(GN_TRACE_LINE);
    int failed = line ? read_lines(&reading, file, line) : no_memory(&reading);
    if (failed == -EIO) {
        snprintf(why, why_size, "%s: cannot be read", path);
    }
    if (!failed && trace->n_rows == 0) {
        failed = gn_trace_refuse(&reading, "the file ends before the first row");
    }
    free(line);
    fclose(file);
    if (failed) {
        gn_trace_close(trace);
    }
    return failed;
}

void gn_trace_close(struct gn_trace *trace) {
    free(trace->layers);
    free(trace->rows);
    memset(trace, 0, sizeof *trace);
}
