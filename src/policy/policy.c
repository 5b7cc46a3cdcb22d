#include "policy/policy.h"

const struct gn_policy *const gn_policies[] = {&gn_policy_lru, NULL};
const char *const gn_policy_names[] = {"lru", NULL};
