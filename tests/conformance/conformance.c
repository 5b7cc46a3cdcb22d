// Streams a tiny model of every Mixture-of-Experts architecture and compares every logit's bits with stock llama.cpp's.
//
//     conformance TINY LOGITS PLUGIN FOLDER [CASE...]
//
// GUANACO_TEST_WAYS=all in the environment: each case in every way, not in one of the others in turn.
// TINY makes the models, LOGITS runs the scenario (tiny.c, logits.c), FOLDER takes the files. Per case: stock once,
// streamed with room for all experts, for some and for the fewest possible, streamed in one of the other ways to get at
// the bytes (through the page cache, from a spool file), and stock again with one expert zeroed, whose bits must
// differ: else the comparison would show nothing.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { AT_ONCE = 2, MOST_CASES = 160, MOST_ARGUMENTS = 24, SKIPPED = 77 };

struct test_case {
    char name[64], arch[40];
    const char *model_options, *run_options; // separated by blanks
    bool alone;                              // more threads than one: nothing else may run, ggml's threads spin
};

static const char *tiny, *logits, *plugin, *folder;
static bool have_uring, all_ways;

// One thread unless a case says otherwise: bits may depend on the number of threads, in stock too (attention over 512
// cells and more is summed up per thread).
static const struct {
    const char *name, *arch, *model_options, *run_options;
} variants[] = {
    {"type-Q4_0", "qwen3moe", "--type Q4_0", ""},
    {"type-Q8_0", "qwen3moe", "--type Q8_0", ""},
    {"type-Q5_K", "qwen3moe", "--type Q5_K", ""},
    {"type-Q6_K", "qwen3moe", "--type Q6_K", ""},
    {"type-IQ4_XS", "qwen3moe", "--type IQ4_XS", ""},
    {"type-MXFP4", "qwen3moe", "--type MXFP4", ""},
    {"type-F16", "qwen3moe", "--type F16", ""},
    {"type-BF16", "qwen3moe", "--type BF16", ""},
    {"type-F32", "qwen3moe", "--type F32", ""},
    {"type-mixed", "qwen3moe", "--type mixed", ""},
    {"mixed-gpt-oss", "gpt-oss", "--type mixed", ""},
    {"mixed-deepseek2", "deepseek2", "--type mixed", ""},
    {"F32-deepseek4", "deepseek4", "--type F32", ""},
    {"fused-cohere2moe", "cohere2moe", "--fused", ""},
    {"fused-deepseek2", "deepseek2", "--fused", ""},
    {"fused-deepseek2-ocr", "deepseek2-ocr", "--fused", ""},
    {"fused-gemma4", "gemma4", "--fused", ""},
    {"fused-granite_swa", "granite_swa", "--fused", ""},
    {"fused-hy_v3", "hy_v3", "--fused", ""},
    {"fused-qwen35moe", "qwen35moe", "--fused", ""},
    {"fused-qwen3next", "qwen3next", "--fused --type mixed", ""},
    {"fused-qwen4exp", "qwen4exp", "--fused", ""},
    {"shards", "qwen3moe", "--shards 3", ""},
    {"aligned-4096", "qwen3moe", "--alignment 4096", ""},
    {"one-used", "qwen3moe", "--used 1", ""},
    {"all-used", "qwen3moe", "--used 8", ""},
    {"64-experts", "qwen3moe", "--experts 64 --used 8", ""},
    {"ubatch-3", "qwen3moe", "", "--ubatch 3"},
    {"ubatch-128-IQ4_XS", "qwen3moe", "--type IQ4_XS", "--ubatch 128 --prompt 128"},
    {"256-tokens", "qwen3moe", "", "--decode 256"},
    {"256-tokens-gpt-oss", "gpt-oss", "", "--decode 256"},
    {"256-tokens-deepseek2", "deepseek2", "", "--decode 256"},
    {"two-threads", "qwen3moe", "", "--threads 2 --prompt 20 --decode 6"},
    {"two-threads-deepseek4", "deepseek4", "", "--threads 2 --prompt 20 --decode 6"},
    {"two-threads-gpt-oss", "gpt-oss", "", "--threads 2 --prompt 20 --decode 6"},
};

// How the bytes of experts are got at, each with another room for them.
static const struct way {
    const char *name, *cache;
    const char *direct, *load; // GUANACO_DIRECT, and the loader's mode
    const char *io;            // NULL: in turn
} ways[] = {
    {"directly", "100%", "on", "mmap", NULL},
    {"directly", "30%", "on", "mmap", NULL},
    {"directly", "min", "on", "mmap", NULL},
    {"through the page cache", "30%", "off", "mmap", NULL},
    {"in the page cache", "30%", "on", "mmap", "mapped"},
    {"from a spool file", "min", "on", "none", NULL},
    {"from a spool file, buffered, the loader reading directly,", "30%", "off", "dio", NULL},
};
enum { WAYS = sizeof ways / sizeof *ways, ALWAYS = 3 };

// ---- running programs
// -------------------------------------------------------------------------------------------------

// Appends the words of `options` to the arguments; they live in `text`.
static int split(char *text, size_t size, const char *options, char **arguments, int n) {
    snprintf(text, size, "%s", options);
    for (char *word = strtok(text, " "); word && n < MOST_ARGUMENTS - 1; word = strtok(NULL, " ")) {
        arguments[n++] = word;
    }
    return n;
}

static int run(char **arguments, const char *log) {
    pid_t child = fork();
    if (child == 0) {
        int out = open(log, O_WRONLY | O_CREAT | O_APPEND, 0644);
        dup2(out, 1);
        dup2(out, 2);
        execv(arguments[0], arguments);
        _exit(127);
    }
    int status;
    while (child < 0 || waitpid(child, &status, 0) < 0) {
        if (child < 0 || errno != EINTR) {
            return -1;
        }
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

// ---- one case
// ---------------------------------------------------------------------------------------------------------

struct files {
    char model[PATH_MAX], made[PATH_MAX], stock[PATH_MAX], streamed[PATH_MAX], zeroed[PATH_MAX], log[PATH_MAX];
};

static void name_files(struct files *files, const struct test_case *c) {
    bool sharded = strstr(c->model_options, "--shards") != NULL;
    snprintf(files->made, PATH_MAX, "%s/%s.gguf", folder, c->name);
    snprintf(files->model, PATH_MAX, "%s/%s%s.gguf", folder, c->name, sharded ? "-00001-of-00003" : "");
    snprintf(files->stock, PATH_MAX, "%s/%s.stock", folder, c->name);
    snprintf(files->streamed, PATH_MAX, "%s/%s.streamed", folder, c->name);
    snprintf(files->zeroed, PATH_MAX, "%s/%s.zeroed", folder, c->name);
    snprintf(files->log, PATH_MAX, "%s/%s.log", folder, c->name);
    unlink(files->log);
}

static int make_model(const struct test_case *c, const struct files *files, const char *more) {
    char text[256], text2[256];
    char *arguments[MOST_ARGUMENTS] = {(char *)tiny, (char *)c->arch, (char *)files->made};
    int n = split(text, sizeof text, c->model_options, arguments, 3);
    n = split(text2, sizeof text2, more, arguments, n);
    return run(arguments, files->log);
}

// Stock when `way` is NULL.
static int run_model(const struct test_case *c, const struct files *files, const char *out, const struct way *way) {
    char text[256];
    char *arguments[MOST_ARGUMENTS] = {(char *)logits, (char *)files->model, (char *)out, "--threads", "1"};
    int n = split(text, sizeof text, c->run_options, arguments, 5);
    if (way) {
        arguments[n++] = "--plugin";
        arguments[n++] = (char *)plugin;
        arguments[n++] = "--load";
        arguments[n++] = (char *)way->load;
    }
    return run(arguments, files->log);
}

static bool same(const char *a, const char *b) {
    FILE *files[2] = {fopen(a, "rb"), fopen(b, "rb")};
    bool equal = files[0] && files[1];
    for (size_t n = 1; equal && n;) {
        char blocks[2][65536];
        n = fread(blocks[0], 1, sizeof blocks[0], files[0]);
        equal = fread(blocks[1], 1, sizeof blocks[1], files[1]) == n && memcmp(blocks[0], blocks[1], n) == 0;
    }
    for (int i = 0; i < 2; i++) {
        if (files[i]) {
            fclose(files[i]);
        }
    }
    return equal;
}

static int complain(char *why, size_t size, const char *what, int code) {
    snprintf(why, size, code ? "%s ends with %d" : "%s", what, code);
    return 1;
}

static int stream(const struct test_case *c, const struct files *files, const struct way *way, const char *io,
                  char *why, size_t size) {
    setenv("GUANACO_EXPERT_CACHE", way->cache, 1);
    setenv("GUANACO_DIRECT", way->direct, 1);
    setenv("GUANACO_IO", io, 1);
    char what[200];
    snprintf(what, sizeof what, "streamed %s with %s of the experts in memory, read by %s,", way->name, way->cache, io);
    int code = run_model(c, files, files->streamed, way);
    if (code) {
        return complain(why, size, what, code);
    }
    if (!same(files->stock, files->streamed)) {
        strncat(what, " not stock's bits", sizeof what - strlen(what) - 1);
        return complain(why, size, what, 0);
    }
    return 0;
}

// Returns 0 (passed), 1 (failed) or SKIPPED, and says why.
static int check_case(const struct test_case *c, int index, char *why, size_t size) {
    struct files files;
    name_files(&files, c);
    int code = make_model(c, &files, "");
    if (code == SKIPPED) {
        snprintf(why, size, "this llama.cpp does not know it");
        return SKIPPED;
    }
    if (code || (code = run_model(c, &files, files.stock, NULL))) {
        return complain(why, size, "making the model or running stock", code);
    }
    for (int i = 0; i < WAYS; i++) {
        if (i >= ALWAYS && !all_ways && (i - ALWAYS) != index % (WAYS - ALWAYS)) {
            continue;
        }
        const char *io = ways[i].io ? ways[i].io : have_uring && (index + i) % 2 == 0 ? "uring" : "threads";
        if (stream(c, &files, &ways[i], io, why, size)) {
            return 1;
        }
    }
    if ((code = make_model(c, &files, "--zero-expert last:0")) || (code = run_model(c, &files, files.zeroed, NULL))) {
        return complain(why, size, "the model with a zeroed expert", code);
    }
    return same(files.stock, files.zeroed) ? complain(why, size, "a zeroed expert changes nothing", 0) : 0;
}

// The last line that says something, for the report.
static void print_log(const struct test_case *c) {
    struct files files;
    snprintf(files.log, PATH_MAX, "%s/%s.log", folder, c->name);
    FILE *log = fopen(files.log, "r");
    char lines[4][512] = {""};
    int n = 0;
    while (log && fgets(lines[n % 4], sizeof *lines, log)) {
        n++;
    }
    for (int i = n > 4 ? n - 4 : 0; i < n; i++) {
        printf("    %s", lines[i % 4]);
    }
    if (log) {
        fclose(log);
    }
}

static void remove_files(const struct test_case *c) {
    DIR *directory = opendir(folder);
    size_t length = strlen(c->name);
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        const char *rest = entry->d_name + length;
        bool ours = strncmp(entry->d_name, c->name, length) == 0 && (*rest == '.' || strncmp(rest, "-0000", 5) == 0);
        if (ours) {
            unlinkat(dirfd(directory), entry->d_name, 0);
        }
    }
    if (directory) {
        closedir(directory);
    }
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static pid_t start(const struct test_case *c, int index) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        char why[256] = "";
        double began = now();
        int result = check_case(c, index, why, sizeof why);
        const char *word = result == 0 ? "ok" : result == SKIPPED ? "skipped" : "FAILED";
        printf("%-8s%-26s%5.1f s%s%s\n", word, c->name, now() - began, *why ? "  " : "", why);
        if (result == 1) {
            print_log(c);
        } else {
            remove_files(c);
        }
        fflush(stdout);
        _exit(result);
    }
    return child;
}

// ---- all cases
// --------------------------------------------------------------------------------------------------------

static void add_case(struct test_case *cases, int *n, const char *name, const char *arch, const char *model_options,
                     const char *run_options) {
    if (*n < MOST_CASES) {
        struct test_case *c = &cases[(*n)++];
        snprintf(c->name, sizeof c->name, "%.63s", name);
        snprintf(c->arch, sizeof c->arch, "%.39s", arch);
        c->model_options = model_options;
        c->run_options = run_options;
        c->alone = strstr(run_options, "--threads") != NULL;
    }
}

static int list_cases(struct test_case *cases) {
    int n = 0;
    char line[PATH_MAX + 16];
    snprintf(line, sizeof line, "'%s' --list", tiny);
    FILE *list = popen(line, "r");
    while (list && fgets(line, sizeof line, list)) {
        line[strcspn(line, "\n")] = 0;
        add_case(cases, &n, line, line, "", "");
    }
    if (!list || pclose(list) || n == 0) {
        fprintf(stderr, "conformance: %s --list fails\n", tiny);
        exit(2);
    }
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        add_case(cases, &n, variants[i].name, variants[i].arch, variants[i].model_options, variants[i].run_options);
    }
    return n;
}

static bool is_wanted(const struct test_case *c, char **names) {
    for (char **name = names; *name; name++) {
        if (strcmp(c->name, *name) == 0) {
            return true;
        }
    }
    return !*names;
}

struct score {
    int passed, failed, skipped, running;
};

static void reap(struct score *score) {
    int status;
    if (wait(&status) < 0) {
        return;
    }
    score->running--;
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    *(code == 0 ? &score->passed : code == SKIPPED ? &score->skipped : &score->failed) += 1;
}

static void run_cases(const struct test_case *cases, int n, char **names, bool alone, struct score *score) {
    for (int i = 0; i < n; i++) {
        if (cases[i].alone != alone || !is_wanted(&cases[i], names)) {
            continue;
        }
        while (score->running >= (alone ? 1 : AT_ONCE)) {
            reap(score);
        }
        score->running += start(&cases[i], i) > 0;
    }
    while (score->running) {
        reap(score);
    }
}

// Containers often forbid io_uring; an invalid call tells without setting anything up.
static bool uring_allowed(void) {
    return syscall(SYS_io_uring_setup, 0, NULL) < 0 && errno != ENOSYS && errno != EPERM;
}

int main(int argc, char **argv) {
    if (argc < 5) {
        fputs("usage: conformance TINY LOGITS PLUGIN FOLDER [CASE...]\n", stderr);
        return 2;
    }
    tiny = argv[1];
    logits = argv[2];
    plugin = argv[3];
    folder = argv[4];
    mkdir(folder, 0755);
    const char *wanted = getenv("GUANACO_TEST_WAYS");
    all_ways = wanted && strcmp(wanted, "all") == 0;
    unsetenv("GUANACO_TEST_WAYS");
    setenv("GUANACO_SPOOL_DIR", folder, 1);
    setenv("GGML_NO_BACKTRACE", "1", 1); // a crash must not wait for a debugger
    have_uring = uring_allowed();
    if (!have_uring) {
        puts("io_uring is forbidden here: reading by threads alone");
    }

    static struct test_case cases[MOST_CASES];
    int n = list_cases(cases);
    struct score score = {0};
    run_cases(cases, n, argv + 5, false, &score);
    run_cases(cases, n, argv + 5, true, &score);
    printf("%d passed, %d failed, %d skipped\n", score.passed, score.failed, score.skipped);
    return score.failed || !score.passed;
}
