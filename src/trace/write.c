#include "trace/trace.h"

#include "config/output_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define BUFFER_BYTES (1 << 18) // some thousand rows to a write

#define LINE_BYTES 128 // a row: nine numbers, 104 characters at most

struct gn_trace_writer {
    FILE *file;
    uint32_t *number; // of each layer
    size_t waiting;   // bytes that the kernel has not been given yet
    int failed;       // why it would not take some; 0: it took all
    char buffer[BUFFER_BYTES];
};

// What a model's file says may hold anything; here it is one word, or one path, on a line.
static void put_text(FILE *file, const char *text, char least) {
    for (; *text; text++) {
        fputc((unsigned char)*text < (unsigned char)least || *text == 0x7f ? '?' : *text, file);
    }
}

static void write_header(FILE *file, const struct gn_trace *header) {
    fputs("# route_trace v1\n# model=", file);
    put_text(file, header->model, ' ');
    fputs(" arch=", file);
    put_text(file, header->architecture, '!');
    fprintf(file, " n_layer=%u n_expert=%u n_expert_used=%u\n", header->model_layers, header->n_experts, header->top_k);
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
    int fd = writer && number ? gn_output_open(path) : -ENOMEM;
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!file) {
        int failed = fd < 0 ? fd : -errno;
        if (fd >= 0) {
            close(fd);
        }
        free(writer);
        free(number);
        return failed;
    }
    for (uint32_t l = 0; l < header->n_layers; l++) {
        number[l] = header->layers[l].number;
    }
    writer->file = file;
    writer->number = number;
    writer->waiting = 0;
    writer->failed = 0;
    setvbuf(file, writer->buffer, _IOFBF, sizeof writer->buffer);
    write_header(file, header);
    gn_trace_writer_flush(writer); // a disk that is full is told with the rows
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
    char line[LINE_BYTES], *end = line;
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
    if (writer->waiting > BUFFER_BYTES - LINE_BYTES) { // so that the kernel gets whole lines alone
        gn_trace_writer_flush(writer);
    }
    if (!writer->failed) {
        writer->waiting += (size_t)(end - line);
        fwrite_unlocked(line, (size_t)(end - line), 1, writer->file);
    }
    return writer->failed;
}

int gn_trace_writer_flush(struct gn_trace_writer *writer) {
    errno = 0;
    writer->waiting = 0;
    if ((fflush(writer->file) || ferror(writer->file)) && !writer->failed) {
        writer->failed = -(errno ? errno : EIO);
    }
    return writer->failed;
}

void gn_trace_writer_forked(struct gn_trace_writer *writer) {
    // The stream stays open, on a file in memory that nobody reads. Were it closed, another file could get its number.
    int elsewhere = memfd_create("guanaco", MFD_CLOEXEC);
    if (elsewhere >= 0) {
        (void)dup3(elsewhere, fileno_unlocked(writer->file), O_CLOEXEC);
        close(elsewhere);
    }
}

int gn_trace_writer_close(struct gn_trace_writer *writer) {
    int failed = gn_trace_writer_flush(writer);
    errno = 0;
    if (fclose(writer->file) && !failed) {
        failed = -(errno ? errno : EIO);
    }
    free(writer->number);
    free(writer);
    return failed;
}
