#include "bench/page_cache.h"

#include "model/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define WINDOW ((uint64_t)256 << 20) // looked at once
#define PAGE ((uint64_t)4096)        // at least

// The kernel tells strangers that every page is there.
static bool may_look(int fd) {
    struct stat status;
    return fstat(fd, &status) == 0 && (status.st_uid == geteuid() || geteuid() == 0);
}

static uint64_t resident_bytes(int fd, uint64_t size) {
    static unsigned char pages[WINDOW / PAGE];
    uint64_t resident = 0, page = (uint64_t)sysconf(_SC_PAGESIZE);
    for (uint64_t at = 0; at < size; at += WINDOW) {
        size_t length = size - at < WINDOW ? (size_t)(size - at) : WINDOW;
        // Nothing is to be read; and our interposer, which looks into what is mapped for reading, would bring pages
        // back.
        void *mapped = mmap(NULL, length, PROT_NONE, MAP_SHARED, fd, (off_t)at);
        if (mapped == MAP_FAILED) {
            continue;
        }
        size_t n = (length + page - 1) / page;
        bool told = mincore(mapped, length, pages) == 0;
        for (size_t p = 0; told && p < n; p++) {
            resident += (pages[p] & 1) * page;
        }
        munmap(mapped, length);
    }
    return resident;
}

double bench_page_cache_drop(const struct model_file *model) {
    uint64_t resident = 0, all = 0;
    bool seen = true;
    for (uint32_t s = 0; s < model->n_shards; s++) {
        struct stat status;
        int fd = open(model->shards[s], O_RDONLY | O_CLOEXEC);
        if (fd < 0 || fstat(fd, &status)) {
            seen = false;
        } else {
            fdatasync(fd); // what is not on disk yet stays
            posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
            seen = seen && may_look(fd);
            resident += seen ? resident_bytes(fd, (uint64_t)status.st_size) : 0;
            all += (uint64_t)status.st_size;
        }
        if (fd >= 0) {
            close(fd);
        }
    }
    return seen && all > 0 ? (double)resident / (double)all : -1;
}

static int touch(void *unused, const struct gn_mapping *mapping) {
    (void)unused;
    for (uintptr_t page = mapping->start; page < mapping->end; page += PAGE) {
        (void)*(const volatile char *)page;
    }
    return 0;
}

void bench_page_cache_touch(const struct model_file *model) {
    for (uint32_t s = 0; s < model->n_shards; s++) {
        struct gn_mapping file;
        int fd = open(model->shards[s], O_RDONLY | O_CLOEXEC);
        if (fd >= 0 && gn_mapping_of_file(fd, &file)) {
            gn_mapping_each(file.dev, file.ino, 0, UINTPTR_MAX, touch, NULL);
        }
        if (fd >= 0) {
            close(fd);
        }
    }
}
