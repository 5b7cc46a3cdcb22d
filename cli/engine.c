#include "engine.h"

#include "backends.h"
#include "cli.h"

#include "llama.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool engine_find_plugin(char *path, size_t size, char *why, size_t why_size) {
    const char *given = getenv("GUANACO_PLUGIN");
    bool set = given && *given;
    bool fits =
        set ? (size_t)snprintf(path, size, "%s", given) < size : beside_program("../lib/libguanaco.so", path, size);
    struct stat status;
    // Opening a FIFO would wait.
    if (!fits || access(path, R_OK) != 0 || stat(path, &status) || !S_ISREG(status.st_mode)) {
        snprintf(why, why_size, "the streaming plugin is not at %s%s; %s", path, set ? " (GUANACO_PLUGIN)" : "",
                 set ? "correct the variable or unset it" : "build it with make, or name it in GUANACO_PLUGIN");
        return false;
    }
    return true;
}

static void *function(ggml_backend_reg_t registry, const char *name) {
    return registry ? ggml_backend_reg_get_proc_address(registry, name) : NULL;
}

bool engine_load(struct engine *engine, const char *plugin, char *why, size_t why_size) {
    *engine = (struct engine){0};
    if (!load_backends()) {
        ggml_backend_load_all(); // where ggml itself looks
    }
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (!cpu) {
        snprintf(why, why_size,
                 "llama.cpp has no CPU backend here: no libggml-cpu-*.so beside libllama; install it whole");
        return false;
    }
    ggml_backend_reg_t cpu_registry = ggml_backend_dev_backend_reg(cpu);
    *(void **)&engine->threadpool_new = function(cpu_registry, "ggml_threadpool_new");
    *(void **)&engine->threadpool_free = function(cpu_registry, "ggml_threadpool_free");
    if (!plugin) {
        return true;
    }
    ggml_backend_reg_t ours = ggml_backend_load(plugin);
    if (!ours) {
        snprintf(why, why_size, "the streaming plugin %s cannot be loaded; build it again for this llama.cpp", plugin);
        return false;
    }
    *(void **)&engine->stats = function(ours, "guanaco_stats");
    *(void **)&engine->mode = function(ours, "guanaco_mode");
    *(void **)&engine->share_threadpool = function(ours, "guanaco_threadpool");
    *(void **)&engine->last_error = function(ours, "guanaco_last_error");
    return true;
}
