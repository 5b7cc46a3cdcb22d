#include "trace/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define BUFFER_BYTES (1 << 18) // some thousand rows to a write

struct gn_trace_writer {
    FILE *file;
    uint32_t *number; // of each layer
    char buffer[BUFFER_BYTES];
};

static void write_header(FILE *file, const struct gn_trace *header) {
    fprintf(file, "# route_trace v1\n# model=%s arch=%s n_layer=%u n_expert=%u n_expert_used=%u\n", header->model,
            header->architecture, header->model_layers, header->n_experts, header->top_k);
    for (uint32_t l = 0; l < header->n_layers; l++) {
        const struct gn_trace_layer *layer = &header->layers[l];
        fprintf(file, "# layer=%u expert_bytes=%" PRIu64 " dense_bytes=%" PRIu64 "\n", layer->number,
                layer->expert_bytes, layer->dense_bytes);
    }
    fputs("turn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n", file);
}

int gn_trace_writer_open(const char *path, const struct gn_trace *header, struct gn_trace_writer **out) {
    struct gn_trace_writer *writer = malloc(sizeof *writer);
    uint32_t *number = calloc(header->n_layers ? header->n_layers : 1, sizeof *number);
    FILE *file = writer && number ? fopen(path, "we") : NULL;
    if (!file) {
        int failed = writer && number ? -errno : -ENOMEM;
        free(writer);
        free(number);
        return failed;
    }
    for (uint32_t l = 0; l < header->n_layers; l++) {
        number[l] = header->layers[l].number;
    }
    writer->file = file;
    writer->number = number;
    setvbuf(file, writer->buffer, _IOFBF, sizeof writer->buffer);
    write_header(file, header);
    *out = writer;
    return 0;
}

// Six places, and a point in every locale.
static void write_weight(FILE *file, float weight) {
    double size = isfinite(weight) ? fmin(fabs((double)weight), 1e12) : 0;
    uint64_t millionths = (uint64_t)llround(size * 1e6);
    fprintf(file, "%s%" PRIu64 ".%06" PRIu64, weight < 0 && millionths > 0 ? "-" : "", millionths / 1000000,
            millionths % 1000000);
}

void gn_trace_writer_add(struct gn_trace_writer *writer, const struct gn_trace_row *row) {
    FILE *file = writer->file;
    fprintf(file, "%u,%d,%u,%u,%u,%u,", row->turn, row->decode, row->step, writer->number[row->layer], row->slot,
            row->expert);
    write_weight(file, row->weight);
    fprintf(file, ",%u,%" PRIu64 "\n", row->residency, row->bytes);
}

int gn_trace_writer_close(struct gn_trace_writer *writer) {
    errno = 0;
    bool bad = ferror(writer->file);
    bad = fclose(writer->file) != 0 || bad;
    int failed = bad ? -(errno ? errno : EIO) : 0;
    free(writer->number);
    free(writer);
    return failed;
}
