#include "cli.h"
int command_run(int argc, char **argv) {
    (void)argc;
    (void)argv;
    return 0;
}
