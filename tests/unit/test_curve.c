// The published curve of BigMoeOnEdge for Qwen3-30B-A3B (docs/bench-data/2026-07-20-cache-replay, Apache License 2.0):
// by its rules, our LRU, LFU and bound give its figures to the last decimal. And a case that can be checked by hand.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "trace/replay.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 48, USED = 6, PROMPT = 28 };

static const struct {
    uint32_t mib;
    struct {
        const char *all, *decode, *read; // hit rate in per cent, MiB
    } of[3];                             // lru, lfu, belady
} published[] = {
    {250, {{"0.000", "0.000", "107715.0"}, {"15.954", "17.106", "90880.1"}, {"25.644", "27.496", "80295.5"}}},
    {500, {{"0.000", "0.000", "107715.0"}, {"24.842", "26.636", "81355.1"}, {"42.218", "45.266", "62632.1"}}},
    {750, {{"0.000", "0.000", "107715.0"}, {"31.845", "34.144", "73847.8"}, {"51.642", "55.371", "52454.1"}}},
    {1000, {{"35.141", "37.679", "70208.5"}, {"37.482", "40.188", "67757.7"}, {"58.450", "62.671", "45071.7"}}},
    {1500, {{"43.872", "47.040", "60863.3"}, {"46.893", "50.279", "57533.9"}, {"67.809", "72.705", "34933.2"}}},
    {2000, {{"52.740", "56.548", "51252.3"}, {"54.673", "58.621", "49100.7"}, {"74.010", "79.354", "28169.2"}}},
    {2500, {{"60.722", "65.107", "42586.7"}, {"61.064", "65.473", "42146.4"}, {"78.483", "84.150", "23315.3"}}},
    {3000, {{"65.858", "70.614", "37007.0"}, {"66.465", "71.265", "36280.8"}, {"81.913", "87.828", "19584.8"}}},
    {4000, {{"74.880", "80.287", "27213.7"}, {"75.353", "80.794", "26664.2"}, {"86.472", "92.716", "14637.9"}}},
    {6000, {{"85.928", "92.133", "15247.9"}, {"85.825", "92.022", "15360.2"}, {"90.115", "96.623", "10695.1"}}},
    {8000, {{"89.503", "95.966", "11360.3"}, {"89.506", "95.969", "11357.8"}, {"90.556", "97.095", "10213.7"}}},
};

static struct gn_trace trace;
static struct gn_trace_layer layers[LAYERS];

static FILE *open_data(void) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.*s/../data/qwen.route.txt", (int)(strrchr(__FILE__, '/') - __FILE__), __FILE__);
    return fopen(path, "r");
}

static void add_row(uint32_t step, uint32_t layer, uint32_t slot, const char *text) {
    char digits[3] = {text[0], text[1], '\0'};
    if (digits[0] != '-') {
        trace.rows[trace.n_rows++] = (struct gn_trace_row){.step = step,
                                                           .layer = layer,
                                                           .slot = slot,
                                                           .expert = (uint32_t)strtoul(digits, NULL, 16),
                                                           .decode = step >= PROMPT};
    }
}

// Tokens of a prompt come layer by layer, since they are one event there.
static void add_steps(char (*lines)[LAYERS * USED * 2 + 2], uint32_t first, uint32_t end) {
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint32_t step = first; step < end; step++) {
            for (uint32_t slot = 0; slot < USED; slot++) {
                add_row(step, layer, slot, lines[step] + (layer * USED + slot) * 2);
            }
        }
    }
}

static int read_data(void **state) {
    (void)state;
    static char lines[160][LAYERS * USED * 2 + 2];
    char line[LAYERS * USED * 2 + 2];
    FILE *file = open_data();
    uint32_t n = 0;
    bool sizes = false;
    while (file && n < 160 && fgets(line, sizeof line, file)) {
        if (line[0] == '#') {
            continue;
        }
        for (uint32_t l = 0; !sizes && l < LAYERS; l++) {
            layers[l] = (struct gn_trace_layer){
                .number = l, .n_experts = 128, .expert_bytes = line[l] == 'L' ? 3059712 : 2654208};
        }
        if (sizes) {
            memcpy(lines[n++], line, sizeof line);
        }
        sizes = true;
    }
    trace = (struct gn_trace){.n_experts = 128, .top_k = USED, .n_layers = LAYERS, .layers = layers};
    trace.rows = calloc((size_t)n * LAYERS * USED, sizeof *trace.rows);
    if (!file || !trace.rows || n <= PROMPT) {
        return -1;
    }
    fclose(file);
    add_steps(lines, 0, PROMPT);
    for (uint32_t step = PROMPT; step < n; step++) {
        add_steps(lines, step, step + 1);
    }
    return trace.n_rows == 44766 ? 0 : -1;
}

static int forget_data(void **state) {
    (void)state;
    free(trace.rows);
    return 0;
}

static void the_published_curve_is_ours(void **state) {
    (void)state;
    static const struct guanaco_policy *const policies[] = {&gn_policy_lru, &gn_policy_lfu_plain, NULL};
    struct gn_replay_events events;
    assert_int_equal(gn_replay_open(&trace, &events), 0);
    for (size_t b = 0; b < sizeof published / sizeof *published; b++) {
        for (int p = 0; p < 3; p++) {
            struct gn_replay_result r;
            char all[16], decode[16], read[16];
            assert_int_equal(gn_replay_pool(&trace, &events, policies[p], (uint64_t)published[b].mib << 20, &r), 0);
            double hits = (double)(r.hits + r.prefill_hits), misses = (double)(r.misses + r.prefill_misses);
            snprintf(all, sizeof all, "%.3f", 100 * hits / (hits + misses));
            snprintf(decode, sizeof decode, "%.3f", 100 * (double)r.hits / (double)(r.hits + r.misses));
            snprintf(read, sizeof read, "%.1f", (double)(r.missed_bytes + r.prefill_missed_bytes) / 1048576);
            assert_string_equal(all, published[b].of[p].all);
            assert_string_equal(decode, published[b].of[p].decode);
            assert_string_equal(read, published[b].of[p].read);
        }
    }
    gn_replay_close(&events);
}

// Two slots, one layer, one expert a token: 1 2 1 3 1 2 1. With room for all three there would be four hits.
//
//             1    2    1    3    1    2    1
//   lru       1    12   hit  13   hit  12   hit    3 hits: 2 leaves for 3, 3 for 2
//   fifo      1    12   hit  23   31   12   hit    2 hits: 1 leaves for 3, 2 for 1, 3 for 2
//   lfu       1    12   hit  13   hit  12   hit    3 hits: as lru, since 1 is used most
//   slru      1    12   hit  13   hit  12   hit    3 hits: 1 is protected by its second use
//   belady    1    12   hit  13   hit  12   hit    3 hits: 2 and 3 must each be read when they come
static void a_case_to_check_by_hand(void **state) {
    (void)state;
    static const uint32_t experts[] = {1, 2, 1, 3, 1, 2, 1};
    static const struct {
        const struct guanaco_policy *policy;
        uint64_t hits;
    } cases[] = {{&gn_policy_lru, 3},       {&gn_policy_fifo, 2}, {&gn_policy_lfu, 3},
                 {&gn_policy_lfu_plain, 3}, {&gn_policy_slru, 3}, {&gn_policy_wait, 3}};
    struct gn_trace_layer layer = {.n_experts = 4, .expert_bytes = 10};
    struct gn_trace_row rows[7] = {{0}};
    for (uint32_t i = 0; i < 7; i++) {
        rows[i] = (struct gn_trace_row){.step = i, .expert = experts[i], .decode = true};
    }
    struct gn_trace small = {.n_experts = 4, .top_k = 1, .n_layers = 1, .layers = &layer, .n_rows = 7, .rows = rows};
    struct gn_replay_events events;
    struct gn_replay_result result;
    assert_int_equal(gn_replay_open(&small, &events), 0);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        assert_int_equal(gn_replay_policy(&events, cases[c].policy, 20, &result), 0);
        assert_int_equal(result.hits, cases[c].hits);
        assert_int_equal(result.misses, 7 - cases[c].hits);
    }
    assert_int_equal(gn_replay_belady(&events, 20, &result), 0);
    assert_int_equal(result.hits, 3);
    gn_replay_close(&events);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_published_curve_is_ours),
        cmocka_unit_test(a_case_to_check_by_hand),
    };
    return cmocka_run_group_tests(tests, read_data, forget_data);
}
