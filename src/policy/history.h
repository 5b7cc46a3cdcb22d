// Which experts the last tokens used, and which of those tokens the present one resembles. What such a token used in
// the layers to come, the present one will probably use; what the token after it used, the next one will.
#pragma once

#include "policy/policy.h"

struct gn_history;

struct gn_history *gn_history_open(uint32_t n_layers, uint32_t most_experts); // of a layer; NULL when memory is short
void gn_history_close(struct gn_history *history);                            // NULL is allowed

// An event begins: a layer that is not further on than the last one begins a token. Then its uses, by expert.
void gn_history_begin(struct gn_history *history, uint32_t layer);
void gn_history_use(struct gn_history *history, uint32_t expert);
// Ends the event and finds the tokens that resemble the present one. Called again, does nothing.
void gn_history_match(struct gn_history *history);
// The chance (0 … 1) that the layer's expert is used when the layer runs next, as the tokens say that were found. Takes
// as long as such tokens used the expert, however many experts there are.
float gn_history_chance(const struct gn_history *history, uint32_t layer, uint32_t expert);
