// An engine moves bytes: it starts reads and hands them back when the kernel is through with them. All else (queueing,
// retries, short reads, faults, totals) is the same for every engine and lives in reader.c.
#pragma once

#include "io/reader.h"

struct gn_read_list { // linked by gn_read.next
    struct gn_read *first, *last;
};

static inline void gn_read_push(struct gn_read_list *list, struct gn_read *read) {
    read->next = NULL;
    *(list->first ? &list->last->next : &list->first) = read;
    list->last = read;
}

static inline void gn_read_push_front(struct gn_read_list *list, struct gn_read *read) {
    read->next = list->first;
    list->last = list->first ? list->last : read;
    list->first = read;
}

// Takes the first read out; NULL when there is none.
static inline struct gn_read *gn_read_pop(struct gn_read_list *list) {
    struct gn_read *read = list->first;
    if (read) {
        list->first = read->next;
    }
    return read;
}

struct gn_engine {
    const char *name;
    bool in_place;              // moves no bytes: `to` is in a mapping of the file, which must not be written to
    unsigned depth, most_depth; // reads in flight: by default, and at most

    // Returns 0 and the engine's own state, or a negative errno. May lower *depth.
    int (*open)(unsigned *depth, void **state);
    void (*close)(void *state); // called with no read in flight
    // In a child process after fork(): lets go of what a child has of the parent's reads, without touching those. Only
    // calls that are safe in a signal handler. NULL: there is nothing.
    void (*forked)(void *state);

    // Takes all reads out of the list (never more than fit in flight) and starts them in order: each from its first
    // byte that has not arrived, offset + done, to its end.
    void (*submit)(void *state, struct gn_read_list *reads);

    // Appends all reads that have ended, with the bytes that arrived or a negative errno in `result`. If there are none
    // waits for one, if `wait`, which is asked for only with reads in flight.
    void (*reap)(void *state, bool wait, struct gn_read_list *ended);
};

extern const struct gn_engine gn_uring_engine, gn_threads_engine, gn_mapped_engine, gn_null_engine;

// As gn_reader_open(), with an engine of the caller's: options->kind is not looked at.
int gn_reader_open_engine(const struct gn_engine *engine, const struct gn_reader_options *options,
                          struct gn_reader **out);
