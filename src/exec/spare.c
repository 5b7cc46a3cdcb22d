#include "exec/spare.h"

#include <errno.h>
#include <stdlib.h>

int gn_spares_open(struct gn_spares *spares, const struct gn_cache *cache, uint32_t n) {
    const struct gn_layout *layout = gn_cache_layout(cache);
    uint32_t n_classes = layout->n_classes, each = n / n_classes;
    *spares = (struct gn_spares){.cache = cache, .spare = calloc(n, sizeof *spares->spare), .n = n, .usable = n};
    if (!spares->spare) {
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t size_class = each < 2 || i / each >= n_classes ? 0 : i / each;
        spares->spare[i].size_class = size_class;
        spares->bytes += layout->classes[size_class].slot_bytes;
    }
    return 0;
}

void gn_spares_close(struct gn_spares *spares) {
    free(spares->spare);
    *spares = (struct gn_spares){0};
}

uint32_t gn_spares_find(const struct gn_spares *spares, uint32_t size_class, bool larger) {
    uint32_t best = GN_NONE;
    for (uint32_t i = 0; i < spares->usable; i++) {
        const struct gn_spare *spare = &spares->spare[i];
        if (spare->use != GN_SPARE_FREE || spare->size_class > size_class) {
            continue;
        }
        if (spare->size_class == size_class) {
            return i;
        }
        if (larger && (best == GN_NONE || spare->size_class > spares->spare[best].size_class)) {
            best = i;
        }
    }
    return best;
}

uint32_t gn_spares_find_ahead(const struct gn_spares *spares, uint32_t entry) {
    for (uint32_t i = 0; spares->ahead > 0 && i < spares->n; i++) {
        if (spares->spare[i].use == GN_SPARE_AHEAD && spares->spare[i].entry == entry) {
            return i;
        }
    }
    return GN_NONE;
}

// Frees a spare whose reads have ended. Pages of a mapped file stay if the expert has come into a slot by now.
static void set_free(const struct gn_spares *spares, struct gn_spare *spare) {
    if (gn_cache_peek(spares->cache, spare->entry) == GN_NONE) {
        gn_expert_drop(spare->load->layer, spare->load->expert);
    }
    spare->use = GN_SPARE_FREE;
}

struct gn_dismissed gn_spares_dismiss(struct gn_spares *spares, const struct gn_layer *layer) {
    struct gn_dismissed dismissed = {0};
    for (uint32_t i = 0; spares->ahead > 0 && i < spares->n; i++) {
        struct gn_spare *spare = &spares->spare[i];
        if (spare->use == GN_SPARE_AHEAD && (!layer || spare->load->layer == layer)) {
            spares->ahead--;
            dismissed.n++;
            dismissed.bytes += spare->load->layer->expert_bytes;
            if (spare->source < GN_SOURCES) {
                dismissed.source[spare->source]++;
            }
            if (spare->load->in_flight) {
                spare->use = GN_SPARE_DOOMED;
            } else {
                set_free(spares, spare);
            }
        }
    }
    return dismissed;
}

bool gn_spares_ended(struct gn_spares *spares, const struct gn_load *load) {
    for (uint32_t i = 0; i < spares->n; i++) {
        struct gn_spare *spare = &spares->spare[i];
        if (spare->load == load && spare->use == GN_SPARE_DOOMED) {
            set_free(spares, spare);
            return true;
        }
    }
    return false;
}
