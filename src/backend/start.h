// Models that are loaded, one for each buffer with streamed weights. The list has a lock of its own; a model's fields
// are its buffer's until the stream is started.
#pragma once

#include "backend/backend.h"
#include "model/dense.h"

struct gn_loaded {
    struct gn_stream *stream;
    struct gn_mapped_file *files; // [n_files] that its weights came from
    uint32_t n_files;
    const void *base; // [bytes] where its weights would be; none of them comes into memory there
    size_t bytes;
    uint32_t protected_slices; // how many the model had when its dense weights were protected
    struct gn_loaded *next;    // the list's own
};

void gn_loaded_add(struct gn_loaded *model);
void gn_loaded_remove(const struct gn_loaded *model); // does nothing if it is not there

// In a child process after fork(), as gn_models_forked(): the list's lock is made new.
void gn_loaded_forked(void);

// Sizes the streams that a context waits for. ggml takes memory for the results of our graphs when the context has its
// KV cache: a good time, since what goes wrong can still be told by the context not coming about, and the line that
// says how it streams does not come amid the first words. Our own programs ask when it suits them (guanaco_mode).
// False: none could be started, after gn_fail().
bool gn_start_waiting(void);

// Measures what the program has reserved for this context, once all is there that it needs: before its first graph.
// False: no stream has started yet, so it is to be done later.
bool gn_measure_program(const struct gn_knobs *knobs);
