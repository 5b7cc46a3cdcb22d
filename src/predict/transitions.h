// Learns which experts of a layer go with which of the layer before: for every expert, the experts of the next layer
// that the same tokens were sent to, with counts that fade. From the experts that a token uses in one layer it guesses
// those of the next, without knowing the router. Knows nothing of ggml, files or time.
//
// The first layer goes with the last one, of the token before.
//
// Score of expert f when `from` were used: ln p(f) + w * sum over e in from of ln(1 + n(e, f) / (a p(f))), where p is
// how much f is used anyway and n how often f went with e: evidence is added up, as in a naive Bayes classifier, and
// weighed less than it would deserve if experts were chosen independently of one another.
//
// Memory: 4 bytes for each of the GN_SUCCESSORS likeliest successors of an expert (fewer if there are fewer experts),
// and 4 bytes an expert: 1.2 MB for 48 layers of 128, 2.4 MB for 24 layers of 512. All taken when opened. One thread.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define GN_SUCCESSORS 48 // kept of an expert

struct gn_transitions;

// n_experts: [n_layers], of layers with experts. A layer of more than 65536 is never guessed. NULL when memory is
// short.
struct gn_transitions *gn_transitions_open(uint32_t n_layers, const uint32_t *n_experts);
void gn_transitions_close(struct gn_transitions *transitions); // NULL is allowed

// Bytes that it takes.
size_t gn_transitions_bytes(const struct gn_transitions *transitions);

// Learns that one token which used `from` in the layer before used `used` in `layer`. n_from 0: nothing is known of the
// layer before. In any order, each once.
void gn_transitions_learn(struct gn_transitions *transitions, uint32_t layer, const uint32_t *from, uint32_t n_from,
                          const uint32_t *used, uint32_t n_used);

// The score of every expert of `layer` for a token that used `from` in the layer before: natural logarithms of chances
// that need not add up to 1. scores: [n_experts of the layer]. Returns how many scores that are, 0 as long as too
// little was learnt of the layer.
uint32_t gn_transitions_score(const struct gn_transitions *transitions, uint32_t layer, const uint32_t *from,
                              uint32_t n_from, float *scores);

// The likeliest experts by these scores, best first: as many as have together at least `mass` (0 … 1) of the
// probability, and at most `most`, which is what best has room for. Returns how many.
uint32_t gn_transitions_choose(const float *scores, uint32_t n, double mass, uint32_t most, uint32_t *best);
