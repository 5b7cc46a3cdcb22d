#include "flags.h"

#include "config/knobs.h"
#include "config/parse.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

void flags_default(const struct flag *table, size_t n, void *options) {
    for (size_t o = 0; o < n; o++) {
        char *field = (char *)options + table[o].at;
        if (table[o].kind == FLAG_INTEGER) {
            *(int64_t *)field = (int64_t)table[o].fallback;
        } else if (table[o].kind == FLAG_DECIMAL) {
            *(double *)field = table[o].fallback;
        }
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

int flags_take(const struct flag *table, size_t n, void *options, int argc, char *const *argv, int *i, char *why,
               size_t why_size) {
    for (size_t o = 0; o < n; o++) {
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

void flags_print_help(const struct flag *table, size_t n, FILE *to) {
    for (size_t o = 0; o < n; o++) {
        const struct flag *option = &table[o];
        char flags[64];
        snprintf(flags, sizeof flags, "%s%s%s%s%s", option->flag ? option->flag : "", option->flag ? ", " : "",
                 option->alias, option->value_name ? " " : "", option->value_name ? option->value_name : "");
        gn_print_wrapped(to, fprintf(to, "  %s", flags), 28, option->help);
    }
}
