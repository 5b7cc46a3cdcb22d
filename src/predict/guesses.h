// Keeps guesses of which experts a layer will use, and learns which of them pay: for every layer and rank (0: the best
// guess) how often the guess came true lately. Knows nothing of who guesses, nor of ggml.
//
// One thread, no allocation after opening. Time per call grows with the guesses, not with the experts.
#pragma once

#include <stdint.h>

#define GN_GUESSES 32 // ranks, at most

struct gn_guesses;

struct gn_guesses *gn_guesses_open(uint32_t n_layers); // NULL when memory is short
void gn_guesses_close(struct gn_guesses *guesses);     // NULL is allowed

// Notes that `layer` is thought to use these experts next, best first; beyond GN_GUESSES they are dropped.
void gn_guesses_note(struct gn_guesses *guesses, uint32_t layer, const uint32_t *experts, uint32_t n);

// Writes the noted experts whose rank came true in at least this share (0 … 1) of the last few dozen cases, best first.
// Returns how many.
uint32_t gn_guesses_worth(const struct gn_guesses *guesses, uint32_t layer, double share, uint32_t experts[GN_GUESSES]);

// Compares what was noted with what the layer used (ascending), of which `missed` were not in slots, and forgets the
// note.
void gn_guesses_check(struct gn_guesses *guesses, uint32_t layer, const uint32_t *used, uint32_t n, uint32_t missed);

// How many experts of the layer missed per event lately: where hardly any, guessing cannot pay.
double gn_guesses_misses(const struct gn_guesses *guesses, uint32_t layer);

struct gn_guesses_figures {
    uint64_t used, foreseen; // experts used where there was a note, and of these, those in the note
};
struct gn_guesses_figures gn_guesses_figures(const struct gn_guesses *guesses, uint32_t layer);
