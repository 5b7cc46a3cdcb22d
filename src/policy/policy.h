// An eviction policy: told what is used, asked what to drop. Knows nothing of ggml, files, slots or threads.
//
// Experts are named by an entry number, 0 … n_entries-1, counted through all layers. Each entry belongs to a size
// class, all entries of a layer to the same; only entries of one class can replace one another. The cache calls from
// one thread, in this order, once per event (the experts that one layer uses in one step):
//
//     hit(e) or miss(e) for every expert of the event
//     insert(e) for every one that missed and gets a slot; before an insert that needs room: victim(), then evict() of
//     it
//
// All calls run in constant time but victim(), which may have to step over the entries that `busy` says are in use.
// Where a policy keeps counts by layer, its work is bounded by the experts of a layer, never by those of the model.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GN_NONE UINT32_MAX

struct gn_policy_shape {
    uint32_t n_entries;
    uint32_t n_classes;
    uint32_t n_layers;
    const uint32_t *layer_of; // [n_entries] which layer an entry belongs to; owned by the cache, outlives the policy
};

struct gn_policy {
    const char *name; // as on the command line
    const char *help; // one line
    // Returns the policy's state, or NULL when memory is short.
    void *(*open)(const struct gn_policy_shape *shape);
    void (*close)(void *state);
    void (*hit)(void *state, uint32_t entry, uint32_t size_class);
    // Used, but not in the cache: so that a policy that counts sees every use, admitted or not. May be NULL.
    void (*miss)(void *state, uint32_t entry, uint32_t size_class);
    void (*insert)(void *state, uint32_t entry, uint32_t size_class);
    void (*evict)(void *state, uint32_t entry,
                  uint32_t size_class); // the entry has left the cache, for whatever reason
    // Names the entry of the class to evict, or GN_NONE when all are busy. Does not evict it.
    uint32_t (*victim)(void *state, uint32_t size_class, bool (*busy)(const void *context, uint32_t entry),
                       const void *context);
    // What is known before anything runs: the entry will be used in a share `chance` of all tokens. May be NULL. Called
    // before all else, once for an entry at most.
    void (*prior)(void *state, uint32_t entry, float chance);
};

extern const struct gn_policy gn_policy_lru, gn_policy_slru, gn_policy_lfu, gn_policy_lfu_plain, gn_policy_fifo,
    gn_policy_random, gn_policy_wait;
extern const struct gn_policy *const gn_policies[]; // NULL-terminated
extern const char *const gn_policy_names[];         // the same, by name, NULL-terminated
