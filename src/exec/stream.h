// The streaming state of one model: its experts' places on disk, their slots in memory, and the reader between the two.
//
// Life: opened empty when the loader allocates the expert tensors, filled with gn_expert_map_add(), started by the
// first context or graph, closed with the model. Whoever computes holds the lock, so that several contexts of one model
// take turns.
#pragma once

#include "cache/tier.h"
#include "config/knobs.h"
#include "config/lock.h"
#include "exec/budget.h"
#include "exec/spare.h"
#include "exec/tracer.h"
#include "io/reader.h"
#include "model/expert_map.h"
#include "stats/stats.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

// Of experts used where a source had guessed which would be, those that it had named.
struct gn_foreseen {
    uint64_t used, foreseen;
};

// Experts of one layer that are to be read ahead, best first; see ahead.h.
struct gn_ahead {
    const struct gn_layer *layer;
    uint32_t *experts;            // [spares]
    uint32_t n, next;             // planned, and how far they have been started
    enum gn_source source;        // who guessed them; GN_SOURCES: nobody
    struct gn_foreseen *foreseen; // [n_layers][GN_SOURCES] since the model was loaded
    double gain;                  // of time by reading ahead, lately, as it was tried out; 0: not known
};

struct gn_stream {
    uint64_t serial; // no other stream of the process has, or had, the same
    pthread_mutex_t lock;
    struct gn_expert_map map;

    struct gn_stream *next_model; // the next four: see models.h
    struct gn_claim claim;        // 0 until all experts are known
    uint64_t held_bytes;          // of slots and spares; 0: not started

    bool started; // written with the models' lock too
    bool advised;
    bool forked; // it had started in a process that this one was forked from, and has not started again
    bool broken; // its weights cannot be trusted (damaged file, failed read): error says why, and nothing is computed
    struct gn_cache *cache;
    const struct guanaco_policy *policy;
    struct gn_reader *reader;
    void *region;    // what was mapped
    uint8_t *memory; // slots, then spares: the part of the region that begins at a huge page
    uint64_t memory_bytes;
    uint8_t **slot_memory; // [slots] where each slot is now: slots and spares exchange their memory
    bool *slot_touched;    // [slots] that memory has been written to
    struct gn_stream_growth {
        uint64_t cut;                         // bytes of slots and spares at start
        uint64_t bytes;                       // that they may take now
        uint64_t touched;                     // of them, in memory
        uint64_t next_look, given_back, said; // times, as gn_now_ns()
        bool warned;
    } growth; // see growth.h
    struct gn_held {
        const struct gn_layer *layer; // NULL: none
        uint32_t expert;
    } * held; // [slots] what is in each, when experts stay in the page cache (--io mapped); else NULL
    struct gn_spares spares;
    struct gn_gpu *gpu;     // the backend's: tiers on devices; NULL: none
    bool gpu_asked;         // whether there are any has been found out
    struct gn_tier **tiers; // [layers] the tier that serves each, or NULL; NULL: none does
    struct gn_ahead ahead;
    double pilot_mass; // --pilot-mass

    uint64_t dense_bytes;      // of this model, held beside the experts
    enum gn_dense_mode dense;  // how they are held; GN_DENSE_AUTO before it is known
    enum gn_prefetch prefetch; // --prefetch, in whatever way it was asked for
    struct gn_locks locks;     // dense weights and slots that are locked into memory
    uint64_t locked_counted;   // bytes of them that the process's counters know of
    bool lock_failed;          // the limit was too low: nothing is locked
    uint8_t **locked_slots;    // [slots] what is locked of each; NULL: pinned experts' slots are not to be locked
    uint64_t locked_choice;    // the choice of pinned experts that they are of
    bool has_pins;
    uint64_t report_interval, report_tokens; // see report.h; 0: no lines but the last
    struct gn_seed *seed;                    // what was known before; NULL when memory was short
    struct gn_fetch *fetch;                  // the one event in progress, its memory taken at start
    struct gn_tracer *tracer;                // NULL: none
    struct gn_stats counts; // those that its lines tell, of this model alone since it started; see gn_count_of()
    char error[1024];       // why the last event failed
};

// Counts for the model and for the process.
#define gn_count_of(stream, counter, n)                                                                                \
    (atomic_fetch_add_explicit(&(stream)->counts.counter, (n), memory_order_relaxed), gn_count(counter, n))

// Returns an empty stream, or NULL when memory is short.
struct gn_stream *gn_stream_open(void);
void gn_stream_close(struct gn_stream *stream); // NULL is allowed

// Marks the model as broken, for good, and keeps why. The first reason stays: what follows from it tells less. Call
// with the lock.
void gn_stream_break(struct gn_stream *stream, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Says that all experts are known, which is what other models reckon with. Needs the models' lock. Doing it again, when
// more have come, is right.
void gn_stream_know(struct gn_stream *stream, const struct gn_knobs *knobs);

// Sizes the cache by the budget, takes its memory, opens the reader. Returns 0, or a negative errno with one plain line
// in stream->error. Doing it again changes nothing. Call with the models' lock (models.h) and, as all that follows,
// with the stream's.
int gn_stream_start(struct gn_stream *stream, const struct gn_knobs *knobs);

// Gives everything back and starts anew, with empty slots, by the budget as it is now. Counters of its cache begin
// again. Returns and reports as above; when it fails it has not started. Same locks.
int gn_stream_restart(struct gn_stream *stream, const struct gn_knobs *knobs);

// In a child process after fork(): what was started is the parent's, and this stream has not started. Slots are not
// shared with a child (reads may be landing in them), threads are not there, queues of reads are not the child's. The
// next graph starts the stream anew, with empty slots. Memory that the parent may have been changing is not given back.
// Safe in a handler of pthread_atfork(). A fork amid a graph, by a callback of the thread that computes it, is none
// that the child can compute after.
void gn_stream_forked(struct gn_stream *stream);

uint64_t gn_stream_memory(const struct gn_stream *stream);       // bytes of slots and spares of one that has started
uint64_t gn_stream_region_bytes(const struct gn_stream *stream); // that are reserved for them; 0: not started
bool gn_stream_wants_huge_pages(const struct gn_stream *stream);

// Begins the trace that --trace asks for, if this is the model to trace; between adding the last expert and
// gn_stream_start(). Returns and reports as that.
int gn_stream_trace(struct gn_stream *stream, const struct gn_knobs *knobs, const struct gn_tracer_model *model);

// Whether the smallest legal budget fits; the early check of gn_stream_start(). Returns and reports as that; same
// locks.
int gn_stream_check(struct gn_stream *stream, const struct gn_knobs *knobs);

// Bytes that a copy of dense weights may take: the smallest legal budgets of all models still fit beside it. Same
// locks.
uint64_t gn_stream_dense_room(struct gn_stream *stream, const struct gn_knobs *knobs);

// Notes that a slot takes an expert in, or, with NULL, none any more. Where experts stay in the page cache, that is
// when the one before it leaves.
void gn_stream_hold(struct gn_stream *stream, uint32_t slot, const struct gn_layer *layer, uint32_t expert);

// Whether a tier above the RAM holds the expert.
bool gn_stream_held_above(const struct gn_stream *stream, uint32_t layer, uint32_t expert);

// Says once, in one line, when the slots hold less than the experts that one token uses: the token cycle, top_k experts
// of every layer. An LRU hits nothing then, other policies little: the line says which one works. Call with the lock
// held, when an event has shown what the router's top-k is.
void gn_stream_advise(struct gn_stream *stream, uint32_t top_k);

// "212 slots of 2.90 MiB (41 % of the experts), io_uring, O_DIRECT, lru"
// With several models it ends with this one's file. Needs the models' lock.
void gn_stream_describe(const struct gn_stream *stream, char *text, size_t size);
