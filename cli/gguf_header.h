// Reads and checks the header of one GGUF file, and that the file holds all the bytes that its header promises.
#pragma once

#include "gguf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gguf_header {
    struct gguf_context *gguf;
    uint64_t file_bytes;
};

// Returns true, or false with one plain line (what, where, what to do) in why.
bool gguf_header_read(const char *path, struct gguf_header *header, char *why, size_t why_size);
void gguf_header_free(struct gguf_header *header);

// Metadata, whatever integer type it is stored as; for an array its greatest element. `fallback` when it is not there.
uint64_t gguf_header_number(const struct gguf_header *header, const char *key, uint64_t fallback);
// "" when it is not there or no string.
const char *gguf_header_string(const struct gguf_header *header, const char *key);
