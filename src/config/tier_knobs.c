#include "config/tier_knobs.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

bool gn_tiers_are(const char *text) {
    struct gn_tier_list list;
    char why[512];
    return !gn_tiers_parse(text, &list, why, sizeof why);
}

// Reads the short form as a list of one device.
static int parse_short(const char *size, struct gn_tier_list *list) {
    char text[64], why[512];
    if (strcspn(size, ":,") < strlen(size) ||
        (size_t)snprintf(text, sizeof text, "GPU:auto:%s,RAM:auto:auto", size) >= sizeof text) {
        return -EINVAL;
    }
    return gn_tiers_parse(text, list, why, sizeof why);
}

bool gn_tier_size_is(const char *text) {
    struct gn_tier_list list;
    return !strcasecmp(text, "off") || !parse_short(text, &list);
}

// A list without its RAM, and without tiers of no size.
static void keep_devices(struct gn_tier_list *list) {
    uint32_t n = 0;
    for (uint32_t t = 0; t + 1 < list->n; t++) {
        const struct gn_tier_wish *wish = &list->tier[t];
        bool none =
            (wish->size == GN_TIER_BYTES && wish->bytes == 0) || (wish->size == GN_TIER_SHARE && wish->share <= 0);
        if (!none) {
            list->tier[n++] = *wish;
        }
    }
    list->n = n;
}

int gn_tiers_from_knobs(const struct gn_knobs *knobs, struct gn_tier_list *list, char *why, size_t why_size) {
    const char *tiers = knobs->text[GN_TIERS], *cache = knobs->text[GN_GPU_CACHE];
    int64_t slots = knobs->value[GN_GPU_SLOTS];
    list->n = 0;
    if (tiers) {
        int failed = gn_tiers_parse(tiers, list, why, why_size);
        keep_devices(list);
        return failed;
    }
    if (slots > 0) {
        *list = (struct gn_tier_list){.n = 1, .tier[0] = {.size = GN_TIER_SLOTS, .slots = (uint32_t)slots}};
        return 0;
    }
    if (strcasecmp(cache, "off") != 0 && !parse_short(cache, list)) {
        list->tier[0].name[0] = 0;
        keep_devices(list);
    }
    return 0;
}

// Sets a knob to what the list says, unless it was given otherwise.
static int settle(struct gn_knobs *knobs, enum gn_knob knob, const char *text, char *why, size_t why_size) {
    struct gn_knobs said = *knobs;
    int failed = gn_knob_parse(&said, knob, text, "--tiers", why, why_size);
    if (failed) {
        return failed;
    }
    bool same = knobs->text[knob] ? !strcmp(knobs->text[knob], text) : knobs->value[knob] == said.value[knob];
    if (knobs->given[knob] && !same) {
        snprintf(why, why_size, "--tiers and %s contradict each other: give one of them", gn_knob_table[knob].flag);
        return -EINVAL;
    }
    *knobs = said;
    return 0;
}

int gn_tiers_apply(struct gn_knobs *knobs, char *why, size_t why_size) {
    static struct gn_tier_list list; // text knobs keep pointers
    const char *tiers = knobs->text[GN_TIERS];
    if (!tiers) {
        return 0;
    }
    if (knobs->given[GN_GPU_CACHE] || knobs->given[GN_GPU_SLOTS]) {
        snprintf(why, why_size, "--tiers and %s say the same: give one of them",
                 gn_knob_table[knobs->given[GN_GPU_CACHE] ? GN_GPU_CACHE : GN_GPU_SLOTS].flag);
        return -EINVAL;
    }
    int failed = gn_tiers_parse(tiers, &list, why, why_size);
    const struct gn_tier_wish *ram = &list.tier[failed ? 0 : list.n - 1];
    if (!failed && ram->policy[0]) {
        failed = settle(knobs, GN_POLICY, ram->policy, why, why_size);
    }
    if (!failed && ram->size != GN_TIER_AUTO) {
        failed = settle(knobs, GN_EXPERT_CACHE, ram->size_text, why, why_size);
    }
    return failed;
}
