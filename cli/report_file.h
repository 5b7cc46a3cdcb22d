// A file of figures that an option names: --json, --csv, --svg. It is written whole, in the place of an old one, or not
// at all.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct report_file {
    const char *option, *path;
    FILE *to; // what is written here goes into the file in the end
    char *text;
    size_t size;
};

// Begins with `option` and `path` set. False: memory is short, which report_file_end() says.
bool report_file_begin(struct report_file *report);

// Writes the file (see gn_replace_file()) and frees what report_file_begin() took, also after a failed one. Returns
// false after one line that says what failed; the old file is then as it was.
bool report_file_end(struct report_file *report);
