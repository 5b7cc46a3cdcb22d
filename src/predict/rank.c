#include "predict/rank.h"

#include <math.h>

uint32_t gn_rank(const float *scores, uint32_t n, uint32_t most, uint32_t *best) {
    uint32_t have = 0;
    for (uint32_t i = 0; i < n && most > 0; i++) {
        if (scores[i] == -INFINITY || (have == most && !(scores[i] > scores[best[most - 1]]))) {
            continue;
        }
        uint32_t at = have < most ? have++ : most - 1;
        for (; at > 0 && scores[i] > scores[best[at - 1]]; at--) {
            best[at] = best[at - 1];
        }
        best[at] = i;
    }
    return have;
}

void gn_rank_add(uint32_t *list, uint32_t *n, uint32_t most, uint32_t expert) {
    for (uint32_t i = 0; i < *n; i++) {
        if (list[i] == expert) {
            return;
        }
    }
    if (*n < most) {
        list[(*n)++] = expert;
    }
}
