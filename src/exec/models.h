// The models of the process, which share one budget.
//
// Each gets, of what there is for experts, the share that its experts have of all models' (exec/budget.h). A model that
// has started when another is loaded may hold more: then it gives its slots back and starts anew with fewer, empty
// ones. What a model leaves that is unloaded goes to the next one that is loaded.
//
// One lock serialises all starting. Whoever has it may take a stream's lock; never the other way round, and never two
// streams' locks at once. What is written under it: started, claim, held_bytes, region of every stream.
#pragma once

#include "exec/budget.h"
#include "exec/stream.h"

void gn_models_lock(void);
void gn_models_unlock(void);

// From opening a stream to closing it. Take the lock themselves.
void gn_models_add(struct gn_stream *stream);
void gn_models_remove(struct gn_stream *stream);

// In a child process after fork(): makes all locks new and all streams such that have not started (gn_stream_forked()).
// To be called by a handler of pthread_atfork(), before anything else of this process.
void gn_models_forked(void);
// How many forks lie between this process and the one that loaded us. Any thread.
uint32_t gn_models_forks(void);

// The rest is to be called with the lock.

uint32_t gn_models_count(void);          // those with experts
struct gn_stream *gn_models_first(void); // of them all, by next_model; NULL: there is none

// Measures what is taken by other things than the stream's experts. Returns 0 or -ENOMEM; taken->others is to be freed
// with gn_models_forget().
int gn_models_taken(const struct gn_stream *stream, struct gn_taken *taken);
void gn_models_forget(struct gn_taken *taken);

// Has others give back what they hold beyond their shares, if this one's would be short. The stream's claim must be
// known; its lock must not be held. Does nothing for a stream that has started. A model that cannot start again says
// so, and tries once more at its next graph.
void gn_models_make_room(const struct gn_stream *stream, const struct gn_knobs *knobs);
