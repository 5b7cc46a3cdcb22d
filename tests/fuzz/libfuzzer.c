// One target for clang's libFuzzer: what it finds, and what it keeps, goes through fuzz_target.run() as here.
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#ifndef FUZZ_TARGET
#error "name the target: -DFUZZ_TARGET=fuzz_gguf"
#endif

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t most, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t n, size_t most);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    FUZZ_TARGET.run(data, n);
    return 0;
}

// One in eight is a new one of ours: libFuzzer goes on from those that reach new code.
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t most, unsigned seed) {
    struct random random = random_for(seed, n);
    if (!random_percent(&random, 12)) {
        return LLVMFuzzerMutate(data, n, most);
    }
    uint8_t *made = malloc(FUZZ_MAX);
    struct bytes input = {.data = made, .capacity = FUZZ_MAX};
    if (made) {
        FUZZ_TARGET.make(&random, &input);
    }
    n = input.n < most ? input.n : most;
    if (n > 0) {
        memcpy(data, made, n);
    }
    free(made);
    return n;
}
