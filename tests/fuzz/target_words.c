// What a user types: sizes and other settings, lists of tiers, words of a command line.
#include "fuzz.h"

#include "bench/options.h"
#include "config/knobs.h"
#include "config/parse.h"
#include "config/tier_knobs.h"
#include "config/tiers.h"
#include "options.h"
#include "translate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

// ------------------------------------------------------------------------------------------------ settings

static const char *const values[] = {"auto",
                                     "min",
                                     "off",
                                     "on",
                                     "0",
                                     "-1",
                                     "1e9",
                                     "50%",
                                     "100.01%",
                                     "0.001%",
                                     "8GiB",
                                     "1.5 GB",
                                     "12.5%",
                                     "4096P",
                                     "0x10",
                                     "1,5",
                                     "lru",
                                     "./x.so",
                                     "router",
                                     "9223372036854775807",
                                     "-9223372036854775809",
                                     "4611686018427387904B",
                                     "4398046511104M",
                                     "4194303.9999TiB",
                                     "RAM:auto:8GiB",
                                     "protected=50",
                                     "\n",
                                     "\r",
                                     "\xff\xfe",
                                     NULL};

static void make_size(struct random *random, struct bytes *input) {
    size_t n = sizeof values / sizeof *values - 1;
    uint8_t knob = (uint8_t)random_below(random, GN_KNOB_COUNT);
    bytes_add(input, &knob, 1);
    bytes_add_text(input, values[random_below(random, n)]);
    if (random_percent(random, 60)) {
        struct bytes text = {input->data + 1, input->n - 1, input->capacity - 1};
        text_mutate(random, &text, values, 1 + (unsigned)random_below(random, 3));
        input->n = text.n + 1;
    }
}

static void check_numbers(const char *text) {
    int64_t integer = 0, bytes = 0;
    double number = 0;
    if (gn_parse_size(text, &bytes) == 0 && bytes < 0) {
        fuzz_fail("'%s' has %lld bytes", text, (long long)bytes);
    }
    if (gn_parse_integer(text, &integer) == 0) {
        char *end;
        long long other = strtoll(text, &end, 10);
        if (*end || other != integer) {
            fuzz_fail("'%s' is %lld", text, (long long)integer);
        }
    }
    if (gn_parse_decimal(text, &number) == 0) {
        double other = strtod(text, NULL);
        if (!(fabs(number - other) <= fabs(other) * 1e-12) && !(isinf(number) && fabs(other) > 1e300)) {
            fuzz_fail("'%s' is %g", text, number);
        }
    }
}

// What is written of a value is read as the same value.
static void check_again(enum gn_knob knob, const struct gn_knobs *knobs) {
    struct gn_knobs again;
    char text[32], why[1024];
    gn_knobs_default(&again);
    gn_knob_format(knob, knobs->value[knob], text);
    if (gn_knob_parse(&again, knob, text, "again", why, sizeof why) || again.value[knob] != knobs->value[knob]) {
        fuzz_fail("%lld is written as %s", (long long)knobs->value[knob], text);
    }
}

static bool run_size(const uint8_t *data, size_t n) {
    if (n == 0 || data[0] >= GN_KNOB_COUNT) {
        return false;
    }
    enum gn_knob knob = (enum gn_knob)data[0];
    char *text = fuzz_text(data + 1, n - 1);
    struct gn_knobs knobs;
    char why[1024] = "";
    gn_knobs_default(&knobs);
    check_numbers(text);
    bool taken = gn_knob_parse(&knobs, knob, text, "--here", why, sizeof why) == 0;
    if (!taken) {
        fuzz_check_reason(why, sizeof why);
    } else if (gn_knob_table[knob].kind != GN_KIND_TEXT && knobs.given[knob]) {
        check_again(knob, &knobs);
    }
    free(text);
    return taken;
}

const struct fuzz_target fuzz_sizes = {"sizes", make_size, run_size};

// ------------------------------------------------------------------------------------------------ tiers

static const char *const tiers[] = {"RAM:auto:8GiB",
                                    "Vulkan0:lru:2GiB,RAM:auto:auto",
                                    "GPU:auto:25%,RAM:slru:25%",
                                    "a:b:c:lru:1,RAM:./mine.so:0",
                                    "ram:fifo:100%",
                                    ",",
                                    ":",
                                    "::",
                                    "%",
                                    "auto",
                                    "A-name-of-thirty-two-characters-x:auto:1",
                                    NULL};

static void make_tiers(struct random *random, struct bytes *input) {
    bytes_add_text(input, tiers[random_below(random, 5)]);
    text_mutate(random, input, tiers, (unsigned)random_below(random, 4));
}

static void check_tier(const struct gn_tier_list *list, uint32_t t) {
    const struct gn_tier_wish *tier = &list->tier[t];
    bool ends = memchr(tier->name, '\0', sizeof tier->name) && memchr(tier->policy, '\0', sizeof tier->policy) &&
                memchr(tier->size_text, '\0', sizeof tier->size_text);
    if (!ends || !tier->name[0] || (t == list->n - 1) != !strcmp(tier->name, "RAM")) {
        fuzz_fail("tier %u is not right", t);
    }
    if (tier->size == GN_TIER_SHARE ? !(tier->share >= 0 && tier->share <= 1) : tier->bytes > INT64_MAX) {
        fuzz_fail("tier %u has the size %s", t, tier->size_text);
    }
}

static bool run_tiers(const uint8_t *data, size_t n) {
    struct gn_tier_list list;
    struct gn_knobs knobs;
    char *text = fuzz_text(data, n), why[1024] = "";
    bool taken = gn_tiers_parse(text, &list, why, sizeof why) == 0;
    if (!taken) {
        fuzz_check_reason(why, sizeof why);
    }
    for (uint32_t t = 0; taken && t < list.n; t++) {
        check_tier(&list, t);
    }
    gn_tier_size_is(text);
    // As the plugin takes them.
    gn_knobs_default(&knobs);
    if (gn_knob_parse(&knobs, GN_TIERS, text, "--tiers", why, sizeof why) == 0 &&
        (gn_tiers_from_knobs(&knobs, &list, why, sizeof why) || gn_tiers_apply(&knobs, why, sizeof why))) {
        fuzz_check_reason(why, sizeof why);
    }
    free(text);
    return taken;
}

const struct fuzz_target fuzz_tiers = {"tiers", make_tiers, run_tiers};

// ------------------------------------------------------------------------------------------------ command lines

// The input: which program's, then its words, a line each.
enum { RUN, BENCH, PROGRAM, PROGRAMS };

static void add_word(struct random *random, struct bytes *input) {
    static const char *const words[] = {"-m",
                                        "-n",
                                        "-c",
                                        "-p",
                                        "--chat",
                                        "-t",
                                        "-ub",
                                        "--top-p",
                                        "--temp",
                                        "-gs",
                                        "-ngs",
                                        "--load-mode",
                                        "streaming",
                                        "mmap+pin",
                                        "--pilot=0",
                                        "--svg",
                                        "--limit",
                                        "2GiB",
                                        "--guanaco-streaming",
                                        "--moe-expert-cache-size",
                                        "--pin-hot-experts-budget-mib",
                                        "model.gguf",
                                        "--",
                                        "-",
                                        "--=",
                                        "="};
    size_t n = sizeof words / sizeof *words;
    const char *flag = gn_knob_table[random_below(random, GN_KNOB_COUNT)].flag;
    const char *word = random_percent(random, 50) || !flag ? words[random_below(random, n)] : flag;
    bytes_printf(input, "%s%s", word, random_percent(random, 30) ? "=" : "\n");
    if (random_percent(random, 70)) {
        bytes_printf(input, "%s\n", values[random_below(random, 26)]);
    }
}

static void make_options(struct random *random, struct bytes *input) {
    uint8_t program = (uint8_t)random_below(random, PROGRAMS);
    bytes_add(input, &program, 1);
    for (size_t n = random_below(random, 6); n > 0; n--) {
        add_word(random, input);
    }
    if (random_percent(random, 40)) {
        struct bytes text = {input->data + 1, input->n - 1, input->capacity - 1};
        text_mutate(random, &text, values, 1);
        input->n = text.n + 1;
    }
}

static bool take_arguments(int argc, char **argv, char *why, size_t why_size) {
    struct gn_knobs knobs;
    struct arguments arguments;
    gn_knobs_default(&knobs);
    bool taken = translate_arguments(argc, argv, &knobs, &arguments, why, why_size);
    for (int i = 1; taken && i < arguments.count; i++) {
        taken = gn_knobs_from_argument(&knobs, arguments.count, arguments.words, &i, why, why_size) >= 0;
    }
    arguments_have(&arguments, "-m");
    arguments_value(&arguments, "-m");
    arguments_free(&arguments);
    return taken;
}

static bool run_options(const uint8_t *data, size_t n) {
    enum { MOST = 40 };
    if (n == 0) {
        return false;
    }
    char *text = fuzz_text(data + 1, n - 1), *argv[MOST + 2] = {"run"}, why[1024] = "";
    int argc = 1 + fuzz_words(text, argv + 1, MOST);
    struct options options;
    struct bench_options bench;
    bool taken = data[0] == RUN     ? options_parse(&options, argc, argv, why, sizeof why)
                 : data[0] == BENCH ? bench_options_parse(&bench, argc, argv, why, sizeof why)
                                    : take_arguments(argc, argv, why, sizeof why);
    if (!taken) {
        fuzz_check_reason(why, sizeof why);
    }
    free(text);
    return taken;
}

const struct fuzz_target fuzz_options = {"options", make_options, run_options};
