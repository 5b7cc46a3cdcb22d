#include "model/dense.h"

#include "io/file.h"
#include "model/mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALIGNMENT 64u // no smaller gap between two tensors can hold a third
#define HUGE_PAGE ((uint64_t)2 << 20)
#define COPY_CHUNK ((uint64_t)64 << 20)
// A run of touched pages shorter than this is the fault-around of a neighbour, not a weight that was copied elsewhere.
#define TOUCHED_RUN 64u

// The unit of mappings: 4 KiB on x86-64, up to 64 KiB on arm64.
static uint64_t page_size(void) {
    static _Atomic uint64_t size;
    if (!size) {
        size = (uint64_t)sysconf(_SC_PAGESIZE);
    }
    return size;
}

static uint64_t page_floor(uint64_t n) {
    return n / page_size() * page_size();
}

static uint64_t page_ceil(uint64_t n) {
    return page_floor(n + page_size() - 1);
}

// [begin, end) in bytes of a file.
struct range {
    uint64_t begin, end;
};

struct ranges {
    struct range *items;
    size_t n, capacity;
};

static int add_range(struct ranges *ranges, uint64_t begin, uint64_t end) {
    if (begin >= end) {
        return 0;
    }
    if (ranges->n > 0 && ranges->items[ranges->n - 1].end == begin) {
        ranges->items[ranges->n - 1].end = end;
        return 0;
    }
    if (ranges->n == ranges->capacity) {
        size_t capacity = ranges->capacity ? 2 * ranges->capacity : 64;
        struct range *grown = realloc(ranges->items, capacity * sizeof *grown);
        if (!grown) {
            return -ENOMEM;
        }
        ranges->items = grown;
        ranges->capacity = capacity;
    }
    ranges->items[ranges->n++] = (struct range){begin, end};
    return 0;
}

static int by_begin(const void *a, const void *b) {
    uint64_t x = ((const struct range *)a)->begin, y = ((const struct range *)b)->begin;
    return (x > y) - (x < y);
}

// The whole pages inside the experts of a file, in order.
static int expert_pages(const struct gn_expert_map *map, const struct gn_file *file, struct ranges *pages) {
    struct ranges bytes = {0};
    int failed = 0;
    for (uint32_t l = 0; l < map->n_layers && !failed; l++) {
        const struct gn_layer *layer = map->layers[l];
        for (uint32_t s = 0; s < layer->n_slices && !failed; s++) {
            const struct gn_slice *slice = &layer->slices[s];
            if (slice->file == file) {
                failed = add_range(&bytes, slice->offset, slice->offset + slice->bytes * layer->n_experts);
            }
        }
    }
    if (bytes.n > 0) {
        qsort(bytes.items, bytes.n, sizeof *bytes.items, by_begin);
    }
    // Tensors with nothing but alignment between them form one range: the page they share is the experts'.
    for (size_t i = 0; i < bytes.n && !failed;) {
        uint64_t begin = bytes.items[i].begin, end = bytes.items[i].end;
        while (++i < bytes.n && bytes.items[i].begin < end + ALIGNMENT) {
            end = bytes.items[i].end > end ? bytes.items[i].end : end;
        }
        failed = add_range(pages, page_ceil(begin), page_floor(end));
    }
    free(bytes.items);
    return failed;
}

struct split {
    const struct gn_mapped_file *file;
    const struct ranges *experts;
    struct ranges mapped_experts, dense;
    bool all_touched; // so that touched pages tell nothing
};

// Splits one mapped piece of the file into expert pages and dense pages.
static int split_mapping(void *context, const struct gn_mapping *mapping) {
    struct split *split = context;
    uint64_t at = mapping->offset, end = mapping->offset + (mapping->end - mapping->start);
    if ((uintptr_t)split->file->base + at != mapping->start) {
        return 0; // the same file, mapped again by somebody else
    }
    int failed = 0;
    for (size_t i = 0; i < split->experts->n && !failed; i++) {
        struct range expert = split->experts->items[i];
        expert.begin = expert.begin < at ? at : expert.begin;
        expert.end = expert.end > end ? end : expert.end;
        if (expert.begin < expert.end) {
            failed = add_range(&split->dense, at, expert.begin);
            failed = failed ? failed : add_range(&split->mapped_experts, expert.begin, expert.end);
            at = expert.end;
        }
    }
    return failed ? failed : add_range(&split->dense, at, end);
}

// Keeps of the dense pages those that the process has not touched; all, if it has touched every one: then the loader
// went through the whole file, whatever it did with the weights.
static int drop_touched(const struct gn_mapped_file *file, struct ranges *dense, bool *all_touched) {
    int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (pagemap < 0) {
        return 0; // cannot tell: treat all as in use
    }
    struct ranges kept = {0};
    uint64_t entries[512];
    int failed = 0;
    for (size_t i = 0; i < dense->n && !failed; i++) {
        uint64_t kept_from = dense->items[i].begin, touched = 0;
        for (uint64_t at = dense->items[i].begin; at < dense->items[i].end && !failed;) {
            uint64_t pages = page_ceil(dense->items[i].end - at) / page_size();
            pages = pages < 512 ? pages : 512;
            uint64_t page = ((uintptr_t)file->base + at) / page_size();
            if (pread(pagemap, entries, pages * 8, (off_t)(page * 8)) != (ssize_t)(pages * 8)) {
                memset(entries, 0, sizeof entries);
            }
            for (uint64_t p = 0; p < pages && !failed; p++, at += page_size()) {
                if (entries[p] >> 63) {
                    touched++;
                    continue;
                }
                if (touched >= TOUCHED_RUN) {
                    failed = add_range(&kept, kept_from, at - touched * page_size());
                    kept_from = at;
                }
                touched = 0;
            }
        }
        uint64_t end = dense->items[i].end;
        uint64_t whole_end = page_ceil(end);
        failed = failed ? failed
                        : add_range(&kept, kept_from, touched >= TOUCHED_RUN ? whole_end - touched * page_size() : end);
    }
    close(pagemap);
    if (failed) {
        free(kept.items);
        return failed;
    }
    *all_touched = kept.n == 0 && dense->n > 0;
    if (*all_touched) {
        free(kept.items);
        return 0;
    }
    free(dense->items);
    *dense = kept;
    return 0;
}

static uint64_t total(const struct ranges *ranges) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < ranges->n; i++) {
        bytes += ranges->items[i].end - ranges->items[i].begin;
    }
    return bytes;
}

// Anonymous memory of `bytes` at an address congruent to `like` modulo the huge page size, so that huge pages can move
// whole.
static void *matching_memory(const void *like, uint64_t bytes) {
    uint8_t *memory =
        mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        return NULL;
    }
    uint64_t skip = ((uintptr_t)like - (uintptr_t)memory) % HUGE_PAGE;
    if (skip > 0) {
        munmap(memory, skip);
    }
    if (skip < HUGE_PAGE) {
        munmap(memory + skip + bytes, HUGE_PAGE - skip);
    }
    return memory + skip;
}

// Replaces one piece of the mapping by anonymous memory with the same bytes. The move is atomic: at no time does
// anybody see anything else there.
static int copy_piece(const struct gn_mapped_file *file, uint64_t begin, uint64_t end) {
    uint8_t *target = file->base + begin;
    uint64_t pages = page_ceil(end - begin);
    uint8_t *copy = matching_memory(target, pages);
    if (!copy) {
        return -ENOMEM;
    }
    (void)madvise(copy, pages, MADV_HUGEPAGE); // a wish; refused where huge pages are switched off
    uint64_t size = gn_file_size(file->file);
    int failed = gn_file_read(file->file, begin, (size_t)((end < size ? end : size) - begin), copy);
    if (!failed && (mprotect(copy, pages, PROT_READ) ||
                    mremap(copy, pages, pages, MREMAP_MAYMOVE | MREMAP_FIXED, target) == MAP_FAILED)) {
        failed = -errno;
    }
    if (failed) {
        munmap(copy, pages);
    }
    return failed;
}

static int copy_ranges(const struct gn_mapped_file *file, const struct ranges *dense) {
    for (size_t i = 0; i < dense->n; i++) {
        uint64_t at = dense->items[i].begin, end = dense->items[i].end;
        while (at < end) {
            uint64_t stop = (at + COPY_CHUNK) / COPY_CHUNK * COPY_CHUNK;
            stop = stop < end ? stop : end;
            int failed = copy_piece(file, at, stop);
            if (failed) {
                return failed;
            }
            at = stop;
        }
    }
    return 0;
}

static unsigned advise(const struct gn_mapped_file *file, const struct ranges *ranges, int advice) {
    unsigned failed = 0;
    for (size_t i = 0; i < ranges->n; i++) {
        uint64_t bytes = ranges->items[i].end - ranges->items[i].begin;
        failed += madvise(file->base + ranges->items[i].begin, bytes, advice) != 0;
    }
    return failed;
}

// No read-ahead may run from the dense weights into the experts: the whole mapping is read as it is touched, and the
// dense ranges are asked for once.
static unsigned leave_mapped(const struct gn_mapped_file *file, const struct ranges *dense) {
    unsigned refused = advise(file, dense, MADV_RANDOM);
    for (size_t i = 0; i < dense->n; i++) {
        refused += gn_file_will_need(file->base + dense->items[i].begin, dense->items[i].end - dense->items[i].begin);
    }
    return refused;
}

static int split_file(const struct gn_mapped_file *file, const struct gn_expert_map *map, bool populated,
                      struct split *split) {
    struct ranges experts = {0};
    int failed = expert_pages(map, file->file, &experts);
    split->file = file;
    split->experts = &experts;
    uintptr_t base = (uintptr_t)file->base;
    if (!failed) {
        failed = gn_mapping_each(file->dev, file->ino, base, base + gn_file_size(file->file), split_mapping, split);
    }
    free(experts.items);
    split->experts = NULL;
    if (failed || populated) {
        return failed;
    }
    return drop_touched(file, &split->dense, &split->all_touched);
}

static int apply(const struct gn_mapped_file *file, const struct split *split, struct gn_dense_result *result) {
    result->failed_advice += advise(file, &split->mapped_experts, MADV_RANDOM);
    // Where the loader populated the mapping, the experts' pages count as ours: let go of them. The page cache may keep
    // them.
    result->failed_advice += advise(file, &split->mapped_experts, MADV_DONTNEED);
    if (result->mode == GN_DENSE_COPY) {
        return copy_ranges(file, &split->dense);
    }
    result->failed_advice += leave_mapped(file, &split->dense);
    return 0;
}

// Locks all ranges, or none.
static void lock_all(const struct gn_mapped_file *files, uint32_t n_files, const struct split *splits,
                     struct gn_locks *locks, struct gn_dense_result *result) {
    for (uint32_t f = 0; f < n_files; f++) {
        for (size_t i = 0; i < splits[f].dense.n; i++) {
            struct range range = splits[f].dense.items[i];
            int failed = gn_locks_add(locks, files[f].base + range.begin, range.end - range.begin, false);
            if (failed) {
                gn_locks_drop(locks);
                gn_lock_explain("the dense weights", result->bytes, failed, result->lock_note,
                                sizeof result->lock_note);
                result->mode = result->mode == GN_DENSE_LOCK ? GN_DENSE_MAPPED : result->mode;
                return;
            }
        }
    }
}

int gn_dense_protect(const struct gn_mapped_file *files, uint32_t n_files, const struct gn_expert_map *map,
                     enum gn_dense_mode wanted, uint64_t room, bool populated, struct gn_locks *locks,
                     struct gn_dense_result *result) {
    *result = (struct gn_dense_result){.mode = wanted};
    struct split *splits = calloc(n_files ? n_files : 1, sizeof *splits);
    int failed = splits ? 0 : -ENOMEM;
    for (uint32_t f = 0; f < n_files && !failed; f++) {
        failed = split_file(&files[f], map, populated, &splits[f]);
        result->bytes += total(&splits[f].dense);
        populated = populated || splits[f].all_touched;
    }
    if (!failed && wanted == GN_DENSE_AUTO) {
        result->mode = result->bytes <= room && !populated ? GN_DENSE_COPY : GN_DENSE_MAPPED;
        if (populated) {
            snprintf(result->note, sizeof result->note,
                     "the loader read the whole file (libguanaco-preload.so, preloaded, avoids it); dense weights left "
                     "mapped");
        } else if (result->mode == GN_DENSE_MAPPED) {
            snprintf(result->note, sizeof result->note, "the budget has no room for a copy of the dense weights");
        }
    }
    for (uint32_t f = 0; f < n_files && !failed; f++) {
        failed = apply(&files[f], &splits[f], result);
    }
    if (!failed && locks) {
        lock_all(files, n_files, splits, locks, result);
    }
    for (uint32_t f = 0; splits && f < n_files; f++) {
        free(splits[f].dense.items);
        free(splits[f].mapped_experts.items);
    }
    free(splits);
    return failed;
}
