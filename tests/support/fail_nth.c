// A preload that lets one call fail: the N-th malloc, open, pread … that Guanaco's own code makes. Calls of llama.cpp
// and of the C library itself are left alone: they are not ours to mend. All is told by the environment:
//
//     FAIL_IN      the objects whose calls count, by the start of their file names: guanaco:libguanaco.so
//     FAIL_COUNTS  a file that holds `struct shared`; it counts for the whole run, children included
//     FAIL_CALL    which kind of call fails, one of kind_names; none: calls are only counted
//     FAIL_NTH     which of them, from 1
//     FAIL_ERRNO   with which error; 0: it does less than it was asked for (reads alone)
//
// Out of space ("space") is a state: from the N-th write on, no regular file takes any more.
//
// A malloc is made before and inside everything else, so here: no allocation, and no lock while another may be taken.
#include "fail_nth.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char *const kind_names[KINDS] = {
    "malloc",  "calloc", "realloc", "mmap",        "mremap",      "open",       "stat",  "read", "stream",
    "madvise", "thread", "mlock",   "uring-setup", "uring-enter", "uring-read", "space", "fork", "sync",
};

// What the driver reads afterwards.
struct shared {
    atomic_uint_fast64_t counts[KINDS];
    atomic_uint_fast64_t struck; // how often a call was let fail
    char where[64];              // object and offset of the call that failed
};

static struct shared *shared; // NULL: nothing is counted yet
static enum kind wanted = KINDS;
static uint64_t nth;
int fail_error;
static const char *objects;

// ------------------------------------------------------------------------------------------------ whose call it is

struct code {
    uintptr_t base, start, end;
    bool ours;
    char name[32];
};
enum { MOST_CODE = 512 };
static struct code codes[MOST_CODE]; // only ever added to: what is loaded here stays
static atomic_size_t n_codes;
static atomic_flag adding = ATOMIC_FLAG_INIT;

static bool is_listed(const char *name) {
    for (const char *at = objects; *at; at += strcspn(at, ":"), at += *at == ':') {
        size_t length = strcspn(at, ":");
        char next = '\0';
        if (!strncmp(name, at, length)) {
            next = name[length];
            if (next == '\0' || next == '.') {
                return true;
            }
        }
    }
    return false;
}

struct search {
    uintptr_t address;
    struct code found;
};

static int look_into(struct dl_phdr_info *info, size_t size, void *context) {
    (void)size;
    struct search *search = context;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        uintptr_t start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr, end = start + info->dlpi_phdr[i].p_memsz;
        if (info->dlpi_phdr[i].p_type != PT_LOAD || search->address < start || search->address >= end) {
            continue;
        }
        const char *slash = strrchr(info->dlpi_name, '/'), *name = slash ? slash + 1 : info->dlpi_name;
        name = *name ? name : program_invocation_short_name;
        search->found = (struct code){.base = info->dlpi_addr, .start = start, .end = end, .ours = is_listed(name)};
        strncpy(search->found.name, name, sizeof search->found.name - 1);
        return 1;
    }
    return 0;
}

static const struct code *code_of(uintptr_t address) {
    size_t n = atomic_load(&n_codes);
    for (size_t i = 0; i < n; i++) {
        if (address >= codes[i].start && address < codes[i].end) {
            return &codes[i];
        }
    }
    struct search search = {.address = address};
    if (!dl_iterate_phdr(look_into, &search)) {
        return NULL;
    }
    while (atomic_flag_test_and_set(&adding)) {
    }
    const struct code *result = NULL;
    n = atomic_load(&n_codes);
    if (n < MOST_CODE) {
        codes[n] = search.found;
        result = &codes[n];
        atomic_store(&n_codes, n + 1);
    }
    atomic_flag_clear(&adding);
    return result;
}

bool strikes(enum kind kind, const void *caller) {
    if (!shared) {
        return false;
    }
    int saved_errno = errno;
    const struct code *code = code_of((uintptr_t)caller);
    errno = saved_errno;
    if (!code || !code->ours) {
        return false;
    }
    uint64_t n = atomic_fetch_add(&shared->counts[kind], 1) + 1;
    if (kind != wanted || n != nth) {
        return false;
    }
    atomic_fetch_add(&shared->struck, 1);
    snprintf(shared->where, sizeof shared->where, "%s+0x%lx", code->name,
             (unsigned long)((uintptr_t)caller - code->base));
    errno = fail_error;
    return true;
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("FAIL_COUNTS"), *call = getenv("FAIL_CALL"), *n = getenv("FAIL_NTH");
    objects = getenv("FAIL_IN");
    if (!path || !objects) {
        return;
    }
    for (enum kind kind = 0; call && n && kind < KINDS; kind++) {
        wanted = strcmp(call, kind_names[kind]) ? wanted : kind;
    }
    nth = n ? strtoull(n, NULL, 10) : 0;
    fail_error = getenv("FAIL_ERRNO") ? (int)strtol(getenv("FAIL_ERRNO"), NULL, 10) : ENOMEM;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *mapped = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED || (call && wanted == KINDS)) {
        fprintf(stderr, "fail_nth: cannot map %s, or there is no call '%s'\n", path, call ? call : "");
        _exit(99);
    }
    close(fd);
    shared = mapped;
}
