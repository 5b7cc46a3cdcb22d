#include "model/imatrix.h"

#include "config/input_file.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define ALIGNMENT 32u
#define MOST_ALIGNMENT (1u << 20)
#define NAME_BYTES 128u         // longer names are none that we look for
#define MOST_HEADER (16u << 20) // bytes: an imatrix has a few for each tensor
#define SUFFIX ".counts"
#define TYPE_F32 0u

// Types of metadata, as GGUF numbers them.
enum { U8, I8, U16, I16, U32, I32, F32, BOOLEAN, STRING, ARRAY, U64, I64, F64, N_TYPES };
static const uint8_t type_bytes[N_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

struct counts {
    uint32_t layer;  // position in the map
    uint64_t offset; // in the data
};

struct reading {
    FILE *file;
    uint64_t at, size; // size: of the file; while the header is read, what a header may have
    const struct gn_expert_map *map;
    uint64_t chunks, chunk_tokens, alignment;
    bool is_imatrix, in_header; // in_header: of a file that has more bytes than a header may
    struct counts *counts;      // [n_layers], of layers found
    uint32_t n_counts;
    bool *found; // [n_layers]
    const char *why;
};

static bool refuse(struct reading *reading, const char *why) {
    reading->why = reading->why ? reading->why : why;
    return false;
}

static bool refuse_end(struct reading *reading) {
    return refuse(reading,
                  reading->in_header ? "its header is longer than any of an imatrix" : "it ends in the middle");
}

static bool take(struct reading *reading, void *to, uint64_t bytes) {
    if (bytes > reading->size - reading->at || fread(to, 1, bytes, reading->file) != bytes) {
        return refuse_end(reading);
    }
    reading->at += bytes;
    return true;
}

static bool skip(struct reading *reading, uint64_t bytes) {
    uint8_t unused[256];
    if (bytes <= sizeof unused) { // a seek would throw the buffer away
        return take(reading, unused, bytes);
    }
    if (bytes > reading->size - reading->at || fseeko(reading->file, (off_t)bytes, SEEK_CUR)) {
        return refuse_end(reading);
    }
    reading->at += bytes;
    return true;
}

// A string; "" when it is longer than we care for.
static bool take_string(struct reading *reading, char text[static NAME_BYTES]) {
    uint64_t length = 0;
    text[0] = '\0';
    if (!take(reading, &length, sizeof length)) {
        return false;
    }
    if (length >= NAME_BYTES) {
        return skip(reading, length);
    }
    text[length] = '\0';
    return take(reading, text, length);
}

static bool skip_value(struct reading *reading, uint32_t type);

static bool skip_array(struct reading *reading) {
    uint32_t type = 0;
    uint64_t n = 0;
    if (!take(reading, &type, sizeof type) || !take(reading, &n, sizeof n)) {
        return false;
    }
    if (type >= N_TYPES || type == ARRAY || n > reading->size) {
        return refuse(reading, "its metadata is damaged");
    }
    if (type != STRING) {
        return skip(reading, n * type_bytes[type]);
    }
    for (uint64_t i = 0; i < n; i++) { // each takes at least the eight bytes of its length
        if (!skip_value(reading, STRING)) {
            return false;
        }
    }
    return true;
}

static bool skip_value(struct reading *reading, uint32_t type) {
    char text[NAME_BYTES];
    if (type == STRING) {
        return take_string(reading, text);
    }
    if (type == ARRAY) {
        return skip_array(reading);
    }
    return type < N_TYPES ? skip(reading, type_bytes[type]) : refuse(reading, "its metadata is damaged");
}

// Where a whole number of this name is kept.
static uint64_t *number_named(struct reading *reading, const char *key) {
    if (!strcmp(key, "imatrix.chunk_count")) {
        return &reading->chunks;
    }
    if (!strcmp(key, "imatrix.chunk_size")) {
        return &reading->chunk_tokens;
    }
    return !strcmp(key, "general.alignment") ? &reading->alignment : NULL;
}

static bool take_metadata(struct reading *reading) {
    char key[NAME_BYTES], text[NAME_BYTES];
    uint32_t type;
    if (!take_string(reading, key) || !take(reading, &type, sizeof type)) {
        return false;
    }
    uint64_t *number = number_named(reading, key);
    if (number && type == U32) {
        uint32_t value;
        bool good = take(reading, &value, sizeof value);
        *number = good ? value : 0;
        return good;
    }
    if (number && type == U64) {
        return take(reading, number, sizeof *number);
    }
    if (type == STRING && !strcmp(key, "general.type")) {
        bool good = take_string(reading, text);
        reading->is_imatrix = good && !strcmp(text, "imatrix");
        return good;
    }
    return skip_value(reading, type);
}

// The layer that a tensor of counts is of, or GN_NO_LAYER.
#define GN_NO_LAYER UINT32_MAX
static uint32_t layer_of(const struct gn_expert_map *map, const char *name) {
    size_t length = strlen(name), suffix = strlen(SUFFIX);
    if (length <= suffix || strcmp(name + length - suffix, SUFFIX) != 0) {
        return GN_NO_LAYER;
    }
    length -= suffix;
    for (uint32_t l = 0; l < map->n_layers; l++) {
        for (uint32_t s = 0; s < map->layers[l]->n_slices; s++) {
            const char *tensor = map->layers[l]->slices[s].tensor;
            if (strlen(tensor) == length && !memcmp(tensor, name, length)) {
                return l;
            }
        }
    }
    return GN_NO_LAYER;
}

static bool take_tensor(struct reading *reading) {
    char name[NAME_BYTES];
    uint32_t n_dims, type;
    uint64_t n = 1, offset;
    if (!take_string(reading, name) || !take(reading, &n_dims, sizeof n_dims)) {
        return false;
    }
    if (n_dims > 8) {
        return refuse(reading, "its list of tensors is damaged");
    }
    for (uint32_t d = 0; d < n_dims; d++) {
        uint64_t dim;
        if (!take(reading, &dim, sizeof dim)) {
            return false;
        }
        if (__builtin_mul_overflow(n, dim, &n)) {
            return refuse(reading, "its list of tensors is damaged");
        }
    }
    if (!take(reading, &type, sizeof type) || !take(reading, &offset, sizeof offset)) {
        return false;
    }
    uint32_t l = layer_of(reading->map, name);
    if (l == GN_NO_LAYER || reading->found[l]) { // the slices of an expert are used together: one says it all
        return true;
    }
    if (n != reading->map->layers[l]->n_experts) {
        return refuse(reading, "its model has another number of experts");
    }
    if (type != TYPE_F32 || offset % sizeof(float)) {
        return refuse(reading, "its counts are no plain numbers");
    }
    reading->found[l] = true;
    reading->counts[reading->n_counts++] = (struct counts){l, offset};
    return true;
}

static bool take_header(struct reading *reading) {
    char magic[4];
    uint32_t version = 0;
    uint64_t n_tensors = 0, n_metadata = 0;
    if (!take(reading, magic, sizeof magic) || memcmp(magic, "GGUF", sizeof magic) != 0) {
        reading->why = "it is no GGUF file";
        return false;
    }
    if (!take(reading, &version, sizeof version) || version < 2 || version > 3) {
        return refuse(reading, "it has a version of GGUF that is not known");
    }
    if (!take(reading, &n_tensors, sizeof n_tensors) || !take(reading, &n_metadata, sizeof n_metadata)) {
        return false;
    }
    for (uint64_t i = 0; i < n_metadata; i++) {
        if (!take_metadata(reading)) {
            return false;
        }
    }
    for (uint64_t i = 0; i < n_tensors; i++) {
        if (!take_tensor(reading)) {
            return false;
        }
    }
    return true;
}

// Takes one layer's counts. Without the number of tokens the most used expert stands for all of them.
static bool take_counts(struct reading *reading, const struct counts *counts, uint64_t data, float *chance) {
    uint32_t n = reading->map->layers[counts->layer]->n_experts;
    uint64_t begin;
    if (__builtin_add_overflow(data, counts->offset, &begin) || begin > reading->size ||
        fseeko(reading->file, (off_t)begin, SEEK_SET)) {
        return refuse(reading, "it ends before its counts");
    }
    reading->at = begin;
    if (!take(reading, chance, n * sizeof *chance)) {
        return false;
    }
    double tokens = (double)reading->chunks * (double)reading->chunk_tokens, most = 0;
    for (uint32_t e = 0; e < n; e++) {
        if (!isfinite(chance[e]) || chance[e] < 0) {
            return refuse(reading, "its counts are no counts");
        }
        most = chance[e] > most ? chance[e] : most;
    }
    tokens = most > tokens ? most : tokens;
    for (uint32_t e = 0; e < n; e++) {
        chance[e] = tokens > 0 ? (float)(chance[e] / tokens) : 0;
    }
    return true;
}

// A file may be much longer than what is stored of it, so that its size says nothing of how much a count can promise.
static bool take_short_header(struct reading *reading) {
    uint64_t size = reading->size;
    reading->in_header = size > MOST_HEADER;
    reading->size = reading->in_header ? MOST_HEADER : size;
    bool good = take_header(reading);
    reading->in_header = false;
    reading->size = size;
    return good;
}

static bool take_file(struct reading *reading, float *chance) {
    if (!take_short_header(reading)) {
        return false;
    }
    if (!reading->is_imatrix) {
        return refuse(reading, "it is no imatrix");
    }
    if (reading->n_counts == 0) {
        return refuse(reading, "it has no counts of this model's experts");
    }
    if (reading->alignment == 0 || reading->alignment > MOST_ALIGNMENT) {
        return refuse(reading, "its metadata is damaged");
    }
    uint64_t data = (reading->at + reading->alignment - 1) / reading->alignment * reading->alignment;
    for (uint32_t i = 0; i < reading->n_counts; i++) {
        uint64_t first = 0;
        for (uint32_t l = 0; l < reading->counts[i].layer; l++) {
            first += reading->map->layers[l]->n_experts;
        }
        if (!take_counts(reading, &reading->counts[i], data, chance + first)) {
            return false;
        }
    }
    return true;
}

static int read_open(struct reading *reading, float *chance) {
    struct stat status;
    if (fstat(fileno(reading->file), &status)) {
        return -errno;
    }
    if (!S_ISREG(status.st_mode)) {
        reading->why = "it is no regular file";
        return -EINVAL;
    }
    reading->size = (uint64_t)status.st_size;
    reading->counts = calloc(reading->map->n_layers + 1, sizeof *reading->counts);
    reading->found = calloc(reading->map->n_layers + 1, sizeof *reading->found);
    int failed = reading->counts && reading->found ? 0 : -ENOMEM;
    if (!failed && !take_file(reading, chance)) {
        failed = -EINVAL;
    }
    free(reading->counts);
    free(reading->found);
    return failed;
}

int gn_imatrix_read(const char *path, const struct gn_expert_map *map, float *chance, char *why, size_t why_size) {
    uint64_t n = 0;
    for (uint32_t l = 0; l < map->n_layers; l++) {
        n += map->layers[l]->n_experts;
    }
    memset(chance, 0, n * sizeof *chance);
    struct reading reading = {.map = map, .alignment = ALIGNMENT};
    reading.file = gn_input_open(path);
    int failed = reading.file ? read_open(&reading, chance) : -errno;
    if (reading.file) {
        fclose(reading.file);
    }
    if (failed) {
        memset(chance, 0, n * sizeof *chance);
        snprintf(why, why_size, "%s: %s", path, reading.why ? reading.why : strerror(-failed));
    }
    return failed;
}
