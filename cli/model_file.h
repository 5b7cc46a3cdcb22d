// What the header of a model tells before anything is loaded: its shards, its experts and their sizes.
#pragma once

#include "config/output_file.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MODEL_SLICES 4

// The routed experts of one layer.
struct model_layer {
    uint32_t block; // N of "blk.N."
    bool chunk;     // the second set of experts that some models have in a block ("_chexps")
    uint32_t n_experts;
    uint32_t n_slices;              // tensors that make up an expert
    char slice[MODEL_SLICES][16];   // "gate", "up", "down", "gate_up"
    const char *type[MODEL_SLICES]; // quantisation, ggml's name
    uint64_t expert_bytes;          // of one expert
    uint64_t slot_bytes;            // memory for one expert, with room to read whole blocks
};

struct model_file {
    char **shards; // [n_shards], in order
    uint32_t n_shards;
    uint64_t file_bytes; // of all shards
    char architecture[64], name[128];
    // From the metadata; 0 when not said.
    uint64_t blocks, experts, top_k, context, width, dense_ff, expert_ff;
    struct model_layer *layers; // [n_layers], by block: those with routed experts
    uint32_t n_layers;
    uint64_t expert_bytes, dense_bytes; // of all experts; of all other tensors
    uint64_t n_tensors;
};

// Reads the headers of the model that `path`, any of its shards, belongs to, and checks that every shard is there and
// whole. Returns true, or false with one plain line (what, where, what to do) in why.
bool model_file_open(const char *path, struct model_file *model, char *why, size_t why_size);
void model_file_close(struct model_file *model);

// Whether none of the model's files is an output. False with one plain line in why.
bool model_file_spared(const struct model_file *model, const struct gn_outputs *outputs, char *why, size_t why_size);

// What one token reads when nothing is held: for each layer top_k experts.
uint64_t model_token_cycle(const struct model_file *model);
uint64_t model_largest_slot(const struct model_file *model);
uint64_t model_all_slots(const struct model_file *model); // bytes of slots for all experts
