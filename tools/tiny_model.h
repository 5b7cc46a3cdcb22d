// A tiny model's tensors: first as numbers, then in the types they are stored in.
#pragma once

#include <ggml.h>
#include <gguf.h>
#include <stdbool.h>
#include <stdint.h>

struct tiny_tensor {
    struct ggml_tensor shape; // name, dimensions, and once stored type, strides and data
    float *values;            // NULL once stored
};

struct tiny_model {
    struct tiny_tensor *tensors;
    int count, capacity;
    uint64_t seed;
    const struct gguf_context *metadata; // lists the optional tensors we want
};

// Takes note of a tensor llama.cpp asked for, and makes up its values. The signature is llama_model_set_tensor_data_t.
void tiny_model_add(struct ggml_tensor *tensor, void *model);
void tiny_model_free(struct tiny_model *model);

// Whether any layer has gate and up fused in one tensor. llama.cpp asks for the fused one wherever it knows it.
bool tiny_model_has_fused(const struct tiny_model *model);
// Splits each fused tensor into gate and up.
void tiny_model_unfuse(struct tiny_model *model);

// Zeroes one expert of one layer; false if there is no such thing. Layer -1 is the last one that has experts.
bool tiny_model_zero_expert(struct tiny_model *model, int layer, int expert);

// Whether a type of this name is known ("Q4_K", ..., "mixed").
bool tiny_type_known(const char *name);
// Turns values into stored data: experts in the named type (or, where a row does not fit its blocks, in the nearest
// that does), large dense matrices in Q8_0, the rest in F32. widen: then all in F32, with the values that their types
// have left of them.
void tiny_model_store(struct tiny_model *model, const char *type, bool widen);
