// Log lines on standard error, each starting with "guanaco: ". Thread-safe; one call writes one whole line.
#pragma once

enum gn_log_level { GN_LOG_ERROR, GN_LOG_WARN, GN_LOG_INFO, GN_LOG_DEBUG };

// Room for one line, with the zero byte; what is longer is cut. The longest are those of guanaco_mode() and of
// report.h.
enum { GN_LOG_LINE = 2304 };

// Lines above this level are dropped. Default: GN_LOG_INFO.
void gn_log_set_level(enum gn_log_level level);

void gn_log(enum gn_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define gn_error(...) gn_log(GN_LOG_ERROR, __VA_ARGS__)
#define gn_warn(...) gn_log(GN_LOG_WARN, __VA_ARGS__)
#define gn_info(...) gn_log(GN_LOG_INFO, __VA_ARGS__)
#define gn_debug(...) gn_log(GN_LOG_DEBUG, __VA_ARGS__)
