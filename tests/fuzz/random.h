// Numbers that depend on a seed alone: the same on every machine, so that a mutant is named by three numbers.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct random {
    uint64_t state;
};

// Any 64 bits, all alike likely (splitmix64 of Steele, Lea and Flood).
static inline uint64_t random_next(struct random *random) {
    uint64_t z = random->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

// 0 to n-1; 0 for n = 0.
static inline size_t random_below(struct random *random, size_t n) {
    return n ? (size_t)(random_next(random) % n) : 0;
}

static inline bool random_percent(struct random *random, unsigned percent) {
    return random_below(random, 100) < percent;
}

// The stream of one mutant.
static inline struct random random_for(uint64_t seed, uint64_t number) {
    struct random random = {seed};
    random.state = random_next(&random) ^ number;
    random_next(&random);
    return random;
}

// A number that programs get wrong: 0, 1, powers of two and their neighbours, in any of 64 bits.
uint64_t random_odd_number(struct random *random);
