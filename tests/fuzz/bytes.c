#include "bytes.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

uint64_t random_odd_number(struct random *random) {
    static const uint64_t odd[] = {0,          1,          2,           3,       7,      8,       31,
                                   32,         127,        128,         255,     256,    4095,    4096,
                                   65535,      65536,      100000,      100001,  999999, 1 << 24, 1 << 30,
                                   0x7fffffff, 0x80000000, 0xffffffffu, 1u << 31};
    switch (random_below(random, 6)) {
    case 0:
        return odd[random_below(random, sizeof odd / sizeof *odd)];
    case 1:
        return (UINT64_C(1) << random_below(random, 64)) - random_below(random, 2);
    case 2:
        return UINT64_MAX - random_below(random, 40);
    case 3:
        return UINT64_MAX / (1 + random_below(random, 40));
    case 4:
        return random_below(random, 16);
    default:
        return random_next(random) >> random_below(random, 64);
    }
}

void bytes_insert(struct bytes *bytes, size_t at, const void *from, size_t n) {
    if (n > bytes->capacity - bytes->n || at > bytes->n) {
        return;
    }
    memmove(bytes->data + at + n, bytes->data + at, bytes->n - at);
    memmove(bytes->data + at, from, n);
    bytes->n += n;
}

void bytes_delete(struct bytes *bytes, size_t at, size_t n) {
    if (at >= bytes->n) {
        return;
    }
    n = n < bytes->n - at ? n : bytes->n - at;
    memmove(bytes->data + at, bytes->data + at + n, bytes->n - at - n);
    bytes->n -= n;
}

void bytes_add(struct bytes *bytes, const void *from, size_t n) {
    if (n > 0 && n <= bytes->capacity - bytes->n) {
        memcpy(bytes->data + bytes->n, from, n);
        bytes->n += n;
    }
}

void bytes_add_u32(struct bytes *bytes, uint32_t number) {
    bytes_add(bytes, &number, sizeof number);
}

void bytes_add_u64(struct bytes *bytes, uint64_t number) {
    bytes_add(bytes, &number, sizeof number);
}

void bytes_add_text(struct bytes *bytes, const char *text) {
    bytes_add(bytes, text, strlen(text));
}

void bytes_printf(struct bytes *bytes, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    bytes_add(bytes, text, n < (int)sizeof text ? (size_t)n : sizeof text - 1);
}

// ------------------------------------------------------------------------------------------------ any bytes

// Copies n bytes from one place to another, through a small buffer because they may overlap.
static void double_range(struct random *random, struct bytes *bytes) {
    uint8_t part[256];
    size_t from = random_below(random, bytes->n), n = 1 + random_below(random, sizeof part);
    n = n < bytes->n - from ? n : bytes->n - from;
    memcpy(part, bytes->data + from, n);
    bytes_insert(bytes, random_below(random, bytes->n + 1), part, n);
}

static void write_number(struct random *random, struct bytes *bytes) {
    uint64_t number = random_odd_number(random);
    size_t size = (size_t)1 << random_below(random, 4);
    if (bytes->n >= size) {
        memcpy(bytes->data + random_below(random, bytes->n - size + 1), &number, size);
    }
}

static void change_once(struct random *random, struct bytes *bytes) {
    if (bytes->n == 0) {
        bytes_add(bytes, "?", 1);
        return;
    }
    size_t at = random_below(random, bytes->n);
    uint8_t byte = (uint8_t)random_next(random);
    switch (random_below(random, 8)) {
    case 0:
        bytes->data[at] ^= (uint8_t)(1 << random_below(random, 8));
        break;
    case 1:
        bytes->data[at] = byte;
        break;
    case 2:
        bytes_insert(bytes, at, &byte, 1);
        break;
    case 3:
        bytes_delete(bytes, at, 1 + random_below(random, random_percent(random, 50) ? 8 : bytes->n));
        break;
    case 4:
        bytes->n = at; // the end is cut off
        break;
    case 5:
        double_range(random, bytes);
        break;
    default:
        write_number(random, bytes);
        break;
    }
}

void bytes_mutate(struct random *random, struct bytes *bytes, unsigned times) {
    while (times-- > 0) {
        change_once(random, bytes);
    }
}

// ------------------------------------------------------------------------------------------------ text

static bool separates(uint8_t byte) {
    return strchr(" ,:;=\n[]{}\"%/#", byte) != NULL; // the zero byte as well
}

// A field and the separator after it.
static size_t find_field(struct random *random, const struct bytes *text, size_t *at) {
    size_t begin = random_below(random, text->n), end = begin;
    while (begin > 0 && !separates(text->data[begin - 1])) {
        begin--;
    }
    while (end < text->n && !separates(text->data[end])) {
        end++;
    }
    *at = begin;
    return end - begin + (end < text->n);
}

// The n-th line with its end, or one anywhere.
static size_t find_line(struct random *random, const struct bytes *text, size_t *at) {
    size_t begin = random_below(random, text->n), end = begin;
    while (begin > 0 && text->data[begin - 1] != '\n') {
        begin--;
    }
    while (end < text->n && text->data[end] != '\n') {
        end++;
    }
    *at = begin;
    return end - begin + (end < text->n);
}

static void replace(struct bytes *text, size_t at, size_t n, const char *with) {
    bytes_delete(text, at, n);
    bytes_insert(text, at < text->n ? at : text->n, with, strlen(with));
}

static void print_number(struct random *random, char text[static 64]) {
    uint64_t number = random_odd_number(random);
    static const char *const forms[] = {"%" PRIu64,  "-%" PRIu64,     "%" PRIu64 ".5",
                                        "0%" PRIu64, "%" PRIu64 "e9", ".%" PRIu64};
    size_t form = random_percent(random, 70) ? 0 : random_below(random, sizeof forms / sizeof *forms);
    snprintf(text, 64, forms[form], number);
}

// Digits somewhere become another number.
static void change_number(struct random *random, struct bytes *text) {
    size_t at = random_below(random, text->n), n = 0;
    while (at < text->n && !isdigit(text->data[at])) {
        at++;
    }
    while (at + n < text->n && isdigit(text->data[at + n])) {
        n++;
    }
    char number[64];
    print_number(random, number);
    if (n > 0) {
        replace(text, at, n, number);
    }
}

static void double_part(struct random *random, struct bytes *text, size_t from, size_t n) {
    uint8_t part[1024];
    n = n < sizeof part ? n : sizeof part;
    memcpy(part, text->data + from, n);
    size_t to = from;
    if (random_percent(random, 50)) {
        find_field(random, text, &to);
    }
    for (size_t times = random_percent(random, 10) ? 1 + random_below(random, 40) : 1; times > 0; times--) {
        bytes_insert(text, to, part, n);
    }
}

static void change_text_once(struct random *random, struct bytes *text, const char *const *dictionary) {
    size_t at, n, words = 0;
    while (dictionary && dictionary[words]) {
        words++;
    }
    const char *word = words ? dictionary[random_below(random, words)] : "?";
    size_t kind = random_below(random, 10);
    if (text->n == 0) {
        bytes_add_text(text, word);
        return;
    }
    n = kind < 5 ? find_field(random, text, &at) : find_line(random, text, &at);
    switch (kind) {
    case 0:
        bytes_delete(text, at, n);
        break;
    case 1:
        double_part(random, text, at, n);
        break;
    case 2:
        replace(text, at, n > 1 && separates(text->data[at + n - 1]) ? n - 1 : n, word);
        break;
    case 3:
        bytes_insert(text, at, word, strlen(word));
        break;
    case 4:
    case 5:
    case 6:
        change_number(random, text);
        break;
    case 7:
        double_part(random, text, at, n);
        break;
    case 8:
        bytes_delete(text, at, n);
        break;
    default:
        bytes_mutate(random, text, 1);
        break;
    }
}

void text_mutate(struct random *random, struct bytes *text, const char *const *dictionary, unsigned times) {
    while (times-- > 0) {
        change_text_once(random, text, dictionary);
    }
}
