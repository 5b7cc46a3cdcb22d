// The buffer type that expert tensors are loaded into. The loader hands over addresses in its file mapping; we note
// which file and where, and touch nothing. Experts that come without a file are written to one of ours first
// (model/spool.h), at the offset that they have in the buffer. Addresses of the buffer are reserved, never filled,
// unless a tensor is none of the routed experts.
//
// The same type serves ggml's scheduler for the results of our graphs: plain memory, taken as it is touched.
#include "backend/backend.h"
#include "backend/gpu.h"
#include "backend/start.h"
#include "config/log.h"
#include "io/file.h"
#include "model/mapping.h"
#include "model/spool.h"
#include "stats/stats.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct weight_list {
    struct gn_weight weight;
    const void *data; // the tensor's address
    struct weight_list *next;
};

struct buffer {
    uint8_t *base;
    size_t size;
    struct gn_loaded model; // listed from its first streamed weight on
    bool listed;
    struct gn_spool *spool; // once it holds a weight without a file
    uint64_t unopened;      // inode number of a file that could not be opened again; 0: none
    struct gn_mapping last; // the mapping found last: the next tensor most often lies in it too
    struct weight_list *weights;
    struct gn_weight lost; // stands for the weights whose bytes are nowhere, when the model is broken for that
    atomic_bool has_lost;
};

static const char *type_name(ggml_backend_buffer_type_t type) {
    (void)type;
    return GN_NAME;
}

static size_t type_alignment(ggml_backend_buffer_type_t type) {
    (void)type;
    return 64;
}

// False, so that no other backend ever reads expert weights behind our back.
static bool type_is_host(ggml_backend_buffer_type_t type) {
    (void)type;
    return false;
}

static void buffer_free(ggml_backend_buffer_t handle) {
    struct buffer *buffer = handle->context;
    gn_loaded_remove(&buffer->model);
    atomic_fetch_sub(&gn_stats.dense_bytes, buffer->model.stream->dense_bytes);
    struct gn_gpu *gpu = buffer->model.stream->gpu;
    gn_stream_close(buffer->model.stream);
    gn_gpu_close(gpu);
    gn_spool_close(buffer->spool);
    while (buffer->weights) {
        struct weight_list *next = buffer->weights->next;
        free(buffer->weights);
        buffer->weights = next;
    }
    munmap(buffer->base, buffer->size);
    free(buffer->model.files);
    free(buffer);
}

static void *buffer_base(ggml_backend_buffer_t handle) {
    return ((struct buffer *)handle->context)->base;
}

// Opens the file behind a mapping: by its name, or, when that now names another file or none, through the descriptor
// that the loader still holds.
static int open_mapped(const struct gn_mapping *mapping, bool direct, struct gn_file **file) {
    int failed = gn_file_open(mapping->path, direct, 0, mapping->ino, file);
    if (!failed && gn_mapping_is_of(mapping, gn_file_fd(*file))) {
        return 0;
    }
    if (!failed) {
        gn_file_close(*file);
        failed = -ESTALE;
    }
    for (int fd = 3; fd < 4096; fd++) {
        if (gn_mapping_is_of(mapping, fd) && !gn_file_reopen(fd, mapping->path, direct, file)) {
            return 0;
        }
    }
    return failed;
}

// Finds the file behind a mapping, opening it with the first of its experts, which lie at `offset`. Returns 0 or a
// negative errno.
static int file_of(struct buffer *buffer, const struct gn_mapping *mapping, uint64_t offset, struct gn_file **out) {
    uint8_t *base = (uint8_t *)mapping->start - mapping->offset;
    for (uint32_t f = 0; f < buffer->model.n_files; f++) {
        if (buffer->model.files[f].dev == mapping->dev && buffer->model.files[f].ino == mapping->ino &&
            buffer->model.files[f].base == base) {
            *out = buffer->model.files[f].file;
            return 0;
        }
    }
    struct gn_mapped_file *grown = realloc(buffer->model.files, (buffer->model.n_files + 1) * sizeof *grown);
    if (!grown) {
        return -ENOMEM;
    }
    buffer->model.files = grown;
    int failed = open_mapped(mapping, gn_settings()->value[GN_DIRECT], out);
    if (!failed) {
        gn_file_compare(*out, offset);
        if (gn_file_sample(*out)) {
            gn_debug("%s cannot be sampled", mapping->path);
        }
        buffer->model.files[buffer->model.n_files++] =
            (struct gn_mapped_file){.file = *out, .dev = mapping->dev, .ino = mapping->ino, .base = base};
    }
    return failed;
}

// Whether the bytes lie in a mapping of a file that shows what is in the file. When the kernel does not say, they are
// taken for bytes without a file, which is right whatever they are.
static bool find_mapping(struct buffer *buffer, const void *data, size_t size) {
    static atomic_bool said;
    uintptr_t begin = (uintptr_t)data;
    if (begin >= buffer->last.start && begin + size <= buffer->last.end) {
        return true;
    }
    struct gn_mapping found;
    int status = gn_mapping_find(data, &found);
    if (status < 0 && !atomic_exchange(&said, true)) {
        gn_warn(
            "cannot find the files of the model in /proc/self/maps: %s; its experts are kept in a file of their own",
            strerror(-status));
    }
    if (status != 1 || !found.shared || begin + size > found.end) {
        return false;
    }
    buffer->last = found;
    return true;
}

static void list(struct buffer *buffer) {
    if (!buffer->listed) {
        buffer->listed = true;
        gn_loaded_add(&buffer->model);
    }
}

// Gives a model up whose weights are not all where they should be. With its lock.
static void lose(struct buffer *buffer) {
    buffer->lost.stream = buffer->model.stream;
    atomic_store(&buffer->has_lost, true);
}

// Notes in the stream, whose lock is held, where a tensor's experts are on disk. What fails here fails the model.
static void note_in_stream(struct buffer *buffer, struct ggml_tensor *tensor, struct gn_file *file, uint64_t offset) {
    struct gn_stream *stream = buffer->model.stream;
    struct weight_list *weight = calloc(1, sizeof *weight);
    int failed = weight ? gn_expert_map_add(&stream->map, tensor->name, (uint32_t)tensor->ne[2], file, offset,
                                            tensor->nb[2], &weight->weight.layer, &weight->weight.slice)
                        : -ENOMEM;
    if (failed) { // the bytes are not there: they must not be touched either
        gn_stream_break(stream, "%s cannot be streamed from %s: %s", tensor->name, gn_file_path(file),
                        failed == -EINVAL ? "the file ends before it" : strerror(-failed));
        free(weight);
        return;
    }
    weight->weight.stream = stream;
    weight->data = tensor->data;
    weight->next = buffer->weights;
    buffer->weights = weight;
    tensor->extra = &weight->weight;
}

// Takes a weight that lies in the mapping found last. False: its file cannot be opened.
static bool note_mapped(struct buffer *buffer, struct ggml_tensor *tensor, const void *data) {
    uint64_t offset = buffer->last.offset + ((uintptr_t)data - buffer->last.start);
    struct gn_file *file;
    int failed = file_of(buffer, &buffer->last, offset, &file);
    if (failed == -ENOMEM) {
        gn_stream_break(buffer->model.stream, "%s cannot be streamed from %s: %s", tensor->name, buffer->last.path,
                        strerror(-failed));
        return true;
    }
    if (failed) {
        if (buffer->unopened != buffer->last.ino) { // once, not for every tensor
            buffer->unopened = buffer->last.ino;
            gn_warn("cannot open %s again: %s; its experts are kept in a file of their own", buffer->last.path,
                    strerror(-failed));
        }
        return false;
    }
    note_in_stream(buffer, tensor, file, offset);
    return true;
}

// Writing all experts takes time and room, and may not be what was meant.
static void say_spooled(const struct buffer *buffer) {
    char bytes[32];
    gn_format_bytes(buffer->size, bytes);
    if (gn_weights_asked() == 0) { // they come from elsewhere, to an RPC server
        gn_info("experts come without a file: %s of them are written to %s", bytes, gn_spool_directory(buffer->spool));
        return;
    }
    gn_warn("experts come without a mapped file: %s of them are written to %s first. Load with --load-mode mmap, "
            "without --mlock and --no-mmap, to stream them from the model's own file; --lock dense or --lock all "
            "(GUANACO_LOCK) locks what is in memory",
            bytes, gn_spool_directory(buffer->spool));
}

// Keeps bytes of a tensor that no file backs in one of ours. Returns 0, or a negative errno with one plain line in why.
static int spool_bytes(struct buffer *buffer, const struct ggml_tensor *tensor, const void *data, size_t offset,
                       size_t size, char *why, size_t why_size) {
    if (!buffer->spool) {
        int failed = gn_spool_open(gn_settings()->text[GN_SPOOL_DIR], buffer->size, gn_settings()->value[GN_DIRECT],
                                   &buffer->spool, why, why_size);
        if (failed) {
            return failed;
        }
        say_spooled(buffer);
    }
    uint64_t at = (uint64_t)((const uint8_t *)tensor->data - buffer->base) + offset;
    int failed = gn_spool_write(buffer->spool, at, data, size);
    if (failed) {
        snprintf(why, why_size, "cannot write %s to a file in %s: %s", tensor->name, gn_spool_directory(buffer->spool),
                 strerror(-failed));
    }
    return failed;
}

// Takes a routed expert weight, or a part of one, that comes by memory.
static void spool_weight(struct buffer *buffer, struct ggml_tensor *tensor, const void *data, size_t offset,
                         size_t size) {
    struct gn_stream *stream = buffer->model.stream;
    char why[sizeof stream->error];
    if (spool_bytes(buffer, tensor, data, offset, size, why, sizeof why)) {
        gn_stream_break(stream, "%s", why);
    } else if (!gn_streamed_weight(tensor)) {
        uint64_t at = (uint64_t)((uint8_t *)tensor->data - buffer->base);
        struct gn_file *file = gn_spool_file(buffer->spool);
        if (!buffer->weights) { // the first
            gn_file_compare(file, at + offset + size / 2);
        }
        note_in_stream(buffer, tensor, file, at);
    }
}

// Takes a routed expert weight, with the stream's lock. Cannot be refused: what fails, fails the model.
static void take_weight(struct buffer *buffer, struct ggml_tensor *tensor, const void *data, size_t offset,
                        size_t size) {
    struct gn_stream *stream = buffer->model.stream;
    bool whole = offset == 0 && size == ggml_nbytes(tensor);
    if (!stream->broken && stream->started) { // slots may hold what was there before
        gn_stream_break(stream, "%s is being changed while it is in use", tensor->name);
    } else if (!stream->broken && (!whole || !find_mapping(buffer, data, size) || !note_mapped(buffer, tensor, data))) {
        spool_weight(buffer, tensor, data, offset, size);
    }
    if (stream->broken) {
        lose(buffer);
    }
}

// Whether its experts, as they stand in memory, are what a slot can hold.
static bool has_experts(const struct ggml_tensor *tensor) {
    return tensor->ne[2] >= 2 && tensor->ne[3] == 1 && ggml_is_contiguous(tensor) && !tensor->view_src &&
           gn_is_expert_weight(tensor->name);
}

static bool set_weight(struct buffer *buffer, struct ggml_tensor *tensor, const void *data, size_t offset,
                       size_t size) {
    if (!has_experts(tensor)) {
        return false;
    }
    list(buffer);
    pthread_mutex_lock(&buffer->model.stream->lock);
    take_weight(buffer, tensor, data, offset, size);
    pthread_mutex_unlock(&buffer->model.stream->lock);
    return true;
}

static void buffer_set(ggml_backend_buffer_t handle, struct ggml_tensor *tensor, const void *data, size_t offset,
                       size_t size) {
    // An RPC server does not say what its buffers are for: the name tells.
    if (set_weight(handle->context, tensor, data, offset, size)) {
        return;
    }
    if (handle->usage == GGML_BACKEND_BUFFER_USAGE_WEIGHTS && offset == 0) {
        gn_count(resident_tensors, 1);
        gn_debug("%s is no weight of routed experts: it stays in memory, whole", tensor->name);
    }
    memcpy((uint8_t *)tensor->data + offset, data, size);
}

static void buffer_get(ggml_backend_buffer_t handle, const struct ggml_tensor *tensor, void *data, size_t offset,
                       size_t size) {
    (void)handle;
    const struct gn_weight *weight = gn_streamed_weight(tensor);
    if (!weight) {
        memcpy(data, (const uint8_t *)tensor->data + offset, size);
        return;
    }
    if (!weight->layer) { // lost: the model is broken, and says so to whoever computes
        memset(data, 0, size);
        return;
    }
    const struct gn_slice *slice = &weight->layer->slices[weight->slice];
    int failed = gn_file_read(slice->file, slice->offset + tensor->view_offs + offset, size, data);
    if (failed) {
        // The caller cannot be told: whatever it does with these bytes, this model computes nothing any more.
        memset(data, 0, size);
        pthread_mutex_lock(&weight->stream->lock);
        gn_stream_break(weight->stream, "cannot read %s from %s: %s", slice->tensor, gn_file_path(slice->file),
                        strerror(-failed));
        pthread_mutex_unlock(&weight->stream->lock);
        gn_fail("cannot read %s from %s: %s", slice->tensor, gn_file_path(slice->file), strerror(-failed));
    }
}

static void buffer_memset(ggml_backend_buffer_t handle, struct ggml_tensor *tensor, uint8_t value, size_t offset,
                          size_t size) {
    (void)handle;
    memset((uint8_t *)tensor->data + offset, value, size);
}

static void buffer_clear(ggml_backend_buffer_t handle, uint8_t value) {
    struct buffer *buffer = handle->context;
    if (value != 0) { // fresh memory is zero as it is; touching it would take it
        memset(buffer->base, value, buffer->size);
    } else if (madvise(buffer->base, buffer->size, MADV_DONTNEED)) {
        memset(buffer->base, 0, buffer->size);
    }
}

// What a model will need is taken here, where not having it can still be told: setting a tensor cannot fail. NULL with
// errno.
static struct buffer *new_buffer(size_t size) {
    struct buffer *buffer = calloc(1, sizeof *buffer);
    if (!buffer) {
        return NULL;
    }
    buffer->size = size ? size : GN_BLOCK;
    buffer->model.stream = gn_stream_open();
    void *base = MAP_FAILED;
    if (buffer->model.stream) {
        base = mmap(NULL, buffer->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    if (base == MAP_FAILED) {
        int error = errno;
        gn_stream_close(buffer->model.stream);
        free(buffer);
        errno = error;
        return NULL;
    }
    buffer->base = base;
    buffer->model.base = base;
    buffer->model.bytes = buffer->size;
    return buffer;
}

static ggml_backend_buffer_t type_alloc(ggml_backend_buffer_type_t type, size_t size) {
    static const struct ggml_backend_buffer_i interface = {
        .free_buffer = buffer_free,
        .get_base = buffer_base,
        .memset_tensor = buffer_memset,
        .set_tensor = buffer_set,
        .get_tensor = buffer_get,
        .clear = buffer_clear,
    };
    if (!gn_start_waiting()) {
        return NULL;
    }
    struct buffer *buffer = new_buffer((size + GN_BLOCK - 1) / GN_BLOCK * GN_BLOCK);
    if (!buffer) {
        gn_fail("cannot take %zu bytes of addresses for a buffer: %s", size, strerror(errno));
        return NULL;
    }
    return ggml_backend_buffer_init(type, interface, buffer, size);
}

static struct ggml_backend_buffer_type the_type = {
    .iface =
        {
            .get_name = type_name,
            .alloc_buffer = type_alloc,
            .get_alignment = type_alignment,
            .is_host = type_is_host,
        },
};

void gn_buffer_type_of(ggml_backend_dev_t device) {
    the_type.device = device;
}

ggml_backend_buffer_type_t gn_buffer_type(void) {
    return &the_type;
}

bool gn_is_our_buffer(const struct ggml_backend_buffer *buffer) {
    return buffer->buft == gn_buffer_type();
}

// A weight that was set through another tensor at the same address: an RPC server makes new ones for every graph.
static const struct gn_weight *find_weight(const struct buffer *buffer, const void *data) {
    for (const struct weight_list *at = buffer->weights; at; at = at->next) {
        if (at->data == data) {
            return &at->weight;
        }
    }
    return NULL;
}

const struct gn_weight *gn_streamed_weight(const struct ggml_tensor *tensor) {
    const struct ggml_tensor *base = tensor->view_src ? tensor->view_src : tensor;
    if (!base->buffer || !gn_is_our_buffer(base->buffer)) {
        return NULL;
    }
    const struct buffer *buffer = base->buffer->context;
    const struct gn_weight *weight = base->extra ? base->extra : find_weight(buffer, base->data);
    return weight || !atomic_load(&buffer->has_lost) ? weight : &buffer->lost;
}

bool gn_is_whole_weight(const struct ggml_tensor *tensor) {
    const struct ggml_tensor *base = tensor->view_src ? tensor->view_src : tensor;
    return tensor->view_offs == 0 && ggml_are_same_shape(tensor, base) && ggml_are_same_stride(tensor, base);
}
