// Writes JSON, one value after another, commas and escapes included.
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct json {
    FILE *to;
    int depth;
    int first; // nothing was written at this depth yet
};

// key: NULL within an array and at the top. Keys and strings may be any bytes: what is no UTF-8 becomes "?".
void json_open(struct json *json, const char *key, char bracket); // '{' or '['
void json_close(struct json *json, char bracket);                 // '}' or ']'
void json_string(struct json *json, const char *key, const char *text);
void json_integer(struct json *json, const char *key, uint64_t number);
void json_number(struct json *json, const char *key, double number);
void json_boolean(struct json *json, const char *key, bool value);
