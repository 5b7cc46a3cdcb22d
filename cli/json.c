#include "json.h"

#include "config/printable.h"

#include <inttypes.h>

// What is no UTF-8 (a path may be anything, and so may what a file says) becomes "?".
static void write_text(FILE *to, const char *text) {
    fputc('"', to);
    while (*text) {
        int length = gn_utf8_length(text);
        if (length == 0) {
            fputc('?', to);
        } else if (*text == '"' || *text == '\\') {
            fprintf(to, "\\%c", *text);
        } else if (length == 1 && (*text < ' ' || *text == 0x7f)) {
            fprintf(to, "\\u%04x", (unsigned)*text);
        } else if (length == 2 && (unsigned char)text[0] == 0xc2 && (unsigned char)text[1] < 0xa0) { // U+0080 to U+009F
            fprintf(to, "\\u%04x", (unsigned)(unsigned char)text[1]);
        } else {
            fwrite(text, 1, (size_t)length, to);
        }
        text += length ? length : 1;
    }
    fputc('"', to);
}

static void start(struct json *json, const char *key) {
    fputs(json->first ? "" : ",", json->to);
    if (json->depth > 0) {
        fprintf(json->to, "\n%*s", 2 * json->depth, "");
    }
    json->first = 0;
    if (key) {
        write_text(json->to, key);
        fputs(": ", json->to);
    }
}

void json_open(struct json *json, const char *key, char bracket) {
    json->first |= json->depth == 0;
    start(json, key);
    fputc(bracket, json->to);
    json->depth++;
    json->first = 1;
}

void json_close(struct json *json, char bracket) {
    json->depth--;
    fprintf(json->to, "\n%*s%c", 2 * json->depth, "", bracket);
    json->first = 0;
    if (json->depth == 0) {
        fputc('\n', json->to);
    }
}

void json_string(struct json *json, const char *key, const char *text) {
    start(json, key);
    write_text(json->to, text);
}

void json_integer(struct json *json, const char *key, uint64_t number) {
    start(json, key);
    fprintf(json->to, "%" PRIu64, number);
}

void json_number(struct json *json, const char *key, double number) {
    start(json, key);
    fprintf(json->to, "%.4f", number);
}

void json_boolean(struct json *json, const char *key, bool value) {
    start(json, key);
    fputs(value ? "true" : "false", json->to);
}
