// Where experts are on disk and how they lie in slots; and how a budget becomes slots.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "exec/budget.h"
#include "model/expert_map.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_BYTES ((uint64_t)8 << 20)

static struct gn_expert_map map;
static struct gn_file *file;

static int setup(void **state) {
    (void)state;
    char path[] = "map-test-XXXXXX";
    int fd = mkstemp(path);
    assert_int_equal(ftruncate(fd, (off_t)FILE_BYTES), 0);
    assert_int_equal(gn_file_open(path, false, 0, 0, &file), 0);
    close(fd);
    unlink(path);
    memset(&map, 0, sizeof map);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    gn_expert_map_free(&map);
    return 0;
}

static int add(const char *name, uint32_t n_experts, uint64_t offset, uint64_t bytes, struct gn_layer **layer) {
    uint32_t slice;
    return gn_expert_map_add(&map, name, n_experts, file, offset, bytes, layer, &slice);
}

static void tensors_of_a_block_make_one_layer(void **state) {
    (void)state;
    struct gn_layer *gate, *up, *down, *other, *first;
    assert_int_equal(add("blk.7.ffn_down_exps.weight", 4, 4096, 1000, &down), 0);
    assert_int_equal(add("blk.7.ffn_gate_exps.weight", 4, 32, 1000, &gate), 0);
    assert_int_equal(add("blk.7.ffn_up_exps.weight", 4, 9000, 500, &up), 0);
    assert_int_equal(add("blk.7.ffn_up_chexps.weight", 2, 20000, 500, &other), 0); // a second set in the block
    assert_int_equal(add("blk.0.ffn_gate_up_exps.weight", 4, 30000, 100, &first), 0);
    gn_expert_map_finish(&map);
    gn_expert_map_finish(&map); // again changes nothing
    assert_ptr_equal(gate, up);
    assert_ptr_equal(gate, down);
    assert_ptr_not_equal(gate, other);
    assert_int_equal(map.n_layers, 3);
    assert_int_equal(first->index, 0);
    assert_int_equal(gate->index, 1); // runs before the second set
    assert_int_equal(other->index, 2);
    assert_int_equal(gate->expert_bytes, 2500);
    assert_int_equal(map.bytes, 4 * 2500 + 2 * 500 + 4 * 100);
    assert_true(gate->slices[0].last);
    assert_false(gate->slices[1].last);
}

// Whatever the offsets, an expert's blocks fit into its slot, slices do not overlap, and its bytes are where they are
// looked for.
static void slots_hold_every_expert_at_any_alignment(void **state) {
    (void)state;
    uint64_t sizes[] = {32, 4096, 4128, 20000, 65536, 4064};
    for (uint64_t odd = 0; odd < 4096; odd += 416) {
        struct gn_layer *layer = NULL;
        char name[64];
        snprintf(name, sizeof name, "blk.%u.ffn_gate_exps.weight", (unsigned)odd);
        assert_int_equal(add(name, 16, odd, sizes[odd % 6], &layer), 0);
        char down[64];
        snprintf(down, sizeof down, "blk.%u.ffn_down_exps.weight", (unsigned)odd);
        assert_int_equal(add(down, 16, (4 << 20) + odd, sizes[(odd + 3) % 6], &layer), 0);
    }
    gn_expert_map_finish(&map);
    uint64_t largest = gn_expert_map_largest_slot(&map);
    uint8_t *slot = aligned_alloc(GN_BLOCK, largest);
    for (uint32_t l = 0; l < map.n_layers; l++) {
        const struct gn_layer *layer = map.layers[l];
        assert_true(layer->slot_bytes % GN_BLOCK == 0 && layer->slot_bytes <= largest);
        for (uint32_t e = 0; e < 16; e++) {
            uint8_t *end = slot;
            for (uint32_t s = 0; s < 2; s++) {
                const struct gn_slice *slice = &layer->slices[s];
                struct gn_read read = gn_slice_read(slice, e, slot);
                const uint8_t *data = gn_slice_data(slice, e, slot);
                assert_true(read.offset % GN_BLOCK == 0 && read.length % GN_BLOCK == 0);
                assert_true((uint8_t *)read.to >= end && (uintptr_t)read.to % GN_BLOCK == 0);
                end = (uint8_t *)read.to + read.length;
                assert_true(end <= slot + layer->slot_bytes);
                assert_ptr_equal(data, (uint8_t *)read.to + (slice->offset + e * slice->bytes - read.offset));
                assert_true(data + slice->bytes == (uint8_t *)read.to + read.need);
            }
        }
    }
    free(slot);
}

static void what_is_not_in_the_file_is_refused(void **state) {
    (void)state;
    struct gn_layer *layer;
    assert_int_equal(add("blk.0.ffn_up_exps.weight", 8, FILE_BYTES - 7999, 1000, &layer), -EINVAL);
    assert_int_equal(add("blk.0.ffn_up_exps.weight", 8, UINT64_MAX - 100, 1000, &layer), -EINVAL);
    assert_int_equal(add("blk.0.ffn_up_exps.weight", UINT32_MAX, 0, UINT64_MAX / 2, &layer), -EINVAL);
    assert_int_equal(add("blk.0.ffn_up_exps.weight", 0, 0, 1000, &layer), -EINVAL);
    assert_int_equal(add("blk.0.ffn_up_exps.weight", 8, 0, 0, &layer), -EINVAL);
    assert_int_equal(add("blk.0.ffn_up_exps.weight", 8, FILE_BYTES - 8000, 1000, &layer), 0);
}

static int budget_for(int64_t ram, int64_t reserve, int64_t cache, uint64_t dense, struct gn_budget *budget,
                      char *why) {
    struct gn_knobs knobs;
    gn_knobs_default(&knobs);
    int64_t values[] = {ram, reserve, cache};
    enum gn_knob which[] = {GN_RAM, GN_RESERVE, GN_EXPERT_CACHE};
    for (int i = 0; i < 3; i++) {
        knobs.value[which[i]] = values[i];
        knobs.given[which[i]] = values[i] != 0;
    }
    struct gn_taken taken = {.dense = dense};
    return gn_budget_for(&map, &knobs, &taken, budget, why, 256);
}

static void a_budget_becomes_slots_and_staging(void **state) {
    (void)state;
    struct gn_layer *layer;
    char why[256] = "";
    struct gn_budget budget;
    assert_int_equal(add("blk.0.ffn_up_exps.weight", 64, 0, 65536, &layer), 0);
    gn_expert_map_finish(&map);
    uint64_t slot = gn_expert_map_largest_slot(&map), all = gn_expert_map_slot_bytes(&map);
    // An explicit cache is slots and staging together; less than the least is refused, with the figures.
    for (uint64_t n = 2; n < 100; n++) {
        assert_int_equal(budget_for(0, 0, (int64_t)(n * slot), 0, &budget, why), 0);
        assert_true(budget.n_staging >= GN_LEAST_STAGING);
        assert_true(budget.slots + budget.n_staging * slot <= n * slot && budget.slots <= all);
    }
    assert_int_equal(budget_for(0, 0, (int64_t)(2 * slot - 1), 0, &budget, why), -ENOSPC);
    assert_non_null(strstr(why, "--expert-cache"));
    // Of --ram, what the program and the dense weights need is gone.
    int64_t mib = 1 << 20;
    assert_int_equal(budget_for(10 * mib, 4 * mib, 0, (uint64_t)(5 * mib), &budget, why), 0);
    assert_true(budget.slots + budget.n_staging * slot <= (uint64_t)mib);
    assert_int_equal(budget_for(9 * mib, 4 * mib, 0, (uint64_t)(5 * mib), &budget, why), -ENOSPC);
    assert_non_null(strstr(why, "--ram"));
    // Shares are of the experts; staging comes on top.
    assert_int_equal(budget_for(0, 0, -1 - 2500, 0, &budget, why), 0);
    assert_int_equal(budget.slots, all / 4);
    assert_int_equal(budget_for(0, 0, -1, 0, &budget, why), 0);
    assert_int_equal(budget.slots, 0);
    assert_int_equal(budget.n_staging, GN_LEAST_STAGING);
}

// A budget of SIZE for slots of this model and another one, which holds `held` bytes.
static uint64_t bytes_beside(int64_t size, struct gn_claim other, uint64_t held) {
    struct gn_knobs knobs;
    struct gn_budget budget;
    char why[256];
    gn_knobs_default(&knobs);
    gn_knob_set(&knobs, GN_EXPERT_CACHE, size);
    struct gn_other others[] = {{.claim = other, .held = held}};
    struct gn_taken taken = {.others = others, .n_others = 1};
    int failed = gn_budget_for(&map, &knobs, &taken, &budget, why, sizeof why);
    return failed ? 0 : budget.slots + budget.n_staging * gn_expert_map_largest_slot(&map);
}

static uint64_t keeps(int64_t size, struct gn_claim claim, struct gn_claim other, uint64_t held, bool *gives) {
    struct gn_knobs knobs;
    uint64_t keep;
    gn_knobs_default(&knobs);
    gn_knob_set(&knobs, GN_EXPERT_CACHE, size);
    struct gn_other others[] = {{.claim = other, .held = held}};
    struct gn_taken taken = {.others = others, .n_others = 1};
    *gives = gn_budget_make_room(claim, &knobs, &taken, &keep);
    return keep;
}

static void models_share_in_proportion(void **state) {
    (void)state;
    struct gn_layer *layer;
    assert_int_equal(add("blk.0.ffn_up_exps.weight", 64, 0, 65536, &layer), 0);
    gn_expert_map_finish(&map);
    struct gn_knobs knobs;
    gn_knobs_default(&knobs);
    uint64_t slot = gn_expert_map_largest_slot(&map);
    struct gn_claim mine = gn_budget_claim(&map, &knobs), thrice = {2 * slot, 3 * mine.most};
    assert_int_equal(mine.least, 2 * slot);
    assert_int_equal(mine.most, 80 * slot);
    int64_t size = (int64_t)(80 * slot);
    bool gives;
    // A quarter, if the other has not started or holds its share; what it leaves, if it holds less.
    assert_int_equal(bytes_beside(size, thrice, 0) / slot, 20);
    assert_int_equal(bytes_beside(size, thrice, 60 * slot) / slot, 20);
    assert_int_equal(bytes_beside(size, thrice, 50 * slot) / slot, 30);
    // One that has taken all keeps three quarters; one that has less than its share keeps that.
    assert_int_equal(keeps(size, mine, thrice, 80 * slot, &gives) / slot, 60);
    assert_true(gives);
    assert_int_equal(keeps(size, mine, thrice, 60 * slot, &gives) / slot, 60);
    assert_false(gives);
    assert_int_equal(keeps(size, mine, thrice, 10 * slot, &gives) / slot, 10);
    assert_false(gives);
    // Where there is room for all, nobody gives anything.
    assert_int_equal(keeps(5 * size, mine, thrice, 240 * slot, &gives) / slot, 240);
    assert_false(gives);
    // None gets less than it needs.
    struct gn_claim large = {2 * slot, 1000 * mine.most};
    assert_int_equal(bytes_beside((int64_t)(20 * slot), large, 0) / slot, 2);
    assert_int_equal(keeps((int64_t)(20 * slot), mine, large, 20 * slot, &gives) / slot, 18);
    assert_true(gives);
    struct gn_claim needy = {15 * slot, 16 * slot};
    assert_int_equal(bytes_beside((int64_t)(20 * slot), needy, 0) / slot, 5);
    // Too little for two.
    assert_int_equal(bytes_beside((int64_t)(16 * slot), needy, 0), 0);
    assert_int_equal(bytes_beside((int64_t)(16 * slot), thrice, 15 * slot), 0);
}

// Three models: what two of them hold too much is given back by both.
static void all_that_hold_too_much_give(void **state) {
    (void)state;
    struct gn_claim claim = {2000, 90000};
    struct gn_knobs knobs;
    gn_knobs_default(&knobs);
    gn_knob_set(&knobs, GN_EXPERT_CACHE, 90000);
    struct gn_other others[] = {{.claim = claim, .held = 45000}, {.claim = claim, .held = 44000}};
    struct gn_taken taken = {.others = others, .n_others = 2};
    uint64_t keep[2];
    assert_true(gn_budget_make_room(claim, &knobs, &taken, keep));
    assert_int_equal(keep[0], 30000);
    assert_int_equal(keep[1], 30000);
    // Shares of each model's own experts are nobody else's affair.
    gn_knob_set(&knobs, GN_EXPERT_CACHE, -1 - 5000);
    assert_false(gn_budget_make_room(claim, &knobs, &taken, keep));
}

// Without --expert-cache: what the process has, what it could still have, what it needs for other things.
static void memory_is_measured(void **state) {
    (void)state;
    const uint64_t mib = 1 << 20;
    struct gn_knobs knobs;
    gn_knobs_default(&knobs);
    struct gn_taken taken = {.available = 7000 * mib, .anonymous = 1000 * mib};
    assert_int_equal(gn_budget_room(&knobs, &taken) / (int64_t)mib, 6000 - 128 - 1000);
    taken.dense = 500 * mib;
    assert_int_equal(gn_budget_room(&knobs, &taken) / (int64_t)mib, 6000 - 128 - 1000 - 500);
    taken.dense_copied = true; // and so among the 1000
    assert_int_equal(gn_budget_room(&knobs, &taken) / (int64_t)mib, 6000 - 128 - 1000);
    // Other models' slots are for all to share, touched or not; their dense weights are not.
    struct gn_other others[] = {{.held = 3000 * mib, .dense_left = 40 * mib}};
    taken = (struct gn_taken){
        .available = 7000 * mib, .anonymous = 1000 * mib, .touched = 600 * mib, .others = others, .n_others = 1};
    assert_int_equal(gn_budget_room(&knobs, &taken) / (int64_t)mib, 6000 - 128 - 400 - 40);
    gn_knob_set(&knobs, GN_RAM, (int64_t)(4000 * mib));
    assert_int_equal(gn_budget_room(&knobs, &taken) / (int64_t)mib, 4000 - 128 - 400 - 40);
    // A control group that allows less than --ram counts.
    taken.group = 3500 * mib;
    assert_int_equal(gn_budget_ram(&knobs, &taken) / mib, 4000); // 1000 of these are taken by now
    taken.group = 2500 * mib;
    assert_int_equal(gn_budget_ram(&knobs, &taken) / mib, 3500);
    assert_int_equal(gn_budget_room(&knobs, &taken) / (int64_t)mib, 3500 - 128 - 400 - 40);
    taken.group = UINT64_MAX;
    assert_int_equal(gn_budget_ram(&knobs, &taken) / mib, 4000);
    // Caches of the program are not for experts; what is kept back anyhow serves them too.
    gn_knob_set(&knobs, GN_PROGRAM_CACHE, (int64_t)(500 * mib));
    assert_int_equal(gn_budget_room(&knobs, &taken) / (int64_t)mib, 4000 - 400 - 40 - 500);
    gn_knob_set(&knobs, GN_PROGRAM_CACHE, (int64_t)(100 * mib));
    assert_int_equal(gn_budget_room(&knobs, &taken) / (int64_t)mib, 4000 - 128 - 400 - 40);
    // In little memory, little is kept back.
    gn_knobs_default(&knobs);
    taken = (struct gn_taken){.available = 150 * mib, .anonymous = 26 * mib};
    assert_int_equal(gn_budget_room(&knobs, &taken) / (int64_t)mib, 89); // 132 - 16.5 - 26
    taken = (struct gn_taken){.available = 2 * mib, .anonymous = 26 * mib};
    assert_true(gn_budget_room(&knobs, &taken) < 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(tensors_of_a_block_make_one_layer),  TEST(slots_hold_every_expert_at_any_alignment),
        TEST(what_is_not_in_the_file_is_refused), TEST(a_budget_becomes_slots_and_staging),
        TEST(models_share_in_proportion),         cmocka_unit_test(all_that_hold_too_much_give),
        cmocka_unit_test(memory_is_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
