// Operations of a ggml are known by their names, whatever their numbers: this program stands in for a ggml with an
// operation more, and for one in another order.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend/host.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *names[256], *unary_names[256], *version = GUANACO_GGML_VERSION;
static size_t overhead = sizeof(struct ggml_tensor) + 32;
static int n_names;

const char *ggml_version(void) {
    return version;
}

size_t ggml_tensor_overhead(void) {
    return overhead;
}

const char *ggml_op_name(enum ggml_op op) {
    assert_true((int)op < n_names); // beyond lies what is no name
    return names[op];
}

const char *ggml_unary_op_name(enum ggml_unary_op op) {
    assert_non_null(unary_names[op]);
    return unary_names[op];
}

const char *ggml_type_name(enum ggml_type type) {
    return type == GGML_TYPE_F32 ? "f32" : type == GGML_TYPE_I32 ? "i32" : "other";
}

enum ggml_unary_op ggml_get_unary_op(const struct ggml_tensor *tensor) {
    return (enum ggml_unary_op)tensor->op_params[0];
}

static const char *const plain[] = {
    "NONE",       "DUP",      "ADD",   "ADD_ID",  "MUL",   "SQR",     "SQRT",  "SUM_ROWS",  "MUL_MAT",
    "MUL_MAT_ID", "SCALE",    "CONT",  "RESHAPE", "VIEW",  "PERMUTE", "SET",   "TRANSPOSE", "GET_ROWS",
    "SET_ROWS",   "SOFT_MAX", "CLAMP", "ARGSORT", "TOP_K", "FILL",    "UNARY", "GLU",
};
static const enum gn_op ops[] = {
    GN_OP_NONE,     GN_OP_OTHER,   GN_OP_ADD,        GN_OP_ADD_ID,   GN_OP_MUL,      GN_OP_SQR,      GN_OP_SQRT,
    GN_OP_SUM_ROWS, GN_OP_MUL_MAT, GN_OP_MUL_MAT_ID, GN_OP_SCALE,    GN_OP_CONT,     GN_OP_RESHAPE,  GN_OP_VIEW,
    GN_OP_PERMUTE,  GN_OP_OTHER,   GN_OP_TRANSPOSE,  GN_OP_GET_ROWS, GN_OP_SET_ROWS, GN_OP_SOFT_MAX, GN_OP_CLAMP,
    GN_OP_ARGSORT,  GN_OP_TOP_K,   GN_OP_FILL,       GN_OP_UNARY,    GN_OP_GLU,
};
enum { N = sizeof plain / sizeof *plain };

// With `more` operations inserted at `at`, those from `turn` on first; the last is the last, as in every ggml.
static void make(int at, int more, int turn) {
    for (int i = 0; i < N; i++) {
        int shifted = i == N - 1 ? i : (i + turn) % (N - 1);
        names[i + (i >= at ? more : 0)] = plain[shifted];
    }
    for (int i = 0; i < more; i++) {
        names[at + i] = "ONE_MORE";
    }
    n_names = N + more;
    unary_names[0] = "ABS";
    unary_names[1] = more ? "MORE" : "SIGMOID";
    unary_names[2] = more ? "SOFTPLUS" : "NEG";
    unary_names[3] = more ? "SIGMOID" : "SOFTPLUS";
}

// Each in a process of its own: what is found out once holds for good.
static void in_child(void (*body)(void)) {
    pid_t pid = fork();
    if (pid == 0) {
        body();
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void require(int holds) {
    if (!holds) {
        _exit(1);
    }
}

static void all_are_found(void) {
    require(gn_host_unfit() == NULL);
    for (int number = 0; number < n_names; number++) {
        struct ggml_tensor tensor = {.op = (enum ggml_op)number};
        enum gn_op expected = GN_OP_OTHER;
        for (int i = 0; i < N; i++) {
            expected = !strcmp(names[number], plain[i]) ? ops[i] : expected;
        }
        require(gn_op_of(&tensor) == expected);
    }
    struct ggml_tensor unknown = {.op = (enum ggml_op)300};
    require(gn_op_of(&unknown) == GN_OP_OTHER);
    for (int number = 0; number < 4; number++) {
        struct ggml_tensor tensor = {.op_params = {number}};
        enum gn_unary expected = !strcmp(unary_names[number], "SIGMOID")    ? GN_UNARY_SIGMOID
                                 : !strcmp(unary_names[number], "SOFTPLUS") ? GN_UNARY_SOFTPLUS
                                                                            : GN_UNARY_OTHER;
        require(gn_unary_of(&tensor) == expected);
    }
}

static void test_names_count(void **state) {
    (void)state;
    for (int at = 0; at < N; at++) {
        for (int more = 0; more < 3; more++) {
            make(at, more, at * 7);
            in_child(all_are_found);
        }
    }
}

static void is_refused(void) {
    const char *why = gn_host_unfit();
    require(why != NULL && !strncmp(why, "nothing is streamed: ", 21) && !strchr(why, '\n'));
}

static void test_versions(void **state) {
    static const struct {
        const char *version;
        int fits;
    } cases[] = {
        {"0.9.4", 0},  {"0.9.7", 0},  {"0.16.9", 0}, {"0.17.0", 1},  {"0.19.0", 1}, {"0.23.0-dev", 1}, {"0.25.1", 1},
        {"0.26.0", 0}, {"1.20.0", 0}, {"", 0},       {"unknown", 0}, {NULL, 0},     {"0", 0},
    };
    (void)state;
    unsigned major, minor;
    if (sscanf(GUANACO_GGML_VERSION, "%u.%u", &major, &minor) != 2 || major != 0 || minor < 17 || minor > 25) {
        skip(); // built for a ggml of its own
    }
    make(0, 0, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        version = cases[i].version;
        in_child(cases[i].fits ? all_are_found : is_refused);
    }
    version = GUANACO_GGML_VERSION;
    overhead += 8;
    in_child(is_refused);
    overhead -= 8;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_names_count), cmocka_unit_test(test_versions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
