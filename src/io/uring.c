// io_uring, through liburing.
#include "io/engine.h"
#include "io/file.h"

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

struct uring {
    struct io_uring ring;
    struct gn_read_list unsent; // in the submission queue and not taken by the kernel yet, in the same order
    int broken;                 // the error that ended all use of io_uring_enter(), or 0
};

// Completions need not interrupt the thread, which is computing: it learns of them when it asks. SINGLE_ISSUER and
// DEFER_TASKRUN would bind the ring to one thread, and the owner of a reader may change.
static unsigned setup_flags(void) {
#if defined(IORING_SETUP_COOP_TASKRUN) && defined(IORING_SETUP_TASKRUN_FLAG)
    return IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG;
#else
    return 0;
#endif
}

// Makes sure that the kernel has the read operation (5.6) and lets us enter: a sandbox may allow the set-up alone.
static int prove(struct io_uring *ring) {
    struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
    bool has_read = probe && io_uring_opcode_supported(probe, IORING_OP_READ);
    io_uring_free_probe(probe);
    if (!has_read) {
        return -ENOSYS;
    }
    io_uring_prep_nop(io_uring_get_sqe(ring));
    int taken = io_uring_submit(ring);
    struct io_uring_cqe *cqe;
    int failed = taken < 0 ? taken : io_uring_peek_cqe(ring, &cqe);
    if (!failed) {
        io_uring_cqe_seen(ring, cqe);
    }
    return failed;
}

static int uring_open(unsigned *depth, void **state) {
    struct uring *uring = calloc(1, sizeof *uring);
    if (!uring) {
        return -ENOMEM;
    }
    int failed = io_uring_queue_init(*depth, &uring->ring, setup_flags());
    if (failed == -EINVAL) { // an older kernel
        failed = io_uring_queue_init(*depth, &uring->ring, 0);
    }
    if (failed) {
        free(uring);
        return failed;
    }
    failed = prove(&uring->ring);
    if (failed) {
        io_uring_queue_exit(&uring->ring);
        free(uring);
        return failed;
    }
    // The queues are shared with the kernel: a child that had them could take completions that are its parent's.
    (void)io_uring_ring_dontfork(&uring->ring);
    *state = uring;
    return 0;
}

static void uring_close(void *state) {
    struct uring *uring = state;
    io_uring_queue_exit(&uring->ring);
    free(uring);
}

// The queues are not mapped in a child (MADV_DONTFORK). The descriptor would keep the ring alive beyond its parent.
static void uring_forked(void *state) {
    const struct uring *uring = state;
    close(uring->ring.ring_fd);
}

static bool passes(int error) {
    return error == -EINTR || error == -EAGAIN || error == -EBUSY;
}

// Hands the kernel what is in the submission queue. What it cannot take now (no memory) is tried again by reap().
static void flush(struct uring *uring) {
    if (!uring->unsent.first || uring->broken) {
        return;
    }
    int taken = io_uring_submit(&uring->ring);
    if (taken < 0 && !passes(taken)) {
        uring->broken = taken;
    }
    for (int i = 0; i < taken; i++) {
        gn_read_pop(&uring->unsent);
    }
}

static void uring_submit(void *state, struct gn_read_list *reads) {
    struct uring *uring = state;
    struct gn_read *read;
    while ((read = gn_read_pop(reads))) {
        gn_read_push(&uring->unsent, read);
        if (!uring->broken) {
            struct io_uring_sqe *sqe = io_uring_get_sqe(&uring->ring); // never NULL: the queue holds `depth`
            io_uring_prep_read(sqe, gn_file_fd(read->file), (uint8_t *)read->to + read->done, read->length - read->done,
                               read->offset + read->done);
            io_uring_sqe_set_data(sqe, read);
        }
    }
    flush(uring);
}

static void take_ended(struct uring *uring, struct gn_read_list *ended) {
    struct io_uring_cqe *cqe;
    while (io_uring_peek_cqe(&uring->ring, &cqe) == 0) {
        struct gn_read *read = io_uring_cqe_get_data(cqe);
        // The kernel cancels reads when the thread that started them ends; the reader lives on and wants them.
        read->result = cqe->res == -ECANCELED ? -EINTR : cqe->res;
        io_uring_cqe_seen(&uring->ring, cqe);
        gn_read_push(ended, read);
    }
    struct gn_read *read;
    while (uring->broken && (read = gn_read_pop(&uring->unsent))) {
        read->result = uring->broken;
        gn_read_push(ended, read);
    }
}

// Waits until a read has ended, or for a moment when that cannot be waited for.
static void await(struct uring *uring) {
    if (uring->broken || uring->unsent.first) {
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        return;
    }
    struct io_uring_cqe *cqe;
    int failed = io_uring_wait_cqe(&uring->ring, &cqe);
    if (failed && !passes(failed)) {
        uring->broken = failed;
    }
}

static void uring_reap(void *state, bool wait, struct gn_read_list *ended) {
    struct uring *uring = state;
    flush(uring);
    take_ended(uring, ended);
    while (wait && !ended->first) {
        await(uring);
        flush(uring);
        take_ended(uring, ended);
    }
}

const struct gn_engine gn_uring_engine = {
    .name = "io_uring",
    .depth = 32,
    .most_depth = 4096,
    .open = uring_open,
    .close = uring_close,
    .forked = uring_forked,
    .submit = uring_submit,
    .reap = uring_reap,
};
