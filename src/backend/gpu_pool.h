// Slots for experts in a device's memory, and the way there. A pool is one buffer with a tensor for each part of an
// expert (gate, up, down, and their biases), [ne0, ne1, slots]: the device's own MUL_MAT_ID runs over it, with slots
// for ids.
//
// Copies are asynchronous, from two page-locked staging areas that take turns. Not thread-safe: under the stream's
// lock.
#pragma once

#include "ggml-backend.h"
#include "ggml.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GN_GPU_PARTS 8
#define GN_GPU_STAGING 2

struct gn_gpu_part {
    enum ggml_type type;
    int64_t ne0, ne1; // ne1 is 0 for a bias: a row for each expert
};

// What an expert is made of. Experts of one shape can take one another's slots.
struct gn_gpu_shape {
    uint32_t n_parts;
    struct gn_gpu_part part[GN_GPU_PARTS];
};

size_t gn_gpu_part_bytes(const struct gn_gpu_part *part);
size_t gn_gpu_shape_bytes(const struct gn_gpu_shape *shape);   // of one expert
size_t gn_gpu_shape_largest(const struct gn_gpu_shape *shape); // of its largest part
bool gn_gpu_shape_same(const struct gn_gpu_shape *a, const struct gn_gpu_shape *b);

// Makes the tensors of n_slots experts, one for each part, in a context without memory of its own.
void gn_gpu_shape_tensors(const struct gn_gpu_shape *shape, uint32_t n_slots, struct ggml_context *context,
                          struct ggml_tensor **parts);

struct gn_gpu_device {
    ggml_backend_dev_t device;
    const char *name;             // as llama.cpp prints it
    ggml_backend_t compute, copy; // two streams of the same device
    ggml_backend_buffer_type_t type;
    size_t largest; // bytes a tensor may have
    struct gn_gpu_staging {
        ggml_backend_buffer_t buffer; // NULL: ordinary memory
        uint8_t *memory;
        size_t bytes;
        ggml_backend_event_t copied; // NULL: the device has no events
        bool busy;
        const void *pool; // where the copy goes to
        uint32_t slot;
    } staging[GN_GPU_STAGING];
    uint32_t next_staging;
    int64_t fault_at; // tests: the call to the device that fails; 0: none
};

struct gn_gpu_pool {
    struct gn_gpu_shape shape;
    uint32_t n_slots;
    struct ggml_context *context;
    ggml_backend_buffer_t buffer;
    struct ggml_tensor *part[GN_GPU_PARTS];
};

// Finds a GPU by its name, in any case, or the first with NULL. NULL: there is none.
ggml_backend_dev_t gn_gpu_find(const char *name);

// Opens the device. Returns false when it cannot be used.
bool gn_gpu_device_open(struct gn_gpu_device *gpu, ggml_backend_dev_t device);
void gn_gpu_device_close(struct gn_gpu_device *gpu);
// Takes staging for experts of up to `bytes`. False: no memory.
bool gn_gpu_device_stage(struct gn_gpu_device *gpu, size_t bytes);
// Counts a call; true when tests want it to fail.
bool gn_gpu_faults(struct gn_gpu_device *gpu);

// Takes memory for n_slots experts. False: the device has not got it.
bool gn_gpu_pool_open(struct gn_gpu_pool *pool, struct gn_gpu_device *gpu, const struct gn_gpu_shape *shape,
                      uint32_t n_slots);
void gn_gpu_pool_close(struct gn_gpu_pool *pool);
size_t gn_gpu_pool_bytes(const struct gn_gpu_pool *pool); // that were taken

// Begins to copy an expert into a slot; parts[i] are the bytes of its parts, which may change after the call.
void gn_gpu_pool_put(struct gn_gpu_pool *pool, struct gn_gpu_device *gpu, uint32_t slot, const void *const *parts);
// Waits until what is being copied into the slot is there. At once when nothing is.
void gn_gpu_pool_wait(const struct gn_gpu_pool *pool, struct gn_gpu_device *gpu, uint32_t slot);
