#include "backends.h"

#include "llama.h"

#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

void load_backends(void) {
    unsetenv("GGML_BACKEND_PATH");
    Dl_info info;
    char path[PATH_MAX];
    if (!dladdr((void *)(uintptr_t)llama_backend_init, &info) || !realpath(info.dli_fname, path)) {
        fprintf(stderr, "cannot find libllama\n");
        exit(1);
    }
    ggml_backend_load_all_from_path(dirname(path));
}
