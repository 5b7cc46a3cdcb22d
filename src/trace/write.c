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
        fprintf(file, "# layer=%u expert_bytes=%" PRIu64 " dense_bytes=%" PRIu64, layer->number, layer->expert_bytes,
                layer->dense_bytes);
        if (layer->slot_bytes > 0) {
            fprintf(file, " slot_bytes=%" PRIu64, layer->slot_bytes);
        }
        if (layer->n_experts != header->n_experts) {
            fprintf(file, " n_expert=%u", layer->n_experts);
        }
        fputc('\n', file);
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

static char *put_whole(char *to, uint64_t number) {
    char digits[20];
    int n = 0;
    do {
        digits[n++] = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    while (n > 0) {
        *to++ = digits[--n];
    }
    return to;
}

// Six places, and a point in every locale.
static char *put_weight(char *to, float weight) {
    double size = isfinite(weight) ? fmin(fabs((double)weight), 1e12) : 0;
    uint64_t millionths = (uint64_t)llround(size * 1e6);
    if (weight < 0 && millionths > 0) {
        *to++ = '-';
    }
    to = put_whole(to, millionths / 1000000);
    *to++ = '.';
    for (uint64_t place = 100000; place > 0; place /= 10) {
        *to++ = (char)('0' + millionths / place % 10);
    }
    return to;
}

int gn_trace_writer_add(struct gn_trace_writer *writer, const struct gn_trace_row *row) {
    char line[128], *end = line; // nine numbers: 104 characters at most
    const uint32_t before[] = {row->turn, row->decode, row->step, writer->number[row->layer], row->slot, row->expert};
    for (size_t i = 0; i < sizeof before / sizeof *before; i++) {
        end = put_whole(end, before[i]);
        *end++ = ',';
    }
    end = put_weight(end, row->weight);
    *end++ = ',';
    end = put_whole(end, row->residency);
    *end++ = ',';
    end = put_whole(end, row->bytes);
    *end++ = '\n';
    errno = 0;
    if (fwrite_unlocked(line, (size_t)(end - line), 1, writer->file) != 1) {
        return -(errno ? errno : EIO);
    }
    return 0;
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
