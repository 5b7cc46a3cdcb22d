// Which operations are ours: expert matrix products, and what lies between them (activations, biases, scales), so that
// ggml hands us a whole MoE layer in one call. Claiming anything else would draw the rest of the graph to us.
#include "backend/backend.h"

#include <stdatomic.h>
#include <string.h>

// The longest chain of operations between two expert products that is followed: clamped and scaled activations need
// five.
#define DEEPEST 8

static const struct ggml_tensor *base_of(const struct ggml_tensor *tensor) {
    return tensor->view_src ? tensor->view_src : tensor;
}

bool gn_is_view(const struct ggml_tensor *op) {
    return gn_op_of(op) == GN_OP_NONE || gn_op_of(op) == GN_OP_VIEW || gn_op_of(op) == GN_OP_RESHAPE ||
           gn_op_of(op) == GN_OP_PERMUTE || gn_op_of(op) == GN_OP_TRANSPOSE;
}

static bool is_ours(const struct ggml_tensor *weight) {
    const struct ggml_backend_buffer *buffer = base_of(weight)->buffer;
    return buffer && gn_is_our_buffer(buffer);
}

static bool is_expert_product(const struct ggml_tensor *op) {
    return gn_op_of(op) == GN_OP_MUL_MAT_ID && is_ours(op->src[0]);
}

// Operations that work on each row by itself.
bool gn_is_row_wise(const struct ggml_tensor *op) {
    switch (gn_op_of(op)) {
    case GN_OP_GLU:
    case GN_OP_UNARY:
    case GN_OP_ADD_ID:
    case GN_OP_ADD:
    case GN_OP_MUL:
    case GN_OP_SCALE:
    case GN_OP_CLAMP:
    case GN_OP_SQR:
        return op->type == GGML_TYPE_F32;
    default:
        return false;
    }
}

// The expert product that this value was computed from, row by row, or NULL.
static const struct ggml_tensor *product_behind(const struct ggml_tensor *value, int depth) {
    value = base_of(value);
    if (is_expert_product(value)) {
        return value;
    }
    if (depth == 0 || !gn_is_row_wise(value)) {
        return NULL;
    }
    for (int i = 0; i < 2 && value->src[i]; i++) {
        const struct ggml_tensor *product = product_behind(value->src[i], depth - 1);
        if (product) {
            return product;
        }
    }
    return NULL;
}

// Whether the product takes what another expert product gave: then it is the layer's last (down).
static bool is_last_product(const struct ggml_tensor *product) {
    return product_behind(product->src[1], DEEPEST) != NULL;
}

static bool claims_row_wise(const struct ggml_tensor *op) {
    const struct ggml_tensor *product = product_behind(op, DEEPEST);
    if (!product || op->ne[1] != product->ne[1] || op->ne[2] != product->ne[2] || op->ne[3] != 1) {
        return false;
    }
    // After down come the router's weights and the sum over experts: those stay where they are, but for down's bias.
    return !is_last_product(product) || (gn_op_of(op) == GN_OP_ADD_ID && base_of(op->src[0]) == product);
}

bool gn_is_expert_weight(const char *name) {
    size_t length = strlen(name);
    static const char ending[] = "exps.weight";
    return length >= sizeof ending && !strcmp(name + length - (sizeof ending - 1), ending);
}

static atomic_uint offered;

unsigned gn_weights_offered(void) {
    return atomic_load(&offered);
}

bool gn_claims(const struct ggml_tensor *op) {
    if (gn_is_view(op)) {
        const struct ggml_backend_buffer *buffer = base_of(op)->buffer;
        return !buffer || gn_is_our_buffer(buffer);
    }
    if (is_expert_product(op)) {
        bool being_loaded = op->src[0]->buffer && op->src[0]->buffer->size == 0;
        const struct ggml_tensor *rows = op->src[1], *ids = op->src[2];
        bool by_row = rows->type == GGML_TYPE_F32 && rows->nb[0] == sizeof(float) && rows->ne[2] == ids->ne[1] &&
                      (rows->ne[1] == 1 || rows->ne[1] == ids->ne[0]);
        bool claimed = by_row && gn_is_whole_weight(op->src[0]) &&
                       (!being_loaded || (gn_is_expert_weight(op->src[0]->name) && op->src[0]->ne[2] > 1));
        if (claimed && being_loaded) {
            atomic_fetch_add(&offered, 1);
        }
        return claimed;
    }
    return gn_is_row_wise(op) && claims_row_wise(op);
}
