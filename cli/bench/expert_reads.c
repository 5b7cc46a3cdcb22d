#include "bench/expert_reads.h"

#include "gguf_header.h"
#include "stats/stats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

// An expert on its way: where it lies in memory and how many of its reads are missing.
struct bench_flight {
    uint8_t *slot;
    unsigned missing;
    struct gn_read reads[GN_MAX_SLICES];
};

// ------------------------------------------------------------------------------------------------ where experts are

static bool add_tensor(struct bench_reads *reads, const struct gguf_header *header, int64_t t, const char *path,
                       bool direct) {
    const char *name = gguf_get_tensor_name(header->gguf, t);
    const int64_t *ne = gguf_get_tensor_ne(header->gguf, t);
    if (ne[2] < 2 || ne[3] != 1 || (!strstr(name, "_exps.") && !strstr(name, "_chexps."))) {
        return true;
    }
    struct gn_file *file;
    struct gn_layer *layer;
    uint32_t slice;
    return gn_file_open(path, direct, 0, 0, &file) == 0 &&
           gn_expert_map_add(&reads->map, name, (uint32_t)ne[2], file,
                             gguf_get_data_offset(header->gguf) + gguf_get_tensor_offset(header->gguf, t),
                             gguf_get_tensor_size(header->gguf, t) / (uint64_t)ne[2], &layer, &slice) == 0;
}

static bool find_experts(struct bench_reads *reads, const struct model_file *model, bool direct, char *why,
                         size_t why_size) {
    for (uint32_t s = 0; s < model->n_shards; s++) {
        struct gguf_header header;
        if (!gguf_header_read(model->shards[s], &header, why, why_size)) {
            return false;
        }
        bool good = true;
        for (int64_t t = 0; good && t < gguf_get_n_tensors(header.gguf); t++) {
            good = add_tensor(reads, &header, t, model->shards[s], direct);
        }
        gguf_header_free(&header);
        if (!good) {
            snprintf(why, why_size, "cannot open the experts in %s", model->shards[s]);
            return false;
        }
    }
    gn_expert_map_finish(&reads->map);
    for (uint32_t l = 0; l < reads->map.n_layers; l++) {
        reads->n_experts += reads->map.layers[l]->n_experts;
    }
    if (reads->n_experts == 0) {
        snprintf(why, why_size, "there are no experts in %s", model->shards[0]);
        return false;
    }
    reads->direct = true;
    for (uint32_t f = 0; f < reads->map.n_files; f++) {
        reads->direct = reads->direct && gn_file_direct(reads->map.files[f]);
    }
    return true;
}

struct bench_reads *bench_reads_open(const struct model_file *model, const struct gn_knobs *knobs, uint64_t seed,
                                     char *why, size_t why_size) {
    struct bench_reads *reads = calloc(1, sizeof *reads);
    struct bench_flight *flights = calloc(BENCH_READS_EXPERTS, sizeof *flights);
    if (!reads || !flights) {
        snprintf(why, why_size, "memory is short");
        free(reads);
        free(flights);
        return NULL;
    }
    reads->flights = flights;
    reads->random = 0x9e3779b97f4a7c15u + seed;
    reads->options = (struct gn_reader_options){.kind = (enum gn_reader_kind)knobs->value[GN_IO],
                                                .fail_at = (uint64_t)knobs->value[GN_FAULT_AT],
                                                .fail_result = (int)knobs->value[GN_FAULT_RESULT]};
    if (reads->options.kind == GN_READER_MAPPED) {
        reads->options.kind = GN_READER_AUTO; // that one moves nothing, and we want the drive to work
    }
    if (!find_experts(reads, model, knobs->value[GN_DIRECT], why, why_size)) {
        bench_reads_close(reads);
        return NULL;
    }
    return reads;
}

void bench_reads_close(struct bench_reads *reads) {
    if (!reads) {
        return;
    }
    gn_reader_close(reads->reader);
    if (reads->memory) {
        munmap(reads->memory, reads->memory_bytes);
    }
    gn_expert_map_free(&reads->map);
    free(reads->flights);
    free(reads);
}

// ------------------------------------------------------------------------------------------------ depth

static bool take_memory(struct bench_reads *reads, unsigned depth) {
    uint64_t slot = gn_expert_map_largest_slot(&reads->map);
    // Enough experts that the reader always has the next one to start.
    unsigned n = depth + 1;
    n = n > BENCH_READS_EXPERTS ? BENCH_READS_EXPERTS : n;
    while (n > 2 && n * slot > BENCH_READS_MEMORY) {
        n--;
    }
    if (reads->memory_bytes < n * slot) {
        if (reads->memory) {
            munmap(reads->memory, reads->memory_bytes);
        }
        reads->memory_bytes = n * slot;
        reads->memory = mmap(NULL, reads->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (reads->memory == MAP_FAILED) {
            reads->memory = NULL;
            return false;
        }
        madvise(reads->memory, reads->memory_bytes, MADV_HUGEPAGE);
        memset(reads->memory, 1, reads->memory_bytes); // a first touch costs, and is none of the drive's doing
    }
    reads->n_flights = n;
    for (unsigned f = 0; f < n; f++) {
        reads->flights[f].slot = reads->memory + f * slot;
    }
    return true;
}

bool bench_reads_set_depth(struct bench_reads *reads, unsigned depth, char *why, size_t why_size) {
    reads->options.depth = depth;
    gn_reader_close(reads->reader);
    reads->reader = NULL;
    int failed = gn_reader_open(&reads->options, &reads->reader);
    if (failed) {
        snprintf(why, why_size, "%s", strerror(-failed));
        return false;
    }
    if (!take_memory(reads, gn_reader_depth(reads->reader))) {
        snprintf(why, why_size, "memory is short");
        return false;
    }
    return true;
}

// ------------------------------------------------------------------------------------------------ reading

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void start_one(struct bench_reads *reads, struct bench_flight *flight) {
    uint64_t number = next_random(&reads->random) % reads->n_experts;
    uint32_t l = 0;
    while (number >= reads->map.layers[l]->n_experts) {
        number -= reads->map.layers[l++]->n_experts;
    }
    const struct gn_layer *layer = reads->map.layers[l];
    for (uint32_t s = 0; s < layer->n_slices; s++) {
        flight->reads[s] = gn_slice_read(&layer->slices[s], (uint32_t)number, flight->slot);
        flight->reads[s].owner = flight;
    }
    flight->missing = layer->n_slices;
    gn_reader_submit(reads->reader, flight->reads, layer->n_slices);
}

double bench_reads_run(struct bench_reads *reads, uint64_t ns) {
    uint64_t start = gn_now_ns(), bytes = 0, last = start;
    int error = 0;
    for (unsigned f = 0; f < reads->n_flights; f++) {
        start_one(reads, &reads->flights[f]);
    }
    for (struct gn_read *read; (read = gn_reader_reap(reads->reader, true));) {
        struct bench_flight *flight = read->owner;
        error = read->result ? read->result : error;
        // What is only waited for at the end was not read at full depth.
        bool counts = last - start < ns && !atomic_load_explicit(&reads->stop, memory_order_relaxed);
        bytes += counts ? read->length : 0;
        if (--flight->missing == 0 && counts && !error) {
            last = gn_now_ns();
            if (last - start < ns) {
                start_one(reads, flight);
            }
        }
    }
    return error ? error : (double)bytes * 1e9 / (double)(last > start ? last - start : 1);
}

void bench_reads_stop(struct bench_reads *reads) {
    atomic_store_explicit(&reads->stop, true, memory_order_relaxed);
}
