// The tiers that the knobs ask for: --tiers, or its short forms --gpu-cache and --gpu-slots.
#pragma once

#include "config/knobs.h"
#include "config/tiers.h"

#include <stdbool.h>

// Whether --tiers and --gpu-cache can take the text.
bool gn_tiers_are(const char *text);
bool gn_tier_size_is(const char *text); // "off", or a size as in a list

// The device tiers, without the RAM: none, mostly. A tier whose name is "" is on the first GPU. Returns 0, or -EINVAL
// with one plain line in why when the knobs contradict one another.
int gn_tiers_from_knobs(const struct gn_knobs *knobs, struct gn_tier_list *list, char *why, size_t why_size);

// Sets --policy and --expert-cache as the RAM's part of --tiers says. Returns as above. Call once all knobs
// are read; not thread-safe.
int gn_tiers_apply(struct gn_knobs *knobs, char *why, size_t why_size);
