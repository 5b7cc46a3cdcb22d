#include "fuzz.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void fuzz_fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("fuzz: a promise is broken: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}

void fuzz_check_reason(const char *why, size_t size) {
    if (!memchr(why, '\0', size)) {
        fuzz_fail("the reason does not end");
    }
    if (!*why) {
        fuzz_fail("no reason is given");
    }
}

const char *fuzz_file(unsigned number, const uint8_t *data, size_t n) {
    static int files[4] = {-1, -1, -1, -1};
    static char paths[4][32];
    if (files[number] < 0) {
        files[number] = memfd_create("fuzz", MFD_CLOEXEC);
        snprintf(paths[number], sizeof paths[number], "/proc/self/fd/%d", files[number]);
    }
    if (ftruncate(files[number], 0) || pwrite(files[number], data, n, 0) != (ssize_t)n) {
        fuzz_fail("cannot write an input: is there memory?");
    }
    return paths[number];
}

char *fuzz_text(const uint8_t *data, size_t n) {
    char *text = malloc(n + 1);
    if (!text) {
        fuzz_fail("no memory for an input");
    }
    if (n > 0) {
        memcpy(text, data, n);
    }
    text[n] = '\0';
    return text;
}

int fuzz_words(char *text, char **words, int most) {
    int n = 0;
    while (text && n < most) {
        words[n++] = text;
        text = strchr(text, '\n');
        if (text) {
            *text++ = '\0';
        }
    }
    return n;
}
