// Keeps guesses of which experts a layer will use, and learns which of them pay: for every layer and rank (0: the best
// guess) how often lately a guess that was not in memory came true. Knows nothing of who guesses, nor of ggml.
//
// One thread, no allocation after opening. Time per call grows with the guesses and the experts used, not with those
// that there are.
#pragma once

#include <stdint.h>

#define GN_GUESSES 32 // ranks, at most

// How often a guess must come true to be read. While the drive keeps up, a read in vain costs what the kernel does for
// it (and, on a virtual machine, the host), about what one that came true saves; when computing waits for the drive, it
// costs its whole time.
#define GN_GUESS_LOW_BAR 0.5
#define GN_GUESS_HIGH_BAR 0.7

// Experts that a layer misses per event: fewer are not worth running a router.
#define GN_HARDLY_MISSES 0.1

// Guesses for a token that uses k experts: as many and half as many again, since near misses often come true.
#define GN_GUESSES_FOR(k) ((k) + (k) / 2)

struct gn_guesses;

// trust: how often guesses are thought to come true as long as nothing is known of them, 0 … 1; a few cases weigh more.
// NULL when memory is short.
struct gn_guesses *gn_guesses_open(uint32_t n_layers, double trust);
void gn_guesses_close(struct gn_guesses *guesses); // NULL is allowed

// Notes that `layer` is thought to use these experts next, best first; beyond GN_GUESSES they are dropped. Bit r of
// `missing`: the r-th is not in memory. Of those that are missing, the ones are worth reading whose rank came true in
// at least the share `bar` (0 … 1) of the last few dozen cases.
void gn_guesses_note(struct gn_guesses *guesses, uint32_t layer, const uint32_t *experts, uint32_t n, uint32_t missing,
                     double bar);

// Forgets what is noted for the layer.
void gn_guesses_forget(struct gn_guesses *guesses, uint32_t layer);

// Writes the noted experts that are worth reading, best first. Returns how many.
uint32_t gn_guesses_worth(const struct gn_guesses *guesses, uint32_t layer, uint32_t experts[GN_GUESSES]);

struct gn_guesses_figures {
    uint64_t used, foreseen;   // experts used where there was a note, and of these, those in the note
    uint64_t worth, came_true; // noted and worth reading, and of these, those that were used
};

// Compares what was noted with what the layer used, each once, of which `missed` were not in memory, and forgets the
// note. Returns the figures of this event alone.
struct gn_guesses_figures gn_guesses_check(struct gn_guesses *guesses, uint32_t layer, const uint32_t *used, uint32_t n,
                                           uint32_t missed);

// The same of all events.
struct gn_guesses_figures gn_guesses_figures(const struct gn_guesses *guesses, uint32_t layer);

// How many experts of the layer missed per event lately: where hardly any, guessing cannot pay.
double gn_guesses_misses(const struct gn_guesses *guesses, uint32_t layer);

// What the layer's guesses brought per event lately, in experts: those worth reading that came true, less what those
// that did not cost, at the price that makes a guess at the bar worth nothing.
double gn_guesses_value(const struct gn_guesses *guesses, uint32_t layer);
