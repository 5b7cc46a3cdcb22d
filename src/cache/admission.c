#include "cache/admission.h"

#include <stdlib.h>

struct gn_admission {
    uint32_t window, layer;
    uint32_t token;   // counted from 1, by the sweeps through the layers
    uint32_t *missed; // [n_entries] the token of the last miss; 0: none yet
    bool *admitted;   // [n_entries] by the last miss
};

struct gn_admission *gn_admission_open(const struct gn_admission_options *options, uint32_t n_entries) {
    struct gn_admission *admission = calloc(1, sizeof *admission);
    if (!admission) {
        return NULL;
    }
    admission->window = options->window;
    admission->missed = calloc(n_entries, sizeof *admission->missed);
    admission->admitted = calloc(n_entries, sizeof *admission->admitted);
    if (!admission->missed || !admission->admitted) {
        gn_admission_close(admission);
        return NULL;
    }
    return admission;
}

void gn_admission_close(struct gn_admission *admission) {
    if (admission) {
        free(admission->missed);
        free(admission->admitted);
        free(admission);
    }
}

void gn_admission_begin(struct gn_admission *admission, uint32_t layer) {
    admission->token += admission->token == 0 || layer <= admission->layer;
    admission->layer = layer;
}

void gn_admission_miss(struct gn_admission *admission, uint32_t entry) {
    uint32_t before = admission->missed[entry];
    admission->admitted[entry] = before > 0 && admission->token - before <= admission->window;
    admission->missed[entry] = admission->token;
}

bool gn_admission_admits(const struct gn_admission *admission, uint32_t entry) {
    return admission->admitted[entry];
}
