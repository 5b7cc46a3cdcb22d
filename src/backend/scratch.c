#include "backend/scratch.h"

#include <stdlib.h>

#define ALIGNMENT 64u

void *gn_scratch_get(struct gn_scratch *scratch, enum gn_scratch_part part, size_t bytes) {
    if (bytes > scratch->bytes[part]) {
        size_t grown = (bytes + bytes / 4 + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        free(scratch->memory[part]);
        scratch->memory[part] = aligned_alloc(ALIGNMENT, grown);
        scratch->bytes[part] = scratch->memory[part] ? grown : 0;
    }
    return scratch->memory[part];
}

struct ggml_cgraph *gn_scratch_graph(struct gn_scratch *scratch, size_t n) {
    size_t size = 4 * n + 8; // the node itself and its operands, which ggml counts as leafs
    size_t need = size * ggml_tensor_overhead() + ggml_graph_overhead_custom(size, false) + 1024;
    if (need > scratch->bytes[GN_SCRATCH_GRAPH] || !scratch->context) {
        ggml_free(scratch->context);
        scratch->context = NULL;
        void *memory = gn_scratch_get(scratch, GN_SCRATCH_GRAPH, need);
        if (!memory) {
            return NULL;
        }
        struct ggml_init_params params = {
            .mem_size = scratch->bytes[GN_SCRATCH_GRAPH],
            .mem_buffer = memory,
            .no_alloc = true,
        };
        scratch->context = ggml_init(params);
    }
    if (!scratch->context) {
        return NULL;
    }
    ggml_reset(scratch->context);
    return ggml_new_graph_custom(scratch->context, size, false);
}

void gn_scratch_free(struct gn_scratch *scratch) {
    ggml_free(scratch->context);
    for (int part = 0; part < GN_SCRATCH_PARTS; part++) {
        free(scratch->memory[part]);
    }
    *scratch = (struct gn_scratch){0};
}
