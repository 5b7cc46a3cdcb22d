// How often each expert was used while an importance matrix was made, from the GGUF file that llama-imatrix writes:
// tensors "blk.N.ffn_gate_exps.weight.counts" and so on, one number for each expert, tokens that were sent to it.
//
// Trusts nothing in the file: lengths, offsets and numbers are checked against its size, and no more is read than the
// header and the counts.
#pragma once

#include "model/expert_map.h"

// Fills chance[], by layer and in it by expert, as the map's layers lie one after another: the share of all tokens that
// used the expert, 0 to 1. The map must be finished. Layers that the file does not know are left at 0. Returns 0; or,
// with one plain line (file, what) in why, -errno when the file cannot be read, -EINVAL when it is no imatrix, is
// damaged or is another model's.
int gn_imatrix_read(const char *path, const struct gn_expert_map *map, float *chance, char *why, size_t why_size);
