// What guanaco-synth writes: the options, and from them the list of tensors. Architecture qwen3moe.
#pragma once

#include <ggml.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gguf_context;

struct synth_type {
    const char *name;
    enum ggml_type type;   // of the experts
    enum ggml_type larger; // of part of the down projections, as Q4_K_M has it; else the same
    uint32_t file_type;    // enum llama_ftype
};

// NULL when there is none of this name.
const struct synth_type *synth_type_find(const char *name);
const char *synth_type_names(void); // "Q4_K, Q4_0, …"

struct synth_options {
    const char *path;
    const struct synth_type *type, *dense_type;
    int64_t layers, embd, ff, experts, used, vocab, context, shards;
    uint64_t size; // layers are chosen to come near it; 0: layers are given
    uint64_t seed;
    double skew, locality;
};

enum synth_content {
    SYNTH_SAME,          // std everywhere: a norm
    SYNTH_SAME_BUT_BIAS, // one that hides the constant part of the hidden state
    SYNTH_RANDOM,        // normal, with deviation std
    SYNTH_EMBEDDING,
    SYNTH_OUTPUT,
    SYNTH_ROUTER,
};

struct synth_tensor {
    char name[64];
    enum synth_content content;
    enum ggml_type type;
    int64_t ne[3]; // ne[2]: experts, 1 for others
    int64_t layer;
    int64_t shard;
    float std;
};

struct synth_model {
    struct synth_options options;
    struct synth_tensor *tensors;
    size_t count;
    uint64_t bytes, expert_bytes; // of all tensors; of one expert, the largest
    uint64_t cycle_bytes;         // of the experts that one token uses
};

enum {
    SYNTH_HEAD = 128,   // dimension of an attention head
    SYNTH_CLUSTER = 64, // tokens that are neighbours with --locality
    SYNTH_BIAS = 32,    // first dimensions of the hidden state: constant with --skew, see synth_weights.c
    SYNTH_VOCAB_LEAST = 512,
    SYNTH_VOCAB_MOST = 400000,
};

uint64_t synth_tensor_bytes(const struct synth_tensor *tensor);

// Lists the tensors and spreads them over the shards; settles options.layers when a size is given. Returns 0, or -1
// with a line in why[why_size].
int synth_model_make(struct synth_model *model, const struct synth_options *options, char *why, size_t why_size);
void synth_model_free(struct synth_model *model);

// The key-values of one shard: all of them for the first, only the split's for others.
void synth_model_set_keys(const struct synth_model *model, int64_t shard, struct gguf_context *gguf);

// The text of a token, for a tokenizer that merges letters to pieces: any text can be written with it.
const char *synth_token_text(int64_t id, char text[16]);
