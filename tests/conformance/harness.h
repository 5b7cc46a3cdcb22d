// What the tests over all architectures share: their cases, the programs that make models and run them, the report.
//
// A case is a tiny model, made with options, and a scenario, run with options. Each case is checked in a process of its
// own, two at a time; its files lie in the folder and are removed unless it fails.
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

enum { MOST_ARGUMENTS = 24, SKIPPED = 77 };

struct test_case {
    char name[64], arch[40];
    const char *model_options, *run_options; // separated by blanks
    bool alone;                              // more threads than one: nothing else may run, ggml's threads spin
};

struct variant {
    const char *name, *arch, *model_options, *run_options;
};

struct harness {
    const char *tiny, *logits, *plugin, *folder; // the programs tiny.c and logits.c, the plugin, where files go
    const char *model_options;                   // of the cases that are an architecture's own
    const struct variant *variants;              // beside these and those of every type; the last one's name is NULL
    int at_once;
    // Returns 0 (passed), 1 (failed) or SKIPPED, and says why. A passed one may say something as well.
    int (*check)(const struct harness *harness, const struct test_case *c, int index, char *why, size_t size);
};

// Runs the cases of these names, or all when there are none, and prints a line for each. Returns an exit code.
int harness_run(const struct harness *harness, char **names);

// A case's file: FOLDER/NAME.SUFFIX.
void harness_file(const struct harness *harness, const struct test_case *c, const char *suffix, char path[PATH_MAX]);

// Make a model into the case's file NAME.gguf, and run one into `out`; return exit codes. more, options: to be added,
// separated by blanks. What the programs say is added to NAME.log.
int harness_make(const struct harness *harness, const struct test_case *c, const char *more);
int harness_logits(const struct harness *harness, const struct test_case *c, const char *out, const char *options);
int harness_complain(char *why, size_t size, const char *what, int code); // returns 1; code 0: says only what
