// guanaco: one sub-command a file; a new one is a file here, a declaration in cli.h and a line in `commands`.
#include "cli.h"
#include "standard.h"

#include "config/log.h"
#include "config/numbers.h"

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

static const struct command commands[] = {
    {"run", command_run, "generate text, its experts streamed from disk within a memory budget"},
    {"exec", command_exec, "run a llama.cpp program, such as llama-server, its experts streamed"},
    {"server", command_server, "short for: exec -- llama-server"},
    {"inspect", command_inspect, "show a model's experts, their sizes, and what a budget would hold"},
    {"simulate", command_simulate, "replay a recorded routing: what each policy and budget would hit"},
    {"bench", command_bench, "measure speed at several budgets, against stock llama.cpp and what the drive allows"},
};
#define COMMANDS (sizeof commands / sizeof *commands)

bool beside_program(const char *relative, char *path, unsigned long size) {
    char program[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length > 0) {
        program[length] = '\0';
    } else { // no /proc: what execve() was given
        uintptr_t name = getauxval(AT_EXECFN);
        if (!name || !realpath((const char *)name, program)) {
            return false;
        }
    }
    char *slash = strrchr(program, '/');
    *slash = '\0';
    return (unsigned long)snprintf(path, size, "%s/%s", program, relative) < size;
}

const char *demo_model(void) {
    static const char name[] = "models/guanaco-demo-moe-Q4_0.gguf";
    static char path[PATH_MAX + sizeof name];
    char relative[sizeof name + 8];
    snprintf(relative, sizeof relative, "../../%s", name);
    if (beside_program(relative, path, sizeof path) && !access(path, F_OK)) {
        char resolved[PATH_MAX];
        if (realpath(path, resolved)) {
            snprintf(path, sizeof path, "%s", resolved);
        }
        return path;
    }
#ifdef GUANACO_SOURCE_DIR
    snprintf(path, sizeof path, "%s/%s", GUANACO_SOURCE_DIR, name);
    if (!access(path, F_OK)) {
        return path;
    }
#endif
    return NULL;
}

static void print_help(FILE *to) {
    fputs("guanaco runs Mixture-of-Experts models that are larger than memory: it keeps what every token needs, and "
          "reads\n"
          "experts from disk as tokens ask for them.\n\n"
          "usage: guanaco COMMAND [OPTION...]\n\n",
          to);
    for (size_t i = 0; i < COMMANDS; i++) {
        fprintf(to, "  %-10s %s\n", commands[i].name, commands[i].help);
    }
    fputs("\nguanaco COMMAND --help tells more; guanaco --version prints the version. For a start:\n\n"
          "  guanaco run -p \"Elizabeth had hardly time to\" -n 64\n",
          to);
}

static int run_command(int argc, char **argv) {
    const char *word = argc > 1 ? argv[1] : "";
    if (!strcmp(word, "--help") || !strcmp(word, "-h") || !strcmp(word, "help")) {
        print_help(stdout);
        return EXIT_OK;
    }
    if (!strcmp(word, "--version")) {
        puts("guanaco " GUANACO_VERSION);
        return EXIT_OK;
    }
    for (size_t i = 0; i < COMMANDS; i++) {
        if (!strcmp(word, commands[i].name)) {
            return commands[i].run(argc - 1, argv + 1);
        }
    }
    if (!*word) {
        print_help(stderr);
    } else {
        gn_error("there is no command '%.40s'; guanaco --help lists them", word);
    }
    return EXIT_USAGE;
}

int main(int argc, char **argv) {
    standard_open();
    gn_numbers_begin(); // for good: no library that is preloaded changes how figures are written
    return standard_finish(run_command(argc, argv));
}
