// Runs a piece of the benchmark in a process of its own, so that its memory, its page faults and its crash are its own.
// Only one runs at a time. What it finds out lies in memory that both share, where the parent can watch it come.
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

struct bench_child {
    bool (*body)(void *shared, void *context); // in the child: false when it failed
    void *shared;                              // of bench_child_share()
    void *context;
    void (*watch)(const void *shared, void *context); // in the parent, some times a second; may be NULL
    void *watch_context;
    int timeout;      // seconds
    bool let_through; // its standard error goes where ours goes at once, else it is kept until the end
};

enum bench_end { BENCH_DONE, BENCH_FAILED, BENCH_KILLED, BENCH_TIMED_OUT, BENCH_INTERRUPTED };

// Set by SIGINT, SIGTERM and SIGHUP once they are caught.
extern volatile sig_atomic_t bench_interrupted;
void bench_catch_signals(void);

// Zeroed memory that is shared with children. NULL when there is none.
void *bench_child_share(size_t size);
void bench_child_unshare(void *shared, size_t size);

// Returns how it ended; *signal is what killed it. The child dies with us. What it wrote to standard error is in *said
// (to be freed), or NULL.
enum bench_end bench_child_run(const struct bench_child *child, int *signal_number, char **said);
