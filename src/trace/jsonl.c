// One object a line: {"tok": 1, "layers": [[6, 8], [7, 16]]}. Nothing else is expected, so nothing else is understood.
#include "trace/parse.h"

#include <string.h>

static const char *skip(const char *text) {
    return text + strspn(text, " \t");
}

// What follows `token`, with blanks allowed around it, or NULL.
static const char *expect(const char *text, const char *token) {
    if (!text) {
        return NULL;
    }
    text = skip(text);
    size_t length = strlen(token);
    return strncmp(text, token, length) == 0 ? skip(text + length) : NULL;
}

static bool another(const char **text) {
    const char *rest = expect(*text, ",");
    *text = rest ? rest : *text;
    return rest;
}

// [6, 8, 15]
static const char *read_layer(struct gn_trace_reading *reading, const char *text, struct gn_trace_row *row,
                              int *failed) {
    struct gn_trace *trace = reading->trace;
    text = expect(text, "[");
    row->slot = 0;
    do {
        uint64_t expert;
        text = text ? gn_trace_whole(text, GN_TRACE_EXPERTS - 1, &expert) : NULL;
        if (!text) {
            return NULL;
        }
        row->expert = (uint32_t)expert;
        *failed = gn_trace_add_row(reading, row);
        if (*failed) {
            return NULL;
        }
        row->slot++;
        trace->n_experts = expert >= trace->n_experts ? (uint32_t)expert + 1 : trace->n_experts;
    } while (another(&text));
    trace->top_k = row->slot > trace->top_k ? row->slot : trace->top_k;
    return expect(text, "]");
}

static const char *read_layers(struct gn_trace_reading *reading, const char *text, struct gn_trace_row *row,
                               int *failed) {
    struct gn_trace *trace = reading->trace;
    do {
        if (reading->line == 1) {
            struct gn_trace_layer layer = {.number = row->layer, .expert_bytes = 1};
            *failed = gn_trace_add_layer(reading, &layer);
        } else if (row->layer == trace->n_layers) {
            *failed = gn_trace_refuse(reading, "more layers than in the first line");
        }
        text = *failed ? NULL : read_layer(reading, text, row, failed);
        row->layer++;
    } while (text && another(&text));
    return text;
}

int gn_trace_jsonl_line(struct gn_trace_reading *reading, const char *text) {
    struct gn_trace *trace = reading->trace;
    uint64_t token;
    int failed = 0;
    text = expect(expect(expect(text, "{"), "\"tok\""), ":");
    text = text ? gn_trace_whole(text, UINT32_MAX, &token) : NULL;
    text = expect(expect(expect(expect(text, ","), "\"layers\""), ":"), "[");
    struct gn_trace_row row = {.decode = true};
    if (text) {
        row.step = (uint32_t)token;
        text = read_layers(reading, text, &row, &failed);
    }
    if (failed) {
        return failed;
    }
    text = expect(expect(text, "]"), "}");
    if (!text || *text) {
        return gn_trace_refuse(reading, "expected {\"tok\": n, \"layers\": [[expert, …], …]}");
    }
    if (row.layer != trace->n_layers) {
        return gn_trace_refuse(reading, "%u layers, where the first line has %u", row.layer, trace->n_layers);
    }
    trace->model_layers = trace->n_layers;
    for (uint32_t l = 0; l < trace->n_layers; l++) {
        trace->layers[l].n_experts = trace->n_experts;
    }
    return gn_trace_check_experts(reading);
}
