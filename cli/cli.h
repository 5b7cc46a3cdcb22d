// What the sub-commands share.
#pragma once

#include <stdbool.h>

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_SIGNALLED = 128, EXIT_INTERRUPTED = 130 };

struct command {
    const char *name;
    int (*run)(int argc, char **argv); // argv[0] is the command's name; returns the exit code
    const char *help;                  // one line
};

int command_run(int argc, char **argv);
int command_inspect(int argc, char **argv);
int command_simulate(int argc, char **argv);
int command_bench(int argc, char **argv);
int command_exec(int argc, char **argv);
int command_server(int argc, char **argv);

// The demo model's path, or NULL when it is not there. The string is static.
const char *demo_model(void);

// A file next to this program: "<directory of the executable>/<relative>". Returns false when it does not fit.
bool beside_program(const char *relative, char *path, unsigned long size);
