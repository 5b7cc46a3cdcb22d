// Strict readers of numbers in text, the same in every locale. Text is taken whole or refused: 0 or -EINVAL, and
// -ERANGE for what no integer can hold.
#pragma once

#include <stdint.h>

// A number and a unit; see gn_knob_parse(). A bare number is MiB.
int gn_parse_size(const char *text, int64_t *bytes);
int gn_parse_integer(const char *text, int64_t *value);
// Digits with at most one point, "-" allowed.
int gn_parse_decimal(const char *text, double *value);

// Reads digits with at most one point. Returns where it stopped, or NULL when there is no digit.
const char *gn_parse_number(const char *text, long double *number);
