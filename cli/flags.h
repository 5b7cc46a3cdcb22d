// Options of a sub-command in one table: parsing, defaults and help are made from it.
#pragma once

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

// Sets every number to its fallback. The struct was zeroed before.
void flags_default(const struct flag *table, size_t n, void *options);

// Takes argv[*i], "--flag VALUE" or "--flag=VALUE", if it is in the table, and moves *i to its last word. Returns 1, 0
// when it is not in the table, or -1 with one plain line in why.
int flags_take(const struct flag *table, size_t n, void *options, int argc, char *const *argv, int *i, char *why,
               size_t why_size);

void flags_print_help(const struct flag *table, size_t n, FILE *to);
