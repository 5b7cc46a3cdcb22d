// A process that computes is forked, as multiprocessing and pre-forking servers do. The parent goes on as if nothing
// had happened; the child computes with stock's bits, or frees what it has, or just ends.
//
//     test_fork MODEL PLUGIN FOLDER
#include "session.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROMPT 16
#define STEPS 24
#define CHILD_STEPS 6
#define LIMIT_S 150 // for a child, and for a parent with all its children: what hangs ends by SIGALRM
#define FORKS 12    // while another thread computes
#define FEW 2       // forks with several threads, which spin against each other

struct test {
    const char *model, *plugin;
    float *logits; // stock's: [PROMPT + STEPS][n_vocab], shared with the children
    int n_threads;
    bool keep;    // the logits
    bool garbage; // what is computed is not looked at
    bool alone;   // the parent does the same without children
};

// Decodes tokens at..at+n, and keeps or compares their logits. Returns 0, or llama_decode()'s result, or -100 for other
// logits.
static int step(struct session *session, const struct test *test, int at, int n) {
    llama_token tokens[PROMPT];
    for (int i = 0; i < n; i++) {
        tokens[i] = ((at + i) * 131 + 17) % session->n_vocab;
    }
    int result = session_decode(session, tokens, n, at);
    size_t row = (size_t)session->n_vocab;
    for (int i = 0; i < n && result == 0 && !test->garbage; i++) {
        float *kept = test->logits + (size_t)(at + i) * row;
        const float *logits = session_logits(session, i);
        if (test->keep) {
            memcpy(kept, logits, row * sizeof *logits);
        } else if (memcmp(kept, logits, row * sizeof *logits) != 0) {
            result = -100;
        }
    }
    return result;
}

static int open_session(struct session *session, const struct test *test) {
    struct session_options options = {
        .model = test->model, .plugin = test->plugin, .n_context = 64, .n_threads = test->n_threads};
    return session_open(session, &options) || step(session, test, 0, PROMPT);
}

static int steps(struct session *session, const struct test *test, int from, int n) {
    int result = 0;
    for (int at = from; at < from + n && result == 0; at++) {
        result = step(session, test, at, 1);
    }
    return result;
}

// ------------------------------------------------------------------------------------------------ children

static int decode_on(struct session *session, const struct test *test, int at) {
    return steps(session, test, at, test->n_threads > 1 ? 1 : CHILD_STEPS);
}

static int decode_and_free(struct session *session, const struct test *test, int at) {
    int result = decode_on(session, test, at);
    session_close(session);
    return result;
}

static int free_all(struct session *session, const struct test *test, int at) {
    (void)test, (void)at;
    session_close(session);
    return 0;
}

static int leave(struct session *session, const struct test *test, int at) {
    (void)session, (void)test, (void)at;
    return 0;
}

static int exit_in_order(struct session *session, const struct test *test, int at) {
    (void)session, (void)test, (void)at;
    exit(0);
}

static int decode_and_exit(struct session *session, const struct test *test, int at) {
    exit(decode_on(session, test, at));
}

// The only thing that works when the parent was in the midst of computing: a context of the child's own.
static int new_context(struct session *session, const struct test *test, int at) {
    (void)at;
    struct session own = *session;
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = 64;
    params.n_threads = params.n_threads_batch = test->n_threads;
    params.op_offload = false;
    own.context = llama_init_from_model(own.model, params);
    int result = own.context ? step(&own, test, 0, PROMPT) : 1;
    result = result ? result : decode_on(&own, test, PROMPT);
    llama_free(own.context);
    return result;
}

// A child of the child.
static int fork_again(struct session *session, const struct test *test, int at) {
    int result = step(session, test, at, 1);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(LIMIT_S);
        _exit(decode_on(session, test, at + 1));
    }
    int status = 0;
    result = result ? result : decode_on(session, test, at + 1);
    return result || pid < 0 || waitpid(pid, &status, 0) != pid || status;
}

typedef int (*child_body)(struct session *session, const struct test *test, int at);

static pid_t begin_child(child_body body, struct session *session, const struct test *test, int at) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(LIMIT_S);
        _exit(body(session, test, at) ? 1 : 0);
    }
    return pid;
}

static bool ended_well(pid_t pid, const char *what) {
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status) {
        fprintf(stderr, "a child that was to %s ended with status 0x%x\n", what, (unsigned)status);
        return false;
    }
    return true;
}

// ------------------------------------------------------------------------------------------------ parents

static const struct {
    child_body body;
    const char *name;
} children[] = {
    {decode_and_exit, "decode and exit()"},
    {free_all, "free its model"},
    {decode_on, "decode"},
    {decode_and_free, "decode and free"},
    {new_context, "make a context"},
    {fork_again, "fork again"},
    {leave, "end by _exit()"},
    {exit_in_order, "end by exit()"},
};

// The parent decodes before, while and after.
static int run_idle(void *context) {
    const struct test *test = context;
    struct session session;
    alarm(LIMIT_S);
    if (open_session(&session, test)) {
        return 1;
    }
    int failed = 0, at = PROMPT;
    size_t n = test->n_threads > 1 ? FEW : sizeof children / sizeof *children;
    for (size_t c = 0; c < n; c++) {
        pid_t pid = test->alone ? 0 : begin_child(children[c].body, &session, test, at);
        int during = step(&session, test, at++, 1);
        failed += !test->alone && !ended_well(pid, children[c].name);
        int after = step(&session, test, at++, 1);
        if (during || after) {
            fprintf(stderr, "the parent's decode ended with %d and %d beside a child that was to %s\n", during, after,
                    children[c].name);
            return 1;
        }
    }
    failed += decode_on(&session, test, at) != 0;
    session_close(&session);
    return failed != 0;
}

static int keep_all(void *context) {
    const struct test *test = context;
    struct session session;
    if (open_session(&session, test)) {
        return 1;
    }
    int result = steps(&session, test, PROMPT, STEPS);
    session_close(&session);
    return result;
}

struct forking {
    struct session *session;
    const struct test *test;
    atomic_bool done;
    int failed;
};

static void *fork_now_and_then(void *context) {
    struct forking *forking = context;
    for (int i = 0; i < (forking->test->n_threads > 1 ? FEW : FORKS); i++) {
        pid_t pid = begin_child(i % 2 ? new_context : leave, forking->session, forking->test, 0);
        forking->failed += !ended_well(pid, i % 2 ? "make a context, forked while another thread computed" : "leave");
    }
    atomic_store(&forking->done, true);
    return NULL;
}

// Another thread forks while this one computes.
static int run_busy(void *context) {
    const struct test *test = context;
    struct session session;
    alarm(LIMIT_S);
    if (open_session(&session, test)) {
        return 1;
    }
    struct forking forking = {.session = &session, .test = test};
    pthread_t thread;
    if (pthread_create(&thread, NULL, fork_now_and_then, &forking)) {
        return 1;
    }
    int result = 0;
    do {
        llama_memory_seq_rm(llama_get_memory(session.context), 0, PROMPT, -1);
        result = decode_on(&session, test, PROMPT);
    } while (result == 0 && !atomic_load(&forking.done));
    pthread_join(thread, NULL);
    if (result) {
        fprintf(stderr, "the parent's decode ended with %d while another thread forked\n", result);
    }
    session_close(&session);
    return result || forking.failed;
}

static int failures;

static int check(const char *name, const struct test *test, int (*body)(void *context)) {
    int code = in_child(body, (void *)test);
    printf("%s, %d thread%s: %s\n", name, test->n_threads, test->n_threads == 1 ? "" : "s", code ? "FAILED" : "ok");
    if (code > 256) {
        printf("    the parent ended by signal %d\n", code - 256);
    }
    failures += code != 0;
    return code;
}

// ------------------------------------------------------------------------------------------------ the parent's trace

static char *read_file(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "re");
    char *text = file ? malloc(1 << 22) : NULL;
    *bytes = text ? fread(text, 1, 1 << 22, file) : 0;
    if (file) {
        fclose(file);
    }
    return text;
}

// Children that end in order write none of what the parent had not written yet.
static void check_trace(const struct test *test, const char *folder) {
    char path[2][4200];
    for (int with = 0; with < 2; with++) {
        snprintf(path[with], sizeof path[with], "%s/fork-%d.csv", folder, with);
        setenv("GUANACO_TRACE", path[with], 1);
        struct test traced = *test;
        traced.alone = !with;
        check(with ? "with a trace and children" : "with a trace", &traced, run_idle);
        unsetenv("GUANACO_TRACE");
    }
    size_t bytes[2];
    char *text[2] = {read_file(path[0], &bytes[0]), read_file(path[1], &bytes[1])};
    size_t rows = 0;
    for (size_t i = 0; i < bytes[0]; i++) {
        rows += text[0][i] == '\n';
    }
    // Every event of the parent once: none of the children's, none twice.
    bool good = text[0] && text[1] && bytes[0] == bytes[1] && !memcmp(text[0], text[1], bytes[0]) && rows > 100;
    for (char *at = text[0]; good && at && (at = strstr(at, "# route_trace")); at++) {
        good = at == text[0];
    }
    printf("the trace is the parent's alone, %zu lines: %s\n", rows, good ? "ok" : "FAILED");
    failures += !good;
    free(text[0]);
    free(text[1]);
    unlink(path[0]);
    unlink(path[1]);
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: test_fork MODEL PLUGIN FOLDER\n");
        return 2;
    }
    struct test test = {.model = argv[1], .n_threads = 1};
    test.logits = mmap(NULL, (size_t)(PROMPT + STEPS) * 4096 * sizeof(float), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    setenv("GUANACO_LOG", "error", 1);
    setenv("GUANACO_EXPERT_CACHE", "15%", 1); // so that every token reads
    setenv("GUANACO_PREFETCH", "pilot", 1);   // so that reads are in flight between two tokens
    setenv("GUANACO_IMATRIX", "off", 1);
    test.keep = true;
    check("stock", &test, keep_all);
    test.keep = false;
    for (test.n_threads = 1; test.n_threads <= 2; test.n_threads++) {
        check("stock, idle when forked", &test, run_idle);
    }
    test.plugin = argv[2];
    static const char *const readers[] = {"auto", "threads", "mapped", "null"};
    test.n_threads = 2; // a pool of ours, whose threads no child has
    check("--io auto, idle when forked", &test, run_idle);
    test.n_threads = 1;
    for (size_t r = 0; r < sizeof readers / sizeof *readers; r++) {
        char name[64];
        setenv("GUANACO_IO", readers[r], 1);
        test.garbage = !strcmp(readers[r], "null");
        snprintf(name, sizeof name, "--io %s, idle when forked", readers[r]);
        check(name, &test, run_idle);
        snprintf(name, sizeof name, "--io %s, computing when forked", readers[r]);
        check(name, &test, run_busy);
    }
    unsetenv("GUANACO_IO");
    test.n_threads = 1;
    test.garbage = false;
    check_trace(&test, argv[3]);
    return failures != 0;
}
