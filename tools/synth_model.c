#include "synth_model.h"

#include <gguf.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct synth_type types[] = {
    {"Q4_K", GGML_TYPE_Q4_K, GGML_TYPE_Q4_K, 15},    {"Q4_0", GGML_TYPE_Q4_0, GGML_TYPE_Q4_0, 2},
    {"Q8_0", GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, 7},     {"Q5_K", GGML_TYPE_Q5_K, GGML_TYPE_Q5_K, 17},
    {"Q6_K", GGML_TYPE_Q6_K, GGML_TYPE_Q6_K, 18},    {"IQ4_XS", GGML_TYPE_IQ4_XS, GGML_TYPE_IQ4_XS, 30},
    {"MXFP4", GGML_TYPE_MXFP4, GGML_TYPE_MXFP4, 38}, {"F16", GGML_TYPE_F16, GGML_TYPE_F16, 1},
    {"mixed", GGML_TYPE_Q4_K, GGML_TYPE_Q6_K, 15},
};
enum { TYPES = sizeof types / sizeof *types };

const struct synth_type *synth_type_find(const char *name) {
    for (size_t i = 0; i < TYPES; i++) {
        if (strcmp(types[i].name, name) == 0) {
            return &types[i];
        }
    }
    return NULL;
}

const char *synth_type_names(void) {
    return "Q4_K, Q4_0, Q8_0, Q5_K, Q6_K, IQ4_XS, MXFP4, F16, mixed";
}

uint64_t synth_tensor_bytes(const struct synth_tensor *tensor) {
    return (uint64_t)ggml_row_size(tensor->type, tensor->ne[0]) * (uint64_t)(tensor->ne[1] * tensor->ne[2]);
}

static struct synth_tensor *add(struct synth_model *model, enum synth_content content, enum ggml_type type, int64_t ne0,
                                int64_t ne1, double std) {
    struct synth_tensor *tensor = &model->tensors[model->count++];
    *tensor = (struct synth_tensor){.content = content, .type = type, .ne = {ne0, ne1, 1}, .std = (float)std};
    return tensor;
}

static void name_in_layer(struct synth_tensor *tensor, int64_t layer, const char *part) {
    tensor->layer = layer;
    snprintf(tensor->name, sizeof tensor->name, "blk.%d.%s.weight", (int)layer, part);
}

// llama-quantize gives these layers more bits.
static bool has_more_bits(int64_t layer, int64_t layers) {
    return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

static int64_t head_count(int64_t embd) {
    int64_t heads = embd / 64 / 4 * 4;
    return heads < 4 ? 4 : heads > 32 ? 32 : heads;
}

enum { HEADS_KV = 4, TENSORS_PER_LAYER = 12, OTHER_TENSORS = 3 };

// The deviations keep every value near 1, and make all layers together add about as much to the hidden state as the
// embedding gave: half of it attention, half of it experts, so that both matter for the result. The norm of the queries
// makes attention pick few tokens: with their average instead, greedy text soon runs in a circle.
static void add_layer(struct synth_model *model, int64_t layer) {
    const struct synth_options *o = &model->options;
    double in = 1 / sqrt((double)o->embd);
    double step = sqrt(0.5 / (double)o->layers);
    int64_t q = head_count(o->embd) * SYNTH_HEAD, kv = HEADS_KV * SYNTH_HEAD;
    enum ggml_type dense = o->dense_type->type;
    enum ggml_type down = has_more_bits(layer, o->layers) ? o->type->larger : o->type->type;
    name_in_layer(add(model, SYNTH_SAME_BUT_BIAS, GGML_TYPE_F32, o->embd, 1, 1), layer, "attn_norm");
    name_in_layer(add(model, SYNTH_RANDOM, dense, o->embd, q, in), layer, "attn_q");
    name_in_layer(add(model, SYNTH_RANDOM, dense, o->embd, kv, in), layer, "attn_k");
    name_in_layer(add(model, SYNTH_RANDOM, dense, o->embd, kv, in), layer, "attn_v");
    name_in_layer(add(model, SYNTH_RANDOM, dense, q, o->embd, step * 1.5 / sqrt((double)q)), layer, "attn_output");
    name_in_layer(add(model, SYNTH_SAME, GGML_TYPE_F32, SYNTH_HEAD, 1, 4), layer, "attn_q_norm");
    name_in_layer(add(model, SYNTH_SAME, GGML_TYPE_F32, SYNTH_HEAD, 1, 1), layer, "attn_k_norm");
    name_in_layer(add(model, SYNTH_SAME, GGML_TYPE_F32, o->embd, 1, 1), layer, "ffn_norm");
    name_in_layer(add(model, SYNTH_ROUTER, GGML_TYPE_F32, o->embd, o->experts, 0), layer, "ffn_gate_inp");
    struct synth_tensor *experts[3] = {
        add(model, SYNTH_RANDOM, o->type->type, o->embd, o->ff, in * 1.5),
        add(model, SYNTH_RANDOM, o->type->type, o->embd, o->ff, in * 1.5),
        add(model, SYNTH_RANDOM, down, o->ff, o->embd, step / 0.56 / sqrt((double)o->ff)),
    };
    static const char *const parts[3] = {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"};
    uint64_t bytes = 0;
    for (int i = 0; i < 3; i++) {
        name_in_layer(experts[i], layer, parts[i]);
        bytes += synth_tensor_bytes(experts[i]);
        experts[i]->ne[2] = o->experts;
    }
    model->expert_bytes = bytes > model->expert_bytes ? bytes : model->expert_bytes;
    model->cycle_bytes += bytes * (uint64_t)o->used;
}

static void list_tensors(struct synth_model *model) {
    const struct synth_options *o = &model->options;
    enum ggml_type dense = o->dense_type->type;
    model->count = 0;
    model->bytes = model->expert_bytes = model->cycle_bytes = 0;
    strcpy(add(model, SYNTH_EMBEDDING, dense, o->embd, o->vocab, 0)->name, "token_embd.weight");
    for (int64_t layer = 0; layer < o->layers; layer++) {
        add_layer(model, layer);
    }
    strcpy(add(model, SYNTH_SAME_BUT_BIAS, GGML_TYPE_F32, o->embd, 1, 1)->name, "output_norm.weight");
    strcpy(add(model, SYNTH_OUTPUT, dense, o->embd, o->vocab, 0)->name, "output.weight");
    for (size_t i = 0; i < model->count; i++) {
        model->bytes += GGML_PAD(synth_tensor_bytes(&model->tensors[i]), 32);
    }
}

static int fit_size(struct synth_model *model, char *why, size_t why_size) {
    struct synth_options *o = &model->options;
    int64_t best = 1;
    double least = INFINITY, first = 0;
    for (o->layers = 1; o->layers <= 512; o->layers++) {
        list_tensors(model);
        double off = fabs((double)model->bytes - (double)o->size);
        first = o->layers == 1 ? (double)model->bytes : first;
        if (off < least) {
            least = off;
            best = o->layers;
        }
    }
    o->layers = best;
    list_tensors(model);
    if (least > 0.5 * (double)o->size) {
        snprintf(why, why_size,
                 "--size %.3g GiB cannot be had with 1 to 512 layers of this shape (one layer: %.3g GiB)",
                 (double)o->size / (1 << 30), first / (1 << 30));
        return -1;
    }
    return 0;
}

// In order, so that every shard gets at least one tensor and about the same bytes.
static void spread_over_shards(struct synth_model *model) {
    int64_t shards = model->options.shards, shard = 0;
    double done = 0;
    for (size_t i = 0; i < model->count; i++) {
        bool full = done >= (double)model->bytes / (double)shards * (double)(shard + 1);
        bool last_chance = (int64_t)(model->count - i) <= shards - 1 - shard;
        if (i > 0 && shard < shards - 1 && (full || last_chance)) {
            shard++;
        }
        model->tensors[i].shard = shard;
        done += (double)synth_tensor_bytes(&model->tensors[i]);
    }
}

int synth_model_make(struct synth_model *model, const struct synth_options *options, char *why, size_t why_size) {
    *model = (struct synth_model){.options = *options};
    int64_t layers = options->size ? 512 : options->layers;
    model->tensors = calloc((size_t)(layers * TENSORS_PER_LAYER + OTHER_TENSORS), sizeof *model->tensors);
    if (!model->tensors) {
        snprintf(why, why_size, "out of memory");
        return -1;
    }
    int failed = 0;
    if (options->size) {
        failed = fit_size(model, why, why_size);
    } else {
        list_tensors(model);
    }
    if (!failed && (uint64_t)options->shards > model->count) {
        snprintf(why, why_size, "--shards %d is more than the %zu tensors of this model", (int)options->shards,
                 model->count);
        failed = -1;
    }
    if (failed) {
        synth_model_free(model);
        return -1;
    }
    spread_over_shards(model);
    return 0;
}

void synth_model_free(struct synth_model *model) {
    free(model->tensors);
    model->tensors = NULL;
}

static const char block[] = "\xe2\x96\x81"; // how such tokenizers write a space

// Pieces of `letters` letters, a to z, by number; NULL when there are fewer.
static const char *letters_text(int64_t *number, int letters, bool spaced, char text[16]) {
    int64_t count = 1;
    for (int i = 0; i < letters; i++) {
        count *= 26;
    }
    if (*number >= count) {
        *number -= count;
        return NULL;
    }
    size_t at = (size_t)sprintf(text, "%s", spaced ? block : "");
    for (int i = 0; i < letters; i++) {
        count /= 26;
        text[at++] = (char)('a' + *number / count % 26);
    }
    text[at] = '\0';
    return text;
}

enum { SPECIALS = 3, BYTES = 256, PRINTABLE = 95 };

const char *synth_token_text(int64_t id, char text[16]) {
    static const char *const specials[SPECIALS] = {"<unk>", "<s>", "</s>"};
    static const struct {
        int letters;
        bool spaced;
    } kinds[] = {{2, false}, {1, true}, {2, true}, {3, false}, {3, true}, {4, false}};
    int64_t number = id - SPECIALS - BYTES - PRINTABLE;
    if (id < SPECIALS) {
        strcpy(text, specials[id]);
    } else if (id < SPECIALS + BYTES) {
        sprintf(text, "<0x%02X>", (unsigned)(id - SPECIALS) & 0xff);
    } else if (number < 0) {
        char letter[2] = {(char)(' ' + PRINTABLE + number)};
        strcpy(text, *letter == ' ' ? block : letter);
    } else {
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
            if (letters_text(&number, kinds[i].letters, kinds[i].spaced, text)) {
                break;
            }
        }
    }
    return text;
}

static void set_tokenizer(const struct synth_options *o, struct gguf_context *gguf) {
    enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, BYTE = 6 };
    size_t count = (size_t)o->vocab;
    char(*texts)[16] = calloc(count, sizeof *texts);
    const char **tokens = calloc(count, sizeof *tokens);
    float *scores = calloc(count, sizeof *scores);
    int32_t *kinds = calloc(count, sizeof *kinds);
    GGML_ASSERT(texts && tokens && scores && kinds);
    for (size_t i = 0; i < count; i++) {
        tokens[i] = synth_token_text((int64_t)i, texts[i]);
        scores[i] = -(float)i;
        kinds[i] = i == 0 ? UNKNOWN : i < SPECIALS ? CONTROL : i < SPECIALS + BYTES ? BYTE : NORMAL;
    }
    gguf_set_val_str(gguf, "tokenizer.ggml.model", "llama");
    gguf_set_arr_str(gguf, "tokenizer.ggml.tokens", tokens, count);
    gguf_set_arr_data(gguf, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores, count);
    gguf_set_arr_data(gguf, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, kinds, count);
    gguf_set_val_u32(gguf, "tokenizer.ggml.unknown_token_id", 0);
    gguf_set_val_u32(gguf, "tokenizer.ggml.bos_token_id", 1);
    gguf_set_val_u32(gguf, "tokenizer.ggml.eos_token_id", 2);
    free(texts);
    free(tokens);
    free(scores);
    free(kinds);
}

static void set_number(struct gguf_context *gguf, const char *key, int64_t value) {
    char full[96];
    snprintf(full, sizeof full, "qwen3moe.%s", key);
    gguf_set_val_u32(gguf, full, (uint32_t)value);
}

static void set_architecture(const struct synth_options *o, struct gguf_context *gguf) {
    gguf_set_val_str(gguf, "general.architecture", "qwen3moe");
    gguf_set_val_str(gguf, "general.name", "synthetic");
    gguf_set_val_u32(gguf, "general.file_type", o->type->file_type);
    gguf_set_val_u32(gguf, "general.quantization_version", GGML_QNT_VERSION);
    set_number(gguf, "block_count", o->layers);
    set_number(gguf, "context_length", o->context);
    set_number(gguf, "embedding_length", o->embd);
    set_number(gguf, "feed_forward_length", o->ff * o->used);
    set_number(gguf, "expert_feed_forward_length", o->ff);
    set_number(gguf, "expert_count", o->experts);
    set_number(gguf, "expert_used_count", o->used);
    set_number(gguf, "attention.head_count", head_count(o->embd));
    set_number(gguf, "attention.head_count_kv", HEADS_KV);
    set_number(gguf, "attention.key_length", SYNTH_HEAD);
    set_number(gguf, "attention.value_length", SYNTH_HEAD);
    gguf_set_val_f32(gguf, "qwen3moe.attention.layer_norm_rms_epsilon", 1e-6f);
    gguf_set_val_f32(gguf, "qwen3moe.rope.freq_base", 1e6f);
}

void synth_model_set_keys(const struct synth_model *model, int64_t shard, struct gguf_context *gguf) {
    if (shard == 0) {
        set_architecture(&model->options, gguf);
        set_tokenizer(&model->options, gguf);
    }
    if (model->options.shards > 1) {
        gguf_set_val_u16(gguf, "split.no", (uint16_t)shard);
        gguf_set_val_u16(gguf, "split.count", (uint16_t)model->options.shards);
        gguf_set_val_i32(gguf, "split.tensors.count", (int32_t)model->count);
    }
}
