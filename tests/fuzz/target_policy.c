// A policy with options, in a cache that is used as an engine uses it. Where experts are is checked after every event.
#include "fuzz.h"

#include "cache/cache.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_LAYERS = 4, MOST_EXPERTS = 8, MOST_ENTRIES = MOST_LAYERS * MOST_EXPERTS };

// The input: a byte each for the policy, the layers, the experts, the budget, the shares, the pins, and the admission;
// the policy's options, a line; then an event for every two bytes: its layer and what to do, and a bit for each expert.
enum { POLICY, LAYERS, EXPERTS, BUDGET, SHARES, PINS, ADMISSION, SETUP };

static size_t count_policies(void) {
    size_t n = 0;
    while (gn_policies[n]) {
        n++;
    }
    return n;
}

static void add_options(struct random *random, const struct guanaco_policy *policy, struct bytes *out) {
    for (size_t i = 0; policy->parameters && policy->parameters[i].key; i++) {
        const struct guanaco_policy_parameter *parameter = &policy->parameters[i];
        if (random_percent(random, 50)) {
            double part = (double)random_below(random, 5) / 4;
            bytes_printf(out, "%s=%g,", parameter->key, parameter->least + part * (parameter->most - parameter->least));
        }
    }
}

static void make(struct random *random, struct bytes *input) {
    static const char *const words[] = {"=", ",", "protected=", "nan", "inf", "1e9", "-0", "0.5", "1000000", NULL};
    uint8_t setup[SETUP];
    for (int i = 0; i < SETUP; i++) {
        setup[i] = (uint8_t)random_next(random);
    }
    setup[PINS] = random_percent(random, 50) ? 0 : setup[PINS];
    bytes_add(input, setup, sizeof setup);
    static uint8_t space[512];
    struct bytes options = {.data = space, .capacity = sizeof space};
    add_options(random, gn_policies[setup[POLICY] % count_policies()], &options);
    if (random_percent(random, 20)) {
        text_mutate(random, &options, words, 1);
    }
    bytes_add(input, options.data, options.n);
    bytes_add(input, "\n", 1);
    for (size_t events = random_below(random, 120); events > 0; events--) {
        uint64_t event = random_next(random);
        bytes_add(input, &event, 2);
    }
}

// Every expert has a slot that no other has, and no more of them than there are slots.
static void check(const struct gn_cache *cache) {
    uint32_t n = gn_cache_entries(cache), slots = gn_cache_slots(cache), resident = 0;
    bool taken[MOST_ENTRIES] = {false};
    for (uint32_t entry = 0; entry < n; entry++) {
        uint32_t slot = gn_cache_peek(cache, entry);
        if (slot != GN_NONE && (slot >= slots || taken[slot])) {
            fuzz_fail("two experts in slot %u of %u", slot, slots);
        }
        if (slot != GN_NONE) {
            taken[slot] = true;
            resident++;
        }
    }
    if (gn_cache_error(cache)) {
        fuzz_fail("%s", gn_cache_error(cache));
    }
    if (gn_cache_totals(cache).resident != resident) {
        fuzz_fail("%u experts are in slots, not as many as are counted", resident);
    }
}

// What the event has looked up or inserted is still there at its end.
static void run_event(struct gn_cache *cache, uint32_t layer, uint32_t experts, unsigned mask, unsigned how) {
    bool wanted[MOST_EXPERTS] = {false};
    gn_cache_begin(cache);
    for (uint32_t e = 0; e < experts; e++) {
        wanted[e] = mask >> e & 1 && gn_cache_lookup(cache, gn_cache_entry(cache, layer, e)) != GN_NONE;
    }
    for (uint32_t e = 0; e < experts; e++) {
        if (mask >> e & 1 && !wanted[e]) {
            uint32_t entry = gn_cache_entry(cache, layer, e);
            gn_cache_victim(cache, entry);
            wanted[e] = gn_cache_insert(cache, entry, how != 1) != GN_NONE;
        }
    }
    for (uint32_t e = 0; e < experts; e++) {
        uint32_t entry = gn_cache_entry(cache, layer, e);
        if (wanted[e] && gn_cache_peek(cache, entry) == GN_NONE) {
            fuzz_fail("an event has evicted what it uses");
        }
        if (wanted[e] && how == 2) {
            gn_cache_drop(cache, entry); // its read failed
        }
    }
    gn_cache_end(cache);
}

// Slots that are filled ahead of use.
static void fill(struct gn_cache *cache, uint32_t layer, uint32_t experts, unsigned mask) {
    for (uint32_t e = 0; e < experts; e++) {
        uint32_t entry = gn_cache_entry(cache, layer, e);
        uint32_t slot = mask >> e & 1 ? gn_cache_reserve(cache, entry) : GN_NONE;
        if (slot != GN_NONE && e % 2) {
            gn_cache_unreserve(cache, entry, slot);
        } else if (slot != GN_NONE) {
            gn_cache_fill(cache, entry, slot);
        }
    }
}

static void play(struct gn_cache *cache, uint32_t layers, uint32_t experts, const uint8_t *data, size_t n) {
    for (uint32_t entry = 0; n % 2 && entry < gn_cache_entries(cache); entry++) {
        gn_cache_prior(cache, entry, (float)(entry % 4) / 3);
    }
    for (size_t at = 0; at + 1 < n; at += 2) {
        unsigned how = data[at] / MOST_LAYERS % 8;
        uint32_t layer = data[at] % layers;
        if (how == 3) {
            fill(cache, layer, experts, data[at + 1]);
        } else {
            run_event(cache, layer, experts, data[at + 1], how);
        }
        check(cache);
    }
}

static bool run(const uint8_t *data, size_t n) {
    if (n < SETUP) {
        return false;
    }
    const struct guanaco_policy *policy = gn_policies[data[POLICY] % count_policies()];
    char *text = fuzz_text(data + SETUP, n - SETUP), why[1024] = "";
    size_t length = strcspn(text, "\n");
    const uint8_t *events = data + SETUP + length + 1;
    size_t n_events = SETUP + length + 1 < n ? n - SETUP - length - 1 : 0;
    text[length] = '\0';
    struct gn_parameters parameters;
    bool taken = gn_parameters_parse(policy, text, &parameters, why, sizeof why) == 0;
    free(text);
    if (!taken) {
        fuzz_check_reason(why, sizeof why);
        return false;
    }
    uint32_t n_layers = 1 + data[LAYERS] % MOST_LAYERS, experts = 1 + data[EXPERTS] % MOST_EXPERTS;
    struct gn_cache_layer layers[MOST_LAYERS];
    for (uint32_t l = 0; l < n_layers; l++) {
        layers[l] = (struct gn_cache_layer){.n_experts = experts, .slot_bytes = 100 + data[LAYERS] / 16 * (l % 2) * 50};
    }
    struct gn_cache_options options = {
        .layers = layers,
        .n_layers = n_layers,
        .budget = (uint64_t)data[BUDGET] * 20,
        .policy = policy,
        .parameters = &parameters,
        .shares = (enum gn_shares_kind)(data[SHARES] % GN_SHARES_KINDS),
        .pins = {.most = data[PINS] % 8, .bytes = data[PINS] / 8 * 50, .decay = 0.5, .warm_up = 3},
        .admission.window = data[ADMISSION] % 4};
    struct gn_cache *cache;
    if (gn_cache_open(&options, &cache)) {
        fuzz_fail("a cache cannot be opened");
    }
    play(cache, n_layers, experts, events, n_events);
    gn_cache_close(cache);
    return true;
}

const struct fuzz_target fuzz_policy = {"policy", make, run};
