// What a model's metadata says of its shape, for lines and traces. Nothing depends on it.
#pragma once

#include <stdint.h>

struct gn_geometry {
    char architecture[64];                  // "" when not known
    uint32_t blocks, experts, top_k, width; // 0 when not known
};

// Reads it from a GGUF file, or the first shard of the model that the file belongs to. What cannot be read is left
// empty.
void gn_geometry_read(const char *path, struct gn_geometry *geometry);
