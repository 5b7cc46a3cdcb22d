// Text to standard output as it is made, never half a UTF-8 sequence at a time.
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct text_out {
    bool keep; // all of it, for text_out_end()
    char pending[4];
    size_t n_pending;
    char *kept;
    size_t n_kept;
    char last;
    int error; // errno of the first write that failed; what comes after it is not written
};

void text_out_add(struct text_out *out, const char *text, size_t length);
// Writes what is left and ends the line. Hands over what was kept, when reply is not NULL (never NULL then, to be
// freed).
void text_out_end(struct text_out *out, char **reply);
