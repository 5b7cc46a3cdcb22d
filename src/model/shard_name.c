#include "model/shard_name.h"

#include <stdio.h>
#include <string.h>

enum { DIGITS = 5, MOST = 99999 };

// A number of exactly DIGITS digits; 0: it is none.
static uint32_t number_at(const char *text) {
    uint32_t number = 0;
    for (int i = 0; i < DIGITS; i++) {
        if (text[i] < '0' || text[i] > '9') {
            return 0;
        }
        number = 10 * number + (uint32_t)(text[i] - '0');
    }
    return number;
}

bool gn_shard_name_read(const char *path, struct gn_shard_name *shard) {
    static const char pattern[] = "-00000-of-00000.gguf";
    const size_t length = strlen(path), suffix = sizeof pattern - 1;
    const size_t first = strlen("-"), second = strlen("-00000-of-"), end = strlen("-00000-of-00000");
    *shard = (struct gn_shard_name){0};
    if (length <= suffix) {
        return false;
    }
    const char *part = path + length - suffix;
    uint32_t number = number_at(part + first), count = number_at(part + second);
    if (part[-1] == '/' || part[0] != '-' || memcmp(part + first + DIGITS, "-of-", 4) != 0 ||
        strcmp(part + end, ".gguf") != 0 || number == 0 || number > count) {
        return false;
    }
    *shard = (struct gn_shard_name){.prefix = length - suffix, .number = number, .count = count};
    return true;
}

bool gn_shard_name_write(const char *path, const struct gn_shard_name *shard, uint32_t number, char *to, size_t size) {
    char suffix[32];
    if (number == 0 || number > MOST || shard->count > MOST) {
        return false;
    }
    size_t length = (size_t)snprintf(suffix, sizeof suffix, "-%05u-of-%05u.gguf", number, shard->count);
    if (shard->prefix >= size || length >= size - shard->prefix) {
        return false;
    }
    memmove(to, path, shard->prefix);
    memcpy(to + shard->prefix, suffix, length + 1);
    return true;
}
