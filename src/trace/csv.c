// `route_trace v1`.
#include "trace/parse.h"

#include "config/parse.h"

#include <errno.h>
#include <string.h>

static const char first_line[] = "# route_trace v1";
static const char columns[] = "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes";

// The value of " key=" in a comment line: what follows up to the next space.
static bool find_value(const char *line, const char *key, char *value, size_t size) {
    size_t length = strlen(key);
    for (const char *at = line; (at = strstr(at, key)); at += length) {
        if (at > line && at[-1] == ' ' && at[length] == '=') {
            size_t n = strcspn(at + length + 1, " ");
            if (n >= size) {
                return false;
            }
            memcpy(value, at + length + 1, n);
            value[n] = '\0';
            return true;
        }
    }
    return false;
}

static bool find_whole(const char *line, const char *key, uint64_t most, uint64_t *number) {
    char text[32];
    const char *end = find_value(line, key, text, sizeof text) ? gn_trace_whole(text, most, number) : NULL;
    return end && !*end;
}

static int model_line(struct gn_trace_reading *reading, const char *line) {
    struct gn_trace *trace = reading->trace;
    uint64_t layers, experts, used;
    // A model's path may have spaces in it.
    const char *arch = strstr(line, " arch=");
    size_t length = arch ? (size_t)(arch - line) - strlen("# model=") : 0;
    if (!arch || length >= sizeof trace->model ||
        !find_value(arch, "arch", trace->architecture, sizeof trace->architecture) ||
        !find_whole(arch, "n_layer", GN_TRACE_LAYERS, &layers) ||
        !find_whole(arch, "n_expert", GN_TRACE_EXPERTS, &experts) ||
        !find_whole(arch, "n_expert_used", GN_TRACE_EXPERTS, &used) || experts == 0 || used > experts) {
        return gn_trace_refuse(reading, "expected model=… arch=… n_layer=… n_expert=… n_expert_used=…");
    }
    memcpy(trace->model, line + strlen("# model="), length);
    trace->model_layers = (uint32_t)layers;
    trace->n_experts = (uint32_t)experts;
    trace->top_k = (uint32_t)used;
    return 0;
}

static int layer_line(struct gn_trace_reading *reading, const char *line) {
    uint64_t number, bytes, dense;
    struct gn_trace *trace = reading->trace;
    if (trace->n_experts == 0) {
        return gn_trace_refuse(reading, "a layer before the model");
    }
    if (!find_whole(line, "layer", GN_TRACE_LAYERS, &number) ||
        !find_whole(line, "expert_bytes", GN_TRACE_BYTES, &bytes) ||
        !find_whole(line, "dense_bytes", GN_TRACE_BYTES, &dense) || bytes == 0) {
        return gn_trace_refuse(
            reading, "expected layer=… expert_bytes=… dense_bytes=…, experts of some bytes, and 1 TiB at most");
    }
    if (trace->n_layers > 0 && number <= trace->layers[trace->n_layers - 1].number) {
        return gn_trace_refuse(reading, "layer %lu is out of order", (unsigned long)number);
    }
    uint64_t slot = 0, experts = trace->n_experts;
    if ((strstr(line, " slot_bytes=") && !find_whole(line, "slot_bytes", GN_TRACE_BYTES, &slot)) ||
        (strstr(line, " n_expert=") && (!find_whole(line, "n_expert", trace->n_experts, &experts) || experts == 0)) ||
        (slot > 0 && slot < bytes)) {
        return gn_trace_refuse(reading, "slot_bytes or n_expert is not what it should be");
    }
    struct gn_trace_layer layer = {
        .number = (uint32_t)number,
        .n_experts = (uint32_t)experts,
        .expert_bytes = bytes,
        .dense_bytes = dense,
        .slot_bytes = slot,
    };
    return gn_trace_add_layer(reading, &layer);
}

static bool find_layer(const struct gn_trace *trace, uint64_t number, uint32_t *index) {
    uint32_t low = 0, high = trace->n_layers;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (trace->layers[middle].number < number) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    *index = low;
    return low < trace->n_layers && trace->layers[low].number == number;
}

// Digits, a point, an exponent: as "%g" writes them.
static const char *read_weight(const char *text, float *weight) {
    bool negative = *text == '-';
    long double number;
    const char *end = gn_parse_number(text + negative, &number);
    if (end && (*end == 'e' || *end == 'E')) {
        bool down = end[1] == '-';
        uint64_t exponent;
        end = gn_trace_whole(end + 1 + (down || end[1] == '+'), 40, &exponent);
        for (; end && exponent > 0; exponent--) {
            number = down ? number / 10 : number * 10;
        }
    }
    *weight = end ? (float)(negative ? -number : number) : 0;
    return end;
}

static int row_line(struct gn_trace_reading *reading, const char *line) {
    // Weight, the seventh field, is no whole number and has its own reader; a tenth, `dropped`, is not kept.
    enum { TURN, PHASE, STEP, LAYER, SLOT, EXPERT, WEIGHT, RESIDENCY, BYTES, DROPPED };
    static const uint64_t most[] = {UINT32_MAX,       1, UINT32_MAX, GN_TRACE_LAYERS, GN_TRACE_EXPERTS,
                                    GN_TRACE_EXPERTS, 0, 2,          INT64_MAX,       INT64_MAX};
    static const char *const names[] = {"turn",   "phase",  "step",      "layer",        "slot",
                                        "expert", "weight", "residency", "expert_bytes", "dropped"};
    const struct gn_trace *trace = reading->trace;
    uint64_t value[DROPPED + 1] = {0};
    struct gn_trace_row row = {0};
    int last = reading->has_dropped ? DROPPED : BYTES;
    const char *at = line;
    for (int field = TURN; field <= last; field++) {
        at = field == WEIGHT ? read_weight(at, &row.weight) : gn_trace_whole(at, most[field], &value[field]);
        if (!at || *at != (field == last ? '\0' : ',')) {
            return gn_trace_refuse(reading, "%s is not what it should be, or what follows it", names[field]);
        }
        at++;
    }
    if (!find_layer(trace, value[LAYER], &row.layer)) {
        return gn_trace_refuse(reading, "layer %lu was not announced", (unsigned long)value[LAYER]);
    }
    uint32_t n_experts = trace->layers[row.layer].n_experts;
    if (value[EXPERT] >= n_experts) {
        return gn_trace_refuse(reading, "expert %lu of %u", (unsigned long)value[EXPERT], n_experts);
    }
    row.turn = (uint32_t)value[TURN];
    row.decode = value[PHASE] == 1;
    row.step = (uint32_t)value[STEP];
    row.slot = (uint32_t)value[SLOT];
    row.expert = (uint32_t)value[EXPERT];
    row.residency = (uint8_t)value[RESIDENCY];
    row.bytes = value[BYTES];
    return gn_trace_add_row(reading, &row);
}

static int column_line(struct gn_trace_reading *reading, const char *line) {
    size_t length = strlen(columns);
    if (reading->trace->n_layers == 0) {
        return gn_trace_refuse(reading, "no layer was announced before the columns");
    }
    int failed = gn_trace_check_experts(reading);
    if (failed) {
        return failed;
    }
    reading->has_dropped = strncmp(line, columns, length) == 0 && strcmp(line + length, ",dropped") == 0;
    if (strcmp(line, columns) != 0 && !reading->has_dropped) {
        return gn_trace_refuse(reading, "expected the columns %s", columns);
    }
    reading->in_rows = true;
    return 0;
}

int gn_trace_csv_line(struct gn_trace_reading *reading, const char *line) {
    if (reading->line == 1) {
        return strcmp(line, first_line) == 0 ? 0 : gn_trace_refuse(reading, "neither route_trace v1 nor JSON lines");
    }
    if (reading->in_rows) {
        return row_line(reading, line);
    }
    if (strncmp(line, "# model=", strlen("# model=")) == 0) {
        return reading->trace->n_experts ? gn_trace_refuse(reading, "a second model") : model_line(reading, line);
    }
    if (strncmp(line, "# layer=", strlen("# layer=")) == 0) {
        return layer_line(reading, line);
    }
    return *line == '#' ? 0 : column_line(reading, line);
}
