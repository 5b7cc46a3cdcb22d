#include "model/hot_set.h"

#include "config/output_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC GN_HOT_SET_MAGIC
#define MAGIC_BYTES 8u
#define VERSION 1u

static uint64_t count_experts(const struct gn_expert_map *map) {
    uint64_t n = 0;
    for (uint32_t l = 0; l < map->n_layers; l++) {
        n += map->layers[l]->n_experts;
    }
    return n;
}

int gn_hot_set_open(struct gn_hot_set *set, const struct gn_expert_map *map) {
    *set = (struct gn_hot_set){.map = map};
    set->tokens = calloc(map->n_layers + 1, sizeof *set->tokens);
    set->uses = calloc(count_experts(map) + 1, sizeof *set->uses);
    if (!set->tokens || !set->uses) {
        gn_hot_set_close(set);
        return -ENOMEM;
    }
    return 0;
}

void gn_hot_set_close(struct gn_hot_set *set) {
    free(set->tokens);
    free(set->uses);
    *set = (struct gn_hot_set){0};
}

static void clear(struct gn_hot_set *set) {
    memset(set->tokens, 0, set->map->n_layers * sizeof *set->tokens);
    memset(set->uses, 0, count_experts(set->map) * sizeof *set->uses);
}

void gn_hot_set_fade(struct gn_hot_set *set, float most) {
    uint64_t at = 0;
    for (uint32_t l = 0; l < set->map->n_layers; l++) {
        uint32_t n = set->map->layers[l]->n_experts;
        float keep = set->tokens[l] > most ? most / set->tokens[l] : 1;
        set->tokens[l] *= keep;
        for (uint32_t e = 0; e < n; e++) {
            set->uses[at++] *= keep;
        }
    }
}

// FNV-1a, 64 bits (Fowler, Noll and Vo): against damage, not against malice.
static uint64_t hash(uint64_t sum, const void *bytes, size_t n) {
    const uint8_t *byte = bytes;
    for (size_t i = 0; i < n; i++) {
        sum = (sum ^ byte[i]) * UINT64_C(0x100000001b3);
    }
    return sum;
}

static uint64_t hash_number(uint64_t sum, uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) {
        uint8_t byte = (uint8_t)(number >> shift);
        sum = hash(sum, &byte, 1);
    }
    return sum;
}

#define HASH_START UINT64_C(0xcbf29ce484222325)

static uint64_t identity_of(const struct gn_expert_map *map) {
    uint64_t sum = HASH_START;
    for (uint32_t l = 0; l < map->n_layers; l++) {
        const struct gn_layer *layer = map->layers[l];
        for (uint32_t s = 0; s < layer->n_slices; s++) {
            const struct gn_slice *slice = &layer->slices[s];
            const uint64_t numbers[] = {layer->n_experts, slice->offset, slice->bytes, gn_file_size(slice->file)};
            sum = hash(sum, slice->tensor, strlen(slice->tensor));
            for (int i = 0; i < 4; i++) {
                sum = hash_number(sum, numbers[i]);
            }
        }
    }
    return sum;
}

struct header {
    char magic[MAGIC_BYTES];
    uint32_t version, n_layers;
    uint64_t identity;
};

static size_t file_bytes(const struct gn_expert_map *map) {
    return sizeof(struct header) + (size_t)map->n_layers * 2 * sizeof(uint32_t) + count_experts(map) * sizeof(float) +
           sizeof(uint64_t);
}

// ------------------------------------------------------------------------------------------------ reading

static bool good_number(float number) {
    return isfinite(number) && number >= 0;
}

// Fills the set from the layers of a file whose checksum is right.
static const char *take_layers(struct gn_hot_set *set, const uint8_t *at) {
    float *uses = set->uses;
    for (uint32_t l = 0; l < set->map->n_layers; l++) {
        uint32_t n;
        memcpy(&n, at, sizeof n);
        if (n != set->map->layers[l]->n_experts) {
            return "it is damaged";
        }
        memcpy(&set->tokens[l], at + sizeof n, sizeof *set->tokens);
        at += sizeof n + sizeof *set->tokens;
        memcpy(uses, at, n * sizeof *uses);
        at += n * sizeof *uses;
        bool good = good_number(set->tokens[l]);
        for (uint32_t e = 0; e < n; e++) {
            good = good && good_number(uses[e]) && uses[e] <= set->tokens[l];
        }
        if (!good) {
            return "it is damaged";
        }
        uses += n;
    }
    return NULL;
}

static int take_file(struct gn_hot_set *set, const uint8_t *bytes, size_t n, const char **why) {
    struct header header;
    uint64_t checksum;
    if (n < sizeof header + sizeof checksum || memcmp(bytes, MAGIC, MAGIC_BYTES) != 0) {
        *why = "it is no hot set";
        return -EINVAL;
    }
    memcpy(&header, bytes, sizeof header);
    memcpy(&checksum, bytes + n - sizeof checksum, sizeof checksum);
    if (checksum != hash(HASH_START, bytes, n - sizeof checksum)) {
        *why = "it is damaged";
        return -EINVAL;
    }
    if (header.version != VERSION) {
        *why = "it is of another version";
        return -EINVAL;
    }
    if (header.identity != identity_of(set->map) || header.n_layers != set->map->n_layers ||
        n != file_bytes(set->map)) {
        *why = "it belongs to another model";
        return -ESTALE;
    }
    *why = take_layers(set, bytes + sizeof header);
    return *why ? -EINVAL : 0;
}

// Reads at most `most` bytes and one more, which tells that there are too many. Returns how many, or -errno.
static ssize_t read_file(const char *path, uint8_t *bytes, size_t most) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // opening a FIFO does not wait
    struct stat status;
    if (fd < 0 || fstat(fd, &status)) {
        int error = errno;
        if (fd >= 0) {
            close(fd);
        }
        return -error;
    }
    ssize_t n = S_ISREG(status.st_mode) ? 0 : -EINVAL;
    while (n >= 0 && (size_t)n <= most) {
        ssize_t got = read(fd, bytes + n, most + 1 - (size_t)n);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            n = got < 0 ? -errno : n;
            break;
        }
        n += got;
    }
    close(fd);
    return n;
}

int gn_hot_set_read(struct gn_hot_set *set, const char *path, char *why, size_t why_size) {
    clear(set);
    size_t most = file_bytes(set->map);
    uint8_t *bytes = malloc(most + 1);
    const char *reason = NULL;
    ssize_t n = bytes ? read_file(path, bytes, most) : -ENOMEM;
    int failed = n < 0 ? (int)n : 0;
    if (bytes && n > (ssize_t)most) {
        reason = memcmp(bytes, MAGIC, MAGIC_BYTES) != 0 ? "it is no hot set" : "it belongs to another model";
        failed = -ESTALE;
    } else if (!failed) {
        failed = take_file(set, bytes, (size_t)n, &reason);
    }
    free(bytes);
    if (failed) {
        clear(set);
        snprintf(why, why_size, "%s: %s", path, reason ? reason : strerror(-failed));
    }
    return failed;
}

// ------------------------------------------------------------------------------------------------ writing

static uint8_t *put(uint8_t *to, const void *bytes, size_t n) {
    memcpy(to, bytes, n);
    return to + n;
}

static void put_file(const struct gn_hot_set *set, uint8_t *bytes, size_t n) {
    struct header header = {.version = VERSION, .n_layers = set->map->n_layers, .identity = identity_of(set->map)};
    memcpy(header.magic, MAGIC, MAGIC_BYTES);
    uint8_t *to = put(bytes, &header, sizeof header);
    const float *uses = set->uses;
    for (uint32_t l = 0; l < set->map->n_layers; l++) {
        uint32_t n_experts = set->map->layers[l]->n_experts;
        to = put(to, &n_experts, sizeof n_experts);
        to = put(to, &set->tokens[l], sizeof *set->tokens);
        to = put(to, uses, n_experts * sizeof *uses);
        uses += n_experts;
    }
    uint64_t checksum = hash(HASH_START, bytes, n - sizeof checksum);
    put(to, &checksum, sizeof checksum);
}

int gn_hot_set_write(const struct gn_hot_set *set, const char *path, char *why, size_t why_size) {
    const char *other = gn_output_unfit(GN_OUTPUT_HOT_SET, path);
    if (other) {
        snprintf(why, why_size, "%s %s", path, other);
        return -EEXIST;
    }
    size_t n = file_bytes(set->map);
    uint8_t *bytes = calloc(n, 1);
    int failed = -ENOMEM;
    if (bytes) {
        put_file(set, bytes, n);
        failed = gn_replace_file(path, bytes, n, 0600);
    }
    free(bytes);
    if (failed) {
        snprintf(why, why_size, "%s: %s", path, strerror(-failed));
    }
    return failed;
}
