// A buffer of bytes with a fixed capacity: what does not fit is left out, so that no mutant grows without end.
#pragma once

#include "random.h"

struct bytes {
    uint8_t *data;
    size_t n, capacity;
};

void bytes_add(struct bytes *bytes, const void *from, size_t n);
void bytes_add_u32(struct bytes *bytes, uint32_t number);
void bytes_add_u64(struct bytes *bytes, uint64_t number);
void bytes_add_text(struct bytes *bytes, const char *text);
void bytes_printf(struct bytes *bytes, const char *format, ...) __attribute__((format(printf, 2, 3)));
void bytes_insert(struct bytes *bytes, size_t at, const void *from, size_t n);
void bytes_delete(struct bytes *bytes, size_t at, size_t n);

// Changes anywhere, whatever the format: bits, bytes, ranges left out, doubled or moved, ends cut off. `times` of them.
void bytes_mutate(struct random *random, struct bytes *bytes, unsigned times);

// Changes in text: numbers become others, fields between separators are left out, doubled or exchanged, words of the
// dictionary (NULL-terminated; NULL: none) come in; now and then bytes_mutate(). `times` of them.
void text_mutate(struct random *random, struct bytes *text, const char *const *dictionary, unsigned times);
