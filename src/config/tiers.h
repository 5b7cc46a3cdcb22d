// A list of tiers, as --tiers takes it: 'Vulkan0:slru:2GiB,RAM:auto:8GiB', fastest first.
//
// Each tier is NAME:POLICY:SIZE. NAME is a device as llama.cpp prints it; RAM is the last one, always. POLICY is an
// eviction policy, by name or path, or auto: the tier's default. SIZE is bytes ("2GiB", 0 for none), a share of all
// experts ("25%") or auto. A name may have colons in it; a path may have neither colons nor commas.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define GN_MOST_TIERS 8

enum gn_tier_size { GN_TIER_AUTO, GN_TIER_BYTES, GN_TIER_SHARE, GN_TIER_SLOTS };

struct gn_tier_wish {
    char name[32];    // "RAM" for the last, in whatever case it came; the others as they came
    char policy[256]; // "": auto. Else what gn_policy_find() is to be asked for
    enum gn_tier_size size;
    uint64_t bytes;     // GN_TIER_BYTES
    double share;       // GN_TIER_SHARE: 0 … 1
    uint32_t slots;     // GN_TIER_SLOTS: of each layer, on average; not in a list's text
    char size_text[24]; // the size as it came, to be printed
};

struct gn_tier_list {
    uint32_t n; // 1 … GN_MOST_TIERS
    struct gn_tier_wish tier[GN_MOST_TIERS];
};

// Reads a list. Whether devices of these names exist is not its business; no name comes twice, in any case. Returns 0,
// or -EINVAL or -ERANGE with one plain line (what to give, and what came instead) in why[why_size].
int gn_tiers_parse(const char *text, struct gn_tier_list *list, char *why, size_t why_size);
