// The architectures guanaco-tiny can make, and the metadata each needs.
#pragma once

#include <gguf.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tiny_arch {
    const char *name;
    const char *metadata; // on top of what all share, which it may override; see tiny_archs.c for the notation
    const char *optional; // further optional tensors of its layers that it shall have, separated by blanks
};

size_t tiny_arch_count(void);
const struct tiny_arch *tiny_arch_get(size_t i);
const struct tiny_arch *tiny_arch_find(const char *name);

// Writes all keys of an architecture to `metadata`; mtp: with a layer for multi-token prediction, qwen35moe alone.
// False, after a line on standard error, if the table is malformed.
bool tiny_arch_metadata(const struct tiny_arch *arch, uint32_t n_experts, uint32_t n_used, bool mtp,
                        struct gguf_context *metadata);

// Writes a vocabulary of 256 tokens: three special ones, the ASCII characters, and pairs of letters.
void tiny_vocabulary(struct gguf_context *metadata);

// Lists the optional tensors of all layers in `metadata`: what llama.cpp does not require it builds only if listed.
void tiny_arch_list_optional(const struct tiny_arch *arch, bool fused, bool mtp, struct gguf_context *metadata);
