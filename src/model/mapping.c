#include "model/mapping.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

// "start-end perms offset major:minor inode   path"
static bool parse_line(const char *line, struct gn_mapping *out) {
    uint64_t start, end;
    unsigned major_number, minor_number;
    char permissions[8];
    int path_at = 0;
    if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s %" SCNx64 " %x:%x %" SCNu64 " %n", &start, &end, permissions,
               &out->offset, &major_number, &minor_number, &out->ino, &path_at) < 7 ||
        path_at == 0) {
        return false;
    }
    out->start = (uintptr_t)start;
    out->end = (uintptr_t)end;
    out->dev = makedev(major_number, minor_number);
    out->shared = permissions[3] == 's';
    snprintf(out->path, sizeof out->path, "%.*s", (int)strcspn(line + path_at, "\n"), line + path_at);
    return true;
}

// Calls visit for every file-backed mapping until it returns non-zero.
static int each_mapping(int (*visit)(void *context, const struct gn_mapping *mapping), void *context) {
    FILE *maps = fopen("/proc/self/maps", "re");
    if (!maps) {
        return -errno;
    }
    struct gn_mapping *mapping = malloc(sizeof *mapping);
    char *line = NULL;
    size_t size = 0;
    int result = mapping ? 0 : -ENOMEM;
    errno = 0;
    while (result == 0 && getline(&line, &size, maps) > 0) {
        if (parse_line(line, mapping) && mapping->ino != 0) {
            result = visit(context, mapping);
        }
    }
    if (result == 0 && !feof(maps)) {
        result = errno ? -errno : -EIO;
    }
    free(line);
    free(mapping);
    fclose(maps);
    return result;
}

struct find {
    uintptr_t address;
    struct gn_mapping *out;
};

static int visit_find(void *context, const struct gn_mapping *mapping) {
    struct find *find = context;
    if (find->address < mapping->start || find->address >= mapping->end) {
        return 0;
    }
    *find->out = *mapping;
    return 1;
}

int gn_mapping_find(const void *address, struct gn_mapping *out) {
    struct find find = {.address = (uintptr_t)address, .out = out};
    return each_mapping(visit_find, &find);
}

bool gn_mapping_of_file(int fd, struct gn_mapping *out) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *probe = mmap(NULL, page, PROT_READ, MAP_SHARED, fd, 0);
    if (probe == MAP_FAILED) {
        return false;
    }
    bool found = gn_mapping_find(probe, out) == 1;
    munmap(probe, page);
    return found;
}

bool gn_mapping_is_of(const struct gn_mapping *mapping, int fd) {
    struct stat status;
    if (fstat(fd, &status) || (!S_ISREG(status.st_mode) && !S_ISBLK(status.st_mode)) || status.st_ino != mapping->ino) {
        return false;
    }
    struct gn_mapping found = {0};
    return gn_mapping_of_file(fd, &found) && found.dev == mapping->dev && found.ino == mapping->ino;
}

struct each {
    uint64_t dev, ino;
    uintptr_t start, end;
    int (*visit)(void *context, const struct gn_mapping *mapping);
    void *context;
};

static int visit_each(void *context, const struct gn_mapping *mapping) {
    struct each *each = context;
    if (mapping->dev != each->dev || mapping->ino != each->ino || mapping->end <= each->start ||
        mapping->start >= each->end) {
        return 0;
    }
    return each->visit(each->context, mapping);
}

int gn_mapping_each(uint64_t dev, uint64_t ino, uintptr_t start, uintptr_t end,
                    int (*visit)(void *context, const struct gn_mapping *mapping), void *context) {
    struct each each = {.dev = dev, .ino = ino, .start = start, .end = end, .visit = visit, .context = context};
    return each_mapping(visit_each, &each);
}
