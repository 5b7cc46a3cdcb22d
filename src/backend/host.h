// The ggml of the program that has loaded us, which may be another than the one that this was compiled with. ggml's
// plugin interface has had one number through releases that changed structures and enumerations: so whether this ggml
// fits is found out before anything of it is touched, and operations are known by their names, not their numbers.
#pragma once

#include "ggml.h"

#include <stdbool.h>
#include <stddef.h>

// Returns NULL if this ggml fits: its version is one whose structures are those this was compiled with, and it has
// every operation and type that is looked for here. Else why not, one plain line. Nothing else of ggml may be used
// before, nor after a refusal. Any thread.
const char *gn_host_unfit(void);

// Operations that we know. GN_OP_OTHER: any other.
enum gn_op {
    GN_OP_OTHER,
    GN_OP_NONE,
    GN_OP_ADD,
    GN_OP_ADD_ID,
    GN_OP_ARGSORT,
    GN_OP_CLAMP,
    GN_OP_CONT,
    GN_OP_FILL,
    GN_OP_GET_ROWS,
    GN_OP_GLU,
    GN_OP_MUL,
    GN_OP_MUL_MAT,
    GN_OP_MUL_MAT_ID,
    GN_OP_PERMUTE,
    GN_OP_RESHAPE,
    GN_OP_SCALE,
    GN_OP_SET_ROWS,
    GN_OP_SOFT_MAX,
    GN_OP_SQR,
    GN_OP_SQRT,
    GN_OP_SUM_ROWS,
    GN_OP_TOP_K,
    GN_OP_TRANSPOSE,
    GN_OP_UNARY,
    GN_OP_VIEW,
    GN_OPS,
};
enum gn_op gn_op_of(const struct ggml_tensor *tensor);

// The same of an operation GN_OP_UNARY.
enum gn_unary { GN_UNARY_OTHER, GN_UNARY_SIGMOID, GN_UNARY_SOFTPLUS, GN_UNARIES };
enum gn_unary gn_unary_of(const struct ggml_tensor *tensor);
