#include "config/parse.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static int64_t unit_of(const char *text) {
    static const char letters[] = "kmgt";
    if (!*text) {
        return ((int64_t)1 << 20);
    }
    if (strcasecmp(text, "b") == 0) {
        return 1;
    }
    const char *letter = strchr(letters, tolower((unsigned char)*text));
    if (!letter) {
        return 0;
    }
    bool decimal = strcasecmp(text + 1, "b") == 0;
    if (text[1] && !decimal && strcasecmp(text + 1, "ib") != 0) {
        return 0;
    }
    int64_t unit = 1;
    for (const char *l = letters; l <= letter; l++) {
        unit *= decimal ? 1000 : 1024;
    }
    return unit;
}

const char *gn_parse_number(const char *text, long double *number) {
    bool digits = false;
    *number = 0;
    for (; isdigit((unsigned char)*text); text++, digits = true) {
        *number = *number * 10 + (*text - '0');
    }
    if (*text == '.') {
        long double place = 1;
        for (text++; isdigit((unsigned char)*text); text++, digits = true) {
            *number += (*text - '0') * (place /= 10);
        }
    }
    return digits ? text : NULL;
}

int gn_parse_size(const char *text, int64_t *bytes) {
    long double number;
    const char *end = gn_parse_number(text, &number);
    if (!end) {
        return -EINVAL;
    }
    while (*end == ' ') {
        end++;
    }
    int64_t unit = unit_of(end);
    if (unit == 0) {
        return -EINVAL;
    }
    number *= (long double)unit;
    if (!(number < 0x1p62L)) {
        return -ERANGE;
    }
    *bytes = (int64_t)(number + 0.5L);
    return 0;
}

int gn_parse_integer(const char *text, int64_t *value) {
    if (!isdigit((unsigned char)text[0]) && !(text[0] == '-' && isdigit((unsigned char)text[1]))) {
        return -EINVAL;
    }
    char *end;
    errno = 0;
    long long parsed = strtoll(text, &end, 10);
    if (*end) {
        return -EINVAL;
    }
    if (errno == ERANGE) {
        return -ERANGE;
    }
    *value = parsed;
    return 0;
}

int gn_parse_decimal(const char *text, double *value) {
    long double number;
    bool negative = text[0] == '-';
    const char *end = gn_parse_number(text + negative, &number);
    if (!end || *end) {
        return -EINVAL;
    }
    *value = (double)(negative ? -number : number);
    return 0;
}
