// A trace that is being read, shared by the readers of both formats.
#pragma once

#include "trace/trace.h"

// More than that is no model: layers, experts of a layer, experts of all layers, bytes of an expert or a layer. Tables
// are as long as all experts, and sums of bytes stay within 64 bits.
#define GN_TRACE_LAYERS 4096
#define GN_TRACE_EXPERTS 65536
#define GN_TRACE_ALL_EXPERTS (1u << 19)
#define GN_TRACE_BYTES ((uint64_t)1 << 40)
#define GN_TRACE_LINE ((size_t)1 << 20) // bytes of a line, its end included

struct gn_trace_reading {
    struct gn_trace *trace;
    const char *path;
    unsigned long line;
    bool in_rows, has_dropped; // CSV: the columns have been named, and there is one more
    size_t rows_capacity;
    uint32_t layers_capacity;
    char *why;
    size_t why_size;
};

// Says what is wrong with the present line. Returns -EINVAL.
int gn_trace_refuse(const struct gn_trace_reading *reading, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
int gn_trace_add_row(struct gn_trace_reading *reading, const struct gn_trace_row *row);
int gn_trace_add_layer(struct gn_trace_reading *reading, const struct gn_trace_layer *layer);
// Checks that the layers do not have more experts together than a model has. Returns 0 or -EINVAL, with a line.
int gn_trace_check_experts(const struct gn_trace_reading *reading);
// Reads digits into *value, at most `most`. Returns where they end, or NULL.
const char *gn_trace_whole(const char *text, uint64_t most, uint64_t *value);

// One line, without its end. Lines come in order; the end of the file is not a line.
int gn_trace_csv_line(struct gn_trace_reading *reading, const char *text);
int gn_trace_jsonl_line(struct gn_trace_reading *reading, const char *text);
