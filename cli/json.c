#include "json.h"

#include <inttypes.h>

static void write_text(FILE *to, const char *text) {
    fputc('"', to);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') {
            fprintf(to, "\\%c", *text);
        } else if ((unsigned char)*text < ' ') {
            fprintf(to, "\\u%04x", *text);
        } else {
            fputc(*text, to);
        }
    }
    fputc('"', to);
}

// Length of the UTF-8 sequence at text, or 0 when it is none.
static int sequence(const unsigned char *text) {
    int length = text[0] < 0x80 ? 1 : text[0] >= 0xc2 && text[0] < 0xe0 ? 2 : (text[0] & 0xf0) == 0xe0 ? 3 : 0;
    length = text[0] >= 0xf0 && text[0] < 0xf5 ? 4 : length;
    for (int i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    bool surrogate = text[0] == 0xed && text[1] >= 0xa0;
    bool overlong = (text[0] == 0xe0 && text[1] < 0xa0) || (text[0] == 0xf0 && text[1] < 0x90);
    return surrogate || overlong || (text[0] == 0xf4 && text[1] >= 0x90) ? 0 : length;
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
    // What is no UTF-8 (a path may be anything) becomes "?".
    char clean[4200];
    size_t used = 0;
    for (const unsigned char *at = (const unsigned char *)text; *at && used + 5 < sizeof clean;) {
        int length = sequence(at);
        if (length == 0) {
            clean[used++] = '?';
            at++;
        }
        for (int i = 0; i < length; i++) {
            clean[used++] = (char)*at++;
        }
    }
    clean[used] = '\0';
    write_text(json->to, clean);
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
