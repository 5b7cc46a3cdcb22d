#include "preload/gguf_scan.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    WINDOW = 8192,
    ALIGNMENT = 4096,       // reads start and end here, so that a file opened with O_DIRECT works too
    HEADER_MOST = 64 << 20, // three times what the largest tokenizers take
    NAME_MOST = 256,
    DIMENSIONS_MOST = 8,
    NESTING_MOST = 4,
};

// GGUF's value types that matter here.
enum { TYPE_STRING = 8, TYPE_ARRAY = 9, TYPE_COUNT = 13 };

// A position in the header, and the part of the file around it. Once something does not fit, failed stays true and
// every further step fails, so that callers need not check each one.
struct cursor {
    int fd;
    bool failed;
    uint64_t at;
    uint64_t window_at;
    size_t window_size;
    unsigned char window[WINDOW] __attribute__((aligned(ALIGNMENT)));
};

static bool fail(struct cursor *cursor) {
    cursor->failed = true;
    return false;
}

static bool fill_window(struct cursor *cursor) {
    cursor->window_at = cursor->at - cursor->at % ALIGNMENT;
    long got;
    do {
        // Not pread(): it is a cancellation point, and mmap is none.
        got = syscall(SYS_pread64, (long)cursor->fd, cursor->window, (size_t)WINDOW, (off_t)cursor->window_at);
    } while (got < 0 && errno == EINTR);
    cursor->window_size = got < 0 ? 0 : (size_t)got;
    return cursor->at - cursor->window_at < cursor->window_size;
}

static bool take(struct cursor *cursor, void *to, size_t size) {
    unsigned char *out = to;
    if (cursor->at + size > HEADER_MOST) {
        return fail(cursor);
    }
    while (size > 0 && !cursor->failed) {
        bool inside = cursor->at >= cursor->window_at && cursor->at - cursor->window_at < cursor->window_size;
        if (!inside && !fill_window(cursor)) {
            return fail(cursor);
        }
        size_t from = (size_t)(cursor->at - cursor->window_at);
        size_t part = cursor->window_size - from < size ? cursor->window_size - from : size;
        memcpy(out, cursor->window + from, part);
        out += part;
        size -= part;
        cursor->at += part;
    }
    return !cursor->failed;
}

static bool skip(struct cursor *cursor, uint64_t size) {
    if (cursor->failed || cursor->at > HEADER_MOST || size > HEADER_MOST - cursor->at) {
        return fail(cursor);
    }
    cursor->at += size;
    return true;
}

static uint32_t take_u32(struct cursor *cursor) {
    uint32_t value = 0;
    return take(cursor, &value, sizeof value) ? value : 0;
}

static uint64_t take_u64(struct cursor *cursor) {
    uint64_t value = 0;
    return take(cursor, &value, sizeof value) ? value : 0;
}

static bool skip_string(struct cursor *cursor) {
    uint64_t length = take_u64(cursor);
    return skip(cursor, length);
}

static bool skip_values(struct cursor *cursor, uint32_t type, uint64_t count, int depth);

static bool skip_array(struct cursor *cursor, int depth) {
    uint32_t type = take_u32(cursor);
    uint64_t count = take_u64(cursor);
    return depth < NESTING_MOST ? skip_values(cursor, type, count, depth + 1) : fail(cursor);
}

// Every round takes at least eight bytes of a bounded header, so a huge count cannot keep us long.
static bool skip_values(struct cursor *cursor, uint32_t type, uint64_t count, int depth) {
    static const unsigned char sizes[TYPE_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    if (cursor->failed || type >= TYPE_COUNT) {
        return fail(cursor);
    }
    if (sizes[type] != 0) {
        return count <= HEADER_MOST ? skip(cursor, count * sizes[type]) : fail(cursor);
    }
    for (uint64_t i = 0; i < count && !cursor->failed; i++) {
        if (type == TYPE_STRING) {
            skip_string(cursor);
        } else {
            skip_array(cursor, depth);
        }
    }
    return !cursor->failed;
}

static bool tensor_is_expert(struct cursor *cursor) {
    char name[NAME_MOST + 1];
    uint64_t length = take_u64(cursor);
    if (length > NAME_MOST || !take(cursor, name, (size_t)length)) {
        return fail(cursor);
    }
    name[length] = '\0';
    uint32_t dimensions = take_u32(cursor);
    if (dimensions > DIMENSIONS_MOST) {
        return fail(cursor);
    }
    // the dimensions, then the type and the offset
    skip(cursor, dimensions * sizeof(uint64_t) + sizeof(uint32_t) + sizeof(uint64_t));
    return !cursor->failed && (strstr(name, "_exps.") || strstr(name, "_chexps."));
}

static bool scan(struct cursor *cursor) {
    char magic[4] = "";
    if (!take(cursor, magic, sizeof magic) || memcmp(magic, "GGUF", sizeof magic) != 0) {
        return false;
    }
    uint32_t version = take_u32(cursor);
    uint64_t tensors = take_u64(cursor);
    uint64_t pairs = take_u64(cursor);
    if (version < 2 || version > 3) { // 1 has other widths; another byte order shows as a huge version
        return false;
    }
    for (uint64_t i = 0; i < pairs && !cursor->failed; i++) {
        skip_string(cursor);
        uint32_t type = take_u32(cursor);
        skip_values(cursor, type, 1, 0);
    }
    for (uint64_t i = 0; i < tensors && !cursor->failed; i++) {
        if (tensor_is_expert(cursor)) {
            return true;
        }
    }
    return false;
}

bool gn_gguf_has_experts(int fd) {
    int saved_errno = errno;
    struct cursor cursor;
    cursor.fd = fd;
    cursor.failed = false;
    cursor.at = cursor.window_at = 0;
    cursor.window_size = 0;
    bool found = scan(&cursor);
    errno = saved_errno;
    return found;
}
