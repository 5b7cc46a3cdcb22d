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
};

// Fills *stats for layer `layer` (from 0, those with experts alone) of model `model` (from 0, the one loaded last
// first). Any thread; waits for a layer that is being computed. Returns 0, or -1 when there is no such layer, nothing
// was computed with the model yet, or stats->size is not known.
typedef int (*guanaco_layer_stats_fn)(uint32_t model, uint32_t layer, struct guanaco_layer_stats *stats);

// Returns a line such as "io_uring, O_DIRECT, lru, 212 slots of 2.9 MiB, dense copied", or why nothing is streamed. The
// text is the plugin's and is valid until the next call. Any thread.
typedef const char *(*guanaco_mode_fn)(void);

// Gives the plugin's CPU work the thread pool of the caller's context, so that two pools do not fight over the cores.
// Graph computations must not overlap with other uses of the pool. NULL takes it back. The pool must live until the
// last context is freed, or until a graph has run after it was taken back. Call between decodes.
struct ggml_threadpool;
typedef void (*guanaco_threadpool_fn)(struct ggml_threadpool *pool);

// Returns why the last graph failed, "" if none has. Valid until the next failure. Call after a failed decode.
typedef const char *(*guanaco_last_error_fn)(void);

#ifdef __cplusplus
}
#endif
