// Dense weights are taken out of the page cache and keep their bytes; experts stay mapped and are not read.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/dense.h"
#include "model/mapping.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXPERTS 4
#define EXPERT_BYTES (300u * 1024 + 96) // an odd multiple of 32

// header | dense | gate experts | up experts | dense | down experts | dense, at 32-byte alignment only
struct model {
    char path[64];
    uint8_t *mapping;
    size_t bytes;
    uint64_t gate, up, down;
    struct gn_expert_map map;
    struct gn_mapped_file file;
    struct gn_locks locks;
};

static uint8_t pattern(uint64_t at) {
    return (uint8_t)(at * 2654435761u >> 13);
}

static void add(struct model *model, const char *name, uint64_t offset) {
    struct gn_layer *layer;
    uint32_t slice;
    assert_int_equal(
        gn_expert_map_add(&model->map, name, EXPERTS, model->file.file, offset, EXPERT_BYTES, &layer, &slice), 0);
}

static int setup(void **state) {
    struct model *model = calloc(1, sizeof *model);
    strcpy(model->path, "dense-test-XXXXXX");
    int fd = mkstemp(model->path);
    uint64_t at = 700 * 1024 + 32;
    model->gate = at;
    model->up = (at += EXPERTS * EXPERT_BYTES);
    at += EXPERTS * EXPERT_BYTES + 900 * 1024 + 160;
    model->down = at;
    model->bytes = at + EXPERTS * EXPERT_BYTES + 333 * 1024 + 17;
    uint8_t *bytes = malloc(model->bytes);
    for (size_t i = 0; i < model->bytes; i++) {
        bytes[i] = pattern(i);
    }
    assert_int_equal(write(fd, bytes, model->bytes), model->bytes);
    free(bytes);
    assert_int_equal(fsync(fd), 0);
    assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    model->mapping = mmap(NULL, model->bytes, PROT_READ, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(model->mapping, MAP_FAILED);
    struct gn_mapping mapping;
    assert_int_equal(gn_mapping_find(model->mapping, &mapping), 1);
    assert_true(gn_mapping_is_of(&mapping, fd));
    close(fd);
    model->file = (struct gn_mapped_file){.dev = mapping.dev, .ino = mapping.ino, .base = model->mapping};
    assert_int_equal(gn_file_open(model->path, true, 0, 0, &model->file.file), 0);
    add(model, "blk.0.ffn_gate_exps.weight", model->gate);
    add(model, "blk.0.ffn_up_exps.weight", model->up);
    add(model, "blk.0.ffn_down_exps.weight", model->down);
    gn_expert_map_finish(&model->map);
    *state = model;
    return 0;
}

static int teardown(void **state) {
    struct model *model = *state;
    munmap(model->mapping, model->bytes);
    gn_expert_map_free(&model->map);
    unlink(model->path);
    free(model);
    return 0;
}

static struct gn_dense_result protect(struct model *model, enum gn_dense_mode mode, uint64_t room, bool populated) {
    struct gn_dense_result result;
    struct gn_locks *locks = mode == GN_DENSE_LOCK ? &model->locks : NULL;
    assert_int_equal(gn_dense_protect(&model->file, 1, &model->map, mode, room, populated, locks, &result), 0);
    assert_int_equal(result.failed_advice, 0);
    return result;
}

static bool file_backed(const struct model *model, uint64_t at) {
    struct gn_mapping *mapping = malloc(sizeof *mapping);
    bool found = gn_mapping_find(model->mapping + at, mapping) == 1 && mapping->ino == model->file.ino;
    free(mapping);
    return found;
}

static void assert_same_bytes(const struct model *model) {
    for (size_t i = 0; i < model->bytes; i++) {
        if (model->mapping[i] != pattern(i)) {
            fail_msg("byte %zu differs", i);
        }
    }
}

static size_t resident_pages(const struct model *model, uint64_t begin, uint64_t end) {
    unsigned char *pages = malloc((end - begin) / GN_BLOCK + 2);
    begin = begin / GN_BLOCK * GN_BLOCK;
    assert_int_equal(mincore(model->mapping + begin, end - begin, pages), 0);
    size_t n = 0;
    for (size_t i = 0; i < (end - begin + GN_BLOCK - 1) / GN_BLOCK; i++) {
        n += pages[i] & 1;
    }
    free(pages);
    return n;
}

static void copied_weights_are_anonymous_and_equal(void **state) {
    struct model *model = *state;
    struct gn_dense_result result = protect(model, GN_DENSE_COPY, 0, false);
    assert_int_equal(result.mode, GN_DENSE_COPY);
    assert_true(result.bytes > 1900 * 1024 && result.bytes < 2100 * 1024);
    assert_false(file_backed(model, 0));
    assert_false(file_backed(model, model->gate - 1));
    assert_true(file_backed(model, model->gate + EXPERT_BYTES));
    assert_true(file_backed(model, model->up));
    assert_false(file_backed(model, model->up + EXPERTS * EXPERT_BYTES + 8192));
    assert_true(file_backed(model, model->down + EXPERT_BYTES));
    assert_false(file_backed(model, model->bytes - 1));
    if (gn_file_direct(model->file.file)) { // not one expert page was read
        assert_int_equal(resident_pages(model, model->gate + 65536, model->up + EXPERTS * EXPERT_BYTES - 65536), 0);
    }
    assert_same_bytes(model);
}

static void mapped_weights_stay_where_they_are(void **state) {
    struct model *model = *state;
    assert_int_equal(protect(model, GN_DENSE_MAPPED, 0, false).mode, GN_DENSE_MAPPED);
    assert_true(file_backed(model, 0));
    assert_true(file_backed(model, model->bytes - 1));
    assert_same_bytes(model);
}

static void automatic_copies_what_there_is_room_for(void **state) {
    struct model *model = *state;
    struct gn_dense_result result = protect(model, GN_DENSE_AUTO, 1 << 20, false);
    assert_int_equal(result.mode, GN_DENSE_MAPPED);
    assert_true(result.note[0]);
    assert_int_equal(protect(model, GN_DENSE_AUTO, 16 << 20, false).mode, GN_DENSE_COPY);
    assert_same_bytes(model);
}

// Weights that the loader has read (to repack them, or for a GPU) live elsewhere: a copy would hold them twice.
static void touched_weights_are_not_copied(void **state) {
    struct model *model = *state;
    uint64_t begin = model->up + EXPERTS * EXPERT_BYTES + 100 * 1024, sum = 0;
    for (uint64_t at = begin; at < begin + 600 * 1024; at += GN_BLOCK) {
        sum += model->mapping[at];
    }
    assert_true(sum > 0);
    struct gn_dense_result result = protect(model, GN_DENSE_COPY, 0, false);
    assert_true(result.bytes < 1500 * 1024);
    assert_true(file_backed(model, begin + 300 * 1024));
    assert_false(file_backed(model, 0));
    assert_same_bytes(model);
}

static void locking_never_fails_the_model(void **state) {
    struct model *model = *state;
    struct gn_dense_result result = protect(model, GN_DENSE_LOCK, 0, false);
    if (result.mode == GN_DENSE_LOCK) {
        assert_true(model->locks.bytes == result.bytes && !result.lock_note[0]);
    } else {
        assert_true(result.mode == GN_DENSE_MAPPED && model->locks.bytes == 0 && result.lock_note[0]);
    }
    gn_locks_drop(&model->locks);
    assert_same_bytes(model);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(copied_weights_are_anonymous_and_equal),  TEST(mapped_weights_stay_where_they_are),
        TEST(automatic_copies_what_there_is_room_for), TEST(touched_weights_are_not_copied),
        TEST(locking_never_fails_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
