// llama.cpp's backends and our plugin: finding, loading, and the functions that they offer by name.
#pragma once

#include "ggml-backend.h"
#include "guanaco.h"

#include <stdbool.h>
#include <stddef.h>

struct engine {
    // Of the plugin; each may be NULL.
    guanaco_stats_fn stats;
    guanaco_mode_fn mode;
    guanaco_threadpool_fn share_threadpool;
    guanaco_last_error_fn last_error;
    // Of the CPU backend; each may be NULL.
    ggml_threadpool_t (*threadpool_new)(struct ggml_threadpool_params *params);
    void (*threadpool_free)(ggml_threadpool_t pool);
};

// Where the plugin is: GUANACO_PLUGIN, or beside this program. Returns false with one plain line when it is not there.
bool engine_find_plugin(char *path, size_t size, char *why, size_t why_size);

// Loads the backends that came with llama.cpp and then the plugin (NULL: none). The plugin takes its settings from the
// environment at this moment. Returns true, or false with one plain line in why.
bool engine_load(struct engine *engine, const char *plugin, char *why, size_t why_size);
