#include "synth_write.h"
#include "synth_weights.h"

#include <errno.h>
#include <fcntl.h>
#include <gguf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER = 4 << 20, DIRECT_BLOCK = 4096, ALIGNMENT = 32 };

struct writer {
    int fd;
    int error; // errno of the first failed write
    uint8_t *buffer;
    size_t used;
    uint64_t written, total; // of all shards
    double started, shown;
};

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void show_progress(struct writer *writer) {
    bool terminal = isatty(STDERR_FILENO);
    double time = now();
    if (time - writer->shown < (terminal ? 0.5 : 10)) {
        return;
    }
    writer->shown = time;
    fprintf(stderr, "%s%5.1f %% of %.2f GiB, %.2f GB/s%s", terminal ? "\r" : "",
            100 * (double)writer->written / (double)writer->total, (double)writer->total / (1 << 30),
            (double)writer->written / 1e9 / (time - writer->started), terminal ? " " : "\n");
}

static bool stop_direct(struct writer *writer) {
    int flags = fcntl(writer->fd, F_GETFL);
    return flags >= 0 && (flags & O_DIRECT) && fcntl(writer->fd, F_SETFL, flags & ~O_DIRECT) == 0;
}

// Direct writes take whole blocks: the rest of a file, and file systems that refuse them, go through the page cache.
static int flush(struct writer *writer) {
    if (writer->used % DIRECT_BLOCK != 0) {
        stop_direct(writer);
    }
    for (size_t done = 0; done < writer->used && !writer->error;) {
        ssize_t some = write(writer->fd, writer->buffer + done, writer->used - done);
        if (some < 0 && errno != EINTR && !(errno == EINVAL && stop_direct(writer))) {
            writer->error = errno;
        }
        done += some > 0 ? (size_t)some : 0;
    }
    writer->written += writer->used;
    writer->used = 0;
    show_progress(writer);
    return writer->error;
}

static int append(void *context, const void *data, size_t size) {
    struct writer *writer = context;
    const uint8_t *from = data;
    while (size > 0 && !writer->error) {
        size_t part = BUFFER - writer->used < size ? BUFFER - writer->used : size;
        memcpy(writer->buffer + writer->used, from, part);
        writer->used += part;
        from += part;
        size -= part;
        if (writer->used == BUFFER) {
            flush(writer);
        }
    }
    return writer->error;
}

static struct gguf_context *make_header(const struct synth_model *model, int64_t shard) {
    struct ggml_init_params params = {.mem_size = (model->count + 1) * ggml_tensor_overhead(), .no_alloc = true};
    struct ggml_context *ggml = ggml_init(params);
    struct gguf_context *gguf = gguf_init_empty();
    GGML_ASSERT(ggml && gguf);
    synth_model_set_keys(model, shard, gguf);
    for (size_t i = 0; i < model->count; i++) {
        const struct synth_tensor *from = &model->tensors[i];
        if (from->shard == shard) {
            int dimensions = from->ne[2] > 1 ? 3 : from->ne[1] > 1 ? 2 : 1;
            struct ggml_tensor *tensor = ggml_new_tensor(ggml, from->type, dimensions, from->ne);
            gguf_add_tensor(gguf, ggml_set_name(tensor, from->name));
        }
    }
    ggml_free(ggml); // gguf has its own copies
    return gguf;
}

static uint64_t padded(uint64_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

uint64_t synth_file_bytes(const struct synth_model *model, int64_t shard) {
    struct gguf_context *gguf = make_header(model, shard);
    uint64_t bytes = gguf_get_meta_size(gguf);
    gguf_free(gguf);
    for (size_t i = 0; i < model->count; i++) {
        bytes += model->tensors[i].shard == shard ? padded(synth_tensor_bytes(&model->tensors[i])) : 0;
    }
    return bytes;
}

int synth_path(const struct synth_options *options, int64_t shard, char *path, size_t size) {
    static const char suffix[] = ".gguf";
    size_t length = strlen(options->path), tail = strlen(suffix);
    int written;
    if (options->shards == 1) {
        written = snprintf(path, size, "%s", options->path);
    } else {
        bool named = length > tail && strcmp(options->path + length - tail, suffix) == 0;
        written = snprintf(path, size, "%.*s-%05d-of-%05d.gguf", (int)(named ? length - tail : length), options->path,
                           (int)shard + 1, (int)options->shards);
    }
    return written < 0 || (size_t)written >= size ? -1 : 0;
}

static void write_shard(const struct synth_model *model, struct synth_weights *weights, struct writer *writer,
                        int64_t shard) {
    static const uint8_t zeros[ALIGNMENT];
    struct gguf_context *gguf = make_header(model, shard);
    size_t size = gguf_get_meta_size(gguf);
    void *header = malloc(size);
    GGML_ASSERT(header);
    gguf_get_meta_data(gguf, header);
    int failed = append(writer, header, size);
    free(header);
    gguf_free(gguf);
    for (size_t i = 0; i < model->count && !failed; i++) {
        const struct synth_tensor *tensor = &model->tensors[i];
        if (tensor->shard == shard) {
            uint64_t bytes = synth_tensor_bytes(tensor);
            failed = synth_weights_make(weights, tensor, append, writer);
            failed = failed ? failed : append(writer, zeros, padded(bytes) - bytes);
        }
    }
    if (!failed) {
        flush(writer);
    }
}

static int write_file(const struct synth_model *model, struct synth_weights *weights, struct writer *writer,
                      int64_t shard, const char *path) {
    // Direct where possible: twice as fast as filling the page cache, and the model is cold afterwards.
    int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
    writer->fd = open(path, flags | O_DIRECT, 0666);
    if (writer->fd < 0 && errno == EINVAL) {
        writer->fd = open(path, flags, 0666);
    }
    if (writer->fd < 0) {
        return errno;
    }
    write_shard(model, weights, writer, shard);
    if (close(writer->fd) != 0 && !writer->error) {
        writer->error = errno;
    }
    return writer->error;
}

// Better said at once than after ten minutes.
static int check_room(const struct synth_model *model, uint64_t total, char *why, size_t why_size) {
    char folder[4096];
    snprintf(folder, sizeof folder, "%s", model->options.path);
    char *slash = strrchr(folder, '/');
    strcpy(slash ? slash + 1 : folder, slash ? "" : ".");
    struct statvfs status;
    if (statvfs(folder, &status) != 0) {
        return 0; // opening the file will say why
    }
    uint64_t room = (uint64_t)status.f_bavail * status.f_frsize;
    if (room >= total) {
        return 0;
    }
    snprintf(why, why_size, "%s has %.2f GiB free, the model needs %.2f GiB", folder, (double)room / (1 << 30),
             (double)total / (1 << 30));
    return -1;
}

// Not a device that was given as the output.
static void remove_files(const struct synth_model *model, int64_t count) {
    char path[4096];
    for (int64_t shard = 0; shard < count; shard++) {
        synth_path(&model->options, shard, path, sizeof path);
        struct stat status;
        if (lstat(path, &status) == 0 && S_ISREG(status.st_mode)) {
            unlink(path);
        }
    }
}

static int write_all(const struct synth_model *model, struct synth_weights *weights, struct writer *writer, char *why,
                     size_t why_size) {
    char path[4096];
    for (int64_t shard = 0; shard < model->options.shards; shard++) {
        if (synth_path(&model->options, shard, path, sizeof path) != 0) {
            snprintf(why, why_size, "the path is too long");
            return -1;
        }
        int error = write_file(model, weights, writer, shard, path);
        if (error) {
            snprintf(why, why_size, "cannot write %s: %s", path, strerror(error));
            remove_files(model, writer->fd < 0 ? shard : shard + 1);
            return -1;
        }
    }
    return 0;
}

int synth_write(const struct synth_model *model, char *why, size_t why_size) {
    struct writer writer = {.fd = -1, .started = now()};
    writer.shown = writer.started;
    for (int64_t shard = 0; shard < model->options.shards; shard++) {
        writer.total += synth_file_bytes(model, shard);
    }
    if (check_room(model, writer.total, why, why_size) != 0) {
        return -1;
    }
    struct synth_weights *weights = synth_weights_new(model);
    writer.buffer = aligned_alloc(DIRECT_BLOCK, BUFFER);
    int failed = -1;
    if (weights && writer.buffer) {
        failed = write_all(model, weights, &writer, why, why_size);
    } else {
        snprintf(why, why_size, "out of memory");
    }
    if (!failed && isatty(STDERR_FILENO) && writer.shown > writer.started) {
        fputc('\n', stderr);
    }
    if (weights) {
        synth_weights_free(weights);
    }
    free(writer.buffer);
    return failed;
}
