#include "gguf_file.h"

#include <stdio.h>
#include <string.h>

enum { U32 = 4, F32 = 6, STRING = 8, ARRAY = 9, U64 = 10 };

static const struct { uint32_t number, block, bytes; } types[] = {{0, 1, 4}, {1, 1, 2}, {8, 32, 34}, {2, 32, 18}};

static void add_string(struct bytes *out, const char *text) {
    bytes_add_u64(out, strlen(text));
    bytes_add_text(out, text);
}

static void add_u32(struct bytes *out, const char *key, uint32_t number) {
    add_string(out, key);
    bytes_add_u32(out, U32);
    bytes_add_u32(out, number);
}

static void add_text(struct bytes *out, const char *key, const char *text) {
    add_string(out, key);
    bytes_add_u32(out, STRING);
    add_string(out, text);
}

static void add_list(struct bytes *out, const char *key, const uint32_t *numbers, uint64_t n) {
    add_string(out, key);
    bytes_add_u32(out, ARRAY);
    bytes_add_u32(out, U32);
    bytes_add_u64(out, n);
    bytes_add(out, numbers, n * sizeof *numbers);
}

static void add_words(struct bytes *out, const char *key, unsigned n) {
    add_string(out, key);
    bytes_add_u32(out, ARRAY);
    bytes_add_u32(out, STRING);
    bytes_add_u64(out, n);
    for (unsigned i = 0; i < n; i++) {
        add_string(out, i % 2 ? "a" : "word");
    }
}

static void pad(struct bytes *out, size_t alignment) {
    while (out->n % alignment && out->n < out->capacity) {
        bytes_add(out, "", 1);
    }
}

struct shape {
    const char *architecture;
    unsigned blocks, experts, width, alignment, type;
    bool fused, second_set;
    unsigned n_tensors;
    uint64_t offset;
};

static void add_tensor(struct bytes *out, struct shape *shape, const char *name, uint32_t n_dims, const uint64_t *dims,
                       unsigned type) {
    uint64_t bytes = types[type].bytes;
    add_string(out, name);
    bytes_add_u32(out, n_dims);
    for (uint32_t d = 0; d < n_dims; d++) {
        bytes_add_u64(out, dims[d]);
        bytes *= d == 0 ? dims[d] / types[type].block : dims[d];
    }
    bytes_add_u32(out, types[type].number);
    bytes_add_u64(out, shape->offset);
    shape->offset = (shape->offset + bytes + shape->alignment - 1) / shape->alignment * shape->alignment;
    shape->n_tensors++;
}

static void add_block(struct bytes *out, struct shape *shape, unsigned block) {
    static const char *const apart[] = {"gate", "up", "down"}, *const fused[] = {"gate_up", "down"};
    const uint64_t dims[] = {shape->width, shape->width, shape->experts};
    char name[96];
    snprintf(name, sizeof name, "blk.%u.ffn_gate_inp.weight", block);
    add_tensor(out, shape, name, 2, (const uint64_t[]){shape->width, shape->experts}, 0);
    for (unsigned set = 0; set < (shape->second_set ? 2 : 1); set++) {
        for (unsigned i = 0; i < (shape->fused ? 2U : 3U); i++) {
            snprintf(name, sizeof name, "blk.%u.ffn_%s_%s.weight", block, shape->fused ? fused[i] : apart[i],
                     set ? "chexps" : "exps");
            add_tensor(out, shape, name, 3, dims, shape->type);
        }
    }
}

static void add_metadata(struct random *random, struct bytes *out, const struct shape *shape, uint64_t *n) {
    static const char *const numbers[] = {
        "block_count",      "expert_count",        "expert_used_count",         "context_length",
        "embedding_length", "feed_forward_length", "expert_feed_forward_length"};
    const uint32_t values[] = {shape->blocks, shape->experts, 2, 512, shape->width, 64, 32};
    char key[96];
    add_text(out, "general.architecture", shape->architecture);
    add_text(out, "general.name", "fuzz");
    add_words(out, "tokenizer.ggml.tokens", (unsigned)random_below(random, 6));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        snprintf(key, sizeof key, "%s.%s", shape->architecture, numbers[i]);
        if (i == 1 && random_percent(random, 20)) {
            const uint32_t list[] = {0, shape->experts, 1};
            add_list(out, key, list, 3);
        } else {
            add_u32(out, key, values[i]);
        }
    }
    *n += 3 + sizeof numbers / sizeof *numbers;
}

void gguf_make_model(struct random *random, unsigned number, unsigned count, struct bytes *out) {
    static const char *const names[] = {"qwen3moe", "grovemoe", "x"};
    struct shape shape = {.architecture = names[random_below(random, 3)],
                          .blocks = 1 + (unsigned)random_below(random, 3),
                          .experts = 2 + (unsigned)random_below(random, 3),
                          .width = 32,
                          .alignment = 32U << random_below(random, 2),
                          .type = (unsigned)random_below(random, sizeof types / sizeof *types),
                          .fused = random_percent(random, 30),
                          .second_set = random_percent(random, 20)};
    uint64_t n_pairs = 0;
    size_t start = out->n;
    bytes_add(out, "GGUF", 4);
    bytes_add_u32(out, 3);
    bytes_add_u64(out, 0); // of tensors, set below
    bytes_add_u64(out, 0);
    if (number == 0) {
        add_metadata(random, out, &shape, &n_pairs);
    }
    if (shape.alignment != 32) {
        add_u32(out, "general.alignment", shape.alignment);
        n_pairs++;
    }
    if (count > 1) {
        add_u32(out, "split.no", number);
        add_u32(out, "split.count", count);
        n_pairs += 2;
    }
    if (number == 0) {
        add_tensor(out, &shape, "token_embd.weight", 2, (const uint64_t[]){32, 4}, 0);
    }
    for (unsigned b = 0; b < shape.blocks; b++) {
        if (b % count == number) {
            add_block(out, &shape, b);
        }
    }
    memcpy(out->data + start + 8, &(uint64_t){shape.n_tensors}, 8);
    memcpy(out->data + start + 16, &n_pairs, 8);
    pad(out, shape.alignment);
    for (uint64_t i = 0; i < shape.offset / 4; i++) {
        bytes_add_u32(out, (uint32_t)i);
    }
}

void gguf_make_imatrix(struct random *random, unsigned n_experts, struct bytes *out) {
    static const char *const tensors[] = {"blk.0.attn_q.weight.counts", "blk.0.ffn_gate_up_exps.weight.in_sum2",
                                          "blk.0.ffn_gate_up_exps.weight.counts", "blk.0.ffn_down_exps.weight.counts",
                                          "blk.2.ffn_down_exps.weight.counts"};
    struct shape shape = {.alignment = 32};
    bytes_add(out, "GGUF", 4);
    bytes_add_u32(out, 3);
    bytes_add_u64(out, sizeof tensors / sizeof *tensors);
    bytes_add_u64(out, 4);
    add_text(out, "general.type", "imatrix");
    add_words(out, "imatrix.datasets", 2);
    add_u32(out, "imatrix.chunk_count", (uint32_t)random_below(random, 20));
    add_u32(out, "imatrix.chunk_size", 10);
    for (size_t t = 0; t < sizeof tensors / sizeof *tensors; t++) {
        add_tensor(out, &shape, tensors[t], 2, (const uint64_t[]){1, n_experts}, 0);
    }
    pad(out, 32);
    for (uint64_t i = 0; i < shape.offset / 4; i++) {
        float count = (float)random_below(random, 100);
        bytes_add(out, &count, sizeof count);
    }
}
