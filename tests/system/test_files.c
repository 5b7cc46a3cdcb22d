// What happens to the model's file while it is in use, and a model that does not come from a mapped file.
//
//     test_files MODEL PLUGIN FOLDER
#include "session.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PROMPT 16
#define STEPS 24

struct test {
    const char *model, *plugin;
    char copy[4096], other[4096];
    float *logits; // stock's: [PROMPT + STEPS][n_vocab], shared with the children
    bool unmapped, refused;
    void (*disturb)(struct test *test);
    const char *expected; // in the error that must come; NULL: none may
};

static void copy_file(const char *from, const char *to) {
    int in = open(from, O_RDONLY | O_CLOEXEC), out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    char buffer[1 << 16];
    ssize_t n;
    while ((n = read(in, buffer, sizeof buffer)) > 0) {
        if (write(out, buffer, (size_t)n) != n) {
            exit(1);
        }
    }
    fsync(out);
    close(in);
    close(out);
}

static void replace(struct test *test) {
    copy_file(test->model, test->other);
    int fd = open(test->other, O_WRONLY | O_CLOEXEC);
    char zeros[4096] = {0};
    for (off_t at = 4 << 20; at < 20 << 20; at += (off_t)sizeof zeros) { // no expert of the new file is the same
        if (pwrite(fd, zeros, sizeof zeros, at) != (ssize_t)sizeof zeros) {
            exit(1);
        }
    }
    close(fd);
    if (rename(test->other, test->copy)) {
        exit(1);
    }
}

static void truncate_file(struct test *test) {
    if (truncate(test->copy, 8 << 20)) {
        exit(1);
    }
}

static void overwrite(struct test *test) {
    int fd = open(test->copy, O_WRONLY | O_CLOEXEC);
    if (pwrite(fd, "guanaco", 7, 12 << 20) != 7) {
        exit(1);
    }
    close(fd);
}

static void move_away(struct test *test) {
    if (rename(test->copy, test->other)) {
        exit(1);
    }
}

static void link_and_unlink(struct test *test) {
    if (link(test->copy, test->other) || unlink(test->other)) {
        exit(1);
    }
}

static void change_mode(struct test *test) {
    if (chmod(test->copy, 0444)) {
        exit(1);
    }
}

// As `cp --preserve=timestamps` does with a model of the same size and age.
static void rewrite_and_hide(struct test *test) {
    struct stat before;
    if (stat(test->copy, &before)) {
        exit(1);
    }
    int fd = open(test->copy, O_WRONLY | O_TRUNC | O_CLOEXEC);
    char other[1 << 16];
    memset(other, 0x5A, sizeof other);
    for (off_t left = before.st_size; left > 0;) {
        ssize_t put = write(fd, other, left < (off_t)sizeof other ? (size_t)left : sizeof other);
        left -= put > 0 ? put : left;
    }
    if (futimens(fd, (struct timespec[]){before.st_atim, before.st_mtim})) {
        exit(1);
    }
    close(fd);
}

// A file system that lies about O_DIRECT: direct reads, but for the first block's, bring other bytes. The plugin's
// calls come here, as this program exports its symbols. Reads by io_uring do not.
static bool lying;

__attribute__((visibility("default"))) ssize_t pread(int fd, void *to, size_t bytes, off_t offset) {
    ssize_t got = syscall(SYS_pread64, fd, to, bytes, offset);
    int flags = lying ? fcntl(fd, F_GETFL) : 0;
    for (ssize_t i = 0; (flags & O_DIRECT) && offset > 0 && i < got; i++) {
        ((uint8_t *)to)[i] ^= 0xFF;
    }
    return got;
}

// Decodes tokens at..at+n, and keeps or compares their logits. Returns llama_decode()'s result, or -100 for other
// logits.
static int step(struct session *session, struct test *test, int at, int n) {
    llama_token tokens[PROMPT];
    for (int i = 0; i < n; i++) {
        tokens[i] = ((at + i) * 131 + 17) % session->n_vocab;
    }
    int result = session_decode(session, tokens, n, at);
    size_t row = (size_t)session->n_vocab;
    for (int i = 0; i < n && result == 0; i++) {
        float *kept = test->logits + (size_t)(at + i) * row;
        const float *logits = session_logits(session, i);
        if (!session->stats) {
            memcpy(kept, logits, row * sizeof *logits);
        } else if (memcmp(kept, logits, row * sizeof *logits) != 0) {
            result = -100;
        }
    }
    return result;
}

static int run(void *context) {
    struct test *test = context;
    struct session session;
    struct session_options options = {
        .model = test->copy, .plugin = test->plugin, .n_context = 64, .unmapped = test->unmapped};
    if (test->refused) { // by the time a context is made
        return !session_open(&session, &options);
    }
    if (session_open(&session, &options) || step(&session, test, 0, PROMPT)) {
        return 1;
    }
    if (test->plugin && !session_stats(&session).streamed_layers) {
        fprintf(stderr, "nothing is streamed\n");
        return 1;
    }
    if (test->disturb) {
        test->disturb(test);
    }
    int result = 0;
    for (int at = PROMPT; at < PROMPT + STEPS && result == 0; at++) {
        result = step(&session, test, at, 1);
    }
    const char *why = session.last_error ? session.last_error() : "";
    bool ok = test->expected ? result != 0 && result != -100 && strstr(why, test->expected) : result == 0;
    if (!ok) {
        fprintf(stderr, "decode ended with %d, last error '%s'\n", result, why);
    }
    session_close(&session); // the process lives on
    return !ok;
}

static int failures;

static void check(const char *name, struct test test, void (*disturb)(struct test *), bool unmapped,
                  const char *expected) {
    copy_file(test.model, test.copy);
    test.disturb = disturb;
    test.unmapped = unmapped;
    test.expected = expected;
    int code = in_child(run, &test);
    printf("%s: %s\n", name, code ? "FAILED" : "ok");
    failures += code != 0;
    unlink(test.copy);
    unlink(test.other); // where it was moved to
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: test_files MODEL PLUGIN FOLDER\n");
        return 2;
    }
    struct test test = {.model = argv[1]};
    snprintf(test.copy, sizeof test.copy, "%s/in-use.gguf", argv[3]);
    snprintf(test.other, sizeof test.other, "%s/in-use-new.gguf", argv[3]);
    test.logits = mmap(NULL, (size_t)(PROMPT + STEPS) * 4096 * sizeof(float), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    setenv("GUANACO_EXPERT_CACHE", "5%", 1); // so that every token reads
    setenv("GUANACO_DENSE", "copy", 1);
    setenv("GUANACO_LOG", "error", 1);
    check("stock", test, NULL, false, NULL);
    test.plugin = argv[2];
    check("left alone", test, NULL, false, NULL);
    check("replaced by another file", test, replace, false, NULL);
    check("truncated", test, truncate_file, false, "in-use.gguf");
    check("overwritten in place", test, overwrite, false, "changed");
    check("rewritten, and its time put back", test, rewrite_and_hide, false, "changed");
    check("moved", test, move_away, false, NULL);
    check("given another name for a time", test, link_and_unlink, false, NULL);
    check("given another mode", test, change_mode, false, NULL);
    setenv("GUANACO_IO", "threads", 1);
    lying = true;
    check("on a file system that lies about O_DIRECT", test, NULL, false, NULL);
    check("loaded without a mapping, on such a file system", test, NULL, true, NULL);
    lying = false;
    setenv("GUANACO_IO", "mapped", 1);
    check("given another name for a time, in the page cache", test, link_and_unlink, false, NULL);
    check("left alone, in the page cache", test, NULL, false, NULL);
    check("replaced by another file, in the page cache", test, replace, false, NULL);
    check("truncated, in the page cache", test, truncate_file, false, "in-use.gguf");
    setenv("GUANACO_EXPERT_CACHE", "100%", 1); // nothing is read any more, and still
    check("truncated, all in the page cache", test, truncate_file, false, "in-use.gguf");
    check("overwritten in place, in the page cache", test, overwrite, false, "changed");
    setenv("GUANACO_EXPERT_CACHE", "5%", 1);
    setenv("GUANACO_SPOOL_DIR", argv[3], 1);
    check("loaded without a mapping, kept in the page cache", test, NULL, true, NULL);
    unsetenv("GUANACO_IO");
    check("loaded without a mapping", test, NULL, true, NULL);
    setenv("GUANACO_SPOOL_DIR", "/none/such", 1);
    test.refused = true;
    check("loaded without a mapping, and no place to spool to", test, NULL, true, NULL);
    return failures != 0;
}
