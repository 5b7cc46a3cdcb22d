// Every policy against a plain model of what it should do, against fixed counts, and against the bound.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cache/cache.h"
#include "trace/replay.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 4, EXPERTS = 32, USED = 4, STEPS = 400, ENTRIES = LAYERS * EXPERTS };

static uint32_t random_below(uint64_t *state, uint32_t n) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % n);
}

// Skewed towards low numbers, and every hundred steps about something else.
static void make_trace(struct gn_trace *trace, struct gn_trace_layer *layers) {
    uint64_t seed = 11;
    *trace = (struct gn_trace){.n_experts = EXPERTS, .top_k = USED, .n_layers = LAYERS, .layers = layers};
    trace->rows = calloc((size_t)STEPS * LAYERS * USED, sizeof *trace->rows);
    assert_non_null(trace->rows);
    for (uint32_t l = 0; l < LAYERS; l++) {
        layers[l] = (struct gn_trace_layer){.number = l, .n_experts = EXPERTS, .expert_bytes = 4096};
    }
    for (uint32_t step = 0; step < STEPS; step++) {
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            for (uint32_t k = 0; k < USED; k++) {
                uint32_t e = random_below(&seed, 1 + random_below(&seed, 8)) + 8 * k;
                trace->rows[trace->n_rows++] = (struct gn_trace_row){.step = step,
                                                                     .layer = layer,
                                                                     .slot = k,
                                                                     .expert = (e + 5 * (step / 100)) % EXPERTS,
                                                                     .decode = true};
            }
        }
    }
}

static const uint32_t sizes[] = {4, 8, 16, 24, 32, 48, 64, 96};
#define SIZES (sizeof sizes / sizeof *sizes)

static const struct {
    const char *name;
    uint64_t misses[SIZES];
} golden[] = {
    {"expected-wait", {6400, 5878, 4951, 4208, 3597, 2528, 1742, 682}},
    {"lru", {6400, 6400, 5061, 5028, 4046, 2980, 1994, 684}},
    {"slru", {6400, 6400, 5926, 5394, 4844, 2767, 1804, 679}},
    {"lfu", {6400, 6009, 4998, 4264, 3602, 2686, 1972, 886}},
    {"lfu-plain", {6400, 6120, 5548, 5008, 4478, 3506, 2653, 1241}},
    {"fifo", {6400, 6400, 5330, 4880, 4345, 3217, 2343, 979}},
    {"random", {6400, 6185, 5520, 4850, 4325, 3245, 2347, 1019}},
};

static void misses_are_the_golden_ones_and_none_beats_belady(void **state) {
    (void)state;
    struct gn_trace trace;
    struct gn_trace_layer layers[LAYERS];
    struct gn_replay_events events;
    make_trace(&trace, layers);
    assert_int_equal(gn_replay_open(&trace, &events), 0);
    assert_int_equal(events.n_tokens, STEPS);
    size_t p = 0;
    for (; gn_policies[p]; p++) {
        assert_true(p < sizeof golden / sizeof *golden);
        assert_string_equal(golden[p].name, gn_policies[p]->name);
        for (size_t s = 0; s < SIZES; s++) {
            struct gn_replay_result result, bound;
            assert_int_equal(gn_replay_policy(&events, gn_policies[p], sizes[s] * 4096ull, &result), 0);
            assert_int_equal(gn_replay_belady(&events, sizes[s] * 4096ull, &bound), 0);
            assert_int_equal(result.slots, sizes[s]);
            assert_int_equal(bound.slots, sizes[s]);
            assert_int_equal(result.hits + result.misses, events.n_events * USED);
            assert_true(bound.misses <= result.misses);
            if (result.misses != golden[p].misses[s]) {
                print_error("%s with %u slots: %llu misses\n", golden[p].name, sizes[s],
                            (unsigned long long)result.misses);
            }
            assert_int_equal(result.misses, golden[p].misses[s]);
        }
    }
    gn_replay_close(&events);
    free(trace.rows);
}

// ------------------------------------------------------------------------------------------------ plain models

// Every entry with all that any of the models looks at; the victim is found by a search through all of them.
struct plain {
    bool resident[ENTRIES], in_event[ENTRIES], is_protected[ENTRIES];
    uint32_t count[ENTRIES];
    uint64_t order[ENTRIES]; // when it came to its place in the list
    uint64_t clock, uses;
    uint32_t n_resident, capacity;
};

typedef bool (*goes_first)(const struct plain *plain, uint32_t a, uint32_t b);

static bool fifo_goes_first(const struct plain *plain, uint32_t a, uint32_t b) {
    return plain->order[a] < plain->order[b];
}

static bool lfu_goes_first(const struct plain *plain, uint32_t a, uint32_t b) {
    return plain->count[a] != plain->count[b] ? plain->count[a] < plain->count[b] : plain->order[a] < plain->order[b];
}

static bool slru_goes_first(const struct plain *plain, uint32_t a, uint32_t b) {
    return plain->is_protected[a] != plain->is_protected[b] ? !plain->is_protected[a]
                                                            : plain->order[a] < plain->order[b];
}

static void plain_use(struct plain *plain, const struct guanaco_policy *policy, uint32_t entry, bool hit) {
    plain->count[entry]++;
    if (hit && policy != &gn_policy_fifo) {
        plain->order[entry] = ++plain->clock;
    }
    if (!hit || policy != &gn_policy_slru) {
        return;
    }
    uint32_t n_protected = 0, oldest = GN_NONE;
    plain->is_protected[entry] = true;
    for (uint32_t e = 0; e < ENTRIES; e++) {
        if (plain->resident[e] && plain->is_protected[e]) {
            n_protected++;
            oldest = oldest == GN_NONE || plain->order[e] < plain->order[oldest] ? e : oldest;
        }
    }
    if (n_protected * 100 > plain->n_resident * 80) {
        plain->is_protected[oldest] = false;
        plain->order[oldest] = ++plain->clock;
    }
}

static void plain_insert(struct plain *plain, uint32_t entry, goes_first first) {
    uint32_t victim = GN_NONE;
    for (uint32_t e = 0; plain->n_resident == plain->capacity && e < ENTRIES; e++) {
        if (plain->resident[e] && !plain->in_event[e] && (victim == GN_NONE || first(plain, e, victim))) {
            victim = e;
        }
    }
    if (victim != GN_NONE) {
        plain->resident[victim] = false;
        plain->n_resident--;
    }
    if (plain->n_resident < plain->capacity) {
        plain->resident[entry] = plain->in_event[entry] = true;
        plain->is_protected[entry] = false;
        plain->order[entry] = ++plain->clock;
        plain->n_resident++;
    }
}

static void compare(const struct guanaco_policy *policy, goes_first first, uint32_t capacity) {
    struct gn_trace trace;
    struct gn_trace_layer trace_layers[LAYERS];
    struct gn_cache_layer layers[LAYERS];
    make_trace(&trace, trace_layers);
    for (uint32_t l = 0; l < LAYERS; l++) {
        layers[l] = (struct gn_cache_layer){.n_experts = EXPERTS, .slot_bytes = 4096};
    }
    struct gn_cache_options options = {
        .layers = layers, .n_layers = LAYERS, .budget = capacity * 4096ull, .policy = policy};
    struct gn_cache *cache;
    static struct plain plain;
    plain = (struct plain){.capacity = capacity};
    assert_int_equal(gn_cache_open(&options, &cache), 0);
    for (size_t r = 0; r < trace.n_rows; r += USED) {
        uint32_t missed[USED], n = 0;
        gn_cache_begin(cache);
        memset(plain.in_event, 0, sizeof plain.in_event);
        for (uint32_t k = 0; k < USED; k++) {
            uint32_t entry = gn_cache_entry(cache, trace.rows[r + k].layer, trace.rows[r + k].expert);
            bool hit = gn_cache_lookup(cache, entry) != GN_NONE;
            assert_int_equal(hit, plain.resident[entry]);
            plain_use(&plain, policy, entry, hit);
            plain.in_event[entry] = hit;
            missed[n] = entry;
            n += !hit;
        }
        for (uint32_t m = 0; m < n; m++) {
            gn_cache_insert(cache, missed[m], true);
            plain_insert(&plain, missed[m], first);
        }
        gn_cache_end(cache);
    }
    gn_cache_close(cache);
    free(trace.rows);
}

static void policies_do_as_the_plain_models(void **state) {
    (void)state;
    for (size_t s = 0; s < SIZES; s++) {
        compare(&gn_policy_fifo, fifo_goes_first, sizes[s]);
        compare(&gn_policy_slru, slru_goes_first, sizes[s]);
        compare(&gn_policy_lfu_plain, lfu_goes_first, sizes[s]);
    }
}

// ------------------------------------------------------------------------------------------------ busy

static bool is_busy(const void *context, uint32_t entry) {
    return ((const bool *)context)[entry];
}

// Two classes: layers 0 and 1, layers 2 and 3. Whatever was used, the victim is in the cache, of the class, not busy.
static void no_policy_names_a_busy_victim(void **state) {
    (void)state;
    uint32_t layer_of[ENTRIES];
    for (uint32_t e = 0; e < ENTRIES; e++) {
        layer_of[e] = e / EXPERTS;
    }
    struct guanaco_policy_shape shape = {ENTRIES, 2, LAYERS, layer_of, NULL};
    for (size_t p = 0; gn_policies[p]; p++) {
        const struct guanaco_policy *policy = gn_policies[p];
        struct gn_parameters parameters;
        gn_parameters_default(policy, &parameters);
        shape.parameters = parameters.value;
        void *opened = policy->open(&shape);
        bool resident[ENTRIES] = {0}, busy[ENTRIES] = {0};
        uint64_t seed = 3;
        assert_non_null(opened);
        for (uint32_t step = 0; step < 20000; step++) {
            uint32_t entry = random_below(&seed, ENTRIES), size_class = layer_of[entry] / 2, n_free = 0;
            for (uint32_t e = 0; e < ENTRIES; e++) {
                busy[e] = random_below(&seed, 8) < step % 9; // none to all
                n_free += resident[e] && layer_of[e] / 2 == size_class && !busy[e];
            }
            if (resident[entry]) {
                policy->hit(opened, entry, size_class);
            } else if (policy->miss) {
                policy->miss(opened, entry, size_class);
            }
            uint32_t victim = policy->victim(opened, size_class, is_busy, busy);
            assert_int_equal(victim == GN_NONE, n_free == 0);
            if (victim != GN_NONE) {
                assert_true(resident[victim] && !busy[victim] && layer_of[victim] / 2 == size_class);
                if (n_free > 20) {
                    policy->evict(opened, victim, size_class);
                    resident[victim] = false;
                }
            }
            if (!resident[entry]) {
                policy->insert(opened, entry, size_class);
                resident[entry] = true;
            }
        }
        policy->close(opened);
    }
}

// ------------------------------------------------------------------------------------------------ parameters

static void parameters_are_taken_or_explained(void **state) {
    (void)state;
    struct gn_parameters parameters;
    char why[1024];
    assert_int_equal(gn_parameters_parse(&gn_policy_slru, NULL, &parameters, why, sizeof why), 0);
    assert_true(parameters.value[0] == 80);
    assert_int_equal(gn_parameters_parse(&gn_policy_slru, "protected=50.5", &parameters, why, sizeof why), 0);
    assert_true(parameters.value[0] == 50.5);
    assert_int_equal(gn_parameters_parse(&gn_policy_wait, "later=0,half-life-4=99", &parameters, why, sizeof why), 0);
    assert_true(parameters.value[3] == 99 && parameters.value[9] == 0 && parameters.value[0] == 0.5);
    static const char *const nonsense[] = {
        "protected",   "protected=", "protected=x",      "=50",          "protect=50",
        "protectedx=", ",",          "protected=50,x=1", "protected=50 "};
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        assert_int_equal(gn_parameters_parse(&gn_policy_slru, nonsense[i], &parameters, why, sizeof why), -EINVAL);
        assert_non_null(strstr(why, "protected (1 to 99, default 80)"));
    }
    assert_int_equal(gn_parameters_parse(&gn_policy_slru, "protected=100", &parameters, why, sizeof why), -ERANGE);
    assert_non_null(strstr(why, "out of range"));
    assert_int_equal(gn_parameters_parse(&gn_policy_lru, "x=1", &parameters, why, sizeof why), -EINVAL);
    assert_non_null(strstr(why, "none"));
    char small[20];
    assert_int_equal(gn_parameters_parse(&gn_policy_wait, "x=1", &parameters, small, sizeof small), -EINVAL);
}

// A parameter does what it says: with hardly anything protected, slru is nearly lru; lfu that never ages is lfu-plain.
static void parameters_change_what_a_policy_does(void **state) {
    (void)state;
    struct gn_trace trace;
    struct gn_trace_layer layers[LAYERS];
    struct gn_replay_events events;
    make_trace(&trace, layers);
    assert_int_equal(gn_replay_open(&trace, &events), 0);
    static const struct {
        const struct guanaco_policy *policy;
        const char *text;
        const struct guanaco_policy *like; // NULL: other than with the defaults
    } cases[] = {{&gn_policy_lfu, "age=1000000", &gn_policy_lfu_plain},
                 {&gn_policy_slru, "protected=20", NULL},
                 {&gn_policy_wait, "half-life-3=3", NULL},
                 {&gn_policy_wait, "weight-2=1", NULL},
                 {&gn_policy_wait, "ahead=0", NULL},
                 {&gn_policy_wait, "later=0", NULL}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct gn_parameters parameters;
        struct gn_replay_result result, other;
        char why[256];
        assert_int_equal(gn_parameters_parse(cases[c].policy, cases[c].text, &parameters, why, sizeof why), 0);
        struct gn_cache_options options = {.budget = 32 * 4096, .policy = cases[c].policy, .parameters = &parameters};
        assert_int_equal(gn_replay_cache(&events, &options, &result), 0);
        const struct guanaco_policy *like = cases[c].like ? cases[c].like : cases[c].policy;
        assert_int_equal(gn_replay_policy(&events, like, 32 * 4096, &other), 0);
        assert_int_equal(result.misses == other.misses, cases[c].like != NULL);
    }
    gn_replay_close(&events);
    free(trace.rows);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(misses_are_the_golden_ones_and_none_beats_belady),
        cmocka_unit_test(policies_do_as_the_plain_models),
        cmocka_unit_test(no_policy_names_a_busy_victim),
        cmocka_unit_test(parameters_are_taken_or_explained),
        cmocka_unit_test(parameters_change_what_a_policy_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
