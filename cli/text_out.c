#include "text_out.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Bytes at the end of text that begin a sequence whose rest has not come yet.
static size_t unfinished(const char *text, size_t length) {
    for (size_t back = 1; back <= 3 && back <= length; back++) {
        unsigned char byte = (unsigned char)text[length - back];
        if ((byte & 0xc0) == 0x80) {
            continue;
        }
        size_t whole = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
        return whole > back ? back : 0;
    }
    return 0;
}

static void write_out(struct text_out *out, const char *text, size_t length) {
    if (length == 0) {
        return;
    }
    if (!out->error && (fwrite(text, 1, length, stdout) != length || fflush(stdout))) {
        out->error = errno;
    }
    out->last = text[length - 1];
    if (out->keep) {
        char *kept = realloc(out->kept, out->n_kept + length + 1);
        if (kept) {
            memcpy(kept + out->n_kept, text, length);
            out->kept = kept;
            out->n_kept += length;
            kept[out->n_kept] = '\0';
        }
    }
}

void text_out_add(struct text_out *out, const char *text, size_t length) {
    char joined[1024];
    if (length > sizeof joined - sizeof out->pending) {
        length = sizeof joined - sizeof out->pending;
    }
    memcpy(joined, out->pending, out->n_pending);
    memcpy(joined + out->n_pending, text, length);
    length += out->n_pending;
    out->n_pending = unfinished(joined, length);
    memcpy(out->pending, joined + length - out->n_pending, out->n_pending);
    write_out(out, joined, length - out->n_pending);
}

void text_out_end(struct text_out *out, char **reply) {
    write_out(out, out->pending, out->n_pending);
    if (out->last != '\n') {
        write_out(&(struct text_out){.error = out->error}, "\n", 1); // no part of what is kept
    }
    if (reply) {
        *reply = out->kept ? out->kept : calloc(1, 1);
    }
}
