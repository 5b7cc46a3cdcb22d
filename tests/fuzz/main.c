// fuzz: runs mutants through the readers, each target in a process of its own that is watched from here.
//
//     fuzz [--target NAME] [--seed S] [--cases N | --seconds N] [--case N] [--save DIR] [FILE...]
//     fuzz --corpus DIR
//
// A mutant is known by its target, seed and number, and is made again by them. A process that dies, or needs more than
// a minute for one mutant, is a report: its mutant is kept in a file, and is run once more to show what it prints.
#include "fuzz.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif

const struct fuzz_target *const fuzz_targets[] = {
    &fuzz_gguf,  &fuzz_shards, &fuzz_imatrix, &fuzz_hot_set, &fuzz_trace, &fuzz_simulate,
    &fuzz_sizes, &fuzz_tiers,  &fuzz_options, &fuzz_policy,  NULL,
};

enum {
    HANG_SECONDS = 60, // for one mutant, which takes less than a millisecond
    MOST_REPORTS = 20, // of a target, before it is given up
};
#define MEMORY ((uint64_t)2 << 30) // of address space, where no sanitizer takes much more

#ifdef SANITIZED
const char *__asan_default_options(void);
const char *__ubsan_default_options(void);
int __lsan_do_recoverable_leak_check(void);

// An input is small: whatever takes a quarter of a gigabyte at once because of it believed a number in it.
const char *__asan_default_options(void) {
    return "max_allocation_size_mb=256:allocator_may_return_null=0:detect_leaks=1:leak_check_at_exit=0:"
           "handle_abort=1:quarantine_size_mb=4:thread_local_quarantine_size_kb=64:malloc_context_size=12";
}

const char *__ubsan_default_options(void) {
    return "print_stacktrace=1:halt_on_error=1:abort_on_error=1";
}
#endif

struct options {
    const char *target, *save, *corpus;
    uint64_t seed, cases, one, seconds;
    bool has_one;
    char **files;
    int n_files;
};

// What a worker tells, in memory that is shared.
struct progress {
    _Atomic uint64_t number, done, taken;
    _Atomic size_t size;
    uint8_t input[FUZZ_MAX];
};

struct job {
    const struct fuzz_target *target;
    const struct options *options;
    struct progress *progress;
    uint64_t from, to;     // mutants
    char **files;          // instead of mutants
    struct timespec until; // 0: until all are done
    bool quiet;
    char *scratch;
};

static bool is_past(const struct timespec *until) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return until->tv_sec > 0 && now.tv_sec >= until->tv_sec;
}

// ------------------------------------------------------------------------------------------------ a worker

static void read_input(const char *path, struct bytes *input) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        fuzz_fail("cannot open %s: %s", path, strerror(errno));
    }
    input->n = fread(input->data, 1, input->capacity, file);
    fclose(file);
}

static void run_one(const struct job *job, uint64_t number) {
    struct progress *progress = job->progress;
    struct bytes input = {.data = progress->input, .capacity = FUZZ_MAX};
    progress->number = number;
    if (job->files) {
        read_input(job->files[number], &input);
    } else {
        struct random random = random_for(job->options->seed, number);
        job->target->make(&random, &input);
    }
    progress->size = input.n;
    // A copy of its exact size: reading past the end shows.
    uint8_t *data = malloc(input.n ? input.n : 1);
    if (!data) {
        fuzz_fail("no memory for an input");
    }
    memcpy(data, input.data, input.n);
    progress->taken += job->target->run(data, input.n);
    free(data);
    progress->done++;
}

static void check_leaks(void) {
#ifdef SANITIZED
    if (__lsan_do_recoverable_leak_check()) {
        fuzz_fail("memory is lost");
    }
#endif
}

static void be_quiet(void) {
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null >= 0) {
        dup2(null, STDOUT_FILENO);
        dup2(null, STDERR_FILENO);
    }
}

static _Noreturn void work(const struct job *job) {
    // Names in the corpus are relative to where we came from.
    if (!job->files && chdir(job->scratch)) {
        fuzz_fail("cannot enter %s", job->scratch);
    }
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
#ifndef SANITIZED
    setrlimit(RLIMIT_AS, &(struct rlimit){MEMORY, MEMORY});
#endif
    if (job->quiet) {
        be_quiet();
    }
    for (uint64_t number = job->from; number < job->to && !is_past(&job->until); number++) {
        run_one(job, number);
        if (number % 4096 == 0 || number + 1 == job->to) {
            check_leaks();
        }
    }
    _exit(0);
}

// ------------------------------------------------------------------------------------------------ the watch

// Waits for a worker; kills one that does not come on. Returns its wait status, -1 for a hang.
static int watch(pid_t pid, const struct progress *progress) {
    uint64_t last = UINT64_MAX;
    struct timespec began = {0};
    for (;;) {
        int status;
        pid_t got = waitpid(pid, &status, WNOHANG);
        if (got == pid) {
            return status;
        }
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (progress->done != last) {
            last = progress->done;
            began = now;
        } else if (now.tv_sec - began.tv_sec > HANG_SECONDS) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return -1;
        }
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
}

static int run_worker(const struct job *job) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        work(job);
    }
    if (pid < 0) {
        fuzz_fail("cannot make a process: %s", strerror(errno));
    }
    return watch(pid, job->progress);
}

static void tell(const struct job *job, int status, uint64_t number) {
    char how[64];
    if (status == -1) {
        snprintf(how, sizeof how, "no end within %d s", HANG_SECONDS);
    } else if (WIFSIGNALED(status)) {
        snprintf(how, sizeof how, "died of signal %d", WTERMSIG(status));
    } else {
        snprintf(how, sizeof how, "ended with exit code %d", WEXITSTATUS(status));
    }
    fprintf(stderr, "fuzz: REPORT: %s, ", job->target->name);
    if (job->files) {
        fprintf(stderr, "%s: %s\n", job->files[number], how);
        return;
    }
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s-%" PRIu64 "-%" PRIu64, job->options->save, job->target->name, job->options->seed,
             number);
    FILE *file = fopen(path, "wb");
    bool kept = file && fwrite(job->progress->input, 1, job->progress->size, file) == job->progress->size;
    kept = (!file || fclose(file) == 0) && kept;
    fprintf(stderr, "mutant %" PRIu64 ": %s; %s %s; again: fuzz --target %s --seed %" PRIu64 " --case %" PRIu64 "\n",
            number, how, kept ? "kept as" : "could not be kept as", path, job->target->name, job->options->seed,
            number);
}

// A report, and what the mutant prints when it runs again, alone.
static void report(const struct job *job, int status) {
    uint64_t number = job->progress->number;
    tell(job, status, number);
    if (status != -1 && job->quiet) {
        struct job again = *job;
        again.from = number;
        again.to = number + 1;
        again.quiet = false;
        again.until = (struct timespec){0};
        if (run_worker(&again) == 0) {
            fprintf(stderr,
                    "fuzz: it did not happen again: it needs what earlier mutants left, or came of the machine\n");
        }
    }
}

static unsigned run_job(struct job *job) {
    unsigned reports = 0;
    uint64_t done = 0, taken = 0;
    struct timespec began, ended;
    clock_gettime(CLOCK_MONOTONIC, &began);
    while (job->from < job->to && reports < MOST_REPORTS && !is_past(&job->until)) {
        job->progress->done = job->progress->taken = 0;
        job->progress->number = job->from;
        int status = run_worker(job);
        done += job->progress->done;
        taken += job->progress->taken;
        if (status == 0) {
            break;
        }
        reports++;
        done++;
        uint64_t next = job->progress->number + 1;
        report(job, status);
        job->from = next;
    }
    clock_gettime(CLOCK_MONOTONIC, &ended);
    double seconds = (double)(ended.tv_sec - began.tv_sec) + (double)(ended.tv_nsec - began.tv_nsec) / 1e9;
    printf("fuzz: %-9s seed %" PRIu64 ": %" PRIu64 " %s, %" PRIu64 " of them taken, %u reports, %.0f a second\n",
           job->target->name, job->options->seed, done, job->files ? "files" : "mutants", taken, reports,
           (double)done / seconds);
    return reports;
}

// ------------------------------------------------------------------------------------------------ the corpus

static int is_visible(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

// The files of DIR/<target>, in the order of their names.
static int list_corpus(const char *directory, const char *target, char ***files) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", directory, target);
    struct dirent **entries = NULL;
    int n = scandir(path, &entries, is_visible, alphasort);
    n = n > 0 ? n : 0;
    *files = calloc((size_t)n + 1, sizeof **files);
    for (int i = 0; i < n; i++) {
        char file[PATH_MAX + 300];
        snprintf(file, sizeof file, "%s/%s", path, entries[i]->d_name);
        if (*files) {
            (*files)[i] = strdup(file);
        }
        free(entries[i]);
    }
    free(entries);
    return n;
}

// ------------------------------------------------------------------------------------------------ options

static _Noreturn void usage(void) {
    fputs(
        "usage: fuzz [--target NAME] [--seed S] [--cases N | --seconds N] [--case N] [--save DIR] [FILE...]\n"
        "       fuzz --corpus DIR\n\n"
        "Runs N mutants of each target (default 1000), or as many as N seconds allow; one alone; or files. A report's\n"
        "mutant is kept in DIR (default: here). Targets:",
        stderr);
    for (size_t t = 0; fuzz_targets[t]; t++) {
        fprintf(stderr, " %s", fuzz_targets[t]->name);
    }
    fputc('\n', stderr);
    exit(2);
}

static uint64_t number(const char *text) {
    char *end;
    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    if (*end || end == text || errno || *text == '-') {
        usage();
    }
    return value;
}

static struct options parse(int argc, char **argv) {
    struct options options = {.seed = 1, .cases = 1000, .save = "."};
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--", 2) != 0) {
            options.files = argv + i;
            options.n_files = argc - i;
            break;
        }
        if (i + 1 == argc) {
            usage();
        }
        const char *flag = argv[i], *value = argv[++i];
        if (!strcmp(flag, "--target")) {
            options.target = value;
        } else if (!strcmp(flag, "--save")) {
            options.save = value;
        } else if (!strcmp(flag, "--corpus")) {
            options.corpus = value;
        } else if (!strcmp(flag, "--seed")) {
            options.seed = number(value);
        } else if (!strcmp(flag, "--cases")) {
            options.cases = number(value);
        } else if (!strcmp(flag, "--seconds")) {
            options.seconds = number(value);
        } else if (!strcmp(flag, "--case")) {
            options.one = number(value);
            options.has_one = true;
        } else {
            usage();
        }
    }
    return options;
}

static unsigned run_target(const struct fuzz_target *target, const struct options *options, struct progress *progress,
                           char *scratch) {
    struct job job = {.target = target, .options = options, .progress = progress, .scratch = scratch, .quiet = true};
    char **corpus = NULL;
    int n_corpus = options->corpus ? list_corpus(options->corpus, target->name, &corpus) : 0;
    if (options->corpus || options->files) {
        job.files = options->corpus ? corpus : options->files;
        job.to = (uint64_t)(options->corpus ? n_corpus : options->n_files);
    } else if (options->has_one) {
        job.from = options->one;
        job.to = options->one + 1;
        job.quiet = false;
    } else {
        job.to = options->seconds ? UINT64_MAX : options->cases;
        if (options->seconds) {
            clock_gettime(CLOCK_MONOTONIC, &job.until);
            job.until.tv_sec += (time_t)options->seconds;
        }
    }
    unsigned reports = run_job(&job);
    for (int i = 0; i < n_corpus; i++) {
        free(corpus[i]);
    }
    free(corpus);
    return reports;
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *where) {
    (void)status;
    (void)kind;
    (void)where;
    return remove(path);
}

int main(int argc, char **argv) {
    struct options options = parse(argc, argv);
    const char *temporary = getenv("TMPDIR");
    char scratch[PATH_MAX];
    snprintf(scratch, sizeof scratch, "%s/guanaco-fuzz-XXXXXX", temporary && *temporary ? temporary : "/tmp");
    struct progress *progress = mmap(NULL, sizeof *progress, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (progress == MAP_FAILED || !mkdtemp(scratch)) {
        fprintf(stderr, "fuzz: no memory, or no directory for its files\n");
        return 2;
    }
    unsigned reports = 0, targets = 0;
    for (size_t t = 0; fuzz_targets[t]; t++) {
        if (!options.target || !strcmp(options.target, fuzz_targets[t]->name)) {
            reports += run_target(fuzz_targets[t], &options, progress, scratch);
            targets++;
        }
    }
    nftw(scratch, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    if (targets == 0) {
        usage();
    }
    return reports > 0;
}
