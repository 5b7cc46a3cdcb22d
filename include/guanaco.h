// Guanaco's public C interface: what a program that loads the plugin can ask of it.
//
// The plugin (libguanaco.so) is loaded by ggml, not linked. A program reaches these functions through ggml's own
// ggml_backend_reg_get_proc_address(), with the function's name, on the registry "GUANACO":
//
//     ggml_backend_reg_t  reg  = ggml_backend_load("libguanaco.so");
//     guanaco_stats_fn    read = (guanaco_stats_fn)ggml_backend_reg_get_proc_address(reg, "guanaco_stats");
//
// Programs that know nothing of this header stream all the same.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// A snapshot of the counters of this process, all models together. Counters of events only grow; those of sizes are of
// the models loaded now.
struct guanaco_stats {
    uint64_t size; // set by the caller to sizeof(struct guanaco_stats): lets later versions add counters

    uint64_t streamed_layers;  // MoE layers whose experts are streamed
    uint64_t resident_tensors; // expert tensors that did not come from a mapped file and stay in memory
    uint64_t expert_bytes;     // bytes of all streamed experts, on disk
    uint64_t dense_bytes;      // bytes of dense weights copied to anonymous memory, locked, or left mapped
    uint64_t slots;            // expert slots in memory
    uint64_t slot_bytes;       // bytes of these slots
    uint64_t staging_bytes;    // bytes of the staging slots

    uint64_t events;       // (layer, step) pairs computed
    uint64_t hits, misses; // experts looked up, once per event
    uint64_t inserts;      // misses that were given a slot
    uint64_t evictions;
    uint64_t staged;     // misses that went through staging, computed and dropped
    uint64_t reads;      // read requests completed
    uint64_t read_bytes; // bytes read for experts
    uint64_t failures;   // error lines: graphs, contexts or settings that failed

    uint64_t io_wait_ns; // time the graph thread waited for reads
    uint64_t compute_ns; // time in expert matrix products and activations
    uint64_t total_ns;   // time in all of our graph computations

    uint64_t pinned_hits;      // hits of experts that are pinned
    uint64_t pinned_evictions; // evictions of such: where nothing else was left to evict
    uint64_t rereads;          // misses within eight sweeps through the layers after an eviction of the same expert
    uint64_t prefetch_useful;  // experts read ahead and then used
    uint64_t prefetch_wasted;  // read ahead and evicted unused
    uint64_t seeded;           // experts read into free slots because a seed (imatrix, hot set) expects them
    uint64_t manage_ns;        // time in look-ups, insertions and evictions
    uint64_t locked_bytes;     // locked into memory: dense weights and slots
    uint64_t pilot_calls;      // times that a layer's experts were guessed, to be read ahead
    uint64_t pilot_slices;     // slices whose reading was begun because of that

    uint64_t gpu_slots;        // expert slots on devices
    uint64_t gpu_bytes;        // bytes of these slots and of what is computed with, in the devices' memory
    uint64_t gpu_hits;         // experts that a device held and computed: not among hits and misses
    uint64_t gpu_uploads;      // experts copied to devices
    uint64_t gpu_upload_bytes; // bytes of these
    uint64_t gpu_not_served;   // (layer, step) pairs that a device could not compute though it serves the layer
    uint64_t gpu_wait_ns;      // time waited for devices when the CPU had done its part

    uint64_t prefetch_wasted_bytes;        // of experts read ahead and not used
    uint64_t router_used, router_foreseen; // experts used where the next layer's router was run early; of these, those
                                           // that it named
    uint64_t router_useful, router_wasted; // experts read ahead because it named them: then used, and not
    uint64_t pilot_used, pilot_foreseen;   // the same of PILOT, which has learnt what goes with the last layer's
    uint64_t pilot_useful, pilot_wasted;
};

// Fills as much of *stats as stats->size says, so that programs built with an earlier header go on working. Any thread,
// any time. Returns 0, or -1 when stats->size is no size that this header or an earlier one had.
typedef int (*guanaco_stats_fn)(struct guanaco_stats *stats);

// The same of one MoE layer of one model, since it was loaded.
struct guanaco_layer_stats {
    uint64_t size; // set by the caller to sizeof(struct guanaco_layer_stats)

    uint64_t block;                     // N of "blk.N." in the tensors' names
    uint64_t experts, resident, pinned; // how many it has; of these in slots; of these pinned
    uint64_t expert_bytes;              // of one expert, on disk
    uint64_t events, hits, misses, inserts, evictions, pinned_hits, pinned_evictions, rereads; // as above

    uint64_t router_used, router_foreseen, pilot_used, pilot_foreseen; // as above
};

// Fills *stats for layer `layer` (from 0, those with experts alone) of model `model` (from 0, the one loaded last
// first). Any thread; waits for a layer that is being computed. Returns 0, or -1 when there is no such layer, nothing
// was computed with the model yet, or stats->size is not known.
typedef int (*guanaco_layer_stats_fn)(uint32_t model, uint32_t layer, struct guanaco_layer_stats *stats);

// Returns a line such as "io_uring, O_DIRECT, lru, 212 slots of 2.9 MiB, dense copied", or why nothing is streamed. The
// text is the calling thread's own, until it calls again or ends. Any thread.
typedef const char *(*guanaco_mode_fn)(void);

// Gives the plugin's CPU work the thread pool of the caller's context, so that two pools do not fight over the cores.
// Graph computations must not overlap with other uses of the pool. NULL takes it back. The pool must live until the
// last context is freed, or until a graph has run after it was taken back. Call between decodes.
struct ggml_threadpool;
typedef void (*guanaco_threadpool_fn)(struct ggml_threadpool *pool);

// Returns why the last graph failed, "" if none has. The text is the calling thread's own, until it calls again or
// ends. Any thread; call after a failed decode.
typedef const char *(*guanaco_last_error_fn)(void);

// ---------------------------------------------------------------------------------------------------------------------
// Eviction policies of your own. A policy is told what is used, and asked what to drop; it sees numbers alone, no
// files, no memory. Give it with --policy ./mine.so (GUANACO_POLICY), or register it from the program. `guanaco
// simulate` takes it as well. docs/example-policy.c is one.
//
// Experts are named by an entry number, 0 … n_entries-1, counted through all layers in the order in which they run.
// Each entry belongs to a size class, all entries of a layer to the same; only entries of one class can replace one
// another. The cache calls from one thread at a time, in this order, once per event (the experts that one layer uses in
// one step):
//
//     hit(e) or miss(e) for every expert of the event, each once, ascending
//     insert(e) for every one that missed and gets a slot; before an insert that needs room: victim(), then evict() of
//     it
//
// evict(e) may also come by itself: an expert whose bytes could not be read leaves the cache. With pins (--pin-hot-…),
// hot experts leave and enter the policy's hands by evict() and insert().
//
// All calls should take constant time, but for victim(), which may have to step over the entries that `busy` says are
// in use. A victim that is not in the policy's hands, of another class or busy stops the model with an error line.
#define GUANACO_POLICY_VERSION 1
#define GUANACO_NONE UINT32_MAX
#define GUANACO_MOST_PARAMETERS 16

// A number that the user may set: --policy-options key=value,key=value.
struct guanaco_policy_parameter {
    const char *key;
    double fallback, least, most;
    const char *help;
};

struct guanaco_policy_shape {
    uint32_t n_entries;
    uint32_t n_classes;
    uint32_t n_layers;
    const uint32_t *layer_of; // [n_entries] which layer an entry belongs to; outlives the policy's state
    const double *parameters; // values, in the order of the policy's parameters; valid during open()
};

struct guanaco_policy {
    uint32_t version;                                  // GUANACO_POLICY_VERSION
    const char *name;                                  // as in lines and tables
    const char *help;                                  // one line
    const struct guanaco_policy_parameter *parameters; // ends with one whose key is NULL; NULL: none

    // Returns the state of one model's policy, or NULL when memory is short.
    void *(*open)(const struct guanaco_policy_shape *shape);
    void (*close)(void *state);
    void (*hit)(void *state, uint32_t entry, uint32_t size_class);
    // Used, but not in the cache: so that a policy that counts sees every use, admitted or not. May be NULL.
    void (*miss)(void *state, uint32_t entry, uint32_t size_class);
    void (*insert)(void *state, uint32_t entry, uint32_t size_class);
    void (*evict)(void *state, uint32_t entry, uint32_t size_class); // it has left the cache, for whatever reason
    // Names the entry of the class to evict, or GUANACO_NONE when all are busy. Does not evict it.
    uint32_t (*victim)(void *state, uint32_t size_class, bool (*busy)(const void *context, uint32_t entry),
                       const void *context);
    // What is known before anything runs: the entry will be used in a share `chance` of all tokens. Called before all
    // else, once for an entry at most. May be NULL.
    void (*prior)(void *state, uint32_t entry, float chance);
};

// A shared object that is a policy exports it: const struct guanaco_policy guanaco_policy = {…};
#define GUANACO_POLICY_SYMBOL "guanaco_policy"

// Makes a policy the one for models that are loaded from now on, whatever GUANACO_POLICY says; its parameters have
// their defaults. NULL: as GUANACO_POLICY says again. The struct is not copied: it must outlive all models. Returns 0,
// or -1 after an error line. Any thread.
typedef int (*guanaco_register_policy_fn)(const struct guanaco_policy *policy);

#ifdef __cplusplus
}
#endif
