// The bytes of a synthetic model's tensors, made piece by piece.
#pragma once

#include "synth_model.h"

struct synth_weights;

// Returns NULL when memory is short.
struct synth_weights *synth_weights_new(const struct synth_model *model);
void synth_weights_free(struct synth_weights *weights);

// Hands the tensor's bytes to sink in order, some at a time, until it returns non-zero. Returns what sink returned
// last. The bytes depend on the options alone, not on the shards or on the tensors made before.
int synth_weights_make(struct synth_weights *weights, const struct synth_tensor *tensor,
                       int (*sink)(void *context, const void *data, size_t size), void *context);
