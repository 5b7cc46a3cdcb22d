// PILOT: what goes with what is learnt from tokens, fades, and stays within its memory.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "predict/pilot.h"
#include "predict/rank.h"
#include "predict/transitions.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 3, EXPERTS = 64, USED = 4 };

static const uint32_t n_experts[LAYERS] = {EXPERTS, EXPERTS, EXPERTS};

static uint32_t next_random(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void the_largest_come_first(void **state) {
    (void)state;
    float scores[] = {1, 5, -INFINITY, 5, 3};
    uint32_t best[5], n = 0, list[2];
    assert_int_equal(gn_rank(scores, 5, 3, best), 3);
    assert_int_equal(best[0], 1); // of equal ones the lower
    assert_int_equal(best[1], 3);
    assert_int_equal(best[2], 4);
    assert_int_equal(gn_rank(scores, 5, 5, best), 4); // -infinity never
    assert_int_equal(gn_rank(scores, 5, 0, best), 0);
    gn_rank_add(list, &n, 2, 9);
    gn_rank_add(list, &n, 2, 9);
    assert_int_equal(n, 1);
    gn_rank_add(list, &n, 2, 8);
    gn_rank_add(list, &n, 2, 7);
    assert_int_equal(n, 2);
    assert_int_equal(list[1], 8);
}

// Expert e of layer 0 goes with e, e + 1 … of layer 1, shifted.
static void use(uint32_t from, uint32_t shift, uint32_t before[USED], uint32_t used[USED]) {
    for (uint32_t k = 0; k < USED; k++) {
        before[k] = (from + k) % EXPERTS;
        used[k] = (from + k + shift) % EXPERTS;
    }
}

// Of USED guesses for each possible token, how many are right.
static double recall(const struct gn_transitions *transitions, uint32_t shift) {
    float scores[EXPERTS];
    uint32_t right = 0;
    for (uint32_t from = 0; from < EXPERTS; from++) {
        uint32_t before[USED], used[USED], best[USED];
        use(from, shift, before, used);
        uint32_t n = gn_transitions_score(transitions, 1, before, USED, scores);
        n = gn_transitions_choose(scores, n, 1, USED, best);
        for (uint32_t g = 0; g < n; g++) {
            for (uint32_t k = 0; k < USED; k++) {
                right += best[g] == used[k];
            }
        }
    }
    return (double)right / (EXPERTS * USED);
}

static void teach(struct gn_transitions *transitions, uint32_t shift, int tokens) {
    uint32_t seed = 1;
    for (int t = 0; t < tokens; t++) {
        uint32_t before[USED], used[USED];
        use(next_random(&seed) % EXPERTS, shift, before, used);
        gn_transitions_learn(transitions, 1, before, USED, used, USED);
    }
}

static void what_goes_with_what_is_learnt_and_unlearnt(void **state) {
    (void)state;
    struct gn_transitions *transitions = gn_transitions_open(LAYERS, n_experts);
    assert_non_null(transitions);
    float scores[EXPERTS];
    uint32_t from[] = {0, 1, 2, 3};
    assert_int_equal(gn_transitions_score(transitions, 1, from, USED, scores), 0); // nothing is known
    teach(transitions, 20, 1000);
    assert_true(recall(transitions, 20) > 0.95);
    assert_true(recall(transitions, 40) < 0.2);
    teach(transitions, 40, 5000); // another text
    assert_true(recall(transitions, 40) > 0.95);
    gn_transitions_close(transitions);
}

// More successors than there is room for: the frequent ones stay.
static void frequent_successors_stay(void **state) {
    (void)state;
    uint32_t sizes[] = {1, 4096}, from = 0, seed = 7, best[3];
    struct gn_transitions *transitions = gn_transitions_open(2, sizes);
    assert_non_null(transitions);
    for (int t = 0; t < 3000; t++) {
        uint32_t used[] = {100, 200, 300, next_random(&seed) % 4096};
        uint32_t n = used[3] == 100 || used[3] == 200 || used[3] == 300 ? 3 : 4;
        gn_transitions_learn(transitions, 1, &from, 1, used, n);
    }
    float *scores = malloc(4096 * sizeof *scores);
    assert_non_null(scores);
    assert_int_equal(gn_transitions_score(transitions, 1, &from, 1, scores), 4096);
    assert_int_equal(gn_transitions_choose(scores, 4096, 1, 3, best), 3);
    assert_int_equal(best[0] + best[1] + best[2], 600);
    free(scores);
    gn_transitions_close(transitions);
}

static void less_mass_is_fewer_guesses(void **state) {
    (void)state;
    struct gn_transitions *transitions = gn_transitions_open(LAYERS, n_experts);
    assert_non_null(transitions);
    teach(transitions, 20, 1000);
    float scores[EXPERTS];
    uint32_t from[] = {0, 1, 2, 3}, best[16];
    uint32_t n = gn_transitions_score(transitions, 1, from, USED, scores), most = 16;
    assert_int_equal(gn_transitions_choose(scores, n, 0, 16, best), 0);
    for (double mass = 1; mass > 0.05; mass -= 0.1) {
        uint32_t chosen = gn_transitions_choose(scores, n, mass, 16, best);
        assert_true(chosen <= most && chosen > 0);
        most = chosen;
    }
    assert_int_equal(most, 1);
    gn_transitions_close(transitions);
}

static void memory_is_bounded(void **state) {
    (void)state;
    uint32_t sizes[48];
    for (int l = 0; l < 48; l++) {
        sizes[l] = 128;
    }
    struct gn_transitions *transitions = gn_transitions_open(48, sizes);
    assert_non_null(transitions);
    size_t bytes = gn_transitions_bytes(transitions);
    assert_true(bytes >= (size_t)48 * 128 * GN_SUCCESSORS * 4 && bytes <= 1300000);
    gn_transitions_close(transitions);
    uint32_t few[] = {8, 1u << 20}, from = 3, used = 1;
    transitions = gn_transitions_open(2, few); // too many for the table: never guessed
    assert_non_null(transitions);
    for (int t = 0; t < 100; t++) {
        gn_transitions_learn(transitions, 1, &from, 1, &used, 1);
    }
    float score;
    assert_int_equal(gn_transitions_score(transitions, 1, &from, 1, &score), 0);
    gn_transitions_close(transitions);
}

// Counts are halved in time: a million tokens of the same do not overflow.
static void counts_do_not_overflow(void **state) {
    (void)state;
    struct gn_transitions *transitions = gn_transitions_open(LAYERS, n_experts);
    assert_non_null(transitions);
    uint32_t from[] = {5}, used[] = {9};
    for (int t = 0; t < 1000000; t++) {
        gn_transitions_learn(transitions, 1, from, 1, used, 1);
    }
    float scores[EXPERTS];
    uint32_t best;
    gn_transitions_score(transitions, 1, from, 1, scores);
    assert_int_equal(gn_transitions_choose(scores, EXPERTS, 0.9, 1, &best), 1);
    assert_int_equal(best, 9);
    assert_true(isfinite(scores[9]));
    gn_transitions_close(transitions);
}

// ---- batches

static void see(struct gn_pilot *pilot, uint32_t layer, const int32_t *ids, uint32_t n_tokens) {
    struct gn_pilot_batch batch = {ids, sizeof *ids, 2 * sizeof *ids, 2, n_tokens};
    gn_pilot_see(pilot, layer, &batch);
}

// A prompt of several tokens in a batch teaches token by token; then a batch of two tokens is guessed.
static void a_prompt_teaches(void **state) {
    (void)state;
    struct gn_pilot *pilot = gn_pilot_open(LAYERS, n_experts);
    assert_non_null(pilot);
    for (int i = 0; i < 20; i++) {
        int32_t first[] = {1, 2, 11, 12, 21, 22, 31, 32, 41, 42}, second[] = {3, 4, 13, 14, 23, 24, 33, 34, 43, 44};
        see(pilot, 0, first, 5);
        see(pilot, 1, second, 5);
    }
    uint32_t guesses[4];
    assert_int_equal(gn_pilot_guess(pilot, 1, 2, guesses, 4), 0); // five tokens are too many
    int32_t two[] = {11, 12, 31, 32};
    see(pilot, 0, two, 2);
    assert_int_equal(gn_pilot_guess(pilot, 1, 2, guesses, 4), 4);
    assert_int_equal(guesses[0] / 10 + guesses[2] / 10, 2); // token by token, best first
    assert_int_equal(guesses[1] / 10 + guesses[3] / 10, 6);
    assert_int_equal(gn_pilot_guess(pilot, 1, 2, guesses, 3), 3); // no more than there is room for
    gn_pilot_close(pilot);
}

// The last layer's experts tell the first layer's of the next token.
static void the_first_layer_follows_the_last(void **state) {
    (void)state;
    struct gn_pilot *pilot = gn_pilot_open(LAYERS, n_experts);
    assert_non_null(pilot);
    int32_t even[] = {10, 11}, odd[] = {20, 21}, between[] = {40, 41};
    for (int i = 0; i < 40; i++) { // even in the first layer, odd in the last; the other way round; and so on
        see(pilot, 0, i % 2 ? odd : even, 1);
        see(pilot, 1, between, 1);
        see(pilot, 2, i % 2 ? even : odd, 1);
    }
    uint32_t guesses[2];
    assert_int_equal(gn_pilot_guess(pilot, 1, 2, guesses, 2), 2); // after odd tokens, which end with even ones
    assert_int_equal(guesses[0] + guesses[1], 21);
    gn_pilot_close(pilot);
}

// Larger batches than are kept, and batches that change between two layers.
static void any_batch_will_do(void **state) {
    (void)state;
    struct gn_pilot *pilot = gn_pilot_open(LAYERS, n_experts);
    assert_non_null(pilot);
    enum { MANY = 6000 };
    int32_t *ids = malloc(2 * MANY * sizeof *ids);
    assert_non_null(ids);
    for (int i = 0; i < 2 * MANY; i++) {
        ids[i] = i % EXPERTS;
    }
    see(pilot, 0, ids, MANY);
    see(pilot, 1, ids, MANY);
    see(pilot, 2, ids, 1); // only the last token goes on
    see(pilot, 0, ids, 3);
    see(pilot, 1, ids, 0);
    struct gn_pilot_batch none = {.ids = ids, .n_tokens = 2};
    gn_pilot_see(pilot, 2, &none);
    uint32_t guesses[8];
    assert_int_equal(gn_pilot_guess(pilot, 1, 2, guesses, 8), 0);
    assert_true(gn_pilot_bytes(pilot) < 120000);
    free(ids);
    gn_pilot_close(pilot);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_largest_come_first),   cmocka_unit_test(what_goes_with_what_is_learnt_and_unlearnt),
        cmocka_unit_test(frequent_successors_stay), cmocka_unit_test(less_mass_is_fewer_guesses),
        cmocka_unit_test(memory_is_bounded),        cmocka_unit_test(counts_do_not_overflow),
        cmocka_unit_test(a_prompt_teaches),         cmocka_unit_test(the_first_layer_follows_the_last),
        cmocka_unit_test(any_batch_will_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
