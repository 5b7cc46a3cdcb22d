#include "backend/host.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

// The releases, by minor version, over which the structures and enumerations that we use are the same: compared header
// by header, and tried (tests/system/test_hosts.c). In 0.9 a buffer had fewer functions.
enum { MAJOR = 0, OLDEST = 17, NEWEST = 25 };

enum { MOST = 256 }; // operations that ggml may have

#define OBJECT_BYTES 32u // of struct ggml_object, before each tensor in its context

static const char *const op_names[GN_OPS] = {
    [GN_OP_NONE] = "NONE",         [GN_OP_ADD] = "ADD",
    [GN_OP_ADD_ID] = "ADD_ID",     [GN_OP_ARGSORT] = "ARGSORT",
    [GN_OP_CLAMP] = "CLAMP",       [GN_OP_CONT] = "CONT",
    [GN_OP_FILL] = "FILL",         [GN_OP_GET_ROWS] = "GET_ROWS",
    [GN_OP_GLU] = "GLU",           [GN_OP_MUL] = "MUL",
    [GN_OP_MUL_MAT] = "MUL_MAT",   [GN_OP_MUL_MAT_ID] = "MUL_MAT_ID",
    [GN_OP_PERMUTE] = "PERMUTE",   [GN_OP_RESHAPE] = "RESHAPE",
    [GN_OP_SCALE] = "SCALE",       [GN_OP_SET_ROWS] = "SET_ROWS",
    [GN_OP_SOFT_MAX] = "SOFT_MAX", [GN_OP_SQR] = "SQR",
    [GN_OP_SQRT] = "SQRT",         [GN_OP_SUM_ROWS] = "SUM_ROWS",
    [GN_OP_TOP_K] = "TOP_K",       [GN_OP_TRANSPOSE] = "TRANSPOSE",
    [GN_OP_UNARY] = "UNARY",       [GN_OP_VIEW] = "VIEW",
};
static const char *const unary_names[GN_UNARIES] = {
    [GN_UNARY_SIGMOID] = "SIGMOID",
    [GN_UNARY_SOFTPLUS] = "SOFTPLUS",
};

static unsigned char op_of[MOST], unary_of[MOST]; // by ggml's number
static char unfit[400];                           // "": it fits

enum gn_op gn_op_of(const struct ggml_tensor *tensor) {
    return (unsigned)tensor->op < MOST ? (enum gn_op)op_of[tensor->op] : GN_OP_OTHER;
}

enum gn_unary gn_unary_of(const struct ggml_tensor *tensor) {
    unsigned number = (unsigned)ggml_get_unary_op(tensor);
    return number < MOST ? (enum gn_unary)unary_of[number] : GN_UNARY_OTHER;
}

static const char *op_name(int number) {
    return ggml_op_name((enum ggml_op)number);
}

static const char *unary_name(int number) {
    return ggml_unary_op_name((enum ggml_unary_op)number);
}

// Finds the numbers of names[1 … n-1]. ggml does not say how many it has: nothing is asked beyond the last of these,
// nor beyond `end`, which is ggml's last in every release. Returns a name that is not there, or NULL.
static const char *resolve(const char *(*name_of)(int number), const char *end, const char *const *names, int n,
                           unsigned char *ours) {
    bool found[GN_OPS] = {false}, ended = false;
    int left = n - 1;
    for (int number = 0; number < MOST && left > 0 && !ended; number++) {
        const char *name = name_of(number);
        ended = name && !strcmp(name, end);
        for (int i = 1; name && i < n; i++) {
            if (!found[i] && !strcmp(name, names[i])) {
                found[i] = true;
                ours[number] = (unsigned char)i;
                left--;
            }
        }
    }
    for (int i = 1; i < n; i++) {
        if (!found[i]) {
            return names[i];
        }
    }
    return NULL;
}

static bool in_range(unsigned major, unsigned minor) {
    return major == MAJOR && minor >= OLDEST && minor <= NEWEST;
}

// Compiled with a ggml outside the range, we fit that one alone.
static bool has_our_structures(const char *version) {
    unsigned major, minor, our_major, our_minor;
    if (!version || sscanf(version, "%u.%u", &major, &minor) != 2 ||
        sscanf(GUANACO_GGML_VERSION, "%u.%u", &our_major, &our_minor) != 2) {
        return false;
    }
    bool same = major == our_major && minor == our_minor;
    return same || (in_range(major, minor) && in_range(our_major, our_minor));
}

static bool has_our_types(void) {
    const char *f32 = ggml_type_name(GGML_TYPE_F32), *i32 = ggml_type_name(GGML_TYPE_I32);
    return f32 && i32 && !strcmp(f32, "f32") && !strcmp(i32, "i32");
}

#define HINT "build it with -DGUANACO_LLAMA_DIR=<the llama.cpp of this program>"

static void look(void) {
    const char *version = ggml_version();
    if (!has_our_structures(version)) {
        snprintf(unfit, sizeof unfit,
                 "nothing is streamed: this program has ggml %.40s, and the plugin, built for %s, is not known to fit "
                 "it; " HINT,
                 version ? version : "without a version", GUANACO_GGML_VERSION);
        return;
    }
    size_t ours = sizeof(struct ggml_tensor) + OBJECT_BYTES, theirs = ggml_tensor_overhead();
    if (theirs != ours) {
        snprintf(unfit, sizeof unfit,
                 "nothing is streamed: a tensor of this program's ggml %.40s has %zu bytes, and the plugin, built for "
                 "%s, knows one of %zu; " HINT,
                 version, theirs, GUANACO_GGML_VERSION, ours);
        return;
    }
    const char *missing = resolve(op_name, "GLU", op_names, GN_OPS, op_of);
    missing = missing ? missing : resolve(unary_name, "TRUNC", unary_names, GN_UNARIES, unary_of);
    if (!missing && !has_our_types()) {
        missing = "f32 and i32 where they were";
    }
    if (missing) {
        snprintf(
            unfit, sizeof unfit,
            "nothing is streamed: this program's ggml %.40s has no %s, which the plugin, built for %s, needs; " HINT,
            version, missing, GUANACO_GGML_VERSION);
    }
}

const char *gn_host_unfit(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, look);
    return unfit[0] ? unfit : NULL;
}
