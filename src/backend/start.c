// Models that are loaded: starting them, and telling of them.
#include "backend/start.h"

#include "backend/geometry.h"
#include "backend/gpu.h"
#include "config/log.h"
#include "exec/growth.h"
#include "exec/models.h"
#include "model/shard_name.h"
#include "stats/stats.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct gn_loaded *loaded_models;

void gn_loaded_add(struct gn_loaded *model) {
    pthread_mutex_lock(&list_lock);
    model->next = loaded_models;
    loaded_models = model;
    pthread_mutex_unlock(&list_lock);
}

void gn_loaded_forked(void) {
    pthread_mutex_init(&list_lock, NULL);
}

void gn_loaded_remove(const struct gn_loaded *model) {
    pthread_mutex_lock(&list_lock);
    for (struct gn_loaded **at = &loaded_models; *at; at = &(*at)->next) {
        if (*at == model) {
            *at = model->next;
            break;
        }
    }
    pthread_mutex_unlock(&list_lock);
}

// Whether our interposer kept the loader from touching the whole mapping.
static bool interposed(void) {
    int (*active)(void);
    *(void **)&active = dlsym(RTLD_DEFAULT, "guanaco_preload_active");
    return active && active();
}

// Shards without experts never come by here: what they hold stays in the page cache. How many there are, by the name
// of one that did.
static unsigned shards_without_experts(const struct gn_loaded *model) {
    struct gn_shard_name shard;
    gn_shard_name_read(gn_file_path(model->files[0].file), &shard);
    return shard.count > model->n_files ? shard.count - model->n_files : 0;
}

static int protect_dense(struct gn_loaded *model, const struct gn_knobs *knobs) {
    if (model->n_files == 0) { // nothing is mapped: the dense weights are in the program's own memory
        return 0;
    }
    struct gn_dense_result result;
    bool lock = knobs->value[GN_LOCK] >= GN_LOCK_DENSE || knobs->value[GN_DENSE] == GN_DENSE_LOCK;
    int failed = gn_dense_protect(
        model->files, model->n_files, &model->stream->map, (enum gn_dense_mode)knobs->value[GN_DENSE],
        gn_stream_dense_room(model->stream, knobs), !interposed(), lock ? &model->stream->locks : NULL, &result);
    if (failed) {
        gn_fail("cannot read the dense weights of %s: %s", gn_file_path(model->files[0].file), strerror(-failed));
        return failed;
    }
    // What an earlier call copied is no longer in the mapping, and is not counted in this one.
    model->stream->dense_bytes += result.bytes;
    model->stream->dense = result.mode;
    gn_count(dense_bytes, result.bytes);
    if (result.note[0]) {
        gn_info("%s", result.note);
    }
    if (result.lock_note[0]) {
        gn_warn("%s", result.lock_note);
        model->stream->lock_failed = true;
    }
    unsigned others = shards_without_experts(model);
    if (others > 0) {
        gn_info("%u shards hold no experts: their dense weights stay in the page cache", others);
    }
    if (result.failed_advice > 0) {
        gn_warn("the kernel refused %u advice calls on the model's mapping", result.failed_advice);
    }
    return 0;
}

static int protect(struct gn_loaded *model, const struct gn_knobs *knobs) {
    struct gn_stream *stream = model->stream;
    if (stream->broken) {
        gn_fail("%s", stream->error);
        return -EINVAL;
    }
    // Another context may be made while this model is still being loaded: then this is done again for its own.
    if (model->protected_slices == stream->map.n_slices || stream->started) {
        return 0;
    }
    if (gn_stream_check(stream, knobs)) {
        gn_fail("%s", stream->error);
        return -ENOSPC;
    }
    int failed = protect_dense(model, knobs);
    model->protected_slices = failed ? 0 : stream->map.n_slices;
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
    for (struct gn_loaded *model = loaded_models; model; model = model->next) {
        struct gn_stream *stream = model->stream;
        pthread_mutex_lock(&stream->lock);
        if (!stream->started && !stream->broken) {
            gn_stream_know(stream, knobs);
        }
        pthread_mutex_unlock(&stream->lock);
    }
    for (struct gn_loaded *model = loaded_models; model; model = model->next) {
        struct gn_stream *stream = model->stream;
        gn_models_make_room(stream, knobs); // before its dense weights are copied
        pthread_mutex_lock(&stream->lock);
        int this_one = protect(model, knobs);
        failed = failed ? failed : this_one;
        others = others || stream->started;
        pthread_mutex_unlock(&stream->lock);
    }
    if (!loaded_models) {
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
    struct gn_tracer_model traced = {path, geometry->architecture, geometry->blocks, geometry->top_k};
    return gn_stream_trace(stream, knobs, &traced);
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
        char text[2048];
        gn_stream_describe(stream, text, sizeof text);
        gn_info("mode: %s", text);
    }
    return failed;
}

bool gn_start_waiting(void) {
    const struct gn_knobs *knobs = gn_settings();
    bool failed = false, others = false;
    if (knobs->given[GN_RESERVE]) {
        return true;
    }
    pthread_mutex_lock(&list_lock);
    gn_models_lock();
    for (struct gn_loaded *model = loaded_models; model; model = model->next) {
        struct gn_stream *stream = model->stream;
        gn_models_make_room(stream, knobs);
        pthread_mutex_lock(&stream->lock);
        bool waits = stream->map.n_layers > 0 && model->protected_slices == stream->map.n_slices;
        failed |= waits && !stream->started && ready(stream, knobs) != 0;
        others |= stream->started;
        pthread_mutex_unlock(&stream->lock);
    }
    gn_models_unlock();
    pthread_mutex_unlock(&list_lock);
    return !failed || others;
}

bool gn_measure_program(const struct gn_knobs *knobs) {
    bool started = false;
    uint32_t n = 0;
    pthread_mutex_lock(&list_lock);
    gn_models_lock();
    for (const struct gn_loaded *model = loaded_models; model; model = model->next) {
        started = started || model->stream->started;
        n++;
    }
    struct gn_memory_range *ranges = calloc((size_t)n + 1, sizeof *ranges);
    if (started && ranges) {
        n = 0;
        for (const struct gn_loaded *model = loaded_models; model; model = model->next) {
            ranges[n++] = (struct gn_memory_range){(uintptr_t)model->base, (uintptr_t)model->base + model->bytes, 0};
        }
        gn_growth_measure(knobs, ranges, n);
    }
    free(ranges);
    gn_models_unlock();
    pthread_mutex_unlock(&list_lock);
    return started;
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
    for (struct gn_loaded *model = loaded_models; model && used < size; model = model->next) {
        struct gn_stream *stream = model->stream;
        gn_models_make_room(stream, knobs);
        pthread_mutex_lock(&stream->lock);
        const char *joint = used > 0 ? "; " : "";
        if (stream->map.n_layers > 0 && model->protected_slices > 0 && make_ready(stream, knobs) == 0) {
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
    const struct gn_foreseen *foreseen = &stream->ahead.foreseen[(size_t)l * GN_SOURCES];
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
    struct gn_loaded *at = loaded_models;
    for (; at && model > 0; model--) {
        at = at->next;
    }
    bool known = stats->size == sizeof *stats || stats->size == offsetof(struct guanaco_layer_stats, router_used);
    if (at && known) {
        pthread_mutex_lock(&at->stream->lock);
        if (at->stream->started && layer < at->stream->map.n_layers) {
            fill_layer_stats(at->stream, layer, stats);
            failed = 0;
        }
        pthread_mutex_unlock(&at->stream->lock);
    }
    pthread_mutex_unlock(&list_lock);
    return failed;
}
