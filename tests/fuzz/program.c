// What the commands ask of the program they are in: here none.
#include "cli.h"

#include <stddef.h>

const char *demo_model(void) {
    return NULL;
}

bool beside_program(const char *relative, char *path, unsigned long size) {
    (void)relative;
    (void)path;
    (void)size;
    return false;
}
