// The token sequence that every engine decodes.
#pragma once

#include "llama.h"

#include <stdbool.h>
#include <stddef.h>

// Fills tokens[n]. text: as a file holds it, to be repeated when it is too short; it must be one that the vocabulary
// knows. NULL: our own, or, for a vocabulary that cannot spell it (a synthetic model's), pseudo-random tokens, in runs
// of neighbours as a text keeps to its subject. The same for the same vocabulary, always. Says in `what` which it was.
// Returns true, or false with one plain line in why.
bool bench_tokens(const struct llama_vocab *vocab, const char *text, llama_token *tokens, int n, char *what,
                  size_t what_size, char *why, size_t why_size);
