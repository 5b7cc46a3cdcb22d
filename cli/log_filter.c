#include "log_filter.h"

#include "config/printable.h"

#include "llama.h"

#include <stdio.h>
#include <string.h>

static struct {
    bool verbose, quiet, continued_visible;
    char last_error[256];
    void (*listener)(const char *, void *);
    void *context;
} filter;

static void keep_error(const char *line) {
    // "function: what went wrong"
    const char *colon = strstr(line, ": ");
    const char *from = colon && strcspn(line, " ") > (size_t)(colon - line) ? colon + 2 : line;
    snprintf(filter.last_error, sizeof filter.last_error, "%.*s", (int)strcspn(from, "\n"), from);
}

// llama.cpp says what the file says, in lines, parts of lines or several lines at once.
static void show(const char *text) {
    while (*text) {
        char part[512];
        size_t length = strcspn(text, "\n"), now = length < sizeof part ? length : sizeof part - 1;
        memcpy(part, text, now);
        part[now] = '\0';
        gn_put_printable(part, stderr);
        text += now;
        if (*text == '\n') {
            fputc('\n', stderr);
            text++;
        }
    }
}

static void on_line(enum ggml_log_level level, const char *line, void *unused) {
    (void)unused;
    if (filter.listener) {
        filter.listener(line, filter.context);
    }
    // The first error of a failure tells most: what follows says that loading failed.
    if (level == GGML_LOG_LEVEL_ERROR && !filter.last_error[0]) {
        keep_error(line);
    }
    bool visible = filter.verbose || (level == GGML_LOG_LEVEL_WARN && !filter.quiet);
    if (level == GGML_LOG_LEVEL_CONT) {
        visible = filter.continued_visible;
    }
    filter.continued_visible = visible;
    if (visible) {
        show(line);
    }
}

void log_filter_install(bool verbose) {
    filter.verbose = verbose;
    llama_log_set(on_line, NULL);
}

void log_filter_quiet(void) {
    filter.quiet = true;
}

void log_filter_forget(void) {
    filter.last_error[0] = '\0';
}

const char *log_filter_last_error(void) {
    return filter.last_error[0] ? filter.last_error : "llama.cpp gave no reason";
}

void log_filter_listen(void (*listener)(const char *, void *), void *context) {
    filter.listener = listener;
    filter.context = context;
}
