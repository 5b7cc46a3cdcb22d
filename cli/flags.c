#include "flags.h"

#include "config/parse.h"

#include <stdint.h>
#include <string.h>

static void set_defaults(const struct flag_words *words) {
    for (size_t o = 0; o < words->n; o++) {
        char *field = (char *)words->options + words->table[o].at;
        if (words->table[o].kind == FLAG_INTEGER) {
            *(int64_t *)field = (int64_t)words->table[o].fallback;
        } else if (words->table[o].kind == FLAG_DECIMAL) {
            *(double *)field = words->table[o].fallback;
        }
    }
    if (words->knobs) {
        gn_knobs_default(words->knobs);
    }
}

static bool set(void *options, const struct flag *option, const char *flag, const char *text, char *why,
                size_t why_size) {
    char *field = (char *)options + option->at;
    int failed = 0;
    int64_t integer = 0;
    double number = 0;
    switch (option->kind) {
    case FLAG_SWITCH:
        *(bool *)field = true;
        return true;
    case FLAG_TEXT:
        *(const char **)field = text;
        if (!*text) {
            snprintf(why, why_size, "%s: the text is empty; give %s", flag, option->value_name);
        }
        return *text;
    case FLAG_INTEGER:
        failed = gn_parse_integer(text, &integer);
        number = (double)integer;
        break;
    case FLAG_DECIMAL:
        failed = gn_parse_decimal(text, &number);
        break;
    }
    if (failed || number < option->least || number > option->most) {
        snprintf(why, why_size, "%s: '%.40s' will not do; give a %snumber from %.10g to %.10g", flag, text,
                 option->kind == FLAG_INTEGER ? "whole " : "", option->least, option->most);
        return false;
    }
    if (option->kind == FLAG_INTEGER) {
        *(int64_t *)field = integer;
    } else {
        *(double *)field = number;
    }
    return true;
}

// The value part of "--flag=value", "" for the flag alone, NULL when the word is another.
static const char *match(const struct flag *option, const char *word) {
    const char *flags[] = {option->flag, option->alias};
    for (int f = 0; f < 2; f++) {
        size_t length = flags[f] ? strlen(flags[f]) : 0;
        if (length > 0 && !strncmp(word, flags[f], length) &&
            (!word[length] || (word[length] == '=' && !strncmp(word, "--", 2)))) {
            return word + length;
        }
    }
    return NULL;
}

// Takes argv[*i], "--flag VALUE" or "--flag=VALUE", if it is in the table, and moves *i to its last word. Returns 1, 0
// when it is not in the table, or -1 with a line in why.
static int take_option(const struct flag_words *words, int argc, char *const *argv, int *i, char *why,
                       size_t why_size) {
    const struct flag *table = words->table;
    void *options = words->options;
    for (size_t o = 0; o < words->n; o++) {
        const char *rest = match(&table[o], argv[*i]), *flag = table[o].alias;
        if (!rest) {
            continue;
        }
        if (table[o].kind == FLAG_SWITCH) {
            if (*rest) {
                snprintf(why, why_size, "%s takes no value; leave %.40s out", flag, rest);
                return -1;
            }
            return set(options, &table[o], flag, "", why, why_size) ? 1 : -1;
        }
        if (!*rest && *i + 1 >= argc) {
            snprintf(why, why_size, "%s: a value is missing; give %s", argv[*i], table[o].value_name);
            return -1;
        }
        flag = *rest ? flag : argv[*i];
        return set(options, &table[o], flag, *rest ? rest + 1 : argv[++*i], why, why_size) ? 1 : -1;
    }
    return 0;
}

static bool take(const struct flag_words *words, int argc, char *const *argv, int *i, char *why, size_t why_size) {
    const char *word = argv[*i];
    if (word[0] != '-' && words->alone && !*words->alone) {
        *words->alone = word;
        return true;
    }
    int taken = take_option(words, argc, argv, i, why, why_size);
    if (taken == 0 && words->knobs) {
        taken = gn_knobs_from_argument(words->knobs, argc, argv, i, why, why_size);
    }
    if (taken == 0 && word[0] == '-') {
        snprintf(why, why_size, "there is no option '%.40s'; guanaco %s --help lists them", word, argv[0]);
    } else if (taken == 0) {
        snprintf(why, why_size, "'%.40s' stands alone; %s", word, words->stray);
    }
    return taken == 1;
}

int flags_parse(const struct flag_words *words, int argc, char *const *argv, char *why, size_t why_size) {
    set_defaults(words);
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            return 1;
        }
    }
    if (words->environment && gn_knobs_from_environment(words->knobs, why, why_size)) {
        return -1;
    }
    for (int i = 1; i < argc; i++) {
        if (!take(words, argc, argv, &i, why, why_size)) {
            return -1;
        }
    }
    return 0;
}

void flags_print_help(const struct flag *table, size_t n, FILE *to) {
    for (size_t o = 0; o < n; o++) {
        const struct flag *option = &table[o];
        char flags[64];
        snprintf(flags, sizeof flags, "%s%s%s%s%s", option->flag ? option->flag : "", option->flag ? ", " : "",
                 option->alias, option->value_name ? " " : "", option->value_name ? option->value_name : "");
        gn_print_wrapped(to, fprintf(to, "  %s", flags), 28, option->help);
    }
    gn_print_wrapped(to, fprintf(to, "  -h, --help"), 28, "print this");
}
