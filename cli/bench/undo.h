// What must be put back however the benchmark ends, a SIGKILL included: settings of the kernel, control groups. A
// guarding process waits for our end and does it then.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct bench_undo {
    int to; // the guard reads from the other end, and acts when it is closed
    pid_t guard;
};

// Starts the guard. Returns true, or false with one plain line in why.
bool bench_undo_start(struct bench_undo *undo, char *why, size_t why_size);

// From now on, whatever happens: the text will be written to the file; the directory will be removed if it is there.
// Say so before changing anything. Return false when the guard is gone.
bool bench_undo_value(struct bench_undo *undo, const char *path, const char *text);
bool bench_undo_directory(struct bench_undo *undo, const char *path);

// Lets the guard do its work and waits for it.
void bench_undo_finish(struct bench_undo *undo);
