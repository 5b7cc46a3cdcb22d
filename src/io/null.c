// Reads nothing and succeeds.
#include "io/engine.h"

#include <errno.h>
#include <stdlib.h>

static int null_open(unsigned *depth, void **state) {
    (void)depth;
    *state = calloc(1, sizeof(struct gn_read_list));
    return *state ? 0 : -ENOMEM;
}

static void null_submit(void *state, struct gn_read_list *reads) {
    struct gn_read *read;
    while ((read = gn_read_pop(reads))) {
        read->result = (int)(read->length - read->done);
        gn_read_push(state, read);
    }
}

static void null_reap(void *state, bool wait, struct gn_read_list *ended) {
    (void)wait;
    struct gn_read *read;
    while ((read = gn_read_pop(state))) {
        gn_read_push(ended, read);
    }
}

const struct gn_engine gn_null_engine = {
    .name = "null",
    .depth = 1024,
    .most_depth = ~0u,
    .open = null_open,
    .close = free,
    .submit = null_submit,
    .reap = null_reap,
};
