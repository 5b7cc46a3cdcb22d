// Whether a program of somebody else's can load the plugin: looked at before it is started, so that what would go wrong
// inside it is said here, in one line.
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

enum probe_kind {
    PROBE_LINKED, // dynamically linked to llama.cpp's libraries, which took the plugin in a trial
    PROBE_LATER,  // a script, or a program that is not linked to them: it may load them later, as Python does
};

struct probe {
    enum probe_kind kind;
    bool gpu;     // a GPU backend of ggml lies beside its libraries
    char **files; // [n_files] the program, then llama.cpp's libraries among those it loads
    size_t n_files;
};

// Finds a program as a shell does: by its path, or on PATH. Returns true with the path, or false with one plain line.
bool probe_find(const char *name, char path[PATH_MAX], char *why, size_t why_size);

// Looks at the program's file and libraries, and loads the plugin into the ggml that it uses, in a process of its own
// (guanaco-try-plugin beside this program's libraries). Returns true, or false with one plain line: what is the matter,
// what to do.
bool probe_program(const char *path, const char *plugin, struct probe *probe, char *why, size_t why_size);
void probe_free(struct probe *probe);

// Whether the text stands, as a whole string, in the program or in llama.cpp's libraries: a flag that it knows does.
bool probe_contains(const struct probe *probe, const char *text);
