#include "model_file.h"

#include "gguf_header.h"
#include "io/reader.h"
#include "model/shard_name.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ------------------------------------------------------------------------------------------------ experts

// Splits "blk.3.ffn_gate_exps.weight" into 3 and "gate". False when it is no routed expert's weight.
static bool expert_name(const char *name, uint32_t *block, bool *chunk, char *slice, size_t size) {
    int used = 0;
    const char *end = strstr(name, "_exps.");
    *chunk = !end;
    end = end ? end : strstr(name, "_chexps.");
    if (!end || sscanf(name, "blk.%u.%n", block, &used) != 1 || used == 0) {
        return false;
    }
    const char *start = name + used;
    start += strncmp(start, "ffn_", 4) == 0 ? 4 : 0;
    if (start > end) {
        return false;
    }
    snprintf(slice, size, "%.*s", (int)(end - start), start);
    return true;
}

static struct model_layer *layer_for(struct model_file *model, uint32_t block, bool chunk) {
    for (uint32_t l = 0; l < model->n_layers; l++) {
        if (model->layers[l].block == block && model->layers[l].chunk == chunk) {
            return &model->layers[l];
        }
    }
    struct model_layer *layers = realloc(model->layers, (model->n_layers + 1) * sizeof *layers);
    if (!layers) {
        return NULL;
    }
    model->layers = layers;
    layers[model->n_layers] = (struct model_layer){.block = block, .chunk = chunk};
    return &layers[model->n_layers++];
}

// Room for any of the experts of a tensor when whole blocks are read around it.
static uint64_t widest_span(uint64_t offset, uint64_t bytes, uint64_t n) {
    uint64_t widest = 0;
    for (uint64_t e = 0; e < n; e++) {
        uint64_t head = (offset + e * bytes) % GN_BLOCK;
        uint64_t span = (head + bytes + GN_BLOCK - 1) / GN_BLOCK * GN_BLOCK;
        widest = span > widest ? span : widest;
    }
    return widest;
}

static const char damaged[] = "%s has a damaged header: tensor %.64s does not divide into experts; get it again";

static bool add_tensor(struct model_file *model, const struct gguf_header *header, int64_t t, const char *path,
                       char *why, size_t why_size) {
    const char *name = gguf_get_tensor_name(header->gguf, t);
    const int64_t *ne = gguf_get_tensor_ne(header->gguf, t);
    uint64_t bytes = gguf_get_tensor_size(header->gguf, t);
    uint32_t block;
    bool chunk;
    char slice[16];
    model->n_tensors++;
    if (ne[2] < 2 || ne[3] != 1 || !expert_name(name, &block, &chunk, slice, sizeof slice)) {
        model->dense_bytes += bytes;
        return true;
    }
    struct model_layer *layer = layer_for(model, block, chunk);
    uint64_t n = (uint64_t)ne[2], one = bytes / n;
    if (!layer) {
        snprintf(why, why_size, "memory is short");
        return false;
    }
    if (one == 0 || one * n != bytes || n > UINT16_MAX || layer->n_slices == MODEL_SLICES ||
        (layer->n_slices > 0 && layer->n_experts != n)) {
        snprintf(why, why_size, damaged, path, name);
        return false;
    }
    layer->n_experts = (uint32_t)n;
    snprintf(layer->slice[layer->n_slices], sizeof layer->slice[0], "%s", slice);
    layer->type[layer->n_slices++] = ggml_type_name(gguf_get_tensor_type(header->gguf, t));
    layer->expert_bytes += one;
    layer->slot_bytes +=
        widest_span(gguf_get_data_offset(header->gguf) + gguf_get_tensor_offset(header->gguf, t), one, n);
    model->expert_bytes += bytes;
    return true;
}

static bool add_tensors(struct model_file *model, const struct gguf_header *header, const char *path, char *why,
                        size_t why_size) {
    for (int64_t t = 0; t < gguf_get_n_tensors(header->gguf); t++) {
        if (!add_tensor(model, header, t, path, why, why_size)) {
            return false;
        }
    }
    model->file_bytes += header->file_bytes;
    return true;
}

static int by_block(const void *a, const void *b) {
    const struct model_layer *x = a, *y = b;
    return x->block != y->block ? (x->block > y->block) - (x->block < y->block) : x->chunk - y->chunk;
}

// ------------------------------------------------------------------------------------------------ shards

static void read_metadata(struct model_file *model, const struct gguf_header *header) {
    char key[128];
    snprintf(model->architecture, sizeof model->architecture, "%s", gguf_header_string(header, "general.architecture"));
    snprintf(model->name, sizeof model->name, "%s", gguf_header_string(header, "general.name"));
    struct {
        const char *suffix;
        uint64_t *value;
    } const numbers[] = {{"block_count", &model->blocks},
                         {"expert_count", &model->experts},
                         {"expert_used_count", &model->top_k},
                         {"context_length", &model->context},
                         {"embedding_length", &model->width},
                         {"feed_forward_length", &model->dense_ff},
                         {"expert_feed_forward_length", &model->expert_ff}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        snprintf(key, sizeof key, "%s.%s", model->architecture, numbers[i].suffix);
        *numbers[i].value = gguf_header_number(header, key, 0);
    }
}

struct shard {
    uint64_t count, number; // of how many, and which, from 0
};

// A file that does not say to be one of several is whole: its number means nothing then, as in llama.cpp.
static struct shard read_place(const struct gguf_header *header) {
    uint64_t count = gguf_header_number(header, "split.count", 1);
    return count > 1 ? (struct shard){count, gguf_header_number(header, "split.no", 0)} : (struct shard){1, 0};
}

static bool read_shard(struct model_file *model, uint32_t number, char *why, size_t why_size) {
    struct gguf_header header;
    const char *path = model->shards[number];
    if (!gguf_header_read(path, &header, why, why_size)) {
        return false;
    }
    bool good = true;
    struct shard shard = read_place(&header);
    if (shard.count != model->n_shards || shard.number != number) {
        snprintf(why, why_size, "%s is shard %u of %u by its name, but not by its header; get the shards again", path,
                 number + 1, model->n_shards);
        good = false;
    }
    if (good && number == 0) {
        read_metadata(model, &header);
    }
    good = good && add_tensors(model, &header, path, why, why_size);
    gguf_header_free(&header);
    return good;
}

// Fills model->shards from the name of one of them: "<prefix>-00002-of-00003.gguf".
static bool list_shards(struct model_file *model, const char *path, uint32_t count, uint32_t number, char *why,
                        size_t why_size) {
    model->shards = calloc(count, sizeof *model->shards);
    model->n_shards = model->shards ? count : 0;
    struct gn_shard_name shard;
    char name[PATH_MAX + 32];
    bool named = gn_shard_name_read(path, &shard) && shard.number == number + 1 && shard.count == count;
    if (count > 1 && !named) {
        snprintf(why, why_size,
                 "%s is shard %u of %u, but is not named <name>-%05u-of-%05u.gguf; rename it and the others", path,
                 number + 1, count, number + 1, count);
        return false;
    }
    bool good = model->shards;
    for (uint32_t s = 0; good && s < count; s++) {
        bool written = count > 1 && gn_shard_name_write(path, &shard, s + 1, name, sizeof name);
        model->shards[s] = count == 1 || written ? strdup(written ? name : path) : NULL;
        good = model->shards[s];
    }
    if (!good) {
        snprintf(why, why_size, "memory is short");
    }
    return good;
}

static bool open_shards(struct model_file *model, const char *path, char *why, size_t why_size) {
    struct gguf_header header;
    if (!gguf_header_read(path, &header, why, why_size)) {
        return false;
    }
    struct shard shard = read_place(&header);
    uint64_t count = shard.count, number = shard.number;
    gguf_header_free(&header);
    if (count > 10000 || number >= count) {
        snprintf(why, why_size, "%s has a damaged header: it says to be shard %llu of %llu; get it again", path,
                 (unsigned long long)number + 1, (unsigned long long)count);
        return false;
    }
    if (!list_shards(model, path, (uint32_t)count, (uint32_t)number, why, why_size)) {
        return false;
    }
    for (uint32_t s = 0; s < model->n_shards; s++) {
        if (!read_shard(model, s, why, why_size)) {
            char reason[512];
            snprintf(reason, sizeof reason, "%s", why);
            if (count > 1 && strcmp(model->shards[s], path) != 0 && strstr(reason, "cannot open")) {
                snprintf(why, why_size, "shard %u of %u is missing: %s; put all shards in one directory", s + 1,
                         model->n_shards, reason);
            }
            return false;
        }
    }
    return true;
}

bool model_file_open(const char *path, struct model_file *model, char *why, size_t why_size) {
    *model = (struct model_file){0};
    bool good = open_shards(model, path, why, why_size);
    if (good && (!model->architecture[0] || model->n_tensors == 0)) {
        snprintf(why, why_size, "%s holds no model (no architecture or no tensors); give a .gguf model", path);
        good = false;
    }
    if (!good) {
        model_file_close(model);
        return false;
    }
    if (model->n_layers > 0) {
        qsort(model->layers, model->n_layers, sizeof *model->layers, by_block);
    }
    return true;
}

void model_file_close(struct model_file *model) {
    for (uint32_t s = 0; s < model->n_shards; s++) {
        free(model->shards[s]);
    }
    free(model->shards);
    free(model->layers);
    *model = (struct model_file){0};
}

bool model_file_spared(const struct model_file *model, const struct gn_outputs *outputs, char *why, size_t why_size) {
    for (uint32_t s = 0; s < model->n_shards; s++) {
        if (!gn_outputs_spare(outputs, "the model", model->shards[s], why, why_size)) {
            return false;
        }
    }
    return true;
}

// ------------------------------------------------------------------------------------------------ sums

uint64_t model_token_cycle(const struct model_file *model) {
    uint64_t bytes = 0;
    for (uint32_t l = 0; l < model->n_layers; l++) {
        uint64_t used = model->top_k < model->layers[l].n_experts ? model->top_k : model->layers[l].n_experts;
        bytes += used * model->layers[l].expert_bytes;
    }
    return bytes;
}

uint64_t model_largest_slot(const struct model_file *model) {
    uint64_t largest = 0;
    for (uint32_t l = 0; l < model->n_layers; l++) {
        largest = model->layers[l].slot_bytes > largest ? model->layers[l].slot_bytes : largest;
    }
    return largest;
}

uint64_t model_all_slots(const struct model_file *model) {
    uint64_t bytes = 0;
    for (uint32_t l = 0; l < model->n_layers; l++) {
        bytes += model->layers[l].slot_bytes * model->layers[l].n_experts;
    }
    return bytes;
}
