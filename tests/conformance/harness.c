#include "harness.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_CASES = 160 };

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

// ---- a case's model
// ---------------------------------------------------------------------------------------------------

void harness_file(const struct harness *harness, const struct test_case *c, const char *suffix, char path[PATH_MAX]) {
    snprintf(path, PATH_MAX, "%s/%s.%s", harness->folder, c->name, suffix);
}

int harness_make(const struct harness *harness, const struct test_case *c, const char *more) {
    char text[256], text2[256], made[PATH_MAX], log[PATH_MAX];
    harness_file(harness, c, "gguf", made);
    harness_file(harness, c, "log", log);
    char *arguments[MOST_ARGUMENTS] = {(char *)harness->tiny, (char *)c->arch, made};
    int n = split(text, sizeof text, c->model_options, arguments, 3);
    split(text2, sizeof text2, more, arguments, n);
    return run(arguments, log);
}

int harness_logits(const struct harness *harness, const struct test_case *c, const char *out, const char *options) {
    char text[256], text2[2 * PATH_MAX], model[PATH_MAX], log[PATH_MAX];
    bool sharded = strstr(c->model_options, "--shards") != NULL;
    snprintf(model, PATH_MAX, "%s/%s%s.gguf", harness->folder, c->name, sharded ? "-00001-of-00003" : "");
    harness_file(harness, c, "log", log);
    char *arguments[MOST_ARGUMENTS] = {(char *)harness->logits, model, (char *)out, "--threads", "1"};
    int n = split(text, sizeof text, c->run_options, arguments, 5);
    split(text2, sizeof text2, options, arguments, n);
    return run(arguments, log);
}

int harness_complain(char *why, size_t size, const char *what, int code) {
    snprintf(why, size, code ? "%s ends with %d" : "%s", what, code);
    return 1;
}

// ---- one case
// ---------------------------------------------------------------------------------------------------------

// The last line that says something, for the report.
static void print_log(const struct harness *harness, const struct test_case *c) {
    char path[PATH_MAX];
    harness_file(harness, c, "log", path);
    FILE *log = fopen(path, "r");
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

static void remove_files(const struct harness *harness, const struct test_case *c) {
    DIR *directory = opendir(harness->folder);
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

static pid_t start(const struct harness *harness, const struct test_case *c, int index) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        char log[PATH_MAX];
        harness_file(harness, c, "log", log);
        unlink(log);
        char why[512] = "";
        double began = now();
        int result = harness->check(harness, c, index, why, sizeof why);
        const char *word = result == 0 ? "ok" : result == SKIPPED ? "skipped [newer-llama]:" : "FAILED";
        printf("%-8s%-26s%5.1f s%s%s\n", word, c->name, now() - began, *why ? "  " : "", why);
        if (result == 1) {
            print_log(harness, c);
        } else {
            remove_files(harness, c);
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

// What every comparison has: experts of each type.
static const struct variant of_types[] = {
    {"type-Q4_0", "qwen3moe", "--type Q4_0", ""},
    {"type-Q8_0", "qwen3moe", "--type Q8_0", ""},
    {"type-Q5_K", "qwen3moe", "--type Q5_K", ""},
    {"type-Q6_K", "qwen3moe", "--type Q6_K", ""},
    {"type-IQ4_XS", "qwen3moe", "--type IQ4_XS", ""},
    {"type-MXFP4", "qwen3moe", "--type MXFP4", ""},
    {"type-F16", "qwen3moe", "--type F16", ""},
    {"type-BF16", "qwen3moe", "--type BF16", ""},
    {"type-mixed", "qwen3moe", "--type mixed", ""},
    {"mixed-gpt-oss", "gpt-oss", "--type mixed", ""},
    {NULL, NULL, NULL, NULL},
};

static void add_variants(struct test_case *cases, int *n, const struct variant *variants) {
    for (const struct variant *v = variants; v->name; v++) {
        add_case(cases, n, v->name, v->arch, v->model_options, v->run_options);
    }
}

static int list_cases(const struct harness *harness, struct test_case *cases) {
    int n = 0;
    char line[PATH_MAX + 16];
    snprintf(line, sizeof line, "'%s' --list", harness->tiny);
    FILE *list = popen(line, "r");
    while (list && fgets(line, sizeof line, list)) {
        line[strcspn(line, "\n")] = 0;
        add_case(cases, &n, line, line, harness->model_options, "");
    }
    if (!list || pclose(list) || n == 0) {
        fprintf(stderr, "conformance: %s --list fails\n", harness->tiny);
        exit(2);
    }
    add_variants(cases, &n, of_types);
    add_variants(cases, &n, harness->variants);
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

static void run_cases(const struct harness *harness, const struct test_case *cases, int n, char **names, bool alone,
                      struct score *score) {
    for (int i = 0; i < n; i++) {
        if (cases[i].alone != alone || !is_wanted(&cases[i], names)) {
            continue;
        }
        while (score->running >= (alone ? 1 : harness->at_once)) {
            reap(score);
        }
        score->running += start(harness, &cases[i], i) > 0;
    }
    while (score->running) {
        reap(score);
    }
}

int harness_run(const struct harness *harness, char **names) {
    static struct test_case cases[MOST_CASES];
    struct score score = {0};
    mkdir(harness->folder, 0755);
    setenv("GGML_NO_BACKTRACE", "1", 1); // a crash must not wait for a debugger
    int n = list_cases(harness, cases);
    run_cases(harness, cases, n, names, false, &score);
    run_cases(harness, cases, n, names, true, &score);
    printf("%d passed, %d failed, %d skipped\n", score.passed, score.failed, score.skipped);
    return score.failed || !score.passed;
}
