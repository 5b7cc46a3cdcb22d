// Keeps reads of whole experts of the model in flight, in random order, past the page cache: what the drive gives is
// measured with them (drive.h), and it is kept busy with them (busy.h).
#pragma once

#include "config/knobs.h"
#include "io/reader.h"
#include "model/expert_map.h"
#include "model_file.h"

#include <stdatomic.h>

#define BENCH_READS_MEMORY ((uint64_t)256 << 20) // at most, unless two experts take more
#define BENCH_READS_EXPERTS 256                  // in flight at most

struct bench_flight;

struct bench_reads {
    struct gn_expert_map map;
    uint64_t n_experts;       // of all layers
    bool direct;              // past the page cache, in every file
    struct gn_reader *reader; // after bench_reads_set_depth()
    // Its own:
    struct gn_reader_options options;
    uint64_t random, memory_bytes;
    uint8_t *memory;
    unsigned n_flights;
    struct bench_flight *flights; // [BENCH_READS_EXPERTS]
    atomic_bool stop;
};

// Finds the experts of the model and opens its files. seed: of the order. Returns NULL with one plain line in why.
struct bench_reads *bench_reads_open(const struct model_file *model, const struct gn_knobs *knobs, uint64_t seed,
                                     char *why, size_t why_size);
void bench_reads_close(struct bench_reads *reads); // NULL is allowed

// Opens the reader for so many reads in flight (0: as many as the engine takes by itself) and takes the memory to read
// into. To be called again for another depth. Returns false with one plain line in why.
bool bench_reads_set_depth(struct bench_reads *reads, unsigned depth, char *why, size_t why_size);

// Reads for so many nanoseconds (UINT64_MAX: without end), or until it is stopped, then waits for what is in flight.
// Sleeps while it waits. Returns bytes per second at full depth, or a negative errno.
double bench_reads_run(struct bench_reads *reads, uint64_t ns);

// Ends bench_reads_run(), and every one to come. From any thread.
void bench_reads_stop(struct bench_reads *reads);
