// Writes a tiny dense model with a chat template, the tokenizer taken from the demo model. Its header has the number of
// a shard, as a file that was joined from shards may, and is whole all the same. For test_cli.sh.
#include "gguf.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { WIDTH = 64, FF = 128, VOCABULARY = 4096, HEADS = 2 };

static struct ggml_context *tensors;
static struct gguf_context *file;

static void add(const char *name, int64_t columns, int64_t rows) {
    struct ggml_tensor *tensor = rows ? ggml_new_tensor_2d(tensors, GGML_TYPE_F32, columns, rows)
                                      : ggml_new_tensor_1d(tensors, GGML_TYPE_F32, columns);
    ggml_set_name(tensor, name);
    float *data = tensor->data;
    for (int64_t i = 0; i < columns * (rows ? rows : 1); i++) {
        data[i] = rows ? (float)rand() / (float)RAND_MAX - 0.5f : 1;
    }
    gguf_add_tensor(file, tensor);
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: test_cli_dense DEMO.gguf OUT.gguf\n");
        return 2;
    }
    struct gguf_context *demo = gguf_init_from_file(argv[1], (struct gguf_init_params){.no_alloc = true});
    tensors = ggml_init((struct ggml_init_params){.mem_size = 16 << 20});
    file = gguf_init_empty();
    if (!demo || !tensors || !file) {
        return 1;
    }
    gguf_set_kv(file, demo);
    gguf_set_val_str(file, "general.architecture", "llama");
    gguf_set_val_u32(file, "llama.block_count", 1);
    gguf_set_val_u32(file, "llama.context_length", 256);
    gguf_set_val_u32(file, "llama.embedding_length", WIDTH);
    gguf_set_val_u32(file, "llama.feed_forward_length", FF);
    gguf_set_val_u32(file, "llama.attention.head_count", HEADS);
    gguf_set_val_f32(file, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_set_val_u16(file, "split.no", 1); // without split.count, which alone makes it a shard
    gguf_set_val_str(file, "tokenizer.chat_template", "<|im_start|>{{ messages }}<|im_end|>");
    add("token_embd.weight", WIDTH, VOCABULARY);
    add("output_norm.weight", WIDTH, 0);
    add("blk.0.attn_norm.weight", WIDTH, 0);
    add("blk.0.attn_q.weight", WIDTH, WIDTH);
    add("blk.0.attn_k.weight", WIDTH, WIDTH);
    add("blk.0.attn_v.weight", WIDTH, WIDTH);
    add("blk.0.attn_output.weight", WIDTH, WIDTH);
    add("blk.0.ffn_norm.weight", WIDTH, 0);
    add("blk.0.ffn_gate.weight", WIDTH, FF);
    add("blk.0.ffn_up.weight", WIDTH, FF);
    add("blk.0.ffn_down.weight", FF, WIDTH);
    bool good = gguf_write_to_file(file, argv[2], false);
    gguf_free(file);
    gguf_free(demo);
    ggml_free(tensors);
    return good ? 0 : 1;
}
