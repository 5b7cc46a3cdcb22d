// The largest of some scores, and the best guesses of several tokens as one list.
#pragma once

#include <stdint.h>

// Writes the numbers of the `most` largest of scores[n], largest first, of equal ones the lower first; -infinity never.
// best has room for `most`. Returns how many there are.
uint32_t gn_rank(const float *scores, uint32_t n, uint32_t most, uint32_t *best);

// Adds an expert to a list of *n, if it is not there and the list has less than `most`.
void gn_rank_add(uint32_t *list, uint32_t *n, uint32_t most, uint32_t expert);
