// The names of a model's shards, "<prefix>-00002-of-00003.gguf": five digits each, the last such part of the name, as
// llama.cpp writes and reads them. "-of-" may stand in the prefix as well. Needs libc alone; nothing here allocates,
// and any thread may call it.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gn_shard_name {
    size_t prefix;          // bytes of the path before "-00002-of-00003.gguf"
    uint32_t number, count; // from 1
};

// Fills *shard from a path or a name. False, and *shard is all 0: it is not the name of a shard.
bool gn_shard_name_read(const char *path, struct gn_shard_name *shard);

// Writes the path of shard `number`, from 1, of the model whose shard `path` is; *shard is what was read of it. `to`
// may be `path` itself. False: it does not fit into size bytes, and `to` is as it was.
bool gn_shard_name_write(const char *path, const struct gn_shard_name *shard, uint32_t number, char *to, size_t size);
