// The hot set: how often each expert of a model was used, kept from one run to the next in a small file.
//
// The file, little-endian:
//
//     8 bytes   "GNHOTSET"
//     u32       version, 1
//     u32       layers
//     u64       identity of the model
//     for each layer: u32 experts, f32 tokens, f32 uses[experts]
//     u64       checksum of all before it
//
// Which model it is of is told by its experts: names, sizes and places of their tensors, and the sizes of the files.
// Renamed files and moved ones are the same model.
#pragma once

#include "model/expert_map.h"

struct gn_hot_set {
    const struct gn_expert_map *map; // finished; must outlive this
    float *tokens;                   // [n_layers] that went through a layer
    float *uses;                     // [experts of all layers], by layer and in it by expert: of these tokens
};

int gn_hot_set_open(struct gn_hot_set *set, const struct gn_expert_map *map); // all 0; 0 or -ENOMEM
void gn_hot_set_close(struct gn_hot_set *set);

// Fills the set. Returns 0, or a negative errno with one plain line (file, what) in why: -ENOENT, -EINVAL for a file
// that is damaged or no hot set, -ESTALE for another model's. The set is all 0 then.
int gn_hot_set_read(struct gn_hot_set *set, const char *path, char *why, size_t why_size);

// Puts the set in the place of the hot set at `path`, or makes the file, as gn_replace_file() does, for its owner alone
// to read. Anything else that is there stays: -EEXIST. Returns as above.
int gn_hot_set_write(const struct gn_hot_set *set, const char *path, char *why, size_t why_size);

// Lets past tokens weigh no more than `most`: so that what is added has a say.
void gn_hot_set_fade(struct gn_hot_set *set, float most);
