#include "backend/gpu_pool.h"

#include "stats/stats.h"

#include "ggml-alloc.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

size_t gn_gpu_part_bytes(const struct gn_gpu_part *part) {
    return ggml_row_size(part->type, part->ne0) * (size_t)(part->ne1 ? part->ne1 : 1);
}

size_t gn_gpu_shape_bytes(const struct gn_gpu_shape *shape) {
    size_t bytes = 0;
    for (uint32_t p = 0; p < shape->n_parts; p++) {
        bytes += gn_gpu_part_bytes(&shape->part[p]);
    }
    return bytes;
}

size_t gn_gpu_shape_largest(const struct gn_gpu_shape *shape) {
    size_t largest = 0;
    for (uint32_t p = 0; p < shape->n_parts; p++) {
        size_t bytes = gn_gpu_part_bytes(&shape->part[p]);
        largest = bytes > largest ? bytes : largest;
    }
    return largest;
}

bool gn_gpu_shape_same(const struct gn_gpu_shape *a, const struct gn_gpu_shape *b) {
    bool same = a->n_parts == b->n_parts;
    for (uint32_t p = 0; same && p < a->n_parts; p++) {
        const struct gn_gpu_part *x = &a->part[p], *y = &b->part[p];
        same = x->type == y->type && x->ne0 == y->ne0 && x->ne1 == y->ne1;
    }
    return same;
}

void gn_gpu_shape_tensors(const struct gn_gpu_shape *shape, uint32_t n_slots, struct ggml_context *context,
                          struct ggml_tensor **parts) {
    for (uint32_t p = 0; p < shape->n_parts; p++) {
        const struct gn_gpu_part *part = &shape->part[p];
        parts[p] = part->ne1 ? ggml_new_tensor_3d(context, part->type, part->ne0, part->ne1, n_slots)
                             : ggml_new_tensor_2d(context, part->type, part->ne0, n_slots);
    }
}

// ------------------------------------------------------------------------------------------------- the device

ggml_backend_dev_t gn_gpu_find(const char *name) {
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        ggml_backend_dev_t device = ggml_backend_dev_get(i);
        enum ggml_backend_dev_type type = ggml_backend_dev_type(device);
        bool gpu = type == GGML_BACKEND_DEVICE_TYPE_GPU || type == GGML_BACKEND_DEVICE_TYPE_IGPU;
        if (gpu && (!name || !strcasecmp(name, ggml_backend_dev_name(device)))) {
            return device;
        }
    }
    return NULL;
}

bool gn_gpu_device_open(struct gn_gpu_device *gpu, ggml_backend_dev_t device) {
    struct ggml_backend_dev_props props;
    ggml_backend_dev_get_props(device, &props);
    gpu->device = device;
    gpu->name = ggml_backend_dev_name(device);
    gpu->type = ggml_backend_dev_buffer_type(device);
    gpu->largest = ggml_backend_buft_get_max_size(gpu->type);
    gpu->compute = ggml_backend_dev_init(device, NULL);
    gpu->copy = ggml_backend_dev_init(device, NULL);
    for (int i = 0; i < GN_GPU_STAGING && props.caps.events; i++) {
        gpu->staging[i].copied = ggml_backend_event_new(device);
    }
    if (!gpu->compute || !gpu->copy || gn_gpu_faults(gpu)) {
        gn_gpu_device_close(gpu);
        return false;
    }
    return true;
}

void gn_gpu_device_close(struct gn_gpu_device *gpu) {
    for (int i = 0; i < GN_GPU_STAGING; i++) {
        struct gn_gpu_staging *staging = &gpu->staging[i];
        if (staging->busy) {
            ggml_backend_synchronize(gpu->copy);
        }
        ggml_backend_event_free(staging->copied);
        staging->buffer ? ggml_backend_buffer_free(staging->buffer) : free(staging->memory);
        *staging = (struct gn_gpu_staging){0};
    }
    ggml_backend_free(gpu->compute);
    ggml_backend_free(gpu->copy);
    gpu->compute = gpu->copy = NULL;
}

bool gn_gpu_device_stage(struct gn_gpu_device *gpu, size_t bytes) {
    ggml_backend_buffer_type_t host = ggml_backend_dev_host_buffer_type(gpu->device);
    for (int i = 0; i < GN_GPU_STAGING; i++) {
        struct gn_gpu_staging *staging = &gpu->staging[i];
        staging->buffer = host ? ggml_backend_buft_alloc_buffer(host, bytes) : NULL;
        staging->memory = staging->buffer ? ggml_backend_buffer_get_base(staging->buffer) : malloc(bytes);
        staging->bytes = bytes;
        if (!staging->memory || gn_gpu_faults(gpu)) {
            return false;
        }
    }
    return true;
}

bool gn_gpu_faults(struct gn_gpu_device *gpu) {
    return gpu->fault_at > 0 && --gpu->fault_at == 0;
}

// ------------------------------------------------------------------------------------------------- pools

bool gn_gpu_pool_open(struct gn_gpu_pool *pool, struct gn_gpu_device *gpu, const struct gn_gpu_shape *shape,
                      uint32_t n_slots) {
    *pool = (struct gn_gpu_pool){.shape = *shape, .n_slots = n_slots};
    pool->context = ggml_init((struct ggml_init_params){ggml_tensor_overhead() * GN_GPU_PARTS, NULL, true});
    if (!pool->context) {
        return false;
    }
    gn_gpu_shape_tensors(shape, n_slots, pool->context, pool->part);
    pool->buffer = gn_gpu_faults(gpu) ? NULL : ggml_backend_alloc_ctx_tensors_from_buft(pool->context, gpu->type);
    if (!pool->buffer) {
        gn_gpu_pool_close(pool);
        return false;
    }
    ggml_backend_buffer_set_usage(pool->buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    return true;
}

void gn_gpu_pool_close(struct gn_gpu_pool *pool) {
    ggml_backend_buffer_free(pool->buffer);
    ggml_free(pool->context);
    *pool = (struct gn_gpu_pool){0};
}

size_t gn_gpu_pool_bytes(const struct gn_gpu_pool *pool) {
    return pool->buffer ? ggml_backend_buffer_get_size(pool->buffer) : 0;
}

static void wait_for(struct gn_gpu_device *gpu, struct gn_gpu_staging *staging) {
    if (staging->busy) {
        staging->copied ? ggml_backend_event_synchronize(staging->copied) : ggml_backend_synchronize(gpu->copy);
        staging->busy = false;
    }
}

void gn_gpu_pool_put(struct gn_gpu_pool *pool, struct gn_gpu_device *gpu, uint32_t slot, const void *const *parts) {
    struct gn_gpu_staging *staging = &gpu->staging[gpu->next_staging];
    gpu->next_staging = (gpu->next_staging + 1) % GN_GPU_STAGING;
    wait_for(gpu, staging);
    uint8_t *at = staging->memory;
    for (uint32_t p = 0; p < pool->shape.n_parts; p++) {
        size_t bytes = gn_gpu_part_bytes(&pool->shape.part[p]);
        memcpy(at, parts[p], bytes);
        ggml_backend_tensor_set_async(gpu->copy, pool->part[p], at, slot * bytes, bytes);
        at += bytes;
    }
    if (staging->copied) {
        ggml_backend_event_record(staging->copied, gpu->copy);
    }
    staging->busy = true;
    staging->pool = pool;
    staging->slot = slot;
    gn_count(gpu_uploads, 1);
    gn_count(gpu_upload_bytes, (uint64_t)(at - staging->memory));
}

void gn_gpu_pool_wait(const struct gn_gpu_pool *pool, struct gn_gpu_device *gpu, uint32_t slot) {
    for (int i = 0; i < GN_GPU_STAGING; i++) {
        if (gpu->staging[i].busy && gpu->staging[i].pool == pool && gpu->staging[i].slot == slot) {
            wait_for(gpu, &gpu->staging[i]);
        }
    }
}
