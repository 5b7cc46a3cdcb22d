// The files that say which experts are hot: what is right is taken, and nothing that is wrong does harm.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/hot_set.h"
#include "model/imatrix.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LAYERS = 3, EXPERTS = 4, BYTES = 1000 };

static char directory[] = "/tmp/guanaco-seeds-XXXXXX";
static char model_path[64], seed_path[64];

static int make_directory(void **state) {
    (void)state;
    if (!mkdtemp(directory)) {
        return -1;
    }
    snprintf(model_path, sizeof model_path, "%s/model.gguf", directory);
    snprintf(seed_path, sizeof seed_path, "%s/seed", directory);
    int fd = open(model_path, O_CREAT | O_WRONLY, 0600);
    return fd < 0 || ftruncate(fd, 1 << 20) || close(fd) ? -1 : 0;
}

static int remove_directory(void **state) {
    (void)state;
    unlink(seed_path);
    return unlink(model_path) || rmdir(directory);
}

// Blocks 0, 1, 2 with gate_up and down. `scale` makes it another model.
static void open_map(struct gn_expert_map *map, uint64_t scale) {
    *map = (struct gn_expert_map){0};
    struct gn_file *file;
    assert_int_equal(gn_file_open(model_path, false, 0, 0, &file), 0);
    for (uint64_t l = 0; l < LAYERS; l++) {
        struct gn_layer *layer;
        uint32_t slice;
        char name[64];
        snprintf(name, sizeof name, "blk.%d.ffn_gate_up_exps.weight", (int)l);
        assert_int_equal(gn_expert_map_add(map, name, EXPERTS, file, 64 + l * 40000, BYTES * scale, &layer, &slice), 0);
        snprintf(name, sizeof name, "blk.%d.ffn_down_exps.weight", (int)l);
        assert_int_equal(gn_expert_map_add(map, name, EXPERTS, file, 20000 + l * 40000, BYTES, &layer, &slice), 0);
    }
    gn_expert_map_finish(map);
}

static void put_file(const void *bytes, size_t n) {
    FILE *file = fopen(seed_path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static size_t get_file(uint8_t *bytes, size_t most) {
    FILE *file = fopen(seed_path, "r");
    assert_non_null(file);
    size_t n = fread(bytes, 1, most, file);
    fclose(file);
    return n;
}

static bool near(float a, double b) {
    return a > b - 1e-6 && a < b + 1e-6;
}

// ------------------------------------------------------------------------------------------------ imatrix

struct text {
    uint8_t bytes[4096];
    size_t n;
};

static void add(struct text *text, const void *bytes, size_t n) {
    assert_true(text->n + n <= sizeof text->bytes);
    memcpy(text->bytes + text->n, bytes, n);
    text->n += n;
}

static void add_u32(struct text *text, uint32_t number) {
    add(text, &number, sizeof number);
}

static void add_u64(struct text *text, uint64_t number) {
    add(text, &number, sizeof number);
}

static void add_string(struct text *text, const char *string) {
    add_u64(text, strlen(string));
    add(text, string, strlen(string));
}

struct recipe {
    const char *type;
    uint32_t chunks;
    uint64_t n_experts;
    float odd; // the count of the last expert of block 2
    uint32_t tensor_type;
};

static const struct recipe good_recipe = {"imatrix", 10, EXPERTS, 5, 0};

// Counts 0, 20, 40, 60 of 100 tokens for block 0, nothing about block 1, and 5, 5, 5 and `odd` for block 2.
static void make_imatrix(struct text *text, struct recipe recipe) {
    text->n = 0;
    add(text, "GGUF", 4);
    add_u32(text, 3);
    add_u64(text, 5); // tensors
    add_u64(text, 4);
    add_string(text, "general.type");
    add_u32(text, 8);
    add_string(text, recipe.type);
    add_string(text, "imatrix.datasets");
    add_u32(text, 9);
    add_u32(text, 8);
    add_u64(text, 2);
    add_string(text, "a.txt");
    add_string(text, "b.txt");
    add_string(text, "imatrix.chunk_count");
    add_u32(text, 4);
    add_u32(text, recipe.chunks);
    add_string(text, "imatrix.chunk_size");
    add_u32(text, 4);
    add_u32(text, 10);
    static const struct {
        const char *name;
        uint64_t offset;
    } tensors[] = {
        {"blk.0.attn_q.weight.counts", 0},
        {"blk.0.ffn_gate_up_exps.weight.in_sum2", 0},
        {"blk.0.ffn_gate_up_exps.weight.counts", 32},
        {"blk.0.ffn_down_exps.weight.counts", 32},
        {"blk.2.ffn_down_exps.weight.counts", 64},
    };
    for (size_t t = 0; t < 5; t++) {
        add_string(text, tensors[t].name);
        add_u32(text, 2);
        add_u64(text, 1);
        add_u64(text, recipe.n_experts);
        add_u32(text, recipe.tensor_type);
        add_u64(text, tensors[t].offset);
    }
    while (text->n % 32) {
        add(text, "", 1);
    }
    const float counts[] = {9, 9, 9, 9, 9, 9, 9, 9, 0, 20, 40, 60, 9, 9, 9, 9, 5, 5, 5, recipe.odd};
    add(text, counts, sizeof counts);
}

static int read_imatrix(const struct text *text, float *chance, char *why, size_t why_size) {
    struct gn_expert_map map;
    open_map(&map, 1);
    put_file(text->bytes, text->n);
    why[0] = '\0';
    int failed = gn_imatrix_read(seed_path, &map, chance, why, why_size);
    gn_expert_map_free(&map);
    return failed;
}

static void takes_the_counts_of_an_imatrix(void **state) {
    (void)state;
    static struct text text;
    float chance[LAYERS * EXPERTS];
    char why[256];
    make_imatrix(&text, good_recipe);
    assert_int_equal(read_imatrix(&text, chance, why, sizeof why), 0);
    const double expected[] = {0, 0.2, 0.4, 0.6, 0, 0, 0, 0, 0.05, 0.05, 0.05, 0.05};
    for (size_t i = 0; i < LAYERS * EXPERTS; i++) {
        assert_true(near(chance[i], expected[i]));
    }
    // The number of tokens is not there: the most used stands for all.
    struct recipe recipe = good_recipe;
    recipe.chunks = 0;
    make_imatrix(&text, recipe);
    assert_int_equal(read_imatrix(&text, chance, why, sizeof why), 0);
    assert_true(near(chance[3], 1) && near(chance[1], 1.0 / 3));
}

static void refuse_imatrix(const struct text *text, const char *reason) {
    float chance[LAYERS * EXPERTS];
    char why[256];
    assert_int_equal(read_imatrix(text, chance, why, sizeof why), -EINVAL);
    if (!strstr(why, reason) || !strstr(why, seed_path) || strchr(why, '\n')) {
        fail_msg("'%s' does not say '%s'", why, reason);
    }
    for (size_t i = 0; i < LAYERS * EXPERTS; i++) {
        assert_true(chance[i] == 0);
    }
}

static void refuses_what_is_no_imatrix_of_the_model(void **state) {
    (void)state;
    static struct text text;
    struct recipe recipe = good_recipe;
    recipe.type = "model";
    make_imatrix(&text, recipe);
    refuse_imatrix(&text, "no imatrix");
    recipe = good_recipe;
    recipe.n_experts = EXPERTS + 1;
    make_imatrix(&text, recipe);
    refuse_imatrix(&text, "another number of experts");
    recipe.n_experts = UINT64_MAX;
    make_imatrix(&text, recipe);
    refuse_imatrix(&text, "another number of experts");
    recipe = good_recipe;
    recipe.tensor_type = 8;
    make_imatrix(&text, recipe);
    refuse_imatrix(&text, "no plain numbers");
    const float odd[] = {-1, 0.0f / 0.0f, 1.0f / 0.0f};
    for (size_t i = 0; i < 3; i++) {
        recipe = good_recipe;
        recipe.odd = odd[i];
        make_imatrix(&text, recipe);
        refuse_imatrix(&text, "no counts");
    }
    make_imatrix(&text, good_recipe);
    memcpy(text.bytes, "GGML", 4);
    refuse_imatrix(&text, "no GGUF");
    make_imatrix(&text, good_recipe);
    text.bytes[4] = 9;
    refuse_imatrix(&text, "version");
}

static void no_file_is_refused_without_waiting(void **state) {
    (void)state;
    struct gn_expert_map map;
    float chance[LAYERS * EXPERTS];
    char why[256];
    open_map(&map, 1);
    unlink(seed_path);
    assert_int_equal(gn_imatrix_read(seed_path, &map, chance, why, sizeof why), -ENOENT);
    assert_int_equal(gn_imatrix_read(directory, &map, chance, why, sizeof why), -EISDIR);
    struct gn_hot_set set;
    assert_int_equal(gn_hot_set_open(&set, &map), 0);
    assert_int_equal(gn_hot_set_read(&set, seed_path, why, sizeof why), -ENOENT);
    assert_int_equal(gn_hot_set_read(&set, directory, why, sizeof why), -EINVAL);
    assert_int_equal(mkfifo(seed_path, 0600), 0);
    assert_int_equal(gn_imatrix_read(seed_path, &map, chance, why, sizeof why), -EINVAL);
    assert_int_equal(gn_hot_set_read(&set, seed_path, why, sizeof why), -EINVAL);
    unlink(seed_path);
    gn_hot_set_close(&set);
    gn_expert_map_free(&map);
}

static uint32_t random_below(uint64_t *state, uint32_t n) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % n);
}

static bool all_chances(const float *chance) {
    bool good = true;
    for (size_t i = 0; i < LAYERS * EXPERTS; i++) {
        good = good && chance[i] >= 0 && chance[i] <= 1;
    }
    return good;
}

static void a_damaged_imatrix_does_no_harm(void **state) {
    (void)state;
    static struct text whole, text;
    float chance[LAYERS * EXPERTS];
    char why[256];
    make_imatrix(&whole, good_recipe);
    for (size_t n = 0; n < whole.n; n++) {
        text = whole;
        text.n = n;
        assert_int_equal(read_imatrix(&text, chance, why, sizeof why), -EINVAL);
    }
    uint64_t seed = 17;
    for (int round = 0; round < 4000; round++) {
        text = whole;
        for (uint32_t flips = 1 + random_below(&seed, 3); flips > 0; flips--) {
            text.bytes[random_below(&seed, (uint32_t)text.n)] ^= (uint8_t)(1 << random_below(&seed, 8));
        }
        if (round % 2) { // a length or an offset of any size
            uint64_t number = UINT64_MAX >> random_below(&seed, 64);
            memcpy(text.bytes + random_below(&seed, (uint32_t)text.n - 8), &number, sizeof number);
        }
        int failed = read_imatrix(&text, chance, why, sizeof why);
        assert_true((failed == 0) == (why[0] == '\0'));
        assert_true(all_chances(chance));
    }
}

// A file of zeros takes no room on disk: its size is no bound for what a count in it promises.
static void a_long_empty_imatrix_is_refused_early(void **state) {
    (void)state;
    struct text text = {.n = 0};
    add(&text, "GGUF", 4);
    add_u32(&text, 3);
    add_u64(&text, 1);
    add_u64(&text, UINT64_C(1) << 40);
    put_file(text.bytes, text.n);
    assert_int_equal(truncate(seed_path, (off_t)1 << 38), 0);
    struct gn_expert_map map;
    float chance[LAYERS * EXPERTS];
    char why[256];
    open_map(&map, 1);
    assert_int_equal(gn_imatrix_read(seed_path, &map, chance, why, sizeof why), -EINVAL);
    assert_non_null(strstr(why, "header is longer"));
    gn_expert_map_free(&map);
}

// ------------------------------------------------------------------------------------------------ hot set

static void fill_set(struct gn_hot_set *set) {
    unlink(seed_path); // an imatrix of an earlier test is not overwritten
    for (uint32_t l = 0; l < LAYERS; l++) {
        set->tokens[l] = 100 * (float)(l + 1);
        for (uint32_t e = 0; e < EXPERTS; e++) {
            set->uses[l * EXPERTS + e] = (float)(l * 10 + e);
        }
    }
}

static void a_hot_set_comes_back_as_it_was(void **state) {
    (void)state;
    struct gn_expert_map map;
    struct gn_hot_set set, again;
    char why[256];
    open_map(&map, 1);
    assert_int_equal(gn_hot_set_open(&set, &map), 0);
    assert_int_equal(gn_hot_set_open(&again, &map), 0);
    fill_set(&set);
    for (int time = 0; time < 2; time++) { // new, and over an old one
        assert_int_equal(gn_hot_set_write(&set, seed_path, why, sizeof why), 0);
        assert_int_equal(gn_hot_set_read(&again, seed_path, why, sizeof why), 0);
        assert_memory_equal(again.tokens, set.tokens, sizeof(float) * LAYERS);
        assert_memory_equal(again.uses, set.uses, sizeof(float) * LAYERS * EXPERTS);
    }
    gn_hot_set_fade(&again, 150); // layer 0 has 100 tokens, layers 1 and 2 have 200 and 300
    assert_true(near(again.tokens[0], 100) && near(again.uses[3], 3));
    assert_true(near(again.tokens[1], 150) && near(again.uses[EXPERTS + 2], 9));
    assert_true(near(again.tokens[2], 150) && near(again.uses[2 * EXPERTS + 2], 11));
    gn_hot_set_close(&set);
    gn_hot_set_close(&again);
    gn_expert_map_free(&map);
}

static void a_hot_set_is_of_one_model(void **state) {
    (void)state;
    struct gn_expert_map map, other;
    struct gn_hot_set set, others;
    char why[256];
    open_map(&map, 1);
    open_map(&other, 2);
    assert_int_equal(gn_hot_set_open(&set, &map), 0);
    assert_int_equal(gn_hot_set_open(&others, &other), 0);
    fill_set(&set);
    assert_int_equal(gn_hot_set_write(&set, seed_path, why, sizeof why), 0);
    assert_int_equal(gn_hot_set_read(&others, seed_path, why, sizeof why), -ESTALE);
    assert_non_null(strstr(why, "another model"));
    for (size_t i = 0; i < LAYERS * EXPERTS; i++) {
        assert_true(others.uses[i] == 0);
    }
    gn_hot_set_close(&set);
    gn_hot_set_close(&others);
    gn_expert_map_free(&map);
    gn_expert_map_free(&other);
}

static void a_damaged_hot_set_is_refused(void **state) {
    (void)state;
    struct gn_expert_map map;
    struct gn_hot_set set;
    char why[256];
    uint8_t whole[1024], bytes[1024];
    open_map(&map, 1);
    assert_int_equal(gn_hot_set_open(&set, &map), 0);
    fill_set(&set);
    assert_int_equal(gn_hot_set_write(&set, seed_path, why, sizeof why), 0);
    size_t n = get_file(whole, sizeof whole);
    assert_true(n > 90 && n < sizeof whole);
    for (size_t cut = 0; cut < n; cut++) {
        put_file(whole, cut);
        assert_int_equal(gn_hot_set_read(&set, seed_path, why, sizeof why), -EINVAL);
    }
    memcpy(bytes, whole, n + 1);
    put_file(bytes, n + 1);
    assert_true(gn_hot_set_read(&set, seed_path, why, sizeof why) < 0);
    for (size_t bit = 0; bit < 8 * n; bit++) {
        memcpy(bytes, whole, n);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        put_file(bytes, n);
        assert_int_equal(gn_hot_set_read(&set, seed_path, why, sizeof why), -EINVAL);
        assert_true(set.tokens[0] == 0 && set.uses[5] == 0);
    }
    gn_hot_set_close(&set);
    gn_expert_map_free(&map);
}

// The checksum is right, but what it sums is nonsense: more uses than tokens, or no numbers.
static void nonsense_with_a_right_checksum_is_refused(void **state) {
    (void)state;
    struct gn_expert_map map;
    struct gn_hot_set set;
    char why[256];
    open_map(&map, 1);
    assert_int_equal(gn_hot_set_open(&set, &map), 0);
    const float odd[] = {-1, 101, 0.0f / 0.0f, 1.0f / 0.0f};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        fill_set(&set);
        set.uses[1] = odd[i];
        assert_int_equal(gn_hot_set_write(&set, seed_path, why, sizeof why), 0);
        assert_int_equal(gn_hot_set_read(&set, seed_path, why, sizeof why), -EINVAL);
        assert_non_null(strstr(why, "damaged"));
    }
    gn_hot_set_close(&set);
    gn_expert_map_free(&map);
}

static void what_cannot_be_written_leaves_the_old_file(void **state) {
    (void)state;
    struct gn_expert_map map;
    struct gn_hot_set set;
    char why[256], path[600];
    open_map(&map, 1);
    assert_int_equal(gn_hot_set_open(&set, &map), 0);
    snprintf(path, sizeof path, "%s/none/set", directory);
    assert_int_equal(gn_hot_set_write(&set, path, why, sizeof why), -ENOENT);
    assert_non_null(strstr(why, path));
    assert_int_equal(gn_hot_set_write(&set, directory, why, sizeof why), -EEXIST);
    memset(path, 'x', sizeof path - 1);
    path[sizeof path - 1] = '\0';
    assert_true(gn_hot_set_write(&set, path, why, sizeof why) < 0);
    snprintf(path, sizeof path, "%s.%ld", directory, (long)getpid());
    assert_int_equal(access(path, F_OK), -1); // nothing is left lying about
    gn_hot_set_close(&set);
    gn_expert_map_free(&map);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_the_counts_of_an_imatrix),
        cmocka_unit_test(refuses_what_is_no_imatrix_of_the_model),
        cmocka_unit_test(no_file_is_refused_without_waiting),
        cmocka_unit_test(a_damaged_imatrix_does_no_harm),
        cmocka_unit_test(a_long_empty_imatrix_is_refused_early),
        cmocka_unit_test(a_hot_set_comes_back_as_it_was),
        cmocka_unit_test(a_hot_set_is_of_one_model),
        cmocka_unit_test(a_damaged_hot_set_is_refused),
        cmocka_unit_test(nonsense_with_a_right_checksum_is_refused),
        cmocka_unit_test(what_cannot_be_written_leaves_the_old_file),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
