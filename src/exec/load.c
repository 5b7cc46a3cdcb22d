#include "exec/load.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

void gn_load_prepare(struct gn_load *load, const struct gn_layer *layer, uint32_t expert, uint8_t *memory,
                     uint32_t slices) {
    load->layer = layer;
    load->expert = expert;
    load->item = GN_NO_ITEM;
    load->in_flight = load->n_reads = 0;
    load->error = 0;
    atomic_store_explicit(&load->arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&load->awaited, 0, memory_order_relaxed);
    for (uint32_t s = 0; s < layer->n_slices; s++) {
        if (slices & 1u << s) {
            load->slice[load->n_reads] = (uint8_t)s;
            load->reads[load->n_reads] = gn_slice_read(&layer->slices[s], expert, memory);
            load->reads[load->n_reads++].owner = load;
        }
    }
}

void gn_load_queue(struct gn_load *load, struct gn_reader *reader, bool last) {
    for (uint32_t r = 0; r < load->n_reads; r++) {
        if (load->layer->slices[load->slice[r]].last == last) {
            load->in_flight++;
            gn_reader_queue(reader, &load->reads[r]);
        }
    }
}

void gn_load_explain(const struct gn_load *load, const struct gn_read *read, char *why, size_t why_size) {
    const struct gn_slice *slice = &load->layer->slices[load->slice[read - load->reads]];
    const char *reason = read->result == -ENODATA ? "the file ends before it" : strerror(-read->result);
    snprintf(why, why_size, "cannot read expert %u of %s: %s, offset %llu, %u bytes: %s", load->expert, slice->tensor,
             gn_file_path(read->file), (unsigned long long)read->offset, read->need, reason);
}
