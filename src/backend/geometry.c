#include "backend/geometry.h"

#include "gguf.h"
#include "model/shard_name.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

// The greatest element of an array, since some models say it layer by layer.
static uint32_t number(const struct gguf_context *gguf, const char *architecture, const char *name) {
    char key[128];
    snprintf(key, sizeof key, "%s.%s", architecture, name);
    int64_t id = gguf_find_key(gguf, key);
    if (id < 0) {
        return 0;
    }
    enum gguf_type type = gguf_get_kv_type(gguf, id);
    if (type == GGUF_TYPE_UINT32) {
        return gguf_get_val_u32(gguf, id);
    }
    uint32_t most = 0;
    bool whole = type == GGUF_TYPE_ARRAY &&
                 (gguf_get_arr_type(gguf, id) == GGUF_TYPE_UINT32 || gguf_get_arr_type(gguf, id) == GGUF_TYPE_INT32);
    for (size_t i = 0; whole && i < gguf_get_arr_n(gguf, id); i++) {
        uint32_t element = ((const uint32_t *)gguf_get_arr_data(gguf, id))[i];
        most = element <= INT32_MAX && element > most ? element : most;
    }
    return most;
}

void gn_geometry_read(const char *path, struct gn_geometry *geometry) {
    *geometry = (struct gn_geometry){0};
    char first[PATH_MAX];
    struct gn_shard_name shard;
    if ((size_t)snprintf(first, sizeof first, "%s", path) >= sizeof first) {
        return;
    }
    if (gn_shard_name_read(path, &shard)) { // metadata stand in the first
        gn_shard_name_write(path, &shard, 1, first, sizeof first);
    }
    struct gguf_context *gguf = gguf_init_from_file(first, (struct gguf_init_params){.no_alloc = true});
    if (!gguf) {
        return;
    }
    int64_t id = gguf_find_key(gguf, "general.architecture");
    if (id >= 0 && gguf_get_kv_type(gguf, id) == GGUF_TYPE_STRING) {
        const char *architecture = gguf_get_val_str(gguf, id);
        snprintf(geometry->architecture, sizeof geometry->architecture, "%s", architecture);
        geometry->blocks = number(gguf, architecture, "block_count");
        geometry->experts = number(gguf, architecture, "expert_count");
        geometry->top_k = number(gguf, architecture, "expert_used_count");
        geometry->width = number(gguf, architecture, "embedding_length");
    }
    gguf_free(gguf);
}
