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
// Adds share x the chance that the layer's experts are used when it runs next.
void gn_history_predict(const struct gn_history *history, uint32_t layer, float share, float *chance);
