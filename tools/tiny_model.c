#include "tiny_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGE = 64 * 256 }; // elements of a dense matrix that is worth quantising

static void *must(void *memory) {
    if (!memory) {
        fputs("out of memory\n", stderr);
        exit(1);
    }
    return memory;
}

// ---- values
// -----------------------------------------------------------------------------------------------------------

static uint64_t next_random(uint64_t *state) {
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

// Nearly normal, mean 0 and deviation 1; sums of integers alone, so that every machine makes the same file.
static float next_normal(uint64_t *state) {
    uint64_t bits = next_random(state);
    int32_t sum = 0;
    for (int i = 0; i < 4; i++) {
        sum += (int32_t)((bits >> (16 * i)) & 0xffff) - 0x8000;
    }
    return (float)sum / 37837.0f;
}

static uint64_t hash(const char *name) {
    uint64_t h = 0xcbf29ce484222325u;
    for (; *name; name++) {
        h = (h ^ (unsigned char)*name) * 0x100000001b3u;
    }
    return h;
}

static bool has(const char *name, const char *part) {
    return strstr(name, part) != NULL;
}

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

// What makes each kind of tensor do its work: mean, deviation (negative: relative to one over the root of the row), and
// whether values must stay on their mean's side of zero. The first row whose part occurs in the name counts.
static const struct kind {
    const char *part;
    float mean, deviation;
    bool one_sided;
} kinds[] = {
    {"rope_f", 1.0f, 0.2f, true},             // divides frequencies
    {"ssm_a", -1.0f, 0.3f, true},             // a decay
    {"ssm_d", 0.5f, 0.3f, false},             // includes ssm_dt
    {"exp_probs_b", 0.0f, 0.05f, false},      // must not decide alone which experts are used
    {"gate_inp.scale", 1.0f, 0.2f, true},     //
    {"gate_inp", 0.0f, -3.0f, false},         // a router that decides
    {"down_exps.weight", 0.0f, -4.0f, false}, // experts that matter against attention and shared experts
    {"exps.weight", 0.0f, -2.0f, false},      //
    {"chexps.weight", 0.0f, -2.0f, false},    //
    {"exps.bias", 0.0f, 0.2f, false},         //
    {"scale", 1.0f, 0.2f, true},              //
    {"norm.bias", 0.0f, 0.05f, false},        //
    {"norm", 1.0f, 0.2f, true},               //
    {"token_embd", 0.0f, 1.0f, false},        //
    {"bias", 0.0f, 0.1f, false},              //
    {"", 0.0f, -1.0f, false},
};

static const struct kind *kind_of(const char *name) {
    const struct kind *kind = kinds;
    while (!has(name, kind->part)) {
        kind++;
    }
    return kind;
}

static float *make_values(const struct ggml_tensor *shape, uint64_t seed) {
    int64_t n = ggml_nelements(shape);
    float *values = must(malloc((size_t)n * sizeof *values));
    const struct kind *kind = kind_of(shape->name);
    float deviation = kind->deviation < 0 ? -kind->deviation / sqrtf((float)shape->ne[0]) : kind->deviation;
    uint64_t state = seed ^ hash(shape->name);
    for (int64_t i = 0; i < n; i++) {
        float value = kind->mean + deviation * next_normal(&state);
        bool wrong_side = kind->one_sided && value * kind->mean < 0.1f;
        values[i] = wrong_side ? 0.1f * kind->mean : value;
    }
    return values;
}

// ---- collecting
// -------------------------------------------------------------------------------------------------------

// A llama.cpp that asks for every optional tensor it knows asks for scales too; they belong to formats we do not write.
static bool is_wanted(const struct tiny_model *model, const char *name) {
    for (int i = 0; i < model->count; i++) {
        if (strcmp(model->tensors[i].shape.name, name) == 0) {
            return false; // one tensor under several layers, e.g. rope_freqs
        }
    }
    bool scale = ends_with(name, ".input_scale") || (ends_with(name, ".scale") && !has(name, "gate_inp"));
    return !scale || gguf_find_tensor(model->metadata, name) >= 0;
}

static struct tiny_tensor *insert(struct tiny_model *model, int at) {
    if (model->count == model->capacity) {
        model->capacity = model->capacity ? 2 * model->capacity : 128;
        model->tensors = must(realloc(model->tensors, (size_t)model->capacity * sizeof *model->tensors));
    }
    memmove(&model->tensors[at + 1], &model->tensors[at], (size_t)(model->count - at) * sizeof *model->tensors);
    model->count++;
    return &model->tensors[at];
}

static void set_shape(struct ggml_tensor *shape, enum ggml_type type, const int64_t *ne) {
    shape->type = type;
    memcpy(shape->ne, ne, sizeof shape->ne);
    shape->nb[0] = ggml_type_size(type);
    shape->nb[1] = ggml_row_size(type, ne[0]);
    shape->nb[2] = shape->nb[1] * (size_t)ne[1];
    shape->nb[3] = shape->nb[2] * (size_t)ne[2];
}

void tiny_model_add(struct ggml_tensor *tensor, void *context) {
    struct tiny_model *model = context;
    if (!is_wanted(model, tensor->name)) {
        return;
    }
    struct tiny_tensor *added = insert(model, model->count);
    memset(added, 0, sizeof *added);
    set_shape(&added->shape, GGML_TYPE_F32, tensor->ne);
    ggml_set_name(&added->shape, tensor->name);
    added->values = make_values(&added->shape, model->seed);
}

void tiny_model_free(struct tiny_model *model) {
    for (int i = 0; i < model->count; i++) {
        free(model->tensors[i].values);
        free(model->tensors[i].shape.data);
    }
    free(model->tensors);
}

// ---- experts
// ----------------------------------------------------------------------------------------------------------

static const char fused[] = "ffn_gate_up_exps.weight";

bool tiny_model_has_fused(const struct tiny_model *model) {
    for (int i = 0; i < model->count; i++) {
        if (has(model->tensors[i].shape.name, fused)) {
            return true;
        }
    }
    return false;
}

// One half (0: gate, 1: up) of each expert's rows.
static void take_half(struct tiny_tensor *half, const struct tiny_tensor *whole, int which, const char *name) {
    int64_t ne[GGML_MAX_DIMS] = {whole->shape.ne[0], whole->shape.ne[1] / 2, whole->shape.ne[2], 1};
    memset(half, 0, sizeof *half);
    set_shape(&half->shape, GGML_TYPE_F32, ne);
    int layer = atoi(whole->shape.name + strlen("blk."));
    snprintf(half->shape.name, sizeof half->shape.name, "blk.%d.%s", layer, name);
    size_t n = (size_t)(ne[0] * ne[1]);
    half->values = must(malloc(n * (size_t)ne[2] * sizeof(float)));
    for (size_t e = 0; e < (size_t)ne[2]; e++) {
        memcpy(half->values + e * n, whole->values + (2 * e + (size_t)which) * n, n * sizeof(float));
    }
}

void tiny_model_unfuse(struct tiny_model *model) {
    for (int i = 0; i < model->count; i++) {
        if (has(model->tensors[i].shape.name, fused)) {
            struct tiny_tensor whole = model->tensors[i];
            take_half(insert(model, i), &whole, 0, "ffn_gate_exps.weight");
            take_half(&model->tensors[++i], &whole, 1, "ffn_up_exps.weight");
            free(whole.values);
        }
    }
}

static bool is_expert(const struct tiny_tensor *tensor) {
    return ends_with(tensor->shape.name, "_exps.weight") && tensor->shape.ne[2] > 1;
}

static int layer_of(const struct tiny_tensor *tensor) {
    return atoi(tensor->shape.name + strlen("blk."));
}

static int last_layer(const struct tiny_model *model) {
    int last = -1;
    for (int i = 0; i < model->count; i++) {
        if (is_expert(&model->tensors[i]) && layer_of(&model->tensors[i]) > last) {
            last = layer_of(&model->tensors[i]);
        }
    }
    return last;
}

bool tiny_model_zero_expert(struct tiny_model *model, int layer, int expert) {
    bool found = false;
    layer = layer < 0 ? last_layer(model) : layer;
    for (int i = 0; i < model->count; i++) {
        struct tiny_tensor *tensor = &model->tensors[i];
        if (is_expert(tensor) && layer_of(tensor) == layer && expert >= 0 && expert < tensor->shape.ne[2]) {
            size_t n = (size_t)(tensor->shape.ne[0] * tensor->shape.ne[1]);
            memset(tensor->values + (size_t)expert * n, 0, n * sizeof(float));
            found = true;
        }
    }
    return found;
}

// ---- storing
// ----------------------------------------------------------------------------------------------------------

static const struct named_type {
    const char *name;
    enum ggml_type type;
} types[] = {
    {"Q4_0", GGML_TYPE_Q4_0}, {"Q8_0", GGML_TYPE_Q8_0},     {"Q4_K", GGML_TYPE_Q4_K},   {"Q5_K", GGML_TYPE_Q5_K},
    {"Q6_K", GGML_TYPE_Q6_K}, {"IQ4_XS", GGML_TYPE_IQ4_XS}, {"MXFP4", GGML_TYPE_MXFP4}, {"F16", GGML_TYPE_F16},
    {"BF16", GGML_TYPE_BF16}, {"F32", GGML_TYPE_F32},       {"TQ1_0", GGML_TYPE_TQ1_0},
};

// "mixed": per layer, the types of down and of the others.
static const enum ggml_type mixes[][2] = {
    {GGML_TYPE_Q6_K, GGML_TYPE_Q4_K},
    {GGML_TYPE_Q8_0, GGML_TYPE_Q8_0},
    {GGML_TYPE_Q5_K, GGML_TYPE_IQ4_XS},
    {GGML_TYPE_F16, GGML_TYPE_MXFP4},
};

static const struct named_type *find_type(const char *name) {
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(types[i].name, name) == 0) {
            return &types[i];
        }
    }
    return NULL;
}

bool tiny_type_known(const char *name) {
    return find_type(name) || strcmp(name, "mixed") == 0;
}

static enum ggml_type expert_type(const struct tiny_tensor *tensor, const char *name) {
    const struct named_type *named = find_type(name);
    if (named) {
        return named->type;
    }
    size_t mix = (size_t)layer_of(tensor) % (sizeof mixes / sizeof *mixes);
    return mixes[mix][has(tensor->shape.name, "down") ? 0 : 1];
}

// Only matrices that ggml_mul_mat alone reads; others (convolutions, MLA's per-head ones, routers) may need F32.
static bool is_plain_matrix(const struct tiny_tensor *tensor) {
    static const char *const parts[] = {"attn_q.weight",   "attn_k.weight",   "attn_v.weight",   "attn_output.weight",
                                        "attn_qkv.weight", "ffn_gate.weight", "ffn_up.weight",   "ffn_down.weight",
                                        "shexp.weight",    "output.weight",   "attn_q_b.weight", "ssm_in.weight",
                                        "ssm_out.weight"};
    bool matrix = tensor->shape.ne[2] == 1 && tensor->shape.ne[0] * tensor->shape.ne[1] >= LARGE;
    for (size_t i = 0; matrix && i < sizeof parts / sizeof *parts; i++) {
        if (ends_with(tensor->shape.name, parts[i])) {
            return true;
        }
    }
    return false;
}

static enum ggml_type stored_type(const struct tiny_tensor *tensor, const char *experts) {
    enum ggml_type type = GGML_TYPE_F32;
    if (is_expert(tensor)) {
        type = expert_type(tensor, experts);
    } else if (is_plain_matrix(tensor)) {
        type = GGML_TYPE_Q8_0;
    }
    static const enum ggml_type fallbacks[] = {GGML_TYPE_Q8_0, GGML_TYPE_F16};
    for (int i = 0; tensor->shape.ne[0] % ggml_blck_size(type) != 0; i++) {
        type = fallbacks[i];
    }
    return type;
}

// deepseek4's hash layers: which experts each token uses, distinct ones.
static void store_token_experts(struct tiny_tensor *tensor, const struct tiny_model *model) {
    int32_t n_experts = 1;
    for (int i = 0; i < model->count; i++) {
        if (is_expert(&model->tensors[i])) {
            n_experts = (int32_t)model->tensors[i].shape.ne[2];
        }
    }
    int64_t used = tensor->shape.ne[0], n = ggml_nelements(&tensor->shape);
    int32_t *ids = must(malloc((size_t)n * sizeof *ids));
    uint64_t state = model->seed ^ hash(tensor->shape.name);
    for (int64_t i = 0; i < n; i += used) {
        int32_t first = (int32_t)(next_random(&state) % (uint64_t)n_experts);
        for (int64_t k = 0; k < used; k++) {
            ids[i + k] = (first + (int32_t)k) % n_experts;
        }
    }
    set_shape(&tensor->shape, GGML_TYPE_I32, tensor->shape.ne);
    tensor->shape.data = ids;
}

static void store(struct tiny_tensor *tensor, const char *experts) {
    const int64_t *ne = tensor->shape.ne;
    set_shape(&tensor->shape, stored_type(tensor, experts), ne);
    tensor->shape.data = must(malloc(ggml_nbytes(&tensor->shape)));
    ggml_quantize_chunk(tensor->shape.type, tensor->values, tensor->shape.data, 0, ne[1] * ne[2] * ne[3], ne[0], NULL);
}

// The same values in F32.
static void widen_stored(struct tiny_tensor *tensor) {
    int64_t n = ggml_nelements(&tensor->shape);
    float *values = must(malloc((size_t)n * sizeof *values));
    ggml_get_type_traits(tensor->shape.type)->to_float(tensor->shape.data, values, n);
    free(tensor->shape.data);
    set_shape(&tensor->shape, GGML_TYPE_F32, tensor->shape.ne);
    tensor->shape.data = values;
}

void tiny_model_store(struct tiny_model *model, const char *type, bool widen) {
    for (int i = 0; i < model->count; i++) {
        struct tiny_tensor *tensor = &model->tensors[i];
        if (has(tensor->shape.name, "tid2eid")) {
            store_token_experts(tensor, model);
        } else {
            store(tensor, type);
        }
        enum ggml_type stored = tensor->shape.type;
        if (widen && stored != GGML_TYPE_F32 && stored != GGML_TYPE_I32) {
            widen_stored(tensor);
        }
        free(tensor->values);
        tensor->values = NULL;
    }
}
