// Writes a synthetic model to one GGUF file, or to shards named as llama.cpp names them.
#pragma once

#include "synth_model.h"

// The name of a shard's file; the path itself when there is one. Returns 0, or -1 when it does not fit.
int synth_path(const struct synth_options *options, int64_t shard, char *path, size_t size);

// The exact bytes of a shard's file.
uint64_t synth_file_bytes(const struct synth_model *model, int64_t shard);

// Writes all files, with progress on standard error when it takes long. Returns 0, or -1 with a line in why[why_size];
// unfinished files are removed then.
int synth_write(const struct synth_model *model, char *why, size_t why_size);
