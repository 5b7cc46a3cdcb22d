#include "tiny_archs.h"

#include <ctype.h>
#include <ggml.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Notation: `key=value` separated by blanks. A key means "<architecture>.<key>" unless it starts with tokenizer. or
// general. The value tells its type: 3 is u32, 3.0 f32, 3L u64, true a bool, [..] an array of these, "-" removes the
// key, and anything else is a string.
static const char shared[] =
    "general.alignment=32 tokenizer.ggml.model=no_vocab vocab_size=256 context_length=512 block_count=3 "
    "embedding_length=256 feed_forward_length=256 attention.head_count=4 attention.head_count_kv=4 "
    "leading_dense_block_count=1 expert_feed_forward_length=256 expert_shared_feed_forward_length=256 "
    "expert_shared_count=1 expert_gating_func=2 expert_weights_scale=1.5 expert_weights_norm=true "
    "interleave_moe_layer_step=1 attention.layer_norm_epsilon=0.00001 attention.layer_norm_rms_epsilon=0.00001 "
    "attention.sliding_window=16 attention.sliding_window_pattern=2 rope.dimension_sections=[16,16,16,16] "
    "logit_scale=1.0 full_attention_interval=2 ssm.conv_kernel=4 ssm.inner_size=512 ssm.state_size=64 "
    "ssm.time_step_rank=4 ssm.group_count=2";

// Multi-head latent attention, small.
#define MLA                                                                                                            \
    "attention.head_count_kv=1 attention.key_length=96 attention.value_length=64 attention.key_length_mla=64 "         \
    "attention.value_length_mla=32 rope.dimension_count=32 attention.q_lora_rank=64 attention.kv_lora_rank=64 "
#define INDEXER                                                                                                        \
    "attention.indexer.head_count=4 attention.indexer.key_length=64 attention.indexer.top_k=8 "                        \
    "attention.indexer.block_size=4 attention.indexer.local_blocks=1 "
// Mamba or the like in the middle layer, attention in the others.
#define HYBRID "attention.head_count_kv=[4,0,4] "
#define HYBRID_MLA MLA "attention.head_count_kv=[1,0,1] "
// A gated delta net wants heads as wide as its state.
#define DELTA_NET "ssm.inner_size=256 ssm.state_size=64 "
#define DELTA_NET_TENSORS "blk.0.attn_qkv.weight blk.0.attn_gate.weight blk.2.attn_qkv.weight blk.2.attn_gate.weight"
#define SWA_ARRAY "attention.sliding_window_pattern=[0,1,0] "

#define INDEXER_TENSORS                                                                                                \
    "indexer.k_norm.weight indexer.k_norm.bias indexer.proj.weight indexer.attn_k.weight indexer.attn_q_b.weight"
#define KDA                                                                                                            \
    "kda.head_dim=64 kda.safe_gate=true kda.gate_lower_bound=-5.0 expert_latent_length=256 "                           \
    "attn_res.block_size=12 activation.situ_beta=4.0 activation.situ_linear_beta=25.0 "
#define DEEPSEEK4                                                                                                      \
    "embedding_length=256 attention.head_count=4 block_count=4 attention.head_count_kv=1 attention.key_length=64 "     \
    "attention.value_length=64 rope.dimension_count=32 attention.q_lora_rank=64 attention.output_group_count=4 "       \
    "attention.output_lora_rank=32 attention.compress_ratios=[0,0,4,128] "                                             \
    "attention.compress_rope_freq_base=160000.0 hyper_connection.count=4 hyper_connection.sinkhorn_iterations=2 "      \
    "hyper_connection.epsilon=0.000001 hash_layer_count=1 swiglu_clamp_exp=10.0 expert_gating_func=4 " INDEXER
#define QWEN4EXP                                                                                                       \
    "hyper_connection.count=4 hyper_connection.low_rank=8 attention.compress_ratios=[4,4,4] ple.layers=[0] "           \
    "ple.ngram_size=3 ple.heads_per_ngram=2 ple.conv_kernel=4 ple.eos_token_id=0 "                                     \
    "embedding_length_per_layer_input=64 ple.layer_multipliers=[1L,3L,5L] ple.head_offsets=[0L,256L,512L,768L] "       \
    "ple.head_vocab_sizes=[256L,256L,256L,256L] " INDEXER
static const struct tiny_arch archs[] = {
    {"afmoe", "", NULL},
    {"arctic", "", NULL},
    {"bailingmoe", "", NULL},
    {"bailingmoe2", "", NULL},
    {"bailingmoe3", HYBRID_MLA KDA, NULL},
    {"cohere2moe", SWA_ARRAY, NULL},
    {"dbrx", "attention.clamp_kqv=8.0", NULL},
    {"deepseek", "", NULL},
    {"deepseek2", MLA, NULL},
    {"deepseek2-ocr", "", NULL},
    {"deepseek32", MLA INDEXER, NULL},
    {"deepseek4", DEEPSEEK4, NULL},
    {"dots1", "", NULL},
    {"dots3note",
     MLA INDEXER SWA_ARRAY "attention.kv_lora_rank_swa=64 attention.key_length_swa=96 attention.value_length_swa=64 "
                           "attention.key_length_mla_swa=64 attention.value_length_mla_swa=32 "
                           "rope.freq_base_swa=10000.0 attention.indexer.types=[1,0,1]",
     NULL},
    {"ernie4_5-moe", "", NULL},
    {"exaone-moe", "", NULL},
    {"gemma4",
     SWA_ARRAY "embedding_length_per_layer_input=0 attention.key_length_swa=64 attention.value_length_swa=64 "
               "final_logit_softcapping=30.0",
     "attn_v.weight layer_output_scale.weight ffn_down_exps.scale"},
    {"glm-dsa", MLA INDEXER, INDEXER_TENSORS},
    {"glm4moe", "", NULL},
    {"gpt-oss", "", NULL},
    {"granite", "", NULL},
    {"granite_swa", SWA_ARRAY, NULL},
    {"granitehybrid", HYBRID, "ssm_conv1d.bias"},
    {"granitemoe", "", NULL},
    {"grok", "", NULL},
    {"grovemoe", "expert_group_scale=0.5 experts_per_group=2 expert_chunk_feed_forward_length=128", NULL},
    {"hunyuan-moe", "", NULL},
    {"hy_v3", "", "exp_probs_b ffn_gate_shexp.weight ffn_up_shexp.weight ffn_down_shexp.weight"},
    {"jamba", HYBRID, NULL},
    {"kimi-k3", HYBRID_MLA KDA,
     "attn_q_a_norm.weight attn_gate.weight ffn_gate_shexp.weight ffn_up_shexp.weight ffn_down_shexp.weight"},
    {"kimi-linear", HYBRID_MLA KDA,
     "attn_q_a_norm.weight ssm_a ffn_gate_shexp.weight ffn_up_shexp.weight ffn_down_shexp.weight"},
    {"laguna", "", NULL},
    {"lfm2moe", HYBRID "shortconv.l_cache=3", NULL},
    {"llada-moe", "", NULL},
    {"llama", "", NULL},
    {"llama-embed", "", NULL},
    {"llama4", "block_count=4", NULL},
    {"mellum", "", NULL},
    {"mimo2", SWA_ARRAY, "attn_sinks.weight"},
    {"minicpm", "", NULL},
    {"minimax-01", "residual_scale=3.5", NULL},
    {"minimax-m2", "", NULL},
    {"minimax-m3", INDEXER "rope.dimension_count=32", NULL},
    {"mistral3", "", NULL},
    {"mistral4", MLA, NULL},
    {"nemotron_h_moe",
     "block_count=5 attention.head_count_kv=[0,4,0,0,0] feed_forward_length=[0,0,256,0,256] attention.key_length=64 "
     "attention.value_length=64",
     "ssm_conv1d.bias"},
    {"nomic-bert-moe", "moe_every_n_layers=2 block_count=4 tokenizer.ggml.token_type_count=1", NULL},
    {"olmoe", "", NULL},
    {"phimoe", "", NULL},
    {"qwen2moe", "", NULL},
    {"qwen35moe", DELTA_NET, DELTA_NET_TENSORS},
    {"qwen3moe", "", NULL},
    {"qwen3next", DELTA_NET, DELTA_NET_TENSORS},
    {"qwen3vlmoe", "", NULL},
    {"qwen4exp", DELTA_NET QWEN4EXP, NULL},
    {"rnd1", "", NULL},
    {"smallthinker", "", NULL},
    {"step35", SWA_ARRAY, "attn_gate.weight ffn_gate_shexp.weight ffn_up_shexp.weight ffn_down_shexp.weight"},
};
enum { ARCHS = sizeof archs / sizeof *archs, MOST_ELEMENTS = 64, MOST_TEXT = 256 };

size_t tiny_arch_count(void) {
    return ARCHS;
}

const struct tiny_arch *tiny_arch_get(size_t i) {
    return &archs[i];
}

const struct tiny_arch *tiny_arch_find(const char *name) {
    for (size_t i = 0; i < ARCHS; i++) {
        if (strcmp(archs[i].name, name) == 0) {
            return &archs[i];
        }
    }
    return NULL;
}

struct scalar {
    enum gguf_type type;
    union {
        uint32_t u32;
        uint64_t u64;
        float f32;
    } as;
};

static struct scalar parse_number(const char *text, char **end) {
    struct scalar value = {.type = GGUF_TYPE_UINT32};
    size_t length = strspn(text, "+-0123456789.e");
    if (memchr(text, '.', length)) {
        value.type = GGUF_TYPE_FLOAT32;
        value.as.f32 = strtof(text, end);
        return value;
    }
    value.as.u64 = strtoull(text, end, 10);
    if (**end == 'L') {
        value.type = GGUF_TYPE_UINT64;
        ++*end;
    } else {
        value.as.u32 = (uint32_t)value.as.u64;
    }
    return value;
}

static bool set_array(struct gguf_context *metadata, const char *key, const char *text) {
    _Alignas(8) char data[MOST_ELEMENTS * sizeof(uint64_t)];
    size_t n = 0;
    enum gguf_type type = GGUF_TYPE_UINT32;
    for (const char *at = text + 1; *at != ']' && n < MOST_ELEMENTS; n++) {
        char *end;
        struct scalar value = parse_number(at, &end);
        if (end == at || (*end != ',' && *end != ']')) {
            return false;
        }
        type = value.type;
        size_t size = type == GGUF_TYPE_UINT64 ? 8 : 4;
        memcpy(data + n * size, &value.as, size);
        at = *end == ',' ? end + 1 : end;
    }
    gguf_set_arr_data(metadata, key, type, data, n);
    return n > 0;
}

static bool set_number(struct gguf_context *metadata, const char *key, const char *text) {
    char *end;
    struct scalar value = parse_number(text, &end);
    if (*end) {
        return false;
    }
    switch (value.type) {
    case GGUF_TYPE_FLOAT32:
        gguf_set_val_f32(metadata, key, value.as.f32);
        break;
    case GGUF_TYPE_UINT64:
        gguf_set_val_u64(metadata, key, value.as.u64);
        break;
    default:
        gguf_set_val_u32(metadata, key, value.as.u32);
    }
    return true;
}

static bool set_value(struct gguf_context *metadata, const char *key, const char *text) {
    if (*text == '[') {
        return set_array(metadata, key, text);
    }
    if (strcmp(text, "-") == 0) {
        gguf_remove_key(metadata, key);
        return true;
    }
    if (isdigit((unsigned char)*text) || *text == '-') {
        return set_number(metadata, key, text);
    }
    if (strcmp(text, "true") == 0 || strcmp(text, "false") == 0) {
        gguf_set_val_bool(metadata, key, *text == 't');
    } else {
        gguf_set_val_str(metadata, key, text);
    }
    return *text != 0;
}

static bool set_pair(struct gguf_context *metadata, const char *arch, char *pair) {
    char *value = strchr(pair, '='), key[MOST_TEXT];
    if (!value) {
        return false;
    }
    *value++ = 0;
    bool whole = strncmp(pair, "tokenizer.", 10) == 0 || strncmp(pair, "general.", 8) == 0;
    int length = whole ? snprintf(key, sizeof key, "%s", pair) : snprintf(key, sizeof key, "%s.%s", arch, pair);
    return length < MOST_TEXT && set_value(metadata, key, value);
}

static bool set_pairs(struct gguf_context *metadata, const char *arch, const char *pairs) {
    while (*(pairs += strspn(pairs, " "))) {
        char pair[MOST_TEXT];
        size_t length = strcspn(pairs, " ");
        snprintf(pair, sizeof pair, "%.*s", (int)length, pairs);
        if (length >= sizeof pair || !set_pair(metadata, arch, pair)) {
            fprintf(stderr, "%s: cannot read '%.*s'\n", arch, (int)length, pairs);
            return false;
        }
        pairs += length;
    }
    return true;
}

bool tiny_arch_metadata(const struct tiny_arch *arch, uint32_t n_experts, uint32_t n_used, bool mtp,
                        struct gguf_context *metadata) {
    char experts[64];
    snprintf(experts, sizeof experts, "expert_count=%u expert_used_count=%u", n_experts, n_used);
    gguf_set_val_str(metadata, "general.architecture", arch->name);
    return set_pairs(metadata, arch->name, shared) && set_pairs(metadata, arch->name, experts) &&
           set_pairs(metadata, arch->name, arch->metadata) &&
           set_pairs(metadata, arch->name, mtp ? "block_count=4 nextn_predict_layers=1" : "");
}

void tiny_vocabulary(struct gguf_context *metadata) {
    enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, BYTE = 6, TOKENS = 256, SPECIALS = 3, CHARACTERS = 128 };
    char texts[TOKENS][8];
    const char *tokens[TOKENS];
    float scores[TOKENS];
    int32_t kinds[TOKENS];
    for (int i = 0; i < TOKENS; i++) {
        static const char *const specials[] = {"<unk>", "<s>", "</s>"};
        int pair = i - SPECIALS - CHARACTERS;
        if (i < SPECIALS) {
            snprintf(texts[i], sizeof texts[i], "%s", specials[i]);
        } else if (pair < 0) {
            snprintf(texts[i], sizeof texts[i], "<0x%02X>", (unsigned)(i - SPECIALS) % CHARACTERS);
        } else if (pair == 0) {
            strcpy(texts[i], "\xe2\x96\x81"); // how such tokenizers write a space
        } else {
            snprintf(texts[i], sizeof texts[i], "%c%c", 'a' + pair / 26, 'a' + pair % 26);
        }
        tokens[i] = texts[i];
        scores[i] = -(float)i;
        kinds[i] = i == 0 ? UNKNOWN : i < SPECIALS ? CONTROL : pair < 0 ? BYTE : NORMAL;
    }
    gguf_set_val_str(metadata, "tokenizer.ggml.model", "llama");
    gguf_set_arr_str(metadata, "tokenizer.ggml.tokens", tokens, TOKENS);
    gguf_set_arr_data(metadata, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores, TOKENS);
    gguf_set_arr_data(metadata, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, kinds, TOKENS);
    gguf_set_val_u32(metadata, "tokenizer.ggml.unknown_token_id", 0);
    gguf_set_val_u32(metadata, "tokenizer.ggml.bos_token_id", 1);
    gguf_set_val_u32(metadata, "tokenizer.ggml.eos_token_id", 2);
}

static void list_tensor(struct gguf_context *metadata, const char *name) {
    struct ggml_tensor tensor = {.type = GGML_TYPE_F32, .ne = {1, 1, 1, 1}, .nb = {4, 4, 4, 4}};
    ggml_set_name(&tensor, name);
    if (gguf_find_tensor(metadata, name) < 0) {
        gguf_add_tensor(metadata, &tensor);
    }
}

// Names are relative to a layer unless they name one themselves.
static void list_of_layer(struct gguf_context *metadata, uint32_t layer, const char *names) {
    while (*(names += strspn(names, " "))) {
        char name[MOST_TEXT];
        int length = (int)strcspn(names, " ");
        int prefix = strncmp(names, "blk.", 4) == 0 ? 0 : snprintf(name, sizeof name, "blk.%u.", layer);
        snprintf(name + prefix, sizeof name - (size_t)prefix, "%.*s", length, names);
        list_tensor(metadata, name);
        names += length;
    }
}

// With a layer for multi-token prediction llama.cpp takes what is not listed for what was left out on purpose.
static void list_trunk(struct gguf_context *metadata) {
    for (uint32_t layer = 0; layer < 3; layer++) {
        list_of_layer(metadata, layer,
                      "attn_norm.weight post_attention_norm.weight ffn_gate_inp_shexp.weight ffn_gate_shexp.weight "
                      "ffn_up_shexp.weight ffn_down_shexp.weight");
        list_of_layer(metadata, layer,
                      layer == 1 ? "attn_q.weight attn_k.weight attn_v.weight attn_output.weight attn_q_norm.weight "
                                   "attn_k_norm.weight"
                                 : "ssm_conv1d.weight ssm_dt.bias ssm_a ssm_beta.weight ssm_alpha.weight "
                                   "ssm_norm.weight ssm_out.weight");
    }
}

void tiny_arch_list_optional(const struct tiny_arch *arch, bool fused, bool mtp, struct gguf_context *metadata) {
    char key[MOST_TEXT];
    if (mtp) {
        list_trunk(metadata);
    }
    snprintf(key, sizeof key, "%s.block_count", arch->name);
    uint32_t layers = gguf_get_val_u32(metadata, gguf_find_key(metadata, key));
    for (uint32_t layer = 0; layer < layers; layer++) {
        list_of_layer(metadata, layer, fused ? "ffn_gate_up_exps.weight" : "ffn_gate_exps.weight ffn_up_exps.weight");
        list_of_layer(metadata, layer, "ffn_gate_inp.weight ffn_down_exps.weight exp_probs_b.bias");
        list_of_layer(metadata, layer, arch->optional ? arch->optional : "");
    }
}
