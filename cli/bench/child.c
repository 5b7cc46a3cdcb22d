#include "bench/child.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LOOKS_PER_SECOND 25

volatile sig_atomic_t bench_interrupted;

static const int caught[] = {SIGINT, SIGTERM, SIGHUP};

static void on_signal(int signal_number) {
    (void)signal_number;
    bench_interrupted = 1;
}

void bench_catch_signals(void) {
    struct sigaction action = {.sa_handler = on_signal};
    for (size_t s = 0; s < sizeof caught / sizeof *caught; s++) {
        sigaction(caught[s], &action, NULL);
    }
}

void *bench_child_share(size_t size) {
    void *shared = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return shared == MAP_FAILED ? NULL : shared;
}

void bench_child_unshare(void *shared, size_t size) {
    if (shared) {
        munmap(shared, size);
    }
}

static _Noreturn void be_child(const struct bench_child *child, pid_t parent, int log) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(1); // it died before that
    }
    for (size_t s = 0; s < sizeof caught / sizeof *caught; s++) {
        signal(caught[s], SIG_DFL);
    }
    if (log >= 0) {
        dup2(log, STDERR_FILENO);
    }
    bool good = child->body(child->shared, child->context);
    fflush(stderr);
    _exit(good ? 0 : 1);
}

static char *read_back(int log) {
    off_t size = lseek(log, 0, SEEK_END);
    char *text = size > 0 ? malloc((size_t)size + 1) : NULL;
    if (text) {
        ssize_t got = pread(log, text, (size_t)size, 0);
        text[got > 0 ? got : 0] = '\0';
    }
    return text;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// Waits for the child, and ends it when it has to end.
static enum bench_end wait_for(const struct bench_child *child, pid_t pid, int *signal_number) {
    enum bench_end end = BENCH_DONE;
    double start = seconds();
    int status = 0;
    for (pid_t ended = 0; (ended = waitpid(pid, &status, WNOHANG)) != pid;) {
        if (ended < 0 && errno != EINTR) {
            return BENCH_FAILED;
        }
        if (end == BENCH_DONE && (bench_interrupted || seconds() - start > child->timeout)) {
            end = bench_interrupted ? BENCH_INTERRUPTED : BENCH_TIMED_OUT;
            kill(pid, SIGKILL);
        }
        if (child->watch && end == BENCH_DONE) {
            child->watch(child->shared, child->watch_context);
        }
        usleep(1000000 / LOOKS_PER_SECOND);
    }
    if (end != BENCH_DONE) {
        return end;
    }
    if (WIFSIGNALED(status)) {
        *signal_number = WTERMSIG(status);
        return bench_interrupted ? BENCH_INTERRUPTED : BENCH_KILLED; // Ctrl-C reaches the child too
    }
    return WEXITSTATUS(status) == 0 ? BENCH_DONE : BENCH_FAILED;
}

enum bench_end bench_child_run(const struct bench_child *child, int *signal_number, char **said) {
    int log = child->let_through ? -1 : memfd_create("guanaco-bench-log", MFD_CLOEXEC);
    pid_t parent = getpid();
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        be_child(child, parent, log);
    }
    *signal_number = 0;
    enum bench_end end = pid > 0 ? wait_for(child, pid, signal_number) : BENCH_FAILED;
    *said = log >= 0 ? read_back(log) : NULL;
    if (log >= 0) {
        close(log);
    }
    return end;
}
