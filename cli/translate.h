// Flags and environment variables that people know from earlier tools, turned into our settings.
#pragma once

#include "config/knobs.h"

#include <stdbool.h>
#include <stddef.h>

enum streaming { STREAMING_BY_DEFAULT, STREAMING_ON, STREAMING_OFF };

// A program's arguments without the flags that are ours.
struct arguments {
    char **words; // [count], then NULL; words[0] is the program. The strings are those of main()
    int count;
    enum streaming streaming; // as the flags have it
    const char *off_by;       // the word that switched it off
};

// Takes variables of earlier tools (GUANACO_IO_URING, LOAD_MODE, …) out of the environment, setting ours instead, and
// says what GUANACO_STREAMING and LOAD_MODE want. Variables of a part that this version lacks are an error. Returns
// true, or false with one plain line. To be called before gn_knobs_from_environment().
bool translate_environment(enum streaming *streaming, char *why, size_t why_size);

// Takes the flags that earlier tools had out of a program's arguments and sets knobs by them. Returns true, or false
// with one plain line. arguments_free() in any case.
bool translate_arguments(int argc, char **argv, struct gn_knobs *knobs, struct arguments *arguments, char *why,
                         size_t why_size);

// Whether one of the words is the flag, or begins with "flag=".
bool arguments_have(const struct arguments *arguments, const char *flag);
// The word after the flag, which may be replaced; NULL: there is none.
char **arguments_value(const struct arguments *arguments, const char *flag);
// Appends a word. Returns false when memory is short.
bool arguments_add(struct arguments *arguments, char *word);
void arguments_free(struct arguments *arguments);
