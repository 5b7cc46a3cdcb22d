// Numbers in text are C's, with a point, whatever language the program has chosen by setlocale(): what we write is read
// again by ourselves (settings in the environment) and by other programs (JSON, CSV, SVG). gn_parse_… of parse.h reads
// them.
#pragma once

#include <locale.h>
#include <stdarg.h>
#include <stddef.h>

// From here on this thread's numbers are C's, until gn_numbers_end() is given what this returns. Costs some
// instructions; no other thread notices.
locale_t gn_numbers_begin(void);
void gn_numbers_end(locale_t before);

// snprintf() and vsnprintf() in that way: for each text with a fraction in it.
int gn_format(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
int gn_vformat(char *text, size_t size, const char *format, va_list arguments) __attribute__((format(printf, 3, 0)));
