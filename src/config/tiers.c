#include "config/tiers.h"

#include "config/parse.h"
#include "policy/policy.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

struct reason {
    char *why;
    size_t size;
};

static int refuse(struct reason to, int code, const char *what, const char *text, size_t length) {
    snprintf(to.why, to.size, "%s, not '%.*s'", what, (int)(length < 80 ? length : 80), text);
    return code;
}

// Copies text whole; false when it does not fit or is empty.
static bool copy(char *to, size_t size, const char *text, size_t length) {
    if (length == 0 || length >= size) {
        return false;
    }
    memcpy(to, text, length);
    to[length] = '\0';
    return true;
}

static int parse_share(struct gn_tier_wish *tier) {
    char digits[sizeof tier->size_text];
    double percent;
    memcpy(digits, tier->size_text, sizeof digits);
    digits[strlen(digits) - 1] = '\0';
    if (gn_parse_decimal(digits, &percent)) {
        return -EINVAL;
    }
    tier->size = GN_TIER_SHARE;
    tier->share = percent / 100;
    return percent >= 0 && percent <= 100 ? 0 : -ERANGE;
}

static int parse_size(struct gn_tier_wish *tier) {
    if (!strcasecmp(tier->size_text, "auto")) {
        tier->size = GN_TIER_AUTO;
        return 0;
    }
    if (tier->size_text[strlen(tier->size_text) - 1] == '%') {
        return parse_share(tier);
    }
    int64_t bytes = 0;
    int failed = gn_parse_size(tier->size_text, &bytes);
    tier->size = GN_TIER_BYTES;
    tier->bytes = (uint64_t)bytes;
    return failed;
}

// One tier, of text[0 … length). Names may have colons, so the last two are those that count.
static int parse_tier(const char *text, size_t length, struct gn_tier_wish *tier, struct reason why) {
    *tier = (struct gn_tier_wish){0};
    const char *size = length ? memrchr(text, ':', length) : NULL;
    const char *policy = size && size > text ? memrchr(text, ':', (size_t)(size - text)) : NULL;
    if (!policy) {
        return refuse(why, -EINVAL, "give each tier as NAME:POLICY:SIZE, such as RAM:auto:8GiB", text, length);
    }
    if (!copy(tier->name, sizeof tier->name, text, (size_t)(policy - text))) {
        return refuse(why, -EINVAL, "a tier needs a name of 1 to 31 characters", text, length);
    }
    size_t policy_length = (size_t)(size - ++policy);
    bool named = copy(tier->policy, sizeof tier->policy, policy, policy_length);
    if (named && !strcasecmp(tier->policy, "auto")) {
        tier->policy[0] = '\0';
    } else if (!named || !gn_policy_is_named(tier->policy)) {
        return refuse(why, -EINVAL, "a tier's policy is auto, or one that --policy takes", policy, policy_length);
    }
    size_t size_length = (size_t)(text + length - ++size);
    int failed = copy(tier->size_text, sizeof tier->size_text, size, size_length) ? parse_size(tier) : -EINVAL;
    return failed
               ? refuse(why, failed, "a tier's size is one such as 2GiB, a share of all experts such as 25%, or auto",
                        size, size_length)
               : 0;
}

static int check_names(struct gn_tier_list *list, struct reason why) {
    for (uint32_t i = 0; i < list->n; i++) {
        const char *name = list->tier[i].name;
        for (uint32_t j = 0; j < i; j++) {
            if (!strcasecmp(name, list->tier[j].name)) {
                snprintf(why.why, why.size, "give each tier once; '%s' comes twice", name);
                return -EINVAL;
            }
        }
        if (!strcasecmp(name, "RAM") != (i == list->n - 1)) {
            snprintf(why.why, why.size, "the last tier, and no other, is RAM; '%s' is not in its place", name);
            return -EINVAL;
        }
    }
    strcpy(list->tier[list->n - 1].name, "RAM");
    return 0;
}

int gn_tiers_parse(const char *text, struct gn_tier_list *list, char *why, size_t why_size) {
    struct reason reason = {why, why_size};
    list->n = 0;
    for (;; text++) {
        size_t length = strcspn(text, ",");
        if (list->n == GN_MOST_TIERS) {
            return refuse(reason, -ERANGE, "give 8 tiers at most", text, strlen(text));
        }
        int failed = parse_tier(text, length, &list->tier[list->n++], reason);
        if (failed) {
            return failed;
        }
        text += length;
        if (!*text) {
            return check_names(list, reason);
        }
    }
}
