// llama.cpp's own log: lines below a level are dropped, the last error is kept for our messages.
#pragma once

#include <stdbool.h>

// Warnings are shown; errors are only kept, for callers that say them in their own words. verbose: everything is shown.
void log_filter_install(bool verbose);
// From now on warnings are dropped too: they would break into the text that is being generated.
void log_filter_quiet(void);

void log_filter_forget(void);
// The last error line without its line break and the name of the function that said it; never NULL.
const char *log_filter_last_error(void);

// Also hands every line, of any level, to `listener`; NULL ends that.
void log_filter_listen(void (*listener)(const char *line, void *context), void *context);
