// llama.cpp's own log: lines below a level are dropped, the last error is kept for our messages.
#pragma once

#include <stdbool.h>

// quiet_errors: errors are only kept, for a caller that says them in its own words.
void log_filter_install(bool verbose);
void log_filter_quiet_errors(bool quiet);

void log_filter_forget(void);
// The last error line without its line break and the name of the function that said it; never NULL.
const char *log_filter_last_error(void);

// Also hands every line, of any level, to `listener`; NULL ends that.
void log_filter_listen(void (*listener)(const char *line, void *context), void *context);
