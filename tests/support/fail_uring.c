// io_uring, through liburing: its functions, and the reads that the kernel answers.
#include "fail_nth.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <sys/eventfd.h>
#include <sys/uio.h>

WRAP(URING_SETUP, -fail_error, int, io_uring_queue_init, (unsigned entries, struct io_uring *ring, unsigned flags),
     (entries, ring, flags))
WRAP(URING_SETUP, NULL, struct io_uring_probe *, io_uring_get_probe_ring, (struct io_uring * ring), (ring))
WRAP(URING_ENTER, -fail_error, int, __io_uring_get_cqe,
     (struct io_uring * ring, struct io_uring_cqe **cqe, unsigned submit, unsigned wait, sigset_t *mask),
     (ring, cqe, submit, wait, mask))

// Gives a read another outcome: io_uring's results come from the kernel, so the request itself is bent.
static void bend(struct io_uring_sqe *sqe) {
    if (fail_error == 0) {
        sqe->len = sqe->len / 2 / 4096 * 4096;
        sqe->len = sqe->len ? sqe->len : 4096;
        return;
    }
    // A file that gives this error (the first page of our memory cannot be read). All others: EBADF, of no file.
    sqe->fd = fail_error == EIO      ? open("/proc/self/mem", O_RDONLY | O_CLOEXEC)
              : fail_error == EAGAIN ? eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
                                     : -1;
    sqe->off = 0;
    sqe->rw_flags = fail_error == EAGAIN ? RWF_NOWAIT : 0; // or the kernel would wait for the event
}

EXPORT int io_uring_submit(struct io_uring *ring) {
    for (unsigned at = ring->sq.sqe_head; at != ring->sq.sqe_tail; at++) {
        struct io_uring_sqe *sqe = &ring->sq.sqes[at & (ring->sq.ring_entries - 1)];
        if (sqe->opcode == IORING_OP_READ && strikes(URING_READ, CALLER)) {
            bend(sqe);
        }
    }
    if (strikes(URING_ENTER, CALLER)) {
        return -fail_error;
    }
    NEXT(int, io_uring_submit, (struct io_uring *))
    return next(ring);
}
