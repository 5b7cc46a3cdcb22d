// Which bytes of which file make up each expert. Filled as the loader hands over tensors; knows nothing of ggml.
//
// A layer here is one set of routed experts: usually a block of the model, though a block may hold two sets (grovemoe).
// Each expert of a layer consists of slices, one per tensor: gate, up and down, or gate_up and down, or up and down;
// each slice is one contiguous byte range, whatever its quantisation. In a slot the slices lie one after another, each
// with room to be read in whole blocks, so that a direct read never has to move bytes.
//
// Not thread-safe: filled by the loading thread, read-only afterwards.
#pragma once

#include "io/reader.h"

#include <stddef.h>
#include <stdint.h>

#define GN_MAX_SLICES 4

struct gn_slice {
    char tensor[64];      // name, for messages
    struct gn_file *file; // the map's
    uint64_t offset;      // of expert 0, bytes
    uint64_t bytes;       // of one expert; expert e begins at offset + e * bytes
    uint64_t at;          // where the slice's blocks begin in a slot
    const uint8_t
        *mapped; // byte 0 of a mapping of the file: experts stay there, slots have no bytes; NULL: they are read
    bool last;   // needed last in a layer (down): read after the others
};

struct gn_layer {
    uint32_t index; // position in the map, in sweep order; valid after gn_expert_map_finish()
    uint32_t block; // N of "blk.N."
    char family[16];
    uint32_t n_experts;
    uint32_t n_slices;
    struct gn_slice slices[GN_MAX_SLICES];
    uint64_t slot_bytes;   // room for any expert of the layer; valid after gn_expert_map_finish()
    uint64_t expert_bytes; // of one expert on disk
};

struct gn_expert_map {
    struct gn_layer **layers; // [n_layers]; a layer's address never changes
    uint32_t n_layers;
    struct gn_file **files; // [n_files]
    uint32_t n_files;
    void **mappings; // [n_files] of whole files, after gn_expert_map_in_place()
    uint32_t n_slices;
    uint64_t bytes; // of all experts, on disk
};

// Adds tensor `name` ("blk.N.ffn_gate_exps.weight"), whose n_experts slices of `bytes` each begin at `offset` of file.
// The map takes the file over and closes it in the end; the same file may come many times. Returns 0 with the layer and
// the slice's number, -EINVAL when the range passes the end of the file, or -ENOMEM.
int gn_expert_map_add(struct gn_expert_map *map, const char *name, uint32_t n_experts, struct gn_file *file,
                      uint64_t offset, uint64_t bytes, struct gn_layer **layer, uint32_t *slice);

// Sorts the layers into sweep order and lays out their slots. To be called again if more was added.
void gn_expert_map_finish(struct gn_expert_map *map);

// Maps the files, for experts to stay in the page cache instead of being read into slots: the reads of a slice then
// bring in its pages of the mapping (GN_READER_MAPPED), and its data is there. Returns 0 or a negative errno.
int gn_expert_map_in_place(struct gn_expert_map *map);

// Gives an expert's pages back, of a map whose experts stay in place: those that it shares with no other expert, and
// that no other process has mapped. Does nothing for other maps.
void gn_expert_drop(const struct gn_layer *layer, uint32_t expert);

void gn_expert_map_free(struct gn_expert_map *map); // what it holds, not the struct; closes the files

// The largest slot any layer needs, bytes; 0 when there are no layers.
uint64_t gn_expert_map_largest_slot(const struct gn_expert_map *map);

// The most experts that any layer has; 0 when there are no layers.
uint32_t gn_expert_map_most_experts(const struct gn_expert_map *map);

// Bytes that slots for all experts take.
uint64_t gn_expert_map_slot_bytes(const struct gn_expert_map *map);

// Describes the read of one slice of one expert into a slot at `slot`.
struct gn_read gn_slice_read(const struct gn_slice *slice, uint32_t expert, uint8_t *slot);
// Where the bytes of that slice are once read.
const uint8_t *gn_slice_data(const struct gn_slice *slice, uint32_t expert, const uint8_t *slot);
