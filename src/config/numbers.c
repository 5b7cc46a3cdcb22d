#include "config/numbers.h"

#include <stdio.h>

locale_t gn_numbers_begin(void) {
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0); // libc's own, which is neither made nor freed
    return c ? uselocale(c) : (locale_t)0;
}

void gn_numbers_end(locale_t before) {
    if (before) {
        uselocale(before);
    }
}

int gn_vformat(char *text, size_t size, const char *format, va_list arguments) {
    locale_t before = gn_numbers_begin();
    int length = vsnprintf(text, size, format, arguments);
    gn_numbers_end(before);
    return length;
}

int gn_format(char *text, size_t size, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = gn_vformat(text, size, format, arguments);
    va_end(arguments);
    return length;
}
