// Loading reads the dense weights and not one expert: the bytes read until the first context stands are the same
// however large the experts are. Counted by the kernel (/proc/self/io), with the interposer that this program contains.
//
//     test_load SMALL_MODEL LARGE_MODEL PLUGIN
#include "session.h"
#include "skip.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SLACK ((uint64_t)1 << 20)

// The kernel's own part varies: pages that another process holds stay in the cache and are not read again, and what it
// reads ahead follows what is free. Experts that were read would show in every attempt.
#define N_ATTEMPTS 5

struct load {
    const char *model, *plugin;
    uint64_t *read; // shared with the child
};

static uint64_t bytes_read(void) {
    FILE *io = fopen("/proc/self/io", "re");
    char line[128];
    uint64_t bytes = 0;
    while (io && fgets(line, sizeof line, io) && sscanf(line, "read_bytes: %" SCNu64, &bytes) != 1) {
    }
    if (io) {
        fclose(io);
    }
    return bytes;
}

static void drop_from_cache(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
}

static int load_in_child(void *context) {
    struct load *load = context;
    struct session session;
    struct session_options options = {.model = load->model, .plugin = load->plugin, .n_context = 64};
    drop_from_cache(load->model);
    uint64_t before = bytes_read();
    if (session_open(&session, &options)) {
        return 1;
    }
    *load->read = bytes_read() - before;
    session_close(&session);
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: test_load SMALL_MODEL LARGE_MODEL PLUGIN\n");
        return 2;
    }
    uint64_t *read = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct load small = {argv[1], argv[3], &read[0]}, large = {argv[2], argv[3], &read[1]};
    for (int attempt = 0; attempt < N_ATTEMPTS; attempt++) {
        if (in_child(load_in_child, &small) || in_child(load_in_child, &large)) {
            return 1;
        }
        printf("read while loading: %" PRIu64 " bytes of the small model, %" PRIu64 " of the large one\n", read[0],
               read[1]);
        if (read[0] == 0) {
            left_out("disk", "this file system does not count what is read");
            return test_result(0);
        }
        if (read[1] <= read[0] + SLACK) {
            return 0;
        }
    }
    return 1;
}
