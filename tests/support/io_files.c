#include "io_files.h"
#include "skip.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

char folder[4096];
char model[4200];

static int real_stderr = -1;

static uint8_t pattern(uint64_t offset) {
    return (uint8_t)((offset + 1) * 0x9E3779B97F4A7C15u >> 56);
}

bool is_pattern(const uint8_t *data, uint64_t offset, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        if (data[i] != pattern(offset + i)) {
            return false;
        }
    }
    return true;
}

char *make_file(const char *name, size_t bytes) {
    char *path;
    assert_true(asprintf(&path, "%s/%s", folder, name) > 0);
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    uint8_t *data = malloc(bytes + 1);
    for (size_t i = 0; i < bytes; i++) {
        data[i] = pattern(i);
    }
    assert_int_equal(write(fd, data, bytes), bytes);
    free(data);
    assert_int_equal(fsync(fd), 0);
    assert_int_equal(close(fd), 0);
    return path;
}

size_t pages_in_cache(const char *path, size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n = (bytes + page - 1) / page, resident = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    void *mapping = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(mapping, MAP_FAILED);
    unsigned char *in_core = calloc(n, 1);
    assert_int_equal(mincore(mapping, bytes, in_core), 0);
    for (size_t i = 0; i < n; i++) {
        resident += in_core[i] & 1;
    }
    free(in_core);
    munmap(mapping, bytes);
    close(fd);
    return resident;
}

char *make_uncached(const char *name, size_t bytes) {
    char *path = make_file(name, bytes);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    close(fd);
    if (pages_in_cache(path, bytes) > 0) {
        remove_file(path);
        left_out("page-cache", "the page cache keeps pages in %s", folder);
        skip();
    }
    return path;
}

void remove_file(char *path) {
    unlink(path);
    free(path);
}

struct gn_file *open_file(const char *path, bool direct) {
    struct gn_file *file;
    assert_int_equal(gn_file_open(path, direct, 0, 0, &file), 0);
    return file;
}

struct gn_reader *open_with(const struct variant *variant, struct gn_reader_options options) {
    struct gn_reader *reader;
    options.kind = variant->kind;
    assert_int_equal(gn_reader_open(&options, &reader), 0);
    return reader;
}

const struct variant *require(void *state) {
    const struct variant *variant = state;
    struct gn_file *file = open_file(model, variant->direct);
    bool direct = gn_file_direct(file);
    gn_file_close(file);
    if (direct != variant->direct) {
        left_out("direct", "no direct reads in %s", folder);
        skip();
    }
    struct gn_reader *reader;
    int failed = gn_reader_open(&(struct gn_reader_options){.kind = variant->kind}, &reader);
    gn_reader_close(reader);
    if (failed && variant->kind == GN_READER_URING) {
        left_out("io_uring", "it is refused here (%s)", strerror(-failed));
        skip();
    }
    return variant;
}

uint8_t *make_slots(size_t n) {
    uint8_t *slots = aligned_alloc(GN_BLOCK, n * SLOT_BYTES);
    assert_non_null(slots);
    memset(slots, 0xEE, n * SLOT_BYTES);
    return slots;
}

struct gn_read make_read(const struct gn_file *file, uint64_t offset, uint32_t bytes, void *to) {
    uint64_t first = offset - offset % GN_BLOCK;
    uint32_t need = (uint32_t)(offset + bytes - first);
    uint32_t length = (need + GN_BLOCK - 1) / GN_BLOCK * GN_BLOCK;
    return (struct gn_read){.file = file, .offset = first, .length = length, .need = need, .to = to};
}

bool arrived(const struct gn_read *read) {
    return read->result == 0 && read->done >= read->need && is_pattern(read->to, read->offset, read->need);
}

int read_one(struct gn_reader *reader, struct gn_read *read) {
    gn_reader_submit(reader, read, 1);
    assert_int_equal(gn_reader_in_flight(reader), 1);
    assert_ptr_equal(gn_reader_reap(reader, true), read);
    assert_int_equal(gn_reader_in_flight(reader), 0);
    assert_null(gn_reader_reap(reader, true));
    return read->result;
}

uint64_t random_below(uint64_t limit) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % limit;
}

void let_time_pass(void) {
    nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
}

void begin_capture(void) {
    FILE *to = tmpfile();
    assert_non_null(to);
    fflush(stderr);
    real_stderr = dup(STDERR_FILENO);
    dup2(fileno(to), STDERR_FILENO);
    fclose(to);
}

char *end_capture(void) {
    fflush(stderr);
    off_t bytes = lseek(STDERR_FILENO, 0, SEEK_END);
    char *text = calloc(1, (size_t)bytes + 1);
    assert_int_equal(pread(STDERR_FILENO, text, (size_t)bytes, 0), bytes);
    dup2(real_stderr, STDERR_FILENO);
    close(real_stderr);
    return text;
}

size_t count_lines(const char *text) {
    size_t lines = 0;
    for (; (text = strchr(text, '\n')); text++) {
        lines++;
    }
    return lines;
}

int begin_files(void) {
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/guanaco-io-XXXXXX", base && *base ? base : ".");
    if (!mkdtemp(folder)) {
        perror(folder);
        return 1;
    }
    char *path = make_file("model", FILE_BYTES);
    snprintf(model, sizeof model, "%s", path);
    free(path);
    return 0;
}

void end_files(void) {
    DIR *open_folder = opendir(folder);
    if (open_folder) {
        for (struct dirent *entry; (entry = readdir(open_folder));) {
            unlinkat(dirfd(open_folder), entry->d_name, 0);
        }
        closedir(open_folder);
    }
    rmdir(folder);
}
