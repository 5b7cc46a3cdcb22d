#include "policy/policy.h"

// The first is the default.
const struct gn_policy *const gn_policies[] = {
    &gn_policy_wait,      &gn_policy_lru,  &gn_policy_slru,   &gn_policy_lfu,
    &gn_policy_lfu_plain, &gn_policy_fifo, &gn_policy_random, NULL,
};
const char *const gn_policy_names[] = {"expected-wait", "lru", "slru", "lfu", "lfu-plain", "fifo", "random", NULL};
