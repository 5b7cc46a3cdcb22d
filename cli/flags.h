// Options of a sub-command in one table: parsing, defaults and help are made from it.
#pragma once

#include "config/knobs.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

// What the option sets in the struct of options: a const char *, an int64_t, a double or a bool.
enum flag_kind { FLAG_TEXT, FLAG_INTEGER, FLAG_DECIMAL, FLAG_SWITCH };

struct flag {
    const char *flag, *alias; // "-n", or NULL; "--predict"
    enum flag_kind kind;
    size_t at; // offset in the struct of options
    double fallback, least, most;
    const char *value_name, *help;
};

// How a sub-command's words are read. Each option has a row in the table, but for -h, --help, which all have.
struct flag_words {
    const struct flag *table;
    size_t n;
    void *options;          // the struct that `at` is an offset in; zeroed, but for texts that are not NULL by default
    struct gn_knobs *knobs; // takes settings of streaming as well; NULL: there are none
    bool environment;       // whether they come from the environment too
    const char **alone;     // takes the one word that may stand alone; NULL: none may
    const char *stray;      // what to say of another, such as "one model at a time"
};

// Reads argv[1] on; argv[0] is the sub-command's name. Returns 0, 1 when help is asked for, wherever among the words,
// or -1 with one plain line in why.
int flags_parse(const struct flag_words *words, int argc, char *const *argv, char *why, size_t why_size);

void flags_print_help(const struct flag *table, size_t n, FILE *to);
