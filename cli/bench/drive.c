#include "bench/drive.h"

#include "gguf_header.h"
#include "model/expert_map.h"
#include "stats/stats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define NS_PER_DEPTH 250000000u
#define MOST_IN_FLIGHT 256 // experts
#define MOST_MEMORY ((uint64_t)256 << 20)

static const unsigned other_depths[] = {1, 2, 4, 8, 16, 32};
#define OTHER_DEPTHS (sizeof other_depths / sizeof *other_depths)

// An expert on its way: where it lies in memory and how many of its reads are missing.
struct flight {
    uint8_t *slot;
    unsigned missing;
    struct gn_read reads[GN_MAX_SLICES];
};

struct drive_run {
    struct gn_expert_map map;
    uint64_t n_experts, random;
    struct gn_reader *reader;
    uint8_t *memory;
    uint64_t memory_bytes;
    unsigned n_flights;
    struct flight flights[MOST_IN_FLIGHT];
};

// ------------------------------------------------------------------------------------------------ where experts are

static bool add_tensor(struct drive_run *run, const struct gguf_header *header, int64_t t, const char *path,
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
           gn_expert_map_add(&run->map, name, (uint32_t)ne[2], file,
                             gguf_get_data_offset(header->gguf) + gguf_get_tensor_offset(header->gguf, t),
                             gguf_get_tensor_size(header->gguf, t) / (uint64_t)ne[2], &layer, &slice) == 0;
}

static bool find_experts(struct drive_run *run, const struct model_file *model, bool direct, char *why,
                         size_t why_size) {
    for (uint32_t s = 0; s < model->n_shards; s++) {
        struct gguf_header header;
        if (!gguf_header_read(model->shards[s], &header, why, why_size)) {
            return false;
        }
        bool good = true;
        for (int64_t t = 0; good && t < gguf_get_n_tensors(header.gguf); t++) {
            good = add_tensor(run, &header, t, model->shards[s], direct);
        }
        gguf_header_free(&header);
        if (!good) {
            snprintf(why, why_size, "cannot open the experts in %s", model->shards[s]);
            return false;
        }
    }
    gn_expert_map_finish(&run->map);
    for (uint32_t l = 0; l < run->map.n_layers; l++) {
        run->n_experts += run->map.layers[l]->n_experts;
    }
    return run->n_experts > 0;
}

// ------------------------------------------------------------------------------------------------ reading

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void start_one(struct drive_run *run, struct flight *flight) {
    uint64_t number = next_random(&run->random) % run->n_experts;
    uint32_t l = 0;
    while (number >= run->map.layers[l]->n_experts) {
        number -= run->map.layers[l++]->n_experts;
    }
    const struct gn_layer *layer = run->map.layers[l];
    for (uint32_t s = 0; s < layer->n_slices; s++) {
        flight->reads[s] = gn_slice_read(&layer->slices[s], (uint32_t)number, flight->slot);
        flight->reads[s].owner = flight;
    }
    flight->missing = layer->n_slices;
    gn_reader_submit(run->reader, flight->reads, layer->n_slices);
}

// Reads until the time is up. Returns bytes per second, or a negative errno.
static double read_for(struct drive_run *run, uint64_t ns) {
    uint64_t start = gn_now_ns(), bytes = 0, last = start;
    int error = 0;
    for (unsigned f = 0; f < run->n_flights; f++) {
        start_one(run, &run->flights[f]);
    }
    for (struct gn_read *read; (read = gn_reader_reap(run->reader, true));) {
        struct flight *flight = read->owner;
        error = read->result ? read->result : error;
        bool counts = last - start < ns; // what is only waited for at the end was not read at full depth
        bytes += counts ? read->length : 0;
        if (--flight->missing == 0 && counts && !error) {
            last = gn_now_ns();
            if (last - start < ns) {
                start_one(run, flight);
            }
        }
    }
    return error ? error : (double)bytes * 1e9 / (double)(last > start ? last - start : 1);
}

static bool take_memory(struct drive_run *run, unsigned depth) {
    uint64_t slot = gn_expert_map_largest_slot(&run->map);
    // Enough experts that the reader always has the next one to start.
    unsigned n = depth + 1;
    n = n > MOST_IN_FLIGHT ? MOST_IN_FLIGHT : n;
    while (n > 2 && n * slot > MOST_MEMORY) {
        n--;
    }
    if (run->memory_bytes < n * slot) {
        if (run->memory) {
            munmap(run->memory, run->memory_bytes);
        }
        run->memory_bytes = n * slot;
        run->memory = mmap(NULL, run->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (run->memory == MAP_FAILED) {
            run->memory = NULL;
            return false;
        }
        madvise(run->memory, run->memory_bytes, MADV_HUGEPAGE);
        memset(run->memory, 1, run->memory_bytes); // a first touch costs, and is none of the drive's doing
    }
    run->n_flights = n;
    for (unsigned f = 0; f < n; f++) {
        run->flights[f].slot = run->memory + f * slot;
    }
    return true;
}

// Returns NULL with a line in drive->why when it cannot be had.
static struct gn_reader *open_reader(const struct gn_knobs *knobs, unsigned depth, struct bench_drive *drive) {
    struct gn_reader_options options = {.kind = (enum gn_reader_kind)knobs->value[GN_IO], .depth = depth};
    struct gn_reader *reader;
    int failed = gn_reader_open(&options, &reader);
    if (failed) {
        snprintf(drive->why, sizeof drive->why, "the drive cannot be measured: %s", strerror(-failed));
    }
    return reader;
}

static bool measure_depth(struct drive_run *run, const struct gn_knobs *knobs, struct bench_drive *drive, int d) {
    if (!take_memory(run, drive->depths[d])) {
        snprintf(drive->why, sizeof drive->why, "the drive cannot be measured: memory is short");
        return false;
    }
    run->reader = open_reader(knobs, drive->depths[d], drive);
    if (!run->reader) {
        return false;
    }
    double rate = read_for(run, NS_PER_DEPTH);
    snprintf(drive->reader, sizeof drive->reader, "%s", gn_reader_name(run->reader));
    gn_reader_close(run->reader);
    run->reader = NULL;
    if (rate < 0) {
        snprintf(drive->why, sizeof drive->why, "the drive cannot be measured: %s", strerror((int)-rate));
        return false;
    }
    drive->mib_per_second[d][drive->n_rounds] = rate / BENCH_MIB;
    return true;
}

// The engine's own depth and some others, ascending.
static bool choose_depths(const struct gn_knobs *knobs, struct bench_drive *drive) {
    struct gn_reader *reader = open_reader(knobs, (unsigned)knobs->value[GN_IO_DEPTH], drive);
    if (!reader) {
        return false;
    }
    drive->engine_depth = gn_reader_depth(reader);
    gn_reader_close(reader);
    drive->n_depths = 0;
    for (size_t d = 0; d < OTHER_DEPTHS; d++) {
        unsigned last = d > 0 ? other_depths[d - 1] : 0;
        if (drive->engine_depth > last && drive->engine_depth < other_depths[d]) {
            drive->depths[drive->n_depths++] = drive->engine_depth;
        }
        drive->depths[drive->n_depths++] = other_depths[d];
    }
    if (drive->engine_depth > other_depths[OTHER_DEPTHS - 1]) {
        drive->depths[drive->n_depths++] = drive->engine_depth;
    }
    return true;
}

bool bench_drive_measure(const struct model_file *model, const struct gn_knobs *knobs, struct bench_drive *drive) {
    struct drive_run *run = calloc(1, sizeof *run);
    if (!run) {
        snprintf(drive->why, sizeof drive->why, "the drive cannot be measured: memory is short");
        return false;
    }
    run->random = 0x9e3779b97f4a7c15u + (uint64_t)drive->n_rounds;
    bool good = find_experts(run, model, knobs->value[GN_DIRECT], drive->why, sizeof drive->why);
    good = good && choose_depths(knobs, drive);
    if (good) {
        drive->direct = gn_file_direct(run->map.files[0]);
        drive->read_mib = (double)run->map.bytes / (double)run->n_experts / BENCH_MIB;
    }
    for (int d = 0; good && d < drive->n_depths; d++) {
        good = measure_depth(run, knobs, drive, d);
    }
    drive->n_rounds += good;
    drive->measured = drive->n_rounds > 0;
    if (run->memory) {
        munmap(run->memory, run->memory_bytes);
    }
    gn_expert_map_free(&run->map);
    free(run);
    return good;
}
