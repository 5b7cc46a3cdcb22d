#include "cache/cache.h"

#include "policy/lists.h"

#include <errno.h>
#include <stdlib.h>

struct slot {
    uint32_t entry;     // GN_NONE when free
    uint32_t next_free; // while free, or closed
    uint64_t event;     // the last event that used it
    bool hot;           // its expert is pinned: in a list of hot ones, and not known to the policy
};

struct gn_cache {
    uint32_t n_layers, n_entries;
    uint32_t *first_entry; // [n_layers]
    uint32_t *layer_of;    // [n_entries]
    uint32_t *slot_of;     // [n_entries]
    struct gn_layout layout;
    struct slot *slots;
    uint32_t *free_slot; // [size classes] the first of those that are free; GN_NONE: none is
    uint32_t *closed;    // [size classes] the same of those that may not be used
    uint32_t *n_open;    // [size classes] slots that may be used
    uint32_t *target;    // [size classes] what n_open is to become
    uint64_t event;
    const struct guanaco_policy *policy;
    void *policy_state;
    const char *error;              // what the policy did
    uint32_t named, named_for;      // the last answer of gn_cache_victim(), and for which entry
    uint64_t named_at;              // the event of that
    struct gn_admission *admission; // NULL: all are let in
    bool in_event;                  // it has seen this event's layer
    struct gn_shares *shares;       // NULL: any layer may take any slot
    uint32_t *held;                 // [n_layers] slots that hold or wait for experts of a layer
    struct gn_pins *pins;           // NULL: none
    struct gn_lists hot;            // for each size class, by last use
    struct gn_counts counts;
};

// All slots are free.
static int make_slots(struct gn_cache *cache) {
    uint32_t n = cache->layout.n_slots;
    cache->slots = calloc(n ? n : 1, sizeof *cache->slots);
    cache->free_slot = malloc(cache->layout.n_classes * sizeof *cache->free_slot);
    cache->closed = malloc(cache->layout.n_classes * sizeof *cache->closed);
    cache->n_open = malloc(cache->layout.n_classes * sizeof *cache->n_open);
    cache->target = malloc(cache->layout.n_classes * sizeof *cache->target);
    if (!cache->slots || !cache->free_slot || !cache->closed || !cache->n_open || !cache->target) {
        return -ENOMEM;
    }
    for (uint32_t c = 0; c < cache->layout.n_classes; c++) {
        const struct gn_size_class *class = &cache->layout.classes[c];
        cache->free_slot[c] = cache->closed[c] = GN_NONE;
        cache->n_open[c] = class->n_slots;
        for (uint32_t i = class->n_slots; i-- > 0;) {
            uint32_t slot = class->first_slot + i;
            cache->slots[slot].entry = GN_NONE;
            cache->slots[slot].next_free = cache->free_slot[c];
            cache->free_slot[c] = slot;
        }
    }
    return 0;
}

static int number_entries(struct gn_cache *cache, const struct gn_cache_layer *layers) {
    for (uint32_t l = 0; l < cache->n_layers; l++) {
        if (layers[l].n_experts == 0 || layers[l].slot_bytes == 0 ||
            layers[l].n_experts > GN_NONE / 2 - cache->n_entries) {
            return -EINVAL;
        }
        cache->first_entry[l] = cache->n_entries;
        cache->n_entries += layers[l].n_experts;
    }
    cache->layer_of = malloc(cache->n_entries * sizeof *cache->layer_of);
    cache->slot_of = malloc(cache->n_entries * sizeof *cache->slot_of);
    if (!cache->layer_of || !cache->slot_of || !gn_counts_open(&cache->counts, cache->n_layers, cache->n_entries)) {
        return -ENOMEM;
    }
    for (uint32_t l = 0; l < cache->n_layers; l++) {
        for (uint32_t e = 0; e < layers[l].n_experts; e++) {
            cache->layer_of[cache->first_entry[l] + e] = l;
            cache->slot_of[cache->first_entry[l] + e] = GN_NONE;
        }
    }
    return 0;
}

static uint32_t class_of(const struct gn_cache *cache, uint32_t entry) {
    return cache->layout.class_of_layer[cache->layer_of[entry]];
}

// What the policy takes for a size class: experts that may take one another's slots.
static uint32_t group_of(const struct gn_cache *cache, uint32_t entry) {
    return cache->shares ? cache->layer_of[entry] : class_of(cache, entry);
}

static uint32_t count_groups(const struct gn_cache *cache) {
    return cache->shares ? cache->n_layers : cache->layout.n_classes;
}

static int open_shares(struct gn_cache *cache, enum gn_shares_kind kind, const struct gn_cache_layer *layers) {
    if (kind == GN_SHARES_GLOBAL) {
        return 0;
    }
    struct gn_shares_layer *shape = calloc(cache->n_layers, sizeof *shape);
    uint32_t *slots = calloc(cache->layout.n_classes, sizeof *slots);
    if (shape && slots) {
        for (uint32_t l = 0; l < cache->n_layers; l++) {
            shape[l] = (struct gn_shares_layer){layers[l].n_experts, cache->layout.class_of_layer[l]};
        }
        for (uint32_t c = 0; c < cache->layout.n_classes; c++) {
            slots[c] = cache->layout.classes[c].n_slots;
        }
        cache->shares = gn_shares_open(kind, shape, cache->n_layers, slots, cache->layout.n_classes);
    }
    free(shape);
    free(slots);
    return cache->shares ? 0 : -ENOMEM;
}

static int open_pins(struct gn_cache *cache, const struct gn_pins_options *options) {
    if (options->most == 0 && options->bytes == 0) {
        return 0;
    }
    uint64_t *bytes = malloc(cache->n_entries * sizeof *bytes);
    if (!bytes) {
        return -ENOMEM;
    }
    for (uint32_t entry = 0; entry < cache->n_entries; entry++) {
        bytes[entry] = cache->layout.classes[class_of(cache, entry)].slot_bytes;
    }
    cache->pins = gn_pins_open(options, cache->n_entries, bytes);
    free(bytes);
    return cache->pins && gn_lists_open(&cache->hot, cache->n_entries, count_groups(cache)) ? 0 : -ENOMEM;
}

static int build(struct gn_cache *cache, const struct gn_cache_options *options) {
    uint32_t n = options->n_layers;
    cache->n_layers = n;
    cache->policy = options->policy;
    cache->first_entry = calloc(n, sizeof *cache->first_entry);
    cache->held = calloc(n, sizeof *cache->held);
    if (!cache->first_entry || !cache->held) {
        return -ENOMEM;
    }
    int failed = number_entries(cache, options->layers);
    failed = failed ? failed : gn_layout_open(&cache->layout, options->layers, n, options->budget);
    failed = failed ? failed : make_slots(cache);
    failed = failed ? failed : open_shares(cache, options->shares, options->layers);
    failed = failed ? failed : open_pins(cache, &options->pins);
    if (failed) {
        return failed;
    }
    if (options->admission.window > 0) {
        cache->admission = gn_admission_open(&options->admission, cache->n_entries);
        if (!cache->admission) {
            return -ENOMEM;
        }
    }
    struct gn_parameters defaults;
    gn_parameters_default(cache->policy, &defaults);
    struct guanaco_policy_shape shape = {
        .n_entries = cache->n_entries,
        .n_classes = count_groups(cache),
        .n_layers = n,
        .layer_of = cache->layer_of,
        .parameters = options->parameters ? options->parameters->value : defaults.value,
    };
    cache->policy_state = cache->policy->open(&shape);
    return cache->policy_state ? 0 : -ENOMEM;
}

int gn_cache_open(const struct gn_cache_options *options, struct gn_cache **out) {
    if (options->n_layers == 0) {
        return -EINVAL;
    }
    struct gn_cache *cache = calloc(1, sizeof *cache);
    if (!cache) {
        return -ENOMEM;
    }
    int failed = build(cache, options);
    if (failed) {
        gn_cache_close(cache);
        return failed;
    }
    *out = cache;
    return 0;
}

void gn_cache_close(struct gn_cache *cache) {
    if (!cache) {
        return;
    }
    if (cache->policy_state) {
        cache->policy->close(cache->policy_state);
    }
    gn_pins_close(cache->pins);
    gn_shares_close(cache->shares);
    free(cache->held);
    gn_admission_close(cache->admission);
    gn_lists_close(&cache->hot);
    gn_counts_close(&cache->counts);
    gn_layout_close(&cache->layout);
    free(cache->first_entry);
    free(cache->layer_of);
    free(cache->slot_of);
    free(cache->free_slot);
    free(cache->closed);
    free(cache->n_open);
    free(cache->target);
    free(cache->slots);
    free(cache);
}

uint32_t gn_cache_entry(const struct gn_cache *cache, uint32_t layer, uint32_t expert) {
    return cache->first_entry[layer] + expert;
}

uint32_t gn_cache_entries(const struct gn_cache *cache) {
    return cache->n_entries;
}

// Puts an expert that has a slot among the hot ones, or into the policy's hands.
static void hold(struct gn_cache *cache, uint32_t entry, bool hot) {
    cache->slots[cache->slot_of[entry]].hot = hot;
    if (hot) {
        gn_lists_push(&cache->hot, group_of(cache, entry), entry);
        gn_counts_hot(&cache->counts, cache->layer_of[entry], true);
    } else {
        cache->policy->insert(cache->policy_state, entry, group_of(cache, entry));
    }
}

static void let_go(struct gn_cache *cache, uint32_t entry) {
    if (cache->slots[cache->slot_of[entry]].hot) {
        gn_lists_remove(&cache->hot, entry);
        gn_counts_hot(&cache->counts, cache->layer_of[entry], false);
    } else {
        cache->policy->evict(cache->policy_state, entry, group_of(cache, entry));
    }
}

static void choose_hot(struct gn_cache *cache) {
    gn_pins_choose(cache->pins);
    for (uint32_t i = 0; i < cache->layout.n_slots; i++) {
        const struct slot *slot = &cache->slots[i];
        if (slot->entry != GN_NONE && slot->hot != gn_pins_hot(cache->pins, slot->entry)) {
            let_go(cache, slot->entry);
            hold(cache, slot->entry, !slot->hot);
        }
    }
}

void gn_cache_begin(struct gn_cache *cache) {
    cache->in_event = false;
    cache->event++;
    gn_counts_event(&cache->counts);
    if (cache->shares) {
        gn_shares_event(cache->shares);
    }
    if (cache->pins && gn_pins_event(cache->pins)) {
        choose_hot(cache);
    }
}

void gn_cache_end(struct gn_cache *cache) {
    cache->event++; // nothing is in use any more
}

static void miss(struct gn_cache *cache, uint32_t entry) {
    gn_counts_miss(&cache->counts, cache->layer_of[entry], entry);
    if (cache->policy->miss) {
        cache->policy->miss(cache->policy_state, entry, group_of(cache, entry));
    }
    if (cache->admission) {
        gn_admission_miss(cache->admission, entry);
    }
}

// The policy hears of it as of a miss: used, and none of its own.
static void hit_hot(struct gn_cache *cache, uint32_t entry) {
    uint32_t group = group_of(cache, entry);
    gn_lists_remove(&cache->hot, entry);
    gn_lists_push(&cache->hot, group, entry);
    if (cache->policy->miss) {
        cache->policy->miss(cache->policy_state, entry, group);
    }
}

static void use(struct gn_cache *cache, uint32_t entry) {
    uint32_t layer = cache->layer_of[entry];
    gn_counts_use(&cache->counts, layer, entry);
    if (cache->shares) {
        gn_shares_use(cache->shares, layer, entry);
    }
    if (cache->pins) {
        gn_pins_use(cache->pins, entry);
    }
}

uint32_t gn_cache_lookup(struct gn_cache *cache, uint32_t entry) {
    uint32_t slot = cache->slot_of[entry];
    use(cache, entry);
    if (cache->admission && !cache->in_event) {
        gn_admission_begin(cache->admission, cache->layer_of[entry]);
        cache->in_event = true;
    }
    if (slot == GN_NONE) {
        miss(cache, entry);
        return GN_NONE;
    }
    gn_counts_hit(&cache->counts, cache->layer_of[entry], cache->slots[slot].hot);
    cache->slots[slot].event = cache->event;
    if (cache->slots[slot].hot) {
        hit_hot(cache, entry);
    } else {
        cache->policy->hit(cache->policy_state, entry, group_of(cache, entry));
    }
    return slot;
}

static bool in_use(const void *context, uint32_t entry) {
    const struct gn_cache *cache = context;
    uint32_t slot = entry < cache->n_entries ? cache->slot_of[entry] : GN_NONE;
    return slot == GN_NONE || cache->slots[slot].event == cache->event; // what is not there can never go
}

// Takes an entry out of its slot; the slot belongs to nobody then.
static uint32_t take_slot(struct gn_cache *cache, uint32_t entry) {
    uint32_t slot = cache->slot_of[entry];
    let_go(cache, entry);
    cache->slot_of[entry] = GN_NONE;
    cache->slots[slot].entry = GN_NONE;
    cache->slots[slot].hot = false;
    cache->held[cache->layer_of[entry]]--;
    gn_counts_resident(&cache->counts, cache->layer_of[entry], false);
    return slot;
}

static uint32_t evict(struct gn_cache *cache, uint32_t entry) {
    gn_counts_evict(&cache->counts, cache->layer_of[entry], entry, cache->slots[cache->slot_of[entry]].hot);
    return take_slot(cache, entry);
}

// The layer of the class that holds most beyond its share, or least below it, if that is more than `above`; else
// GN_NONE.
static uint32_t fullest(const struct gn_cache *cache, uint32_t class, int64_t above) {
    uint32_t layer = GN_NONE;
    for (uint32_t l = 0; l < cache->n_layers; l++) {
        int64_t over = (int64_t)cache->held[l] - gn_shares_of(cache->shares, l);
        if (cache->layout.class_of_layer[l] == class && cache->counts.of_layer[l].resident > 0 && over > above) {
            above = over;
            layer = l;
        }
    }
    return layer;
}

// Only what is in the policy's hands and may go is a victim, whoever wrote the policy.
static bool check_victim(struct gn_cache *cache, uint32_t victim, uint32_t group) {
    bool held = victim < cache->n_entries && cache->slot_of[victim] != GN_NONE;
    cache->error = !held                                      ? "it named a victim that is not there"
                   : group_of(cache, victim) != group         ? "it named a victim of another size class"
                   : cache->slots[cache->slot_of[victim]].hot ? "it named a victim that is pinned"
                   : in_use(cache, victim)                    ? "it named a victim that is in use"
                                                              : NULL;
    return !cache->error;
}

const char *gn_cache_error(const struct gn_cache *cache) {
    return cache->error;
}

static uint32_t victim_in(struct gn_cache *cache, uint32_t group) {
    uint32_t victim = cache->policy->victim(cache->policy_state, group, in_use, cache);
    if (victim != GN_NONE) {
        return check_victim(cache, victim, group) ? victim : GN_NONE;
    }
    return cache->pins ? gn_lists_oldest(&cache->hot, group, in_use, cache) : GN_NONE;
}

// Whether the entry's layer has not got its share.
static bool has_room(const struct gn_cache *cache, uint32_t entry) {
    uint32_t layer = cache->layer_of[entry];
    return !cache->shares || cache->held[layer] < gn_shares_of(cache->shares, layer);
}

static uint32_t victim_for(struct gn_cache *cache, uint32_t entry) {
    uint32_t named = cache->named_for == entry && cache->named_at == cache->event ? cache->named : GN_NONE;
    if (named != GN_NONE && !cache->error && cache->slot_of[named] != GN_NONE && !in_use(cache, named)) {
        return named; // the policy is not asked again: it may draw lots
    }
    uint32_t group = cache->shares && has_room(cache, entry) ? fullest(cache, class_of(cache, entry), 0) : GN_NONE;
    return cache->error ? GN_NONE : victim_in(cache, group == GN_NONE ? group_of(cache, entry) : group);
}

// A slot for the entry, which is not in it yet.
static uint32_t find_slot(struct gn_cache *cache, uint32_t entry, bool may_evict) {
    uint32_t layer = cache->layer_of[entry], slot = cache->free_slot[class_of(cache, entry)];
    if (has_room(cache, entry) && slot != GN_NONE) {
        cache->free_slot[class_of(cache, entry)] = cache->slots[slot].next_free;
    } else {
        uint32_t victim = may_evict ? victim_for(cache, entry) : GN_NONE;
        slot = victim != GN_NONE ? evict(cache, victim) : GN_NONE;
    }
    cache->held[layer] += slot != GN_NONE;
    return slot;
}

static void put_into(struct gn_cache *cache, uint32_t entry, uint32_t slot) {
    cache->slots[slot].entry = entry;
    cache->slot_of[entry] = slot;
    hold(cache, entry, cache->pins && gn_pins_hot(cache->pins, entry));
    gn_counts_resident(&cache->counts, cache->layer_of[entry], true);
}

static bool is_admitted(const struct gn_cache *cache, uint32_t entry) {
    bool hot = cache->pins && gn_pins_hot(cache->pins, entry);
    return hot || !cache->admission || gn_admission_admits(cache->admission, entry);
}

uint32_t gn_cache_victim(struct gn_cache *cache, uint32_t entry) {
    bool takes_free = has_room(cache, entry) && cache->free_slot[class_of(cache, entry)] != GN_NONE;
    cache->named = takes_free || !is_admitted(cache, entry) ? GN_NONE : victim_for(cache, entry);
    cache->named_for = entry;
    cache->named_at = cache->event;
    return cache->named;
}

uint32_t gn_cache_insert(struct gn_cache *cache, uint32_t entry, bool may_evict) {
    uint32_t slot = find_slot(cache, entry, may_evict && is_admitted(cache, entry));
    if (slot == GN_NONE) {
        return GN_NONE;
    }
    cache->slots[slot].event = cache->event;
    put_into(cache, entry, slot);
    gn_counts_insert(&cache->counts, cache->layer_of[entry]);
    return slot;
}

static void give_back(struct gn_cache *cache, uint32_t class, uint32_t slot) {
    cache->slots[slot].event = 0;
    cache->slots[slot].next_free = cache->free_slot[class];
    cache->free_slot[class] = slot;
}

void gn_cache_drop(struct gn_cache *cache, uint32_t entry) {
    if (cache->slot_of[entry] != GN_NONE) {
        give_back(cache, class_of(cache, entry), take_slot(cache, entry));
    }
}

void gn_cache_prior(struct gn_cache *cache, uint32_t entry, float chance) {
    if (cache->policy->prior) {
        cache->policy->prior(cache->policy_state, entry, chance);
    }
    if (cache->pins) {
        gn_pins_prior(cache->pins, entry, chance);
    }
}

uint32_t gn_cache_reserve(struct gn_cache *cache, uint32_t entry) {
    return gn_cache_peek(cache, entry) != GN_NONE ? GN_NONE : find_slot(cache, entry, false);
}

bool gn_cache_fill(struct gn_cache *cache, uint32_t entry, uint32_t slot) {
    if (gn_cache_peek(cache, entry) != GN_NONE) {
        gn_cache_unreserve(cache, entry, slot);
        return false;
    }
    put_into(cache, entry, slot);
    return true;
}

void gn_cache_unreserve(struct gn_cache *cache, uint32_t entry, uint32_t slot) {
    cache->held[cache->layer_of[entry]]--;
    give_back(cache, class_of(cache, entry), slot);
}

// The expert of a size class that is to go first; with shares, one of the layer that has most for its share.
static uint32_t victim_of_class(struct gn_cache *cache, uint32_t class) {
    uint32_t group = cache->shares ? fullest(cache, class, INT64_MIN) : class;
    return cache->error || group == GN_NONE ? GN_NONE : victim_in(cache, group);
}

static uint32_t close_slot(struct gn_cache *cache, uint32_t class) {
    uint32_t slot = cache->free_slot[class];
    if (slot != GN_NONE) {
        cache->free_slot[class] = cache->slots[slot].next_free;
    } else {
        uint32_t victim = victim_of_class(cache, class);
        if (victim == GN_NONE) { // all that are left are reserved
            return GN_NONE;
        }
        slot = evict(cache, victim);
    }
    cache->slots[slot].next_free = cache->closed[class];
    cache->closed[class] = slot;
    cache->n_open[class]--;
    return slot;
}

static uint32_t open_slot(struct gn_cache *cache, uint32_t class) {
    uint32_t slot = cache->closed[class];
    cache->closed[class] = cache->slots[slot].next_free;
    cache->n_open[class]++;
    give_back(cache, class, slot);
    return slot;
}

void gn_cache_resize(struct gn_cache *cache, uint64_t budget, void (*changed)(void *context, uint32_t slot, bool open),
                     void *context) {
    gn_layout_cut(&cache->layout, budget, cache->target);
    if (cache->shares) {
        gn_shares_resize(cache->shares, cache->target);
    }
    for (uint32_t c = 0; c < cache->layout.n_classes; c++) {
        while (cache->n_open[c] != cache->target[c]) {
            bool open = cache->n_open[c] < cache->target[c];
            uint32_t slot = open ? open_slot(cache, c) : close_slot(cache, c);
            if (slot == GN_NONE) {
                break;
            }
            changed(context, slot, open);
        }
    }
}

uint32_t gn_cache_open_slots(const struct gn_cache *cache) {
    uint32_t n = 0;
    for (uint32_t c = 0; c < cache->layout.n_classes; c++) {
        n += cache->n_open[c];
    }
    return n;
}

uint64_t gn_cache_open_bytes(const struct gn_cache *cache) {
    uint64_t bytes = 0;
    for (uint32_t c = 0; c < cache->layout.n_classes; c++) {
        bytes += cache->n_open[c] * cache->layout.classes[c].slot_bytes;
    }
    return bytes;
}

uint32_t gn_cache_peek(const struct gn_cache *cache, uint32_t entry) {
    return cache->slot_of[entry];
}

const struct gn_layout *gn_cache_layout(const struct gn_cache *cache) {
    return &cache->layout;
}

uint32_t gn_cache_slots(const struct gn_cache *cache) {
    return cache->layout.n_slots;
}

uint64_t gn_cache_bytes(const struct gn_cache *cache) {
    return cache->layout.bytes;
}

bool gn_cache_class_free(const struct gn_cache *cache, uint32_t size_class) {
    return cache->free_slot[size_class] != GN_NONE;
}

struct gn_cache_totals gn_cache_totals(const struct gn_cache *cache) {
    return cache->counts.all;
}

struct gn_cache_totals gn_cache_layer_totals(const struct gn_cache *cache, uint32_t layer) {
    return cache->counts.of_layer[layer];
}

uint32_t gn_cache_uses(const struct gn_cache *cache, uint32_t entry) {
    return cache->counts.uses[entry];
}

void gn_cache_used_elsewhere(struct gn_cache *cache, uint32_t entry) {
    gn_counts_entry(&cache->counts, entry);
}

struct gn_pins_figures gn_cache_pins(const struct gn_cache *cache) {
    return cache->pins ? gn_pins_figures(cache->pins) : (struct gn_pins_figures){0};
}

uint64_t gn_cache_choices(const struct gn_cache *cache) {
    return cache->pins ? gn_pins_choices(cache->pins) : 0;
}

uint32_t gn_cache_share(const struct gn_cache *cache, uint32_t layer) {
    uint32_t open = cache->n_open[cache->layout.class_of_layer[layer]];
    uint32_t n_experts =
        (layer + 1 < cache->n_layers ? cache->first_entry[layer + 1] : cache->n_entries) - cache->first_entry[layer];
    return cache->shares ? gn_shares_of(cache->shares, layer) : open < n_experts ? open : n_experts;
}

bool gn_cache_slot_hot(const struct gn_cache *cache, uint32_t slot) {
    return cache->slots[slot].hot;
}
