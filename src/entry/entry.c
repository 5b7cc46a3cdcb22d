// libguanaco-entry.so: the plugin, for programs that keep ggml's symbols to themselves. Python and others load libllama
// without making its symbols known to what is loaded later, and the plugin, which takes ggml's functions from its host,
// would not find them. This finds the library that called it, makes its symbols known, and only then loads the plugin
// (GUANACO_PLUGIN, or libguanaco.so beside this file).
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((visibility("default"))) void *ggml_backend_init(void);

static void *fail(const char *what) {
    const char *detail = dlerror();
    fprintf(stderr, "guanaco: error: %s: %s\n", what, detail ? detail : "not found");
    return NULL;
}

static int find_plugin(char *path, size_t size) {
    const char *given = getenv("GUANACO_PLUGIN");
    Dl_info own;
    void *(*self)(void) = ggml_backend_init;
    void *address;
    memcpy(&address, &self, sizeof address);
    if (given && *given) {
        return (size_t)snprintf(path, size, "%s", given) < size;
    }
    const char *slash = dladdr(address, &own) ? strrchr(own.dli_fname, '/') : NULL;
    return slash &&
           (size_t)snprintf(path, size, "%.*s/libguanaco.so", (int)(slash - own.dli_fname), own.dli_fname) < size;
}

void *ggml_backend_init(void) {
    char path[PATH_MAX];
    Dl_info caller;
    if (!find_plugin(path, sizeof path)) {
        return fail("cannot find the plugin");
    }
    if (!dladdr(__builtin_return_address(0), &caller) ||
        !dlopen(caller.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD)) {
        return fail("cannot make ggml's symbols known to the plugin");
    }
    void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *(*init)(void);
    *(void **)&init = plugin ? dlsym(plugin, "ggml_backend_init") : NULL;
    return init ? init() : fail("cannot load the plugin");
}
