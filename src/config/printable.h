// Text from files (models, traces) and from anywhere else, made fit for a terminal, a log line or JSON: a name in a
// file must not move the cursor, clear the screen, or end a line.
#pragma once

#include <stddef.h>
#include <stdio.h>

// The length of the UTF-8 sequence that text begins with, 1 to 4; 0: it is none. text ends with a zero byte.
int gn_utf8_length(const char *text);

// Copies text into to[size], cut where it is full. Control characters (also those above U+007F, and those that change
// the direction of writing) and bytes that are no UTF-8 become "\x1b". Returns to.
char *gn_printable(const char *text, char *to, size_t size);

// Prints text in the same way, however long.
void gn_put_printable(const char *text, FILE *to);
