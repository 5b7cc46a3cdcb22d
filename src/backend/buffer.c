// The buffer type that expert tensors are loaded into. The loader hands over addresses in its file mapping; we note
// which file and where, and touch nothing. Experts that come without a file are written to one of ours first
// (model/spool.h), at the offset that they have in the buffer. Addresses of the buffer are reserved, never filled,
// unless a tensor is none of the routed experts.
//
// The same type serves ggml's scheduler for the results of our graphs: plain memory, taken as it is touched.
#include "backend/backend.h"
#include "backend/geometry.h"
#include "backend/gpu.h"
#include "config/log.h"
#include "exec/models.h"
#include "model/dense.h"
#include "model/mapping.h"
#include "model/spool.h"
#include "stats/stats.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

struct weight_list {
    struct gn_weight weight;
    const void *data; // the tensor's address
    struct weight_list *next;
};

struct buffer {
    uint8_t *base;
    size_t size;
    struct gn_stream *stream;     // once it holds a streamed weight
    struct gn_mapped_file *files; // [n_files]
    uint32_t n_files;
    struct gn_spool *spool; // once it holds a weight without a file
    struct gn_mapping last; // the mapping found last: the next tensor most often lies in it too
    struct weight_list *weights;
    uint32_t protected_slices; // how many the model had when its dense weights were protected
    struct buffer *next;       // in the list of buffers with a stream
};

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct buffer *buffers;

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
    pthread_mutex_lock(&list_lock);
    for (struct buffer **at = &buffers; *at; at = &(*at)->next) {
        if (*at == buffer) {
            *at = buffer->next;
            break;
        }
    }
    pthread_mutex_unlock(&list_lock);
    atomic_fetch_sub(&gn_stats.dense_bytes, buffer->stream ? buffer->stream->dense_bytes : 0);
    struct gn_gpu *gpu = buffer->stream ? buffer->stream->gpu : NULL;
    gn_stream_close(buffer->stream);
    gn_gpu_close(gpu);
    gn_spool_close(buffer->spool);
    while (buffer->weights) {
        struct weight_list *next = buffer->weights->next;
        free(buffer->weights);
        buffer->weights = next;
    }
    munmap(buffer->base, buffer->size);
    free(buffer->files);
    free(buffer);
}

static void *buffer_base(ggml_backend_buffer_t handle) {
    return ((struct buffer *)handle->context)->base;
}

// Opens the file behind a mapping: by its name, or, when that now names another file or none, through the descriptor
// that the loader still holds.
static int open_mapped(const struct gn_mapping *mapping, bool direct, struct gn_file **file) {
    int failed = gn_file_open(mapping->path, direct, 0, mapping->ino, file);
    if (!failed) {
        return 0;
    }
    for (int fd = 3; fd < 4096; fd++) {
        struct stat status;
        if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_ino == mapping->ino &&
            !gn_file_reopen(fd, mapping->path, direct, file)) {
            return 0;
        }
    }
    return failed;
}

static struct gn_file *file_of(struct buffer *buffer, const struct gn_mapping *mapping, bool direct) {
    uint8_t *base = (uint8_t *)mapping->start - mapping->offset;
    for (uint32_t f = 0; f < buffer->n_files; f++) {
        if (buffer->files[f].ino == mapping->ino && buffer->files[f].base == base) {
            return buffer->files[f].file;
        }
    }
    struct gn_mapped_file *grown = realloc(buffer->files, (buffer->n_files + 1) * sizeof *grown);
    if (!grown) {
        return NULL;
    }
    buffer->files = grown;
    struct gn_file *file;
    int failed = open_mapped(mapping, direct, &file);
    if (failed) {
        gn_warn("cannot open %s again (%s)", mapping->path, strerror(-failed));
        return NULL;
    }
    buffer->files[buffer->n_files++] = (struct gn_mapped_file){.file = file, .ino = mapping->ino, .base = base};
    return file;
}

static bool find_mapping(struct buffer *buffer, const void *data, size_t size) {
    uintptr_t begin = (uintptr_t)data;
    if (begin >= buffer->last.start && begin + size <= buffer->last.end) {
        return true;
    }
    return gn_mapping_find(data, &buffer->last) && buffer->last.shared && begin + size <= buffer->last.end;
}

static struct gn_stream *stream_of(struct buffer *buffer) {
    if (!buffer->stream) {
        buffer->stream = gn_stream_open();
        pthread_mutex_lock(&list_lock);
        buffer->next = buffers;
        buffers = buffer;
        pthread_mutex_unlock(&list_lock);
    }
    return buffer->stream;
}

// Notes in the stream, whose lock is held, where a tensor's experts are on disk. False: it cannot be streamed.
static bool note_in_stream(struct buffer *buffer, struct ggml_tensor *tensor, struct gn_file *file, uint64_t offset) {
    struct gn_stream *stream = buffer->stream;
    struct weight_list *weight = file ? calloc(1, sizeof *weight) : NULL;
    if (!weight) {
        return false;
    }
    int failed = gn_expert_map_add(&stream->map, tensor->name, (uint32_t)tensor->ne[2], file, offset, tensor->nb[2],
                                   &weight->weight.layer, &weight->weight.slice);
    if (failed) { // the bytes are not there: they must not be touched either
        stream->broken = true;
        snprintf(stream->error, sizeof stream->error, "%s cannot be streamed from %s: %s", tensor->name,
                 gn_file_path(file), failed == -EINVAL ? "the file ends before it" : strerror(-failed));
        free(weight);
        return true;
    }
    weight->weight.stream = stream;
    weight->data = tensor->data;
    weight->next = buffer->weights;
    buffer->weights = weight;
    tensor->extra = &weight->weight;
    return true;
}

static bool note_mapped(struct buffer *buffer, struct ggml_tensor *tensor, const void *data) {
    struct gn_file *file =
        buffer->stream->started ? NULL : file_of(buffer, &buffer->last, gn_settings()->value[GN_DIRECT]);
    return note_in_stream(buffer, tensor, file, buffer->last.offset + ((uintptr_t)data - buffer->last.start));
}

// Keeps bytes of a tensor that no file backs in one of ours. Cannot be refused: what fails here, fails the model.
static int spool_bytes(struct buffer *buffer, const struct ggml_tensor *tensor, const void *data, size_t offset,
                       size_t size) {
    struct gn_stream *stream = buffer->stream;
    int failed = 0;
    if (!buffer->spool) {
        failed = gn_spool_open(gn_settings()->text[GN_SPOOL_DIR], buffer->size, gn_settings()->value[GN_DIRECT],
                               &buffer->spool, stream->error, sizeof stream->error);
        if (!failed) {
            char bytes[32];
            gn_info("experts come without a file: %s of them are written to %s", gn_format_bytes(buffer->size, bytes),
                    gn_spool_directory(buffer->spool));
        }
    }
    if (!failed) {
        uint64_t at = (uint64_t)((const uint8_t *)tensor->data - buffer->base) + offset;
        failed = gn_spool_write(buffer->spool, at, data, size);
        if (failed) {
            snprintf(stream->error, sizeof stream->error, "cannot write %s to a file in %s: %s", tensor->name,
                     gn_spool_directory(buffer->spool), strerror(-failed));
        }
    }
    return failed;
}

// Takes a routed expert weight, or a part of one, that comes by memory.
static void spool_weight(struct buffer *buffer, struct ggml_tensor *tensor, const void *data, size_t offset,
                         size_t size) {
    struct gn_stream *stream = buffer->stream;
    bool noted = gn_streamed_weight(tensor) != NULL;
    if (stream->broken) {
        return;
    }
    if (stream->started) { // slots may hold what was there before
        stream->broken = true;
        snprintf(stream->error, sizeof stream->error, "%s is being changed while it is in use", tensor->name);
        return;
    }
    stream->broken = spool_bytes(buffer, tensor, data, offset, size) != 0;
    if (!stream->broken && !noted) {
        struct gn_file *file = gn_spool_file(buffer->spool);
        snprintf(stream->error, sizeof stream->error, "memory is short");
        stream->broken =
            stream->broken || !note_in_stream(buffer, tensor, file, (uint64_t)((uint8_t *)tensor->data - buffer->base));
        stream->error[0] = stream->broken ? stream->error[0] : '\0';
    }
}

// Whether its experts, as they stand in memory, are what a slot can hold.
static bool has_experts(const struct ggml_tensor *tensor) {
    return tensor->ne[2] >= 2 && tensor->ne[3] == 1 && ggml_is_contiguous(tensor) && !tensor->view_src &&
           gn_is_expert_weight(tensor->name);
}

static bool set_weight(struct buffer *buffer, struct ggml_tensor *tensor, const void *data, size_t offset,
                       size_t size) {
    if (!has_experts(tensor) || !stream_of(buffer)) {
        return false;
    }
    pthread_mutex_lock(&buffer->stream->lock);
    bool whole = offset == 0 && size == ggml_nbytes(tensor);
    if (!whole || !find_mapping(buffer, data, size) || !note_mapped(buffer, tensor, data)) {
        spool_weight(buffer, tensor, data, offset, size);
    }
    pthread_mutex_unlock(&buffer->stream->lock);
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
    const struct gn_slice *slice = &weight->layer->slices[weight->slice];
    int failed = gn_file_read(slice->file, slice->offset + tensor->view_offs + offset, size, data);
    if (failed) {
        // The caller cannot be told: whatever it does with these bytes, this model computes nothing any more.
        memset(data, 0, size);
        weight->stream->broken = true;
        snprintf(weight->stream->error, sizeof weight->stream->error, "cannot read %s from %s: %s", slice->tensor,
                 gn_file_path(slice->file), strerror(-failed));
        gn_fail("%s", weight->stream->error);
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

static int ready(struct gn_stream *stream, const struct gn_knobs *knobs);

// Sizes the streams that a context waits for. ggml takes memory for the results of our graphs when the context has its
// KV cache: a good time, since what goes wrong can still be told by the context not coming about, and the line that
// says how it streams does not come amid the first words. Our own programs ask when it suits them (guanaco_mode).
static bool start_waiting(void) {
    const struct gn_knobs *knobs = gn_settings();
    bool failed = false, others = false;
    if (knobs->given[GN_RESERVE]) {
        return true;
    }
    pthread_mutex_lock(&list_lock);
    gn_models_lock();
    for (struct buffer *buffer = buffers; buffer; buffer = buffer->next) {
        struct gn_stream *stream = buffer->stream;
        gn_models_make_room(stream, knobs);
        pthread_mutex_lock(&stream->lock);
        bool waits = stream->map.n_layers > 0 && buffer->protected_slices == stream->map.n_slices;
        failed |= waits && !stream->started && ready(stream, knobs) != 0;
        others |= stream->started;
        pthread_mutex_unlock(&stream->lock);
    }
    gn_models_unlock();
    pthread_mutex_unlock(&list_lock);
    return !failed || others;
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
    if (!start_waiting()) {
        return NULL;
    }
    struct buffer *buffer = calloc(1, sizeof *buffer);
    if (!buffer) {
        return NULL;
    }
    buffer->size = (size + GN_BLOCK - 1) / GN_BLOCK * GN_BLOCK;
    buffer->size = buffer->size ? buffer->size : GN_BLOCK;
    void *base = mmap(NULL, buffer->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        free(buffer);
        return NULL;
    }
    buffer->base = base;
    return ggml_backend_buffer_init(type, interface, buffer, size);
}

ggml_backend_buffer_type_t gn_buffer_type(ggml_backend_dev_t device) {
    static struct ggml_backend_buffer_type type = {
        .iface =
            {
                .get_name = type_name,
                .alloc_buffer = type_alloc,
                .get_alignment = type_alignment,
                .is_host = type_is_host,
            },
    };
    if (device) {
        type.device = device;
    }
    return &type;
}

bool gn_is_our_buffer(const struct ggml_backend_buffer *buffer) {
    return buffer->buft == gn_buffer_type(NULL);
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
    return base->extra ? base->extra : find_weight(base->buffer->context, base->data);
}

bool gn_is_whole_weight(const struct ggml_tensor *tensor) {
    const struct ggml_tensor *base = tensor->view_src ? tensor->view_src : tensor;
    return tensor->view_offs == 0 && ggml_are_same_shape(tensor, base) && ggml_are_same_stride(tensor, base);
}

// Whether our interposer kept the loader from touching the whole mapping.
static bool interposed(void) {
    int (*active)(void);
    *(void **)&active = dlsym(RTLD_DEFAULT, "guanaco_preload_active");
    return active && active();
}

// Shards without experts never come by here: what they hold stays in the page cache. How many there are, by the name
// "-00001-of-00004.gguf" of one that did.
static unsigned shards_without_experts(const struct buffer *buffer) {
    const char *path = gn_file_path(buffer->files[0].file), *slash = strrchr(path, '/');
    const char *of = strstr(slash ? slash : path, "-of-");
    unsigned shards = 0;
    if (!of || sscanf(of, "-of-%5u.gguf", &shards) != 1) {
        return 0;
    }
    return shards > buffer->n_files ? shards - buffer->n_files : 0;
}

static int protect_dense(struct buffer *buffer, const struct gn_knobs *knobs) {
    if (buffer->n_files == 0) { // nothing is mapped: the dense weights are in the program's own memory
        return 0;
    }
    struct gn_dense_result result;
    bool lock = knobs->value[GN_LOCK] >= GN_LOCK_DENSE || knobs->value[GN_DENSE] == GN_DENSE_LOCK;
    int failed = gn_dense_protect(
        buffer->files, buffer->n_files, &buffer->stream->map, (enum gn_dense_mode)knobs->value[GN_DENSE],
        gn_stream_dense_room(buffer->stream, knobs), !interposed(), lock ? &buffer->stream->locks : NULL, &result);
    if (failed) {
        gn_fail("cannot read the dense weights of %s: %s", gn_file_path(buffer->files[0].file), strerror(-failed));
        return failed;
    }
    // What an earlier call copied is no longer in the mapping, and is not counted in this one.
    buffer->stream->dense_bytes += result.bytes;
    buffer->stream->dense = result.mode;
    gn_count(dense_bytes, result.bytes);
    if (result.note[0]) {
        gn_info("%s", result.note);
    }
    if (result.lock_note[0]) {
        gn_warn("%s", result.lock_note);
        buffer->stream->lock_failed = true;
    }
    unsigned others = shards_without_experts(buffer);
    if (others > 0) {
        gn_info("%u shards hold no experts: their dense weights stay in the page cache", others);
    }
    if (result.failed_advice > 0) {
        gn_warn("the kernel refused %u advice calls on the model's mapping", result.failed_advice);
    }
    return 0;
}

static int start_buffer(struct buffer *buffer, const struct gn_knobs *knobs) {
    struct gn_stream *stream = buffer->stream;
    if (stream->broken) {
        gn_fail("%s", stream->error);
        return -EINVAL;
    }
    // Another context may be made while this model is still being loaded: then this is done again for its own.
    if (buffer->protected_slices == stream->map.n_slices || stream->started) {
        return 0;
    }
    if (gn_stream_check(stream, knobs)) {
        gn_fail("%s", stream->error);
        return -ENOSPC;
    }
    int failed = protect_dense(buffer, knobs);
    buffer->protected_slices = failed ? 0 : stream->map.n_slices;
    return failed;
}

// Says once that a model is loaded of which nothing is streamed.
static void say_nothing_is_streamed(void) {
    static atomic_bool said;
    // Experts that were offered and did not come: they stay in memory, which was said, or the program only measures.
    // A program that has loaded no model, such as an RPC server, has asked for nothing.
    if (gn_weights_asked() > 0 && gn_weights_offered() == 0 && !atomic_exchange(&said, true)) {
        gn_info("mode: nothing is streamed: this model has no routed experts, or they are placed on another device");
    }
}

int gn_start_streams(const struct gn_knobs *knobs) {
    int failed = 0;
    bool others = false;
    pthread_mutex_lock(&list_lock);
    gn_models_lock();
    for (struct buffer *buffer = buffers; buffer; buffer = buffer->next) {
        struct gn_stream *stream = buffer->stream;
        pthread_mutex_lock(&stream->lock);
        if (!stream->started && !stream->broken) {
            gn_stream_know(stream, knobs);
        }
        pthread_mutex_unlock(&stream->lock);
    }
    for (struct buffer *buffer = buffers; buffer; buffer = buffer->next) {
        struct gn_stream *stream = buffer->stream;
        gn_models_make_room(stream, knobs); // before its dense weights are copied
        pthread_mutex_lock(&stream->lock);
        int this_one = start_buffer(buffer, knobs);
        failed = failed ? failed : this_one;
        others = others || stream->started;
        pthread_mutex_unlock(&stream->lock);
    }
    if (!buffers) {
        say_nothing_is_streamed();
    }
    gn_models_unlock();
    pthread_mutex_unlock(&list_lock);
    // The context that is being made may be of a model that works already; one that does not fails its own graphs.
    return others ? 0 : failed;
}

static int begin_trace(struct gn_stream *stream, const struct gn_knobs *knobs, const char *path,
                       const struct gn_geometry *geometry) {
    if (!knobs->given[GN_TRACE]) {
        return 0;
    }
    struct gn_tracer_model model = {path, geometry->architecture, geometry->blocks, geometry->top_k};
    return gn_stream_trace(stream, knobs, &model);
}

// Returns why not in stream->error. With the models' lock and the stream's.
static int make_ready(struct gn_stream *stream, const struct gn_knobs *knobs) {
    if (stream->broken || stream->started) {
        return stream->broken ? -EINVAL : 0;
    }
    struct gn_geometry geometry = {0};
    const char *path = stream->map.n_files > 0 ? gn_file_path(stream->map.files[0]) : "";
    if (stream->map.n_files > 0) {
        gn_geometry_read(path, &geometry);
    }
    int failed = begin_trace(stream, knobs, path, &geometry);
    failed = failed ? failed : gn_stream_start(stream, knobs);
    if (!failed) {
        gn_info("model: %s, %u experts, top-%u, %u layers, hidden size %u; %u expert tensors in %u layers, %u shard%s",
                geometry.architecture[0] ? geometry.architecture : "unknown", geometry.experts, geometry.top_k,
                geometry.blocks, geometry.width, stream->map.n_slices, stream->map.n_layers, stream->map.n_files,
                stream->map.n_files == 1 ? "" : "s");
    }
    return failed;
}

// The same, and says how it streams or why it does not.
static int ready(struct gn_stream *stream, const struct gn_knobs *knobs) {
    bool first = !stream->started;
    int failed = make_ready(stream, knobs);
    if (failed) {
        gn_fail("%s", stream->error);
    }
    if (first && !failed) { // the program has not asked for this with guanaco_mode()
        char text[512];
        gn_stream_describe(stream, text, sizeof text);
        gn_info("mode: %s", text);
    }
    return failed;
}

int gn_ready_stream(struct gn_stream *stream, const struct gn_knobs *knobs) {
    if (stream->started && !stream->broken) {
        return 0;
    }
    pthread_mutex_unlock(&stream->lock); // locks are taken in one order
    gn_models_lock();
    pthread_mutex_lock(&stream->lock);
    if (!stream->started && !stream->broken) { // an RPC server's model comes by here first
        gn_stream_know(stream, knobs);
        pthread_mutex_unlock(&stream->lock);
        gn_models_make_room(stream, knobs);
        pthread_mutex_lock(&stream->lock);
    }
    int failed = ready(stream, knobs);
    gn_models_unlock();
    return failed;
}

void gn_describe_streams(const struct gn_knobs *knobs, char *text, size_t size) {
    size_t used = 0;
    snprintf(text, size, "nothing is streamed: no model with routed experts in mapped files is loaded");
    pthread_mutex_lock(&list_lock);
    gn_models_lock();
    for (struct buffer *buffer = buffers; buffer && used < size; buffer = buffer->next) {
        struct gn_stream *stream = buffer->stream;
        gn_models_make_room(stream, knobs);
        pthread_mutex_lock(&stream->lock);
        const char *joint = used > 0 ? "; " : "";
        if (stream->map.n_layers > 0 && buffer->protected_slices > 0 && make_ready(stream, knobs) == 0) {
            char one[768];
            gn_stream_describe(stream, one, sizeof one);
            gn_gpu_describe(stream->gpu, one + strlen(one), sizeof one - strlen(one));
            used += (size_t)snprintf(text + used, size - used, "%s%s", joint, one);
        } else if (stream->error[0]) {
            used += (size_t)snprintf(text + used, size - used, "%snothing is streamed: %s", joint, stream->error);
        }
        pthread_mutex_unlock(&stream->lock);
    }
    gn_models_unlock();
    pthread_mutex_unlock(&list_lock);
}

static void fill_layer_stats(const struct gn_stream *stream, uint32_t l, struct guanaco_layer_stats *stats) {
    const struct gn_layer *layer = stream->map.layers[l];
    struct gn_cache_totals totals = gn_cache_layer_totals(stream->cache, l);
    const struct gn_foreseen *foreseen = &stream->ahead.foreseen[l * GN_SOURCES];
    struct guanaco_layer_stats all = {
        .size = stats->size,
        .block = layer->block,
        .experts = layer->n_experts,
        .resident = totals.resident,
        .pinned = totals.hot_resident,
        .expert_bytes = layer->expert_bytes,
        .events = totals.events,
        .hits = totals.hits,
        .misses = totals.misses,
        .inserts = totals.inserts,
        .evictions = totals.evictions,
        .pinned_hits = totals.hot_hits,
        .pinned_evictions = totals.hot_evictions,
        .rereads = totals.rereads,
        .router_used = foreseen[GN_SOURCE_ROUTER].used,
        .router_foreseen = foreseen[GN_SOURCE_ROUTER].foreseen,
        .pilot_used = foreseen[GN_SOURCE_PILOT].used,
        .pilot_foreseen = foreseen[GN_SOURCE_PILOT].foreseen,
    };
    memcpy(stats, &all, all.size);
}

int gn_layer_stats(uint32_t model, uint32_t layer, struct guanaco_layer_stats *stats) {
    int failed = -1;
    pthread_mutex_lock(&list_lock);
    struct buffer *buffer = buffers;
    for (; buffer && model > 0; model--) {
        buffer = buffer->next;
    }
    bool known = stats->size == sizeof *stats || stats->size == offsetof(struct guanaco_layer_stats, router_used);
    if (buffer && known) {
        pthread_mutex_lock(&buffer->stream->lock);
        if (buffer->stream->started && layer < buffer->stream->map.n_layers) {
            fill_layer_stats(buffer->stream, layer, stats);
            failed = 0;
        }
        pthread_mutex_unlock(&buffer->stream->lock);
    }
    pthread_mutex_unlock(&list_lock);
    return failed;
}
