#include "bench/read_ahead.h"

#include <errno.h>
#include <stdio.h>
#include <sys/sysmacros.h>

static bool read_setting(const char *path, unsigned *kib) {
    FILE *file = fopen(path, "re");
    bool good = file && fscanf(file, "%u", kib) == 1;
    if (file) {
        fclose(file);
    }
    return good;
}

bool bench_read_ahead_find(const char *root, dev_t device, struct bench_read_ahead *out) {
    static const char *const places[] = {
        "%s/sys/dev/block/%u:%u/queue/read_ahead_kb",
        "%s/sys/dev/block/%u:%u/../queue/read_ahead_kb", // a partition
        "%s/sys/class/bdi/%u:%u/read_ahead_kb",          // btrfs, network file systems
    };
    *out = (struct bench_read_ahead){0};
    for (size_t p = 0; p < sizeof places / sizeof *places; p++) {
        snprintf(out->path, sizeof out->path, places[p], root, major(device), minor(device));
        if (read_setting(out->path, &out->kib)) {
            out->used_kib = out->kib;
            return true;
        }
    }
    out->path[0] = '\0';
    return false;
}

int bench_read_ahead_set(const struct bench_read_ahead *read_ahead, unsigned kib) {
    FILE *file = fopen(read_ahead->path, "we");
    if (!file) {
        return -errno;
    }
    bool written = fprintf(file, "%u\n", kib) > 0;
    return fclose(file) == 0 && written ? 0 : -errno;
}
