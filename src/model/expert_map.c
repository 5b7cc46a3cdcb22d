#include "model/expert_map.h"

#include "io/file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t block_floor(uint64_t n) {
    return n / GN_BLOCK * GN_BLOCK;
}

static uint64_t block_ceil(uint64_t n) {
    return block_floor(n + GN_BLOCK - 1);
}

static uint64_t expert_offset(const struct gn_slice *slice, uint32_t expert) {
    return slice->offset + (uint64_t)expert * slice->bytes;
}

// Splits "blk.N.ffn_gate_exps.weight" into N and "exps". A name of another form is a layer of its own.
static void parse_name(const char *name, uint32_t *block, char *family, size_t family_size) {
    unsigned n = 0;
    int at = 0;
    const char *last = strrchr(name, '_');
    if (sscanf(name, "blk.%u.%n", &n, &at) == 1 && at > 0 && last) {
        *block = n;
        snprintf(family, family_size, "%.*s", (int)strcspn(last + 1, "."), last + 1);
    } else {
        *block = UINT32_MAX;
        snprintf(family, family_size, "%s", name);
    }
}

static struct gn_layer *find_layer(const struct gn_expert_map *map, uint32_t block, const char *family,
                                   uint32_t n_experts) {
    for (uint32_t l = 0; l < map->n_layers; l++) {
        struct gn_layer *layer = map->layers[l];
        if (layer->block == block && layer->n_experts == n_experts && layer->n_slices < GN_MAX_SLICES &&
            !strcmp(layer->family, family)) {
            return layer;
        }
    }
    return NULL;
}

// Appends a pointer to an array of them, growing it.
static int append(void ***array, uint32_t *n, void *item) {
    void **grown = realloc(*array, (*n + 1) * sizeof *grown);
    if (!grown) {
        return -ENOMEM;
    }
    grown[(*n)++] = item;
    *array = grown;
    return 0;
}

static int own_file(struct gn_expert_map *map, struct gn_file *file) {
    for (uint32_t f = 0; f < map->n_files; f++) {
        if (map->files[f] == file) {
            return 0;
        }
    }
    return append((void ***)&map->files, &map->n_files, file);
}

static int add_layer(struct gn_expert_map *map, uint32_t block, const char *family, uint32_t n_experts,
                     struct gn_layer **out) {
    struct gn_layer *layer = calloc(1, sizeof *layer);
    if (!layer) {
        return -ENOMEM;
    }
    layer->block = block;
    layer->n_experts = n_experts;
    snprintf(layer->family, sizeof layer->family, "%s", family);
    if (append((void ***)&map->layers, &map->n_layers, layer)) {
        free(layer);
        return -ENOMEM;
    }
    *out = layer;
    return 0;
}

int gn_expert_map_add(struct gn_expert_map *map, const char *name, uint32_t n_experts, struct gn_file *file,
                      uint64_t offset, uint64_t bytes, struct gn_layer **out_layer, uint32_t *out_slice) {
    if (own_file(map, file)) {
        return -ENOMEM;
    }
    uint64_t total, end;
    if (n_experts == 0 || bytes == 0 || bytes > UINT32_MAX / 2 || __builtin_mul_overflow(bytes, n_experts, &total) ||
        __builtin_add_overflow(offset, total, &end) || end > gn_file_size(file)) {
        return -EINVAL;
    }
    uint32_t block;
    char family[sizeof((struct gn_layer *)0)->family];
    parse_name(name, &block, family, sizeof family);
    struct gn_layer *layer = find_layer(map, block, family, n_experts);
    if (!layer && add_layer(map, block, family, n_experts, &layer)) {
        return -ENOMEM;
    }
    struct gn_slice *slice = &layer->slices[layer->n_slices];
    *slice = (struct gn_slice){.file = file, .offset = offset, .bytes = bytes, .last = strstr(name, "down") != NULL};
    snprintf(slice->tensor, sizeof slice->tensor, "%s", name);
    layer->expert_bytes += bytes;
    map->bytes += total;
    map->n_slices++;
    *out_layer = layer;
    *out_slice = layer->n_slices++;
    return 0;
}

// The most blocks that any expert's slice touches, in bytes.
static uint64_t widest_span(const struct gn_slice *slice, uint32_t n_experts) {
    uint64_t widest = 0;
    for (uint32_t e = 0; e < n_experts; e++) {
        uint64_t begin = expert_offset(slice, e);
        uint64_t span = block_ceil(begin + slice->bytes) - block_floor(begin);
        widest = span > widest ? span : widest;
    }
    return widest;
}

// As they run: beside a block's experts, some architectures have others that run after these.
static int by_block(const void *a, const void *b) {
    const struct gn_layer *x = *(struct gn_layer *const *)a, *y = *(struct gn_layer *const *)b;
    if (x->block != y->block) {
        return x->block < y->block ? -1 : 1;
    }
    bool x_first = !strcmp(x->family, "exps"), y_first = !strcmp(y->family, "exps");
    return x_first != y_first ? (x_first ? -1 : 1) : strcmp(x->family, y->family);
}

void gn_expert_map_finish(struct gn_expert_map *map) {
    if (map->n_layers > 0) {
        qsort(map->layers, map->n_layers, sizeof(struct gn_layer *), by_block);
    }
    for (uint32_t l = 0; l < map->n_layers; l++) {
        struct gn_layer *layer = map->layers[l];
        layer->index = l;
        layer->slot_bytes = 0;
        for (uint32_t s = 0; s < layer->n_slices; s++) {
            layer->slices[s].at = layer->slot_bytes;
            layer->slot_bytes += widest_span(&layer->slices[s], layer->n_experts);
        }
    }
}

// Maps the files that are not mapped yet: an earlier attempt may have failed half-way.
static int map_files(struct gn_expert_map *map) {
    if (!map->mappings) {
        map->mappings = calloc(map->n_files + 1, sizeof *map->mappings);
    }
    int failed = map->mappings ? 0 : -ENOMEM;
    for (uint32_t f = 0; f < map->n_files && !failed; f++) {
        failed = map->mappings[f] ? 0 : gn_file_map(map->files[f], &map->mappings[f]);
    }
    return failed;
}

int gn_expert_map_in_place(struct gn_expert_map *map) {
    int failed = map_files(map);
    for (uint32_t l = 0; l < map->n_layers && !failed; l++) {
        for (uint32_t s = 0; s < map->layers[l]->n_slices; s++) {
            struct gn_slice *slice = &map->layers[l]->slices[s];
            for (uint32_t f = 0; f < map->n_files; f++) {
                slice->mapped = map->files[f] == slice->file ? map->mappings[f] : slice->mapped;
            }
        }
    }
    return failed;
}

void gn_expert_drop(const struct gn_layer *layer, uint32_t expert) {
    for (uint32_t s = 0; s < layer->n_slices; s++) {
        const struct gn_slice *slice = &layer->slices[s];
        if (slice->mapped) {
            gn_file_drop_mapped(slice->file, slice->mapped, expert_offset(slice, expert), slice->bytes);
        }
    }
}

void gn_expert_map_free(struct gn_expert_map *map) {
    for (uint32_t l = 0; l < map->n_layers; l++) {
        free(map->layers[l]);
    }
    for (uint32_t f = 0; f < map->n_files; f++) {
        gn_file_unmap(map->files[f], map->mappings ? map->mappings[f] : NULL);
        gn_file_close(map->files[f]);
    }
    free(map->mappings);
    free(map->layers);
    free(map->files);
    *map = (struct gn_expert_map){0};
}

uint64_t gn_expert_map_largest_slot(const struct gn_expert_map *map) {
    uint64_t largest = 0;
    for (uint32_t l = 0; l < map->n_layers; l++) {
        largest = map->layers[l]->slot_bytes > largest ? map->layers[l]->slot_bytes : largest;
    }
    return largest;
}

uint32_t gn_expert_map_most_experts(const struct gn_expert_map *map) {
    uint32_t most = 0;
    for (uint32_t l = 0; l < map->n_layers; l++) {
        most = map->layers[l]->n_experts > most ? map->layers[l]->n_experts : most;
    }
    return most;
}

uint64_t gn_expert_map_slot_bytes(const struct gn_expert_map *map) {
    uint64_t bytes = 0;
    for (uint32_t l = 0; l < map->n_layers; l++) {
        bytes += map->layers[l]->slot_bytes * map->layers[l]->n_experts;
    }
    return bytes;
}

struct gn_read gn_slice_read(const struct gn_slice *slice, uint32_t expert, uint8_t *slot) {
    uint64_t begin = expert_offset(slice, expert);
    uint64_t first = block_floor(begin);
    return (struct gn_read){
        .file = slice->file,
        .offset = first,
        .length = (uint32_t)(block_ceil(begin + slice->bytes) - first),
        .need = (uint32_t)(begin + slice->bytes - first),
        .to = slice->mapped ? (uint8_t *)slice->mapped + first : slot + slice->at,
    };
}

const uint8_t *gn_slice_data(const struct gn_slice *slice, uint32_t expert, const uint8_t *slot) {
    uint64_t begin = expert_offset(slice, expert);
    return slice->mapped ? slice->mapped + begin : slot + slice->at + begin % GN_BLOCK;
}
