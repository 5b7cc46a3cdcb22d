// The hot set: a file of ours, with a checksum that most mutants have right.
#include "fuzz.h"

#include "model/hot_set.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static uint64_t checksum_of(const uint8_t *bytes, size_t n) {
    uint64_t sum = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < n; i++) {
        sum = (sum ^ bytes[i]) * UINT64_C(0x100000001b3);
    }
    return sum;
}

// A set that is right, as the writer writes it.
static void write_set(struct random *random, struct bytes *out) {
    static struct gn_hot_set set;
    char why[512];
    const struct gn_expert_map *map = fuzz_map();
    if (!set.map && gn_hot_set_open(&set, map)) {
        fuzz_fail("no memory for a hot set");
    }
    float *use = set.uses;
    for (uint32_t l = 0; l < map->n_layers; l++) {
        set.tokens[l] = 100;
        for (uint32_t e = 0; e < map->layers[l]->n_experts; e++) {
            *use++ = (float)random_below(random, 101);
        }
    }
    remove("hot"); // a mutant that an earlier run left is no hot set, and would not be overwritten
    if (gn_hot_set_write(&set, "hot", why, sizeof why)) {
        fuzz_fail("%s", why);
    }
    FILE *file = fopen("hot", "rb");
    if (!file) {
        fuzz_fail("what was written is not there");
    }
    out->n = fread(out->data, 1, out->capacity, file);
    fclose(file);
}

static void make(struct random *random, struct bytes *input) {
    static uint8_t kept[4096];
    static size_t n;
    if (n == 0) { // the same for all mutants
        struct random first = random_for(0, 0);
        struct bytes set = {.data = kept, .capacity = sizeof kept};
        write_set(&first, &set);
        n = set.n;
    }
    bytes_add(input, kept, n);
    for (size_t times = random_below(random, 4); times > 0 && input->n >= 32; times--) {
        static const float odd[] = {0, -0.0f, -1, 1e-40f, 1e38f, INFINITY, NAN, 101, 0.5f};
        float number = odd[random_below(random, sizeof odd / sizeof *odd)];
        if (random_percent(random, 50)) {
            memcpy(input->data + 24 + random_below(random, input->n / 4 - 7) * 4, &number, 4);
        } else {
            bytes_mutate(random, input, 1);
        }
    }
    if (input->n >= 8 && random_percent(random, 80)) {
        uint64_t sum = checksum_of(input->data, input->n - 8);
        memcpy(input->data + input->n - 8, &sum, 8);
    }
}

static void check(const struct gn_hot_set *set, bool failed) {
    const float *use = set->uses;
    for (uint32_t l = 0; l < set->map->n_layers; l++) {
        float tokens = set->tokens[l];
        for (uint32_t e = 0; e < set->map->layers[l]->n_experts; e++, use++) {
            if (failed ? *use != 0 || tokens != 0 : !(*use >= 0 && *use <= tokens && isfinite(tokens))) {
                fuzz_fail("%g uses of %g tokens", (double)*use, (double)tokens);
            }
        }
    }
}

static bool run(const uint8_t *data, size_t n) {
    struct gn_hot_set set;
    char why[512] = "";
    if (gn_hot_set_open(&set, fuzz_map())) {
        fuzz_fail("no memory for a hot set");
    }
    bool failed = gn_hot_set_read(&set, fuzz_file(0, data, n), why, sizeof why);
    if (failed) {
        fuzz_check_reason(why, sizeof why);
    }
    check(&set, failed);
    gn_hot_set_fade(&set, 50);
    check(&set, failed);
    gn_hot_set_close(&set);
    return !failed;
}

const struct fuzz_target fuzz_hot_set = {"hot-set", make, run};
