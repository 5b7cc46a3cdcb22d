// Keeps a model's dense weights in memory while its experts stream past. Expert traffic would push them out of the page
// cache and every token would read them again.
//
// Works on the loader's own file mappings, in place: the weights stay at the addresses that llama.cpp knows. Dense is
// what of a file is still mapped and is not an expert. Pages that the process has touched already were copied elsewhere
// while loading (repacked weights, a GPU's): their mapping is left alone and dropped from memory, so that nothing is
// held twice.
//
// Where the weights are kept (--dense) and whether the kernel may page them out (--lock dense) are two questions: a
// copy can be locked as well as what is left mapped. "--dense lock" is short for "--dense mapped --lock dense".
//
// Call after the model is loaded and before anything computes with it; not thread-safe.
#pragma once

#include "config/knobs.h"
#include "config/lock.h"
#include "model/expert_map.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// One file of the model and where it is mapped: the address of its first byte (mapped or not).
struct gn_mapped_file {
    struct gn_file *file;
    uint64_t dev, ino; // as in struct gn_mapping
    uint8_t *base;
};

struct gn_dense_result {
    enum gn_dense_mode mode; // what was really done
    uint64_t bytes;          // of dense weights in the mappings
    unsigned failed_advice;  // advice calls that the kernel refused; 0 unless something is odd
    char note[200];          // why it is not what was asked for; "" when it is
    char lock_note[400];     // why nothing is locked that should be; "" otherwise
};

// files: [n_files]. wanted: as the user said. room: bytes that may be spent on copies; AUTO leaves the weights mapped
// when they need more. populated: the loader has touched every page, so touched pages tell nothing. locks: where to
// note what is locked, which GN_DENSE_LOCK needs; NULL: lock nothing. When a lock fails nothing in it stays locked.
// Returns 0 or a negative errno (a read failed: the mapping is as before from there on).
int gn_dense_protect(const struct gn_mapped_file *files, uint32_t n_files, const struct gn_expert_map *map,
                     enum gn_dense_mode wanted, uint64_t room, bool populated, struct gn_locks *locks,
                     struct gn_dense_result *result);
