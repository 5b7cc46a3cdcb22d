// One allocation of the plugin fails, for every one of a short run: the model is loaded from mapped files and through a
// heap buffer (its experts are spooled then). Each run ends with stock's bits, or with an error line; never with other
// bits, a crash or a hang. What failed for want of memory can be done again, and then has stock's bits too.
//
//     test_allocations MODEL PLUGIN FOLDER
#include "session.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PROMPT = 12, STEPS = 2, MOST_ALLOCATIONS = 2000, SECONDS = 60 };
enum { SAME = 0, OTHER_BITS = 1, NO_LINE = 2, FAILED_WITH_LINE = 3 };

// ------------------------------------------------------------------------------------------------ the allocator

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static uintptr_t plugin_begin, plugin_end; // its code and data; 0: not loaded yet
static atomic_ulong n_allocations;
static unsigned long fail_at; // 0: none

// Whether this allocation is to fail: the plugin's fail_at-th.
static bool fails(const void *caller) {
    uintptr_t at = (uintptr_t)caller;
    bool counted = at >= plugin_begin && at < plugin_end;
    if (counted && atomic_fetch_add(&n_allocations, 1) + 1 == fail_at) {
        errno = ENOMEM;
        return true;
    }
    return false;
}

#define FOR_ALL __attribute__((visibility("default")))

FOR_ALL void *malloc(size_t bytes) {
    return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(bytes);
}

FOR_ALL void *calloc(size_t n, size_t bytes) {
    return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(n, bytes);
}

FOR_ALL void *realloc(void *old, size_t bytes) {
    return fails(__builtin_return_address(0)) ? NULL : __libc_realloc(old, bytes);
}

FOR_ALL void *aligned_alloc(size_t alignment, size_t bytes) {
    return fails(__builtin_return_address(0)) ? NULL : __libc_memalign(alignment, bytes);
}

static int find_plugin(struct dl_phdr_info *info, size_t size, void *name) {
    (void)size;
    if (!info->dlpi_name || strcmp(info->dlpi_name, name) != 0) {
        return 0;
    }
    for (int i = 0; i < info->dlpi_phnum; i++) {
        uintptr_t end = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;
        plugin_end = info->dlpi_phdr[i].p_type == PT_LOAD && end > plugin_end ? end : plugin_end;
    }
    plugin_begin = info->dlpi_addr;
    return 1;
}

// ------------------------------------------------------------------------------------------------ the runs

struct shared {
    unsigned long n_allocations; // of the run that ended last
    int n_vocab;
    float logits[PROMPT + STEPS][4096]; // stock's
};

static const char *model, *plugin;
static char errors[PATH_MAX];
static struct shared *shared;
static bool unmapped;

static bool start_counting(void *unused) {
    (void)unused;
    char name[PATH_MAX];
    return snprintf(name, sizeof name, "%s", plugin) < PATH_MAX && dl_iterate_phdr(find_plugin, name) == 1;
}

// Whether the plugin has said what went wrong.
static bool has_line(void) {
    char text[4096];
    int fd = open(errors, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    return strstr(text, "guanaco: error: ") != NULL;
}

// Decodes what comes next. SAME, or what went wrong.
static int decode(struct session *session, int at, int n) {
    llama_token tokens[PROMPT];
    for (int i = 0; i < n; i++) {
        tokens[i] = ((at + i) * 131 + 17) % session->n_vocab;
    }
    if (session_decode(session, tokens, n, at)) {
        return has_line() && session->last_error()[0] ? FAILED_WITH_LINE : NO_LINE;
    }
    size_t bytes = (size_t)session->n_vocab * sizeof(float);
    for (int i = 0; i < n; i++) {
        if (!session->stats) {
            memcpy(shared->logits[at + i], session_logits(session, i), bytes);
        } else if (memcmp(shared->logits[at + i], session_logits(session, i), bytes) != 0) {
            return OTHER_BITS;
        }
    }
    return SAME;
}

static int run(const char *with_plugin) {
    struct session session;
    struct session_options options = {
        .model = model, .plugin = with_plugin, .n_context = 64, .n_ubatch = 16, .unmapped = unmapped};
    options.loaded = with_plugin ? start_counting : NULL;
    if (session_open(&session, &options)) {
        return has_line() ? FAILED_WITH_LINE : NO_LINE;
    }
    int result = SAME;
    for (int at = 0; at < PROMPT + STEPS && result != OTHER_BITS && result != NO_LINE;) {
        int n = at == 0 ? PROMPT : 1;
        int code = decode(&session, at, n);
        if (code == FAILED_WITH_LINE) { // again, as any program would
            result = FAILED_WITH_LINE;
            llama_memory_seq_rm(llama_get_memory(session.context), 0, at, -1);
            code = decode(&session, at, n);
        }
        if (code == FAILED_WITH_LINE) {
            break;
        }
        result = code == SAME ? result : code;
        at += n;
    }
    session_close(&session);
    return result;
}

static int body(void *with_plugin) {
    int fd = open(errors, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0 || dup2(fd, STDERR_FILENO) < 0) {
        return 1;
    }
    alarm(SECONDS);
    int code = run(with_plugin);
    shared->n_allocations = atomic_load(&n_allocations);
    return code;
}

static void show_errors(void) {
    FILE *file = fopen(errors, "re");
    char line[4096];
    while (file && fgets(line, sizeof line, file)) {
        printf("    %s", line);
    }
    if (file) {
        fclose(file);
    }
}

// Lets every allocation of a run fail in its turn. Returns how many runs went wrong.
static int sweep(const char *name) {
    static const char *const what[] = {"stock's bits", "OTHER BITS", "FAILED WITHOUT A LINE", "an error line"};
    int outcomes[4] = {0}, wrong = 0;
    unsigned long n = 0, end = 1;
    for (fail_at = 0; fail_at <= end && fail_at <= MOST_ALLOCATIONS; fail_at++) {
        int code = in_child(body, (void *)(uintptr_t)plugin);
        bool known = code >= 0 && code < 4;
        bool bad = !known || code == OTHER_BITS || code == NO_LINE || (fail_at == 0 && code != SAME);
        if (bad) {
            printf("%s: allocation %lu: %s (%d)\n", name, fail_at, known ? what[code] : "CRASHED OR HUNG", code);
            show_errors();
        }
        wrong += bad;
        outcomes[known ? code : OTHER_BITS] += fail_at > 0;
        n += fail_at > 0;
        end = fail_at == 0 ? shared->n_allocations : end;
    }
    printf("%s: %lu allocations failed, one at a time: %d runs with stock's bits, %d with an error line, %d wrong\n",
           name, n, outcomes[SAME], outcomes[FAILED_WITH_LINE], wrong);
    return wrong + (n == 0);
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: test_allocations MODEL PLUGIN FOLDER\n");
        return 2;
    }
    model = argv[1];
    plugin = argv[2];
    snprintf(errors, sizeof errors, "%s/allocations-%d.txt", argv[3], getpid());
    setenv("GUANACO_SPOOL_DIR", argv[3], 1);
    setenv("GUANACO_EXPERT_CACHE", "20%", 1);
    setvbuf(stdout, NULL, _IOLBF, 0);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int failed = shared == MAP_FAILED || in_child(body, NULL) != SAME;
    if (failed) {
        printf("stock does not run\n");
        return 1;
    }
    failed = sweep("mapped");
    unmapped = true;
    failed += sweep("spooled");
    unlink(errors);
    return failed != 0;
}
