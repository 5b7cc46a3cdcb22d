// The eviction policies: their interface is struct guanaco_policy, of guanaco.h, which is the manual. A policy here is
// a file of its own that includes this header, and knows nothing of ggml, files, slots or threads.
//
// Where a policy keeps counts by layer, its work is bounded by the experts of a layer, never by those of the model.
#pragma once

#include "guanaco.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GN_NONE GUANACO_NONE

extern const struct guanaco_policy gn_policy_lru, gn_policy_slru, gn_policy_lfu, gn_policy_lfu_plain, gn_policy_fifo,
    gn_policy_random, gn_policy_wait;
extern const struct guanaco_policy *const gn_policies[]; // NULL-terminated; the first is the default

// Values of a policy's parameters, as many as it has.
struct gn_parameters {
    double value[GUANACO_MOST_PARAMETERS];
};
void gn_parameters_default(const struct guanaco_policy *policy, struct gn_parameters *parameters);
// Reads "key=value,key=value" over the defaults; NULL or "" is none. Returns 0, or -EINVAL or -ERANGE with one plain
// line (what, what there is) in why.
int gn_parameters_parse(const struct guanaco_policy *policy, const char *text, struct gn_parameters *parameters,
                        char *why, size_t why_size);

// Finds a policy by what --policy says: a name, in any case, or, with a "/" in it, the path of a shared object, which
// is loaded and stays so. Returns 0, or a negative errno with one plain line in why.
int gn_policy_find(const char *text, const struct guanaco_policy **policy, char *why, size_t why_size);
// Whether it could be one: a name that there is, or a path.
bool gn_policy_is_named(const char *text);

// Implements guanaco_register_policy_fn.
int gn_policy_register(const struct guanaco_policy *policy);
const struct guanaco_policy *gn_policy_registered(void); // NULL: none
