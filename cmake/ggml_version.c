// Prints the version of the ggml that it is linked with.
#include <stdio.h>

const char *ggml_version(void);

int main(void) {
    return fputs(ggml_version(), stdout) < 0;
}
