#include "fuzz.h"
#include "gguf_file.h"

#include <stdlib.h>
#include <string.h>

enum { STRING = 8, ARRAY = 9, TYPES = 13 };
static const uint8_t sizes[TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

// ------------------------------------------------------------------------------------------------ apart

struct cursor {
    uint8_t *at, *end;
};

static uint8_t *skip(struct cursor *cursor, uint64_t n) {
    uint8_t *from = cursor->at;
    if (n > (uint64_t)(cursor->end - cursor->at)) {
        fuzz_fail("the file to be changed is not right itself");
    }
    cursor->at += n;
    return from;
}

static uint32_t take_u32(struct cursor *cursor) {
    uint32_t number;
    memcpy(&number, skip(cursor, sizeof number), sizeof number);
    return number;
}

static uint64_t take_u64(struct cursor *cursor) {
    uint64_t number;
    memcpy(&number, skip(cursor, sizeof number), sizeof number);
    return number;
}

static void skip_value(struct cursor *cursor, uint32_t type) {
    if (type == STRING) {
        skip(cursor, take_u64(cursor));
    } else if (type == ARRAY) {
        uint32_t of = take_u32(cursor);
        for (uint64_t n = take_u64(cursor); n > 0; n--) {
            skip_value(cursor, of);
        }
    } else {
        skip(cursor, type < TYPES ? sizes[type] : UINT64_MAX);
    }
}

static void take_pair(struct cursor *cursor, struct gguf_pieces *pieces) {
    struct gguf_pair *pair = &pieces->pairs[pieces->pairs_there++];
    pair->key_length = take_u64(cursor);
    pair->key = skip(cursor, pair->key_length);
    pair->type = take_u32(cursor);
    pair->value = cursor->at;
    skip_value(cursor, pair->type);
    pair->value_length = (size_t)(cursor->at - pair->value);
    if (pair->key_length == 17 && !memcmp(pair->key, "general.alignment", 17) && pair->type == 4) {
        pieces->alignment = pair->value[0] | (uint64_t)pair->value[1] << 8;
    }
}

static void take_tensor(struct cursor *cursor, struct gguf_pieces *pieces) {
    struct gguf_tensor *tensor = &pieces->tensors[pieces->tensors_there++];
    tensor->name_length = take_u64(cursor);
    memcpy(tensor->name, skip(cursor, tensor->name_length), tensor->name_length);
    tensor->n_dims = take_u32(cursor);
    for (uint32_t d = 0; d < tensor->n_dims; d++) {
        tensor->dims[d] = take_u64(cursor);
    }
    tensor->type = take_u32(cursor);
    tensor->offset = take_u64(cursor);
}

void gguf_take_apart(uint8_t *file, size_t n, struct gguf_pieces *pieces) {
    struct cursor cursor = {file, file + n};
    memset(pieces, 0, sizeof *pieces);
    pieces->alignment = 32;
    pieces->magic = take_u32(&cursor);
    pieces->version = take_u32(&cursor);
    pieces->n_tensors = take_u64(&cursor);
    pieces->n_pairs = take_u64(&cursor);
    if (pieces->n_tensors >= GGUF_ENTRIES / 2 || pieces->n_pairs >= GGUF_ENTRIES / 2) {
        fuzz_fail("the file to be changed has too many entries");
    }
    while (pieces->pairs_there < pieces->n_pairs) {
        take_pair(&cursor, pieces);
    }
    while (pieces->tensors_there < pieces->n_tensors) {
        take_tensor(&cursor, pieces);
    }
    size_t header = (size_t)(cursor.at - file);
    skip(&cursor, (pieces->alignment - header % pieces->alignment) % pieces->alignment);
    pieces->data = cursor.at;
    pieces->data_length = (size_t)(cursor.end - cursor.at);
    for (size_t t = 0; t < pieces->tensors_there; t++) {
        bool last = t + 1 == pieces->tensors_there;
        pieces->tensors[t].bytes =
            (last ? pieces->data_length : pieces->tensors[t + 1].offset) - pieces->tensors[t].offset;
    }
}

// ------------------------------------------------------------------------------------------------ together

static void put_tensor(const struct gguf_tensor *tensor, struct bytes *out) {
    bytes_add_u64(out, tensor->name_length);
    bytes_add(out, tensor->name, tensor->name_length < sizeof tensor->name ? tensor->name_length : sizeof tensor->name);
    bytes_add_u32(out, tensor->n_dims);
    for (uint32_t d = 0; d < tensor->n_dims && d < 8; d++) {
        bytes_add_u64(out, tensor->dims[d]);
    }
    bytes_add_u32(out, tensor->type);
    bytes_add_u64(out, tensor->offset);
}

void gguf_put_together(const struct gguf_pieces *pieces, struct bytes *out) {
    size_t start = out->n;
    bytes_add_u32(out, pieces->magic);
    bytes_add_u32(out, pieces->version);
    bytes_add_u64(out, pieces->n_tensors);
    bytes_add_u64(out, pieces->n_pairs);
    for (size_t p = 0; p < pieces->pairs_there; p++) {
        const struct gguf_pair *pair = &pieces->pairs[p];
        bytes_add_u64(out, pair->key_length);
        bytes_add(out, pair->key, pair->key_length);
        bytes_add_u32(out, pair->type);
        bytes_add(out, pair->value, pair->value_length);
    }
    for (size_t t = 0; t < pieces->tensors_there; t++) {
        put_tensor(&pieces->tensors[t], out);
    }
    while ((out->n - start) % pieces->alignment && out->n < out->capacity) {
        bytes_add(out, "", 1);
    }
    bytes_add(out, pieces->data, pieces->data_length);
}

// ------------------------------------------------------------------------------------------------ changed

// Bytes that a piece may point to.
static uint8_t *make_room(struct bytes *room, const void *from, size_t n) {
    uint8_t *to = room->data + room->n;
    if (n > room->capacity - room->n) {
        return NULL;
    }
    bytes_add(room, from, n);
    return to;
}

static void change_key(struct random *random, struct gguf_pieces *pieces, struct gguf_pair *pair, struct bytes *room) {
    static const char *const keys[] = {"general.alignment",
                                       "general.architecture",
                                       "general.name",
                                       "general.type",
                                       "split.no",
                                       "split.count",
                                       "split.tensors.count",
                                       "imatrix.chunk_count",
                                       "imatrix.chunk_size",
                                       "qwen3moe.expert_count",
                                       "qwen3moe.expert_used_count",
                                       ""};
    const char *key = keys[random_below(random, sizeof keys / sizeof *keys)];
    if (random_percent(random, 30)) {
        const struct gguf_pair *other = &pieces->pairs[random_below(random, pieces->pairs_there)];
        pair->key = other->key;
        pair->key_length = other->key_length;
    } else {
        uint8_t *to = make_room(room, key, strlen(key));
        pair->key = to ? to : pair->key;
        pair->key_length = to ? strlen(key) : pair->key_length;
    }
}

// A number, or a length or count, becomes another; or any byte of the value.
static void change_value(struct random *random, struct gguf_pair *pair, struct bytes *room, bool mild) {
    uint8_t *copy = make_room(room, pair->value, pair->value_length);
    if (!copy || pair->value_length == 0) {
        return;
    }
    pair->value = copy;
    uint64_t number = mild ? random_below(random, 80) : random_odd_number(random);
    bool sized = pair->type == STRING || pair->type == ARRAY;
    if (!sized) {
        memcpy(copy, &number, pair->value_length < 8 ? pair->value_length : 8);
    } else if (!mild && random_percent(random, 50)) {
        size_t at = pair->type == ARRAY ? 4 : 0;
        memcpy(copy + at, &number, pair->value_length >= at + 8 ? 8 : 0);
    } else if (pair->value_length > 16) {
        copy[12 + random_below(random, pair->value_length - 12)] = (uint8_t)random_next(random);
    }
}

// A value of another type, whole.
static void change_type(struct random *random, struct gguf_pair *pair, struct bytes *room) {
    uint8_t value[64] = {0};
    struct bytes made = {.data = value, .capacity = sizeof value};
    pair->type = (uint32_t)random_below(random, TYPES);
    uint32_t of = (uint32_t)random_below(random, TYPES - 1);
    uint64_t n = random_below(random, 3), number = random_odd_number(random);
    if (pair->type == ARRAY) {
        bytes_add_u32(&made, of);
        bytes_add_u64(&made, n);
        made.n += (of < TYPES && of != ARRAY ? (of == STRING ? 8 : sizes[of]) : 0) * n; // strings of no length
    } else if (pair->type == STRING) {
        bytes_add_u64(&made, n);
        bytes_add(&made, "xy", n);
    } else {
        bytes_add(&made, &number, sizes[pair->type]);
    }
    uint8_t *to = make_room(room, value, made.n);
    pair->value = to ? to : pair->value;
    pair->value_length = to ? made.n : pair->value_length;
}

static void change_pair(struct random *random, struct gguf_pieces *pieces, struct bytes *room, bool mild) {
    if (pieces->pairs_there == 0) {
        return;
    }
    size_t n = pieces->pairs_there, i = random_below(random, n);
    struct gguf_pair *pair = &pieces->pairs[i], *other = &pieces->pairs[random_below(random, n)], kept = *pair;
    switch (mild ? 3 : random_below(random, 9)) {
    case 0: // leave out
        memmove(pair, pair + 1, (n - i - 1) * sizeof *pair);
        pieces->pairs_there--;
        pieces->n_pairs -= random_percent(random, 80);
        break;
    case 1: // twice, or one more with another key
        if (n < GGUF_ENTRIES) {
            pieces->pairs[pieces->pairs_there++] = kept;
            pieces->n_pairs += random_percent(random, 80);
            change_key(random, pieces, &pieces->pairs[n], room);
        }
        break;
    case 2:
        change_key(random, pieces, pair, room);
        break;
    case 3:
    case 4:
    case 5:
        change_value(random, pair, room, mild);
        break;
    case 6:
        change_type(random, pair, room);
        break;
    case 7:
        pair->type =
            random_percent(random, 50) ? (uint32_t)random_below(random, 16) : (uint32_t)random_odd_number(random);
        break;
    default:
        *pair = *other;
        *other = kept;
        break;
    }
}

static void rename_tensor(struct random *random, struct gguf_tensor *tensor) {
    static const char *const names[] = {"blk.0.ffn_up_exps.weight",
                                        "blk.4294967295.ffn_up_exps.weight",
                                        "_exps.",
                                        "blk.0._exps.",
                                        "blk.99999999999999999999.ffn_up_exps.weight",
                                        "blk.0.x_chexps.",
                                        "blk.-1.ffn_gate_exps.weight",
                                        "blk.0.ffn_a_very_long_name_of_a_slice_exps.weight",
                                        "blk.0.ffn_exps.weight",
                                        "_exps.blk.0.",
                                        "output.weight",
                                        "",
                                        "blk.0.ffn_up_exps.bias"};
    if (random_percent(random, 60)) {
        const char *name = names[random_below(random, sizeof names / sizeof *names)];
        tensor->name_length = strlen(name);
        memcpy(tensor->name, name, tensor->name_length);
    } else {
        size_t n = tensor->name_length < sizeof tensor->name ? tensor->name_length : 0;
        struct bytes name = {(uint8_t *)tensor->name, n, sizeof tensor->name};
        bytes_mutate(random, &name, 1);
        tensor->name_length = name.n;
    }
    if (random_percent(random, 10)) {
        tensor->name_length = random_odd_number(random); // more than there is
    }
}

static void change_tensor(struct random *random, struct gguf_pieces *pieces) {
    size_t n = pieces->tensors_there, i = random_below(random, n);
    struct gguf_tensor *tensor = &pieces->tensors[i], *other = &pieces->tensors[random_below(random, n)],
                       kept = *tensor;
    switch (random_below(random, 10)) {
    case 0:
        memmove(tensor, tensor + 1, (n - i - 1) * sizeof *tensor);
        pieces->tensors_there--;
        pieces->n_tensors -= random_percent(random, 80);
        break;
    case 1:
        if (n < GGUF_ENTRIES) {
            pieces->tensors[pieces->tensors_there++] = kept;
            pieces->n_tensors += random_percent(random, 80);
            rename_tensor(random, &pieces->tensors[n]);
        }
        break;
    case 2:
    case 3:
        rename_tensor(random, tensor);
        break;
    case 4:
    case 5:
        tensor->dims[random_below(random, 4)] = random_odd_number(random);
        break;
    case 6:
        tensor->n_dims =
            random_percent(random, 80) ? (uint32_t)random_below(random, 6) : (uint32_t)random_odd_number(random);
        break;
    case 7:
        tensor->type =
            random_percent(random, 80) ? (uint32_t)random_below(random, 45) : (uint32_t)random_odd_number(random);
        break;
    case 8:
        tensor->offset = random_percent(random, 50) ? other->offset : random_odd_number(random);
        break;
    default:
        *tensor = *other;
        *other = kept;
        break;
    }
}

// Puts tensors at the places where a reader expects them, so that a change elsewhere is not refused for its place.
static void lay_out(struct gguf_pieces *pieces) {
    static const struct {
        uint64_t block, bytes;
    } types[] = {[0] = {1, 4}, [1] = {1, 2}, [2] = {32, 18}, [8] = {32, 34}, [12] = {256, 144}, [14] = {256, 210}};
    uint64_t offset = 0;
    for (size_t t = 0; t < pieces->tensors_there; t++) {
        struct gguf_tensor *tensor = &pieces->tensors[t];
        uint64_t bytes = 0;
        tensor->offset = offset;
        if (tensor->type < sizeof types / sizeof *types && types[tensor->type].block) {
            bytes = types[tensor->type].bytes;
            for (uint32_t d = 0; d < tensor->n_dims && d < 4; d++) {
                bytes *= d == 0 ? tensor->dims[d] / types[tensor->type].block : tensor->dims[d];
            }
        }
        offset = (offset + bytes + pieces->alignment - 1) / pieces->alignment * pieces->alignment;
    }
}

static void change_once(struct random *random, struct gguf_pieces *pieces, struct bytes *room, bool mild) {
    size_t kind = mild ? 0 : random_below(random, 20);
    if (kind < 9) {
        change_pair(random, pieces, room, mild);
    } else if (kind < 17 && pieces->tensors_there > 0) {
        change_tensor(random, pieces);
        if (random_percent(random, 60)) {
            lay_out(pieces);
        }
    } else if (kind == 17) {
        uint64_t *count = random_percent(random, 50) ? &pieces->n_pairs : &pieces->n_tensors;
        *count = random_percent(random, 50) ? *count + random_below(random, 3) - 1 : random_odd_number(random);
    } else if (kind == 18) {
        uint32_t *number = random_percent(random, 90) ? &pieces->version : &pieces->magic;
        *number = random_percent(random, 50) ? (uint32_t)random_below(random, 5) : (uint32_t)random_next(random);
    } else {
        pieces->data_length = random_below(random, pieces->data_length + 1);
    }
}

void gguf_mutate(struct random *random, struct gguf_pieces *pieces, struct bytes *room, unsigned times, bool mild) {
    while (times-- > 0) {
        change_once(random, pieces, room, mild);
    }
}
