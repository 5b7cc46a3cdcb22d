// GGUF files in pieces that can be changed one by one and put together again.
#pragma once

#include "bytes.h"

#define GGUF_ENTRIES 256 // metadata, or tensors, at most: what a small model has

// One piece of metadata: its key, the number of its type, and its value as it stands in the file.
struct gguf_pair {
    uint8_t *key, *value;
    size_t key_length, value_length;
    uint32_t type;
};

struct gguf_tensor {
    char name[320];
    size_t name_length;
    uint32_t n_dims, type;
    uint64_t dims[8], offset, bytes; // bytes: up to the next tensor, or the end
};

struct gguf_pieces {
    uint32_t magic, version;
    uint64_t n_pairs, n_tensors; // as the file says, right or wrong
    size_t pairs_there, tensors_there;
    struct gguf_pair pairs[GGUF_ENTRIES];
    struct gguf_tensor tensors[GGUF_ENTRIES];
    uint64_t alignment;
    const uint8_t *data; // the file's, after the header
    size_t data_length;
};

// Takes a file apart that is right: what is wrong stops the program. The pieces point into it.
void gguf_take_apart(uint8_t *file, size_t n, struct gguf_pieces *pieces);

// Adds the file to `out`.
void gguf_put_together(const struct gguf_pieces *pieces, struct bytes *out);

// Changes the pieces in `times` places: counts, keys, types, values, names, shapes, places, or which there are. New
// bytes are taken from `room`, which must live as long as the pieces. `mild` leaves out what no reader can take.
void gguf_mutate(struct random *random, struct gguf_pieces *pieces, struct bytes *room, unsigned times, bool mild);

// A small model of random shape: qwen3moe, grovemoe or another, one to three blocks; or its shard `number` of `count`.
void gguf_make_model(struct random *random, unsigned number, unsigned count, struct bytes *out);

// What llama-imatrix writes, for blocks 0 and 2 with n_experts experts each.
void gguf_make_imatrix(struct random *random, unsigned n_experts, struct bytes *out);
