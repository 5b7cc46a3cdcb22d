#include "backends.h"

#include <dlfcn.h>
#include <ggml-backend.h>
#include <limits.h>
#include <llama.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool load_backends(void) {
    unsetenv("GGML_BACKEND_PATH");
    Dl_info info;
    void (*symbol)(void) = llama_backend_init;
    void *address;
    memcpy(&address, &symbol, sizeof address);
    if (dladdr(address, &info) && info.dli_fname) {
        char directory[PATH_MAX];
        snprintf(directory, sizeof directory, "%s", info.dli_fname);
        char *slash = strrchr(directory, '/');
        if (slash) {
            *slash = '\0';
            ggml_backend_load_all_from_path(directory);
        }
    }
    return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU) != NULL;
}
