// Readers of files and of words, fed with what no careful program would write.
//
// A target is a reader of ours. make() builds an input, mostly right and in a few places wrong, out of random numbers
// alone; run() reads any bytes at all, as LLVMFuzzerTestOneInput() does, and must come back without a sanitizer's
// report, a crash, or a broken promise (fuzz_fail()). main.c runs many of them, libfuzzer.c one for clang's libFuzzer.
#pragma once

#include "bytes.h"

#define FUZZ_MAX ((size_t)64 << 10) // bytes of an input, at most

struct fuzz_target {
    const char *name;
    void (*make)(struct random *random, struct bytes *input); // fills *input, which is empty
    // Whether the reader took the input. What a first call prepares (files, tables) stays until the process ends. The
    // present directory is one to write in.
    bool (*run)(const uint8_t *data, size_t n);
};

extern const struct fuzz_target fuzz_gguf, fuzz_shards, fuzz_imatrix, fuzz_hot_set, fuzz_trace, fuzz_simulate,
    fuzz_sizes, fuzz_tiers, fuzz_options, fuzz_policy;

// A promise is broken: prints a line and aborts.
_Noreturn void fuzz_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

// A refusal must say why. That what is printed of it is one line of plain characters is gn_log()'s part.
void fuzz_check_reason(const char *why, size_t size);

// A file with these bytes and no name in any directory. Returns its path, which stays the same for the same `number`
// (0 to 3); what it held before is gone.
const char *fuzz_file(unsigned number, const uint8_t *data, size_t n);

// A zero-terminated copy of the bytes, to be freed. Text ends at the first zero byte.
char *fuzz_text(const uint8_t *data, size_t n);

// Splits text at newlines, in place. Returns how many words there are, at most `most`.
int fuzz_words(char *text, char **words, int most);

// The experts of a model of three layers, which stay until the process ends.
struct gn_expert_map;
const struct gn_expert_map *fuzz_map(void);
