#include "policy/policy.h"

const struct gn_policy *const gn_policies[] = {
    &gn_policy_lru,  &gn_policy_slru,   &gn_policy_lfu,  &gn_policy_lfu_plain,
    &gn_policy_fifo, &gn_policy_random, &gn_policy_wait, NULL,
};
const char *const gn_policy_names[] = {"lru", "slru", "lfu", "lfu-plain", "fifo", "random", "expected-wait", NULL};
