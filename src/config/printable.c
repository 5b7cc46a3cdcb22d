#include "config/printable.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

int gn_utf8_length(const char *text) {
    const unsigned char *at = (const unsigned char *)text;
    int length = at[0] < 0x80 ? 1 : at[0] >= 0xc2 && at[0] < 0xe0 ? 2 : (at[0] & 0xf0) == 0xe0 ? 3 : 0;
    length = at[0] >= 0xf0 && at[0] < 0xf5 ? 4 : length;
    for (int i = 1; i < length; i++) {
        if ((at[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    bool surrogate = at[0] == 0xed && at[1] >= 0xa0;
    bool overlong = (at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xf0 && at[1] < 0x90);
    return surrogate || overlong || (at[0] == 0xf4 && at[1] >= 0x90) ? 0 : length;
}

// Whether a sequence of this length acts on the terminal instead of showing something.
static bool is_control(const char *text, int length) {
    const unsigned char *at = (const unsigned char *)text;
    if (length == 1) {
        return at[0] < 0x20 || at[0] == 0x7f;
    }
    if (length == 2) {
        return at[0] == 0xc2 && at[1] < 0xa0; // U+0080 to U+009F
    }
    uint32_t code = length == 3 ? (uint32_t)(at[0] & 0x0f) << 12 | (uint32_t)(at[1] & 0x3f) << 6 | (at[2] & 0x3f) : 0;
    return (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

// One character of text, or one byte where it is none, as it is to be shown: up to 16 bytes and a zero. Returns how
// many bytes of text it is.
static int show_one(const char *text, char shown[static 17]) {
    int length = gn_utf8_length(text), n = length ? length : 1;
    if (length && !is_control(text, length)) {
        memcpy(shown, text, (size_t)length);
        shown[length] = '\0';
        return length;
    }
    for (int i = 0; i < n; i++, shown += 4) {
        snprintf(shown, 5, "\\x%02x", (unsigned)(unsigned char)text[i]);
    }
    return n;
}

char *gn_printable(const char *text, char *to, size_t size) {
    char shown[17];
    size_t used = 0;
    while (*text) {
        text += show_one(text, shown);
        size_t length = strlen(shown);
        if (used + length >= size) {
            break;
        }
        memcpy(to + used, shown, length);
        used += length;
    }
    if (size > 0) {
        to[used] = '\0';
    }
    return to;
}

void gn_put_printable(const char *text, FILE *to) {
    char shown[17];
    while (*text) {
        text += show_one(text, shown);
        fputs(shown, to);
    }
}
