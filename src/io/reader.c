#include "config/log.h"
#include "io/engine.h"
#include "io/file.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct gn_reader {
    const struct gn_engine *engine;
    void *state;
    unsigned depth, started; // most reads, and reads, that the engine has
    size_t in_flight;
    struct gn_read_list waiting; // for room in the engine
    struct gn_read_list done;    // for the caller

    uint64_t submitted, fail_at;
    int fail_result;
    const struct gn_read *to_fail; // the fail_at-th read while in flight
    struct gn_reader_totals totals;
};

int gn_reader_open_engine(const struct gn_engine *engine, const struct gn_reader_options *options,
                          struct gn_reader **out) {
    *out = NULL;
    struct gn_reader *reader = calloc(1, sizeof *reader);
    if (!reader) {
        return -ENOMEM;
    }
    unsigned depth = options->depth ? options->depth : engine->depth;
    reader->engine = engine;
    reader->depth = depth < engine->most_depth ? depth : engine->most_depth;
    reader->fail_at = options->fail_at;
    reader->fail_result = options->fail_result;
    int failed = engine->open(&reader->depth, &reader->state);
    if (failed) {
        free(reader);
        return failed;
    }
    *out = reader;
    return 0;
}

int gn_reader_open(const struct gn_reader_options *options, struct gn_reader **out) {
    switch (options->kind) {
    case GN_READER_AUTO: {
        int failed = gn_reader_open_engine(&gn_uring_engine, options, out);
        if (!failed) {
            return 0;
        }
        static atomic_flag said; // a process has several readers
        if (!atomic_flag_test_and_set(&said)) {
            gn_info("the kernel refuses io_uring (%s): reading with threads", strerror(-failed));
        }
        return gn_reader_open_engine(&gn_threads_engine, options, out);
    }
    case GN_READER_URING:
        return gn_reader_open_engine(&gn_uring_engine, options, out);
    case GN_READER_THREADS:
        return gn_reader_open_engine(&gn_threads_engine, options, out);
    case GN_READER_MAPPED:
        return gn_reader_open_engine(&gn_mapped_engine, options, out);
    case GN_READER_NULL:
        return gn_reader_open_engine(&gn_null_engine, options, out);
    }
    *out = NULL;
    return -EINVAL;
}

void gn_reader_close(struct gn_reader *reader) {
    if (!reader) {
        return;
    }
    while (reader->started) {
        struct gn_read_list ended = {0};
        reader->engine->reap(reader->state, true, &ended);
        while (gn_read_pop(&ended)) {
            reader->started--;
        }
    }
    reader->engine->close(reader->state);
    free(reader);
}

void gn_reader_forked(struct gn_reader *reader) {
    if (reader && reader->engine->forked) {
        reader->engine->forked(reader->state);
    }
}

const char *gn_reader_name(const struct gn_reader *reader) {
    return reader->engine->name;
}

unsigned gn_reader_depth(const struct gn_reader *reader) {
    return reader->depth;
}

size_t gn_reader_in_flight(const struct gn_reader *reader) {
    return reader->in_flight;
}

size_t gn_reader_room(const struct gn_reader *reader) {
    return reader->in_flight < reader->depth ? reader->depth - reader->in_flight : 0;
}

struct gn_reader_totals gn_reader_totals(const struct gn_reader *reader) {
    return reader->totals;
}

void gn_reader_start(struct gn_reader *reader) {
    struct gn_read_list batch = {0}; // as many as fit, in one go
    while (reader->started < reader->depth && reader->waiting.first) {
        gn_read_push(&batch, gn_read_pop(&reader->waiting));
        reader->started++;
    }
    if (batch.first) {
        reader->engine->submit(reader->state, &batch);
    }
}

void gn_reader_queue(struct gn_reader *reader, struct gn_read *read) {
    assert(read->offset % GN_BLOCK == 0 && read->length % GN_BLOCK == 0 && (uintptr_t)read->to % GN_BLOCK == 0);
    assert(read->need <= read->length);
    read->result = 0;
    read->done = 0;
    if (++reader->submitted == reader->fail_at) {
        reader->to_fail = read;
    }
    gn_read_push(&reader->waiting, read);
    reader->in_flight++;
}

void gn_reader_submit(struct gn_reader *reader, struct gn_read *reads, size_t n) {
    for (size_t i = 0; i < n; i++) {
        gn_reader_queue(reader, &reads[i]);
    }
    gn_reader_start(reader);
}

// Makes a read that went well look as if it had failed.
static void inject_fault(const struct gn_reader *reader, struct gn_read *read) {
    uint32_t arrived = reader->fail_result > 0 ? (uint32_t)reader->fail_result : 0;
    read->done = arrived < read->length ? arrived : read->length;
    read->result = reader->fail_result < 0 ? reader->fail_result : -ENODATA;
    if (!reader->engine->in_place) {
        memset((uint8_t *)read->to + read->done, 0xA5, read->length - read->done);
    }
}

static void finish(struct gn_reader *reader, struct gn_read *read, int result) {
    if (!reader->engine->in_place) {
        gn_file_drop(read->file, read->offset, read->length);
    }
    read->result = result;
    if (read == reader->to_fail) {
        inject_fault(reader, read);
        reader->to_fail = NULL;
    }
    if (read->result) {
        reader->totals.errors++;
    } else {
        reader->totals.reads++;
        reader->totals.bytes += read->done;
    }
    gn_read_push(&reader->done, read);
}

// Decides about a read that the engine has ended with read->result: it is over, or its rest is read first of all.
static void settle(struct gn_reader *reader, struct gn_read *read) {
    int result = read->result;
    if (result < 0 && result != -EINTR && result != -EAGAIN) {
        finish(reader, read, result);
        return;
    }
    if (result >= 0) {
        uint32_t before = read->done;
        read->done += (uint32_t)result;
        if (read->done >= read->need) {
            finish(reader, read, 0);
            return;
        }
        // A direct read starts on a block, so a part of one is read again. None gained: the file ends here.
        uint32_t resume = gn_file_direct(read->file) ? read->done - read->done % GN_BLOCK : read->done;
        if (resume <= before) {
            finish(reader, read, -ENODATA);
            return;
        }
        read->done = resume;
    }
    gn_read_push_front(&reader->waiting, read);
}

static void collect(struct gn_reader *reader, bool wait) {
    struct gn_read_list ended = {0};
    reader->engine->reap(reader->state, wait, &ended);
    struct gn_read *read;
    while ((read = gn_read_pop(&ended))) {
        reader->started--;
        settle(reader, read);
    }
    gn_reader_start(reader);
}

struct gn_read *gn_reader_reap(struct gn_reader *reader, bool wait) {
    if (!reader->done.first && reader->started) {
        do {
            collect(reader, wait);
        } while (wait && !reader->done.first);
    }
    struct gn_read *read = gn_read_pop(&reader->done);
    reader->in_flight -= read != NULL;
    return read;
}
