// Readers of GGUF headers: of one file, of shards, and of an imatrix.
#include "fuzz.h"
#include "gguf_file.h"

#include "backend/geometry.h"
#include "bench/expert_reads.h"
#include "cli.h"
#include "gguf_header.h"
#include "llama.h"
#include "model/imatrix.h"
#include "model_file.h"
#include "preload/gguf_scan.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void say_nothing(enum ggml_log_level level, const char *text, void *unused) {
    (void)level;
    (void)text;
    (void)unused;
}

// Changes a file that is right, which `file` holds, and adds it to *out.
static void add_mutant(struct random *random, struct bytes *file, struct bytes *out) {
    static struct gguf_pieces pieces;
    static uint8_t space[FUZZ_MAX];
    struct bytes room = {.data = space, .capacity = sizeof space};
    gguf_take_apart(file->data, file->n, &pieces);
    gguf_mutate(random, &pieces, &room, (unsigned)random_below(random, 4), false);
    gguf_put_together(&pieces, out);
    if (random_percent(random, 20)) {
        bytes_mutate(random, out, 1 + (unsigned)random_below(random, 3));
    }
}

// ------------------------------------------------------------------------------------------------ one file

static void make_gguf(struct random *random, struct bytes *input) {
    static uint8_t space[FUZZ_MAX];
    struct bytes file = {.data = space, .capacity = sizeof space};
    gguf_make_model(random, 0, 1, &file);
    add_mutant(random, &file, input);
}

static bool has_expert_name(const struct gguf_context *gguf) {
    for (int64_t t = 0; t < gguf_get_n_tensors(gguf); t++) {
        const char *name = gguf_get_tensor_name(gguf, t);
        if (strstr(name, "_exps.") || strstr(name, "_chexps.")) {
            return true;
        }
    }
    return false;
}

// llama.cpp's own reader is the referee: what it takes, the scanner of the interposer must read alike.
static void compare_scan(const char *path, bool found) {
    struct gguf_context *gguf = gguf_init_from_file(path, (struct gguf_init_params){.no_alloc = true});
    if (gguf && has_expert_name(gguf) != found) {
        fuzz_fail("the scanner says %d about experts, llama.cpp %d", found, !found);
    }
    gguf_free(gguf);
}

static void check_model(const struct model_file *model) {
    uint64_t sum = 0;
    for (uint32_t l = 0; l < model->n_layers; l++) {
        const struct model_layer *layer = &model->layers[l];
        if (layer->n_experts == 0 || layer->n_slices == 0 || layer->expert_bytes == 0 ||
            layer->slot_bytes < layer->expert_bytes) {
            fuzz_fail("a layer without experts, or slots that are too small");
        }
        sum += layer->n_experts * layer->expert_bytes;
    }
    if (sum != model->expert_bytes || model->expert_bytes + model->dense_bytes > model->file_bytes) {
        fuzz_fail("experts and dense weights have more bytes than the files");
    }
    if (model_token_cycle(model) > model->expert_bytes) {
        fuzz_fail("a token would read more than there is");
    }
}

static void read_experts(const struct model_file *model) {
    struct gn_knobs knobs;
    char why[1024] = "";
    gn_knobs_default(&knobs);
    struct bench_reads *reads = bench_reads_open(model, &knobs, 1, why, sizeof why);
    if (!reads) {
        fuzz_check_reason(why, sizeof why);
    }
    bench_reads_close(reads);
}

static void inspect(const char *path) {
    char *text[] = {"inspect", (char *)path, NULL}, *json[] = {"inspect", (char *)path, "--json", NULL};
    command_inspect(2, text);
    command_inspect(3, json);
    llama_log_set(say_nothing, NULL);
}

// Reads the model, and does with it all that needs no weights.
static bool read_model(const char *path) {
    struct model_file model;
    char why[1024] = "";
    bool taken = model_file_open(path, &model, why, sizeof why);
    if (taken) {
        check_model(&model);
        read_experts(&model);
    } else {
        fuzz_check_reason(why, sizeof why);
    }
    model_file_close(&model);
    inspect(path);
    return taken;
}

static bool run_gguf(const uint8_t *data, size_t n) {
    llama_log_set(say_nothing, NULL);
    const char *path = fuzz_file(0, data, n);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    compare_scan(path, gn_gguf_has_experts(fd));
    close(fd);
    struct gn_geometry geometry;
    gn_geometry_read(path, &geometry);
    return read_model(path);
}

const struct fuzz_target fuzz_gguf = {"gguf", make_gguf, run_gguf};

// ------------------------------------------------------------------------------------------------ shards

// The input: how many there are, which is named, how many the names say; then each one's length and bytes.
enum { MOST_SHARDS = 4 };

static void make_shards(struct random *random, struct bytes *input) {
    static uint8_t space[FUZZ_MAX / MOST_SHARDS], changed[FUZZ_MAX / MOST_SHARDS - 16];
    uint8_t count = (uint8_t)(1 + random_below(random, MOST_SHARDS));
    uint8_t named = (uint8_t)random_below(random, count), said = count;
    if (random_percent(random, 10)) {
        said = (uint8_t)random_next(random);
    }
    bytes_add(input, (const uint8_t[]){count, named, said}, 3);
    struct random shape = *random; // all of one model
    for (uint8_t s = 0; s < count; s++) {
        struct bytes file = {.data = space, .capacity = sizeof space};
        struct bytes mutant = {.data = changed, .capacity = sizeof changed};
        struct random same = shape;
        gguf_make_model(&same, s, count, &file);
        if (random_percent(random, 40)) {
            add_mutant(random, &file, &mutant);
        } else {
            bytes_add(&mutant, file.data, file.n);
        }
        bytes_add_u32(input, (uint32_t)mutant.n);
        bytes_add(input, mutant.data, mutant.n);
    }
}

static void shard_name(char name[static 64], unsigned number, unsigned count) {
    snprintf(name, 64, "./m-%05u-of-%05u.gguf", number + 1, count);
}

static void write_file(const char *name, const uint8_t *data, size_t n) {
    FILE *file = fopen(name, "wb");
    if (!file || fwrite(data, 1, n, file) != n) {
        fuzz_fail("cannot write a shard");
    }
    fclose(file);
}

static bool run_shards(const uint8_t *data, size_t n) {
    llama_log_set(say_nothing, NULL);
    char name[64];
    if (n < 3 || data[0] > MOST_SHARDS) {
        return false;
    }
    unsigned count = data[0], named = data[1], said = data[2], written = 0;
    for (size_t at = 3; written < count && n - at >= 4; written++) {
        uint32_t length;
        memcpy(&length, data + at, 4);
        at += 4;
        length = length < n - at ? length : (uint32_t)(n - at);
        shard_name(name, written, said);
        write_file(name, data + at, length);
        at += length;
    }
    shard_name(name, named, said);
    bool taken = read_model(name);
    struct gn_geometry geometry;
    gn_geometry_read(name, &geometry);
    for (unsigned s = 0; s < written; s++) {
        shard_name(name, s, said);
        unlink(name);
    }
    return taken;
}

const struct fuzz_target fuzz_shards = {"shards", make_shards, run_shards};

// ------------------------------------------------------------------------------------------------ imatrix

enum { LAYERS = 3, EXPERTS = 4 };

static void make_imatrix(struct random *random, struct bytes *input) {
    static uint8_t space[4096];
    struct bytes file = {.data = space, .capacity = sizeof space};
    gguf_make_imatrix(random, random_percent(random, 95) ? EXPERTS : EXPERTS + 1, &file);
    add_mutant(random, &file, input);
}

const struct gn_expert_map *fuzz_map(void) {
    static struct gn_expert_map map;
    if (map.n_layers > 0) {
        return &map;
    }
    static const uint8_t model[1 << 16];
    struct gn_file *file;
    if (gn_file_open(fuzz_file(3, model, sizeof model), false, 0, 0, &file)) {
        fuzz_fail("cannot open a file of ours");
    }
    for (uint64_t l = 0; l < LAYERS; l++) {
        static const char *const slices[] = {"gate_up", "down"};
        for (uint64_t s = 0; s < 2; s++) {
            struct gn_layer *layer;
            uint32_t slice;
            char name[64];
            snprintf(name, sizeof name, "blk.%d.ffn_%s_exps.weight", (int)l, slices[s]);
            if (gn_expert_map_add(&map, name, EXPERTS, file, 64 + (2 * l + s) * 8000, 1000, &layer, &slice)) {
                fuzz_fail("cannot make a map");
            }
        }
    }
    gn_expert_map_finish(&map);
    return &map;
}

static bool run_imatrix(const uint8_t *data, size_t n) {
    float chance[LAYERS * EXPERTS];
    char why[512] = "";
    memset(chance, 0xff, sizeof chance);
    int failed = gn_imatrix_read(fuzz_file(0, data, n), fuzz_map(), chance, why, sizeof why);
    if (failed) {
        fuzz_check_reason(why, sizeof why);
    }
    for (size_t e = 0; e < LAYERS * EXPERTS; e++) {
        if (failed ? chance[e] != 0 : !(chance[e] >= 0 && chance[e] <= 1)) {
            fuzz_fail("a chance of %g", (double)chance[e]);
        }
    }
    return !failed;
}

const struct fuzz_target fuzz_imatrix = {"imatrix", make_imatrix, run_imatrix};
