// PILOT: guesses of a layer's experts from those that the same tokens used in the layer before, by what was learnt of
// earlier tokens (transitions.h). Sees every batch pass, layer after layer; a prompt teaches as well.
//
// Memory as transitions.h says, and 40 KiB; all taken when opened. One thread.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define GN_PILOT_TRUST 0.25 // in its guesses, before there is experience (gn_guesses_open()): it has to learn first
#define GN_PILOT_TOKENS 4   // of a batch that can be guessed; larger ones use too many experts to guess them one by one

struct gn_pilot;

// n_experts: [n_layers]. NULL when memory is short.
struct gn_pilot *gn_pilot_open(uint32_t n_layers, const uint32_t *n_experts);
void gn_pilot_close(struct gn_pilot *pilot); // NULL is allowed

// Bytes that it takes.
size_t gn_pilot_bytes(const struct gn_pilot *pilot);

// What a router chose: expert k of token t is at ids + k * choice_stride + t * token_stride (bytes), each within the
// layer's experts.
struct gn_pilot_batch {
    const int32_t *ids;
    size_t choice_stride, token_stride;
    uint32_t n_used, n_tokens;
};

// Takes in what a batch used in `layer`, and learns from it and from what it used in the layer before. Of large batches
// the last tokens do.
void gn_pilot_see(struct gn_pilot *pilot, uint32_t layer, const struct gn_pilot_batch *batch);

// Guesses what the batch that was seen last uses in the layer after that, or, after the last layer, the next batch in
// the first: for each token the likeliest, as many as have `mass` (0 … 1) of the probability together and `each` at
// most; best first, without repeats, `most` in all. Returns how many: 0 when nothing is known or the batch is too
// large.
uint32_t gn_pilot_guess(struct gn_pilot *pilot, double mass, uint32_t each, uint32_t *experts, uint32_t most);
