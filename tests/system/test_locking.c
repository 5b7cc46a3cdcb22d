// --lock in a run: what is asked for is locked, as the kernel counts it; where the limit is too low nothing is, one
// line says so, and the model works all the same.
//
//     test_locking MODEL PLUGIN DIRECTORY
#include "locking.h"
#include "session.h"
#include "skip.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { TOKENS = 60, PINNED = 10, SLACK = 64 << 10 }; // slack: whole pages at both ends of each range

struct run {
    const char *model, *plugin;
    uint64_t limit;    // RLIMIT_MEMLOCK; 0: as it is
    uint64_t *outcome; // shared: locked bytes, dense bytes, slot bytes, slots, staging bytes
    float *logits;     // shared
    char errors[4096]; // file that takes standard error
};

static int decode(void *context) {
    const struct run *run = context;
    struct session session;
    struct session_options options = {.model = run->model, .plugin = run->plugin};
    int errors = open(run->errors, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    if (errors < 0 || dup2(errors, STDERR_FILENO) < 0 || (run->limit && limit_locking(run->limit)) ||
        session_open(&session, &options)) {
        return 1;
    }
    for (int i = 0; i < TOKENS; i++) {
        llama_token token = (i * 131 + 17) % session.n_vocab;
        if (session_decode(&session, &token, 1, i)) {
            return 1;
        }
    }
    struct guanaco_stats stats = session_stats(&session);
    const uint64_t outcome[] = {locked_bytes(), stats.dense_bytes,   stats.slot_bytes,
                                stats.slots,    stats.staging_bytes, stats.locked_bytes};
    memcpy(run->outcome, outcome, sizeof outcome);
    memcpy(run->logits, session_logits(&session, 0), (size_t)session.n_vocab * sizeof(float));
    session_close(&session);
    return locked_bytes() != 0;
}

// How many lines of the last run speak of the limit.
static int complaints(const struct run *run) {
    FILE *file = fopen(run->errors, "re");
    char line[1024];
    int n = 0;
    while (file && fgets(line, sizeof line, file)) {
        n += strstr(line, "RLIMIT_MEMLOCK") != NULL;
    }
    if (file) {
        fclose(file);
    }
    return n;
}

static int failed;

static void expect(struct run *run, const char *lock, uint64_t limit, bool good, const char *what) {
    if (!good) {
        fprintf(stderr, "--lock %s, limit %llu: not %s; locked %llu, dense %llu, slots %llu\n", lock,
                (unsigned long long)limit, what, (unsigned long long)run->outcome[0],
                (unsigned long long)run->outcome[1], (unsigned long long)run->outcome[2]);
        failed = 1;
    }
}

static void try(struct run *run, const char *lock, const char *dense, uint64_t limit, bool fits) {
    setenv("GUANACO_LOCK", lock, 1);
    setenv("GUANACO_DENSE", dense, 1);
    run->limit = limit;
    expect(run, lock, limit, in_child(decode, run) == 0, "a run that works");
    const uint64_t *o = run->outcome;
    uint64_t least = 0, most = 0, slot = o[2] / o[3];
    if (fits) {
        least = most = o[1] + (!strcmp(lock, "all") ? o[2] + o[4] : 0);
        // The pinned ones that were in their slots when they were chosen.
        least += !strcmp(lock, "hot") ? PINNED / 2 * slot : 0;
        most += !strcmp(lock, "hot") ? PINNED * slot : 0;
    }
    expect(run, lock, limit, o[0] + SLACK >= least && o[0] <= most + SLACK, "locked what was asked for");
    expect(run, lock, limit, o[5] <= o[0] && o[5] + SLACK >= o[0], "counted");
    expect(run, lock, limit, complaints(run) == !fits, "explained in one line");
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: test_locking MODEL PLUGIN DIRECTORY\n");
        return 2;
    }
    struct run run = {.model = argv[1], .plugin = argv[2]};
    size_t bytes = sizeof(float) * 65536;
    run.logits = mmap(NULL, bytes + 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    run.outcome = (uint64_t *)((char *)run.logits + bytes);
    snprintf(run.errors, sizeof run.errors, "%s/lock-test.log", argv[3]);
    setenv("GUANACO_EXPERT_CACHE", "25%", 1);
    setenv("GUANACO_PIN_HOT_EXPERTS", "10", 1);
    setenv("GUANACO_PIN_WARM_UP", "60", 1);

    setenv("GUANACO_LOCK", "none", 1);
    if (in_child(decode, &run) || run.outcome[0] != 0) {
        return 1;
    }
    float *expected = malloc(bytes);
    memcpy(expected, run.logits, bytes);
    uint64_t dense = run.outcome[1], slot = run.outcome[2] / run.outcome[3];
    try(&run, "all", "copy", 64 << 10, false);                      // not even the dense weights
    try(&run, "all", "copy", dense + (1 << 20), false);             // these alone: all is let go
    try(&run, "hot", "copy", dense + 4 * slot + (64 << 10), false); // some of the pinned ones
    try(&run, "none", "lock", 64 << 10, false);
    void *memory = mmap(NULL, 32 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || mlock(memory, 32 << 20)) {
        left_out("mlock", "this process may not lock 32 MiB");
        return test_result(failed);
    }
    munmap(memory, 32 << 20);
    try(&run, "dense", "copy", 0, true);
    try(&run, "dense", "mapped", 0, true);
    try(&run, "none", "lock", 0, true);
    try(&run, "hot", "copy", 0, true);
    try(&run, "hot", "copy", dense + 10 * slot + (256 << 10), true);
    try(&run, "all", "copy", 0, true);
    expect(&run, "all", 0, !memcmp(expected, run.logits, bytes), "the same logits");
    free(expected);
    unlink(run.errors);
    return failed;
}
