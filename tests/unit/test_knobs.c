// Settings from text, arguments and the environment: what is taken, what is refused, and how it is said.
#include "config/knobs.h"
#include "config/parse.h"
#include "policy/policy.h"

// cmocka wants these before itself
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GIB ((int64_t)1 << 30)

static struct gn_knobs knobs;
static char why[256];

static int parse(enum gn_knob knob, const char *text) {
    gn_knobs_default(&knobs);
    why[0] = '\0';
    return gn_knob_parse(&knobs, knob, text, "--here", why, sizeof why);
}

static void assert_value(enum gn_knob knob, const char *text, int64_t value) {
    assert_int_equal(parse(knob, text), 0);
    assert_true(knobs.given[knob]);
    assert_true(knobs.value[knob] == value);
}

// Refused with one line that names the place and the text, and nothing changed.
static void assert_refused(enum gn_knob knob, const char *text, int error) {
    assert_int_equal(parse(knob, text), error);
    assert_false(knobs.given[knob]);
    assert_true(knobs.value[knob] == gn_knob_table[knob].fallback);
    assert_non_null(strstr(why, "--here"));
    assert_null(strchr(why, '\n'));
    assert_true(strlen(why) < sizeof why - 1);
}

static void takes_sizes(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t bytes;
    } cases[] = {{"2GiB", 2 * GIB},        {"2gib", 2 * GIB},       {"2G", 2 * GIB},        {"2g", 2 * GIB},
                 {"2GB", 2000000000},      {"512M", 512 << 20},     {"512MiB", 512 << 20},  {"512MB", 512000000},
                 {"512", 512 << 20},       {"1.5GiB", GIB * 3 / 2}, {".5G", GIB / 2},       {"2.G", 2 * GIB},
                 {"2 GiB", 2 * GIB},       {"1TiB", 1024 * GIB},    {"1TB", 1000000000000}, {"4096K", 4 << 20},
                 {"4096KB", 4096000},      {"1048577B", 1048577},   {"1048577b", 1048577},  {"0002M", 2 << 20},
                 {"1.0000001MiB", 1048576}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_value(GN_RAM, cases[i].text, cases[i].bytes);
    }
}

static void refuses_sizes(void **state) {
    (void)state;
    static const char *const nonsense[] = {"",     " ",    "x",      "GiB",   "-1G",   "+1G", "2 G B", "2GiBs",  "2GG",
                                           "1e9",  "0x10", "1,5GiB", "1.2.3", "inf",   "nan", ".",     "2X",     "\n",
                                           "2M\n", "2%",   "min",    "two",   "2Gi B", " 2G", "2kk",   "1..5GiB"};
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        assert_refused(GN_RAM, nonsense[i], -EINVAL);
    }
    static const char *const absurd[] = {
        "0", "0GiB", "1B", "99999999T", "9223372036854775808B", "99999999999999999999999999999999999999999999999999T"};
    for (size_t i = 0; i < sizeof absurd / sizeof *absurd; i++) {
        assert_refused(GN_RAM, absurd[i], -ERANGE);
    }
}

static void survives_long_text(void **state) {
    (void)state;
    char text[10001];
    memset(text, '9', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    assert_refused(GN_RAM, text, -ERANGE);
    assert_refused(GN_STAGING, text, -ERANGE);
    assert_refused(GN_DENSE, text, -EINVAL);
    char small[8];
    gn_knobs_default(&knobs);
    assert_int_equal(gn_knob_parse(&knobs, GN_RAM, text, "--here", small, sizeof small), -ERANGE);
    assert_int_equal(strlen(small), sizeof small - 1);
}

static void takes_shares(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double share;
    } cases[] = {{"min", 0}, {"MIN", 0}, {"0%", 0}, {"50%", 0.5}, {"12.5%", 0.125}, {"100%", 1}, {"0.01%", 0.0001}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(parse(GN_EXPERT_CACHE, cases[i].text), 0);
        assert_true(knobs.value[GN_EXPERT_CACHE] < 0);
        assert_true(gn_knob_share(knobs.value[GN_EXPERT_CACHE]) == cases[i].share);
    }
    assert_value(GN_EXPERT_CACHE, "8MiB", 8 << 20);
    assert_refused(GN_EXPERT_CACHE, "101%", -ERANGE);
    assert_refused(GN_EXPERT_CACHE, "-1%", -EINVAL);
    assert_refused(GN_EXPERT_CACHE, "%", -EINVAL);
    assert_refused(GN_EXPERT_CACHE, "50%%", -EINVAL);
    assert_refused(GN_EXPERT_CACHE, "minimum", -EINVAL);
    assert_refused(GN_EXPERT_CACHE, "0", -ERANGE);
}

static void auto_takes_a_size_back(void **state) {
    (void)state;
    assert_int_equal(parse(GN_RAM, "2GiB"), 0);
    assert_int_equal(gn_knob_parse(&knobs, GN_RAM, "auto", "--ram", why, sizeof why), 0);
    assert_false(knobs.given[GN_RAM]);
    assert_true(knobs.value[GN_RAM] == 0);
    assert_refused(GN_STAGING, "auto", -EINVAL);
}

static void takes_choices_and_switches(void **state) {
    (void)state;
    assert_value(GN_IO, "threads", 2);
    assert_value(GN_IO, "URING", 1);
    assert_value(GN_DENSE, "mapped", GN_DENSE_MAPPED);
    assert_int_equal(parse(GN_POLICY, "LRU"), 0);
    assert_int_equal(parse(GN_POLICY, "./mine.so"), 0);
    assert_value(GN_LOG, "debug", 3);
    static const char *const on[] = {"on", "1", "yes", "true", "ON"}, *const off[] = {"off", "0", "no", "false", "No"};
    for (int i = 0; i < 5; i++) {
        assert_value(GN_DIRECT, on[i], 1);
        assert_value(GN_DIRECT, off[i], 0);
    }
    static const char *const nonsense[] = {"", "x", "on ", " on", "2", "-1", "threadss", "thread", "auto,uring"};
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        assert_refused(GN_IO, nonsense[i], -EINVAL);
        assert_refused(GN_DENSE, nonsense[i], -EINVAL);
        assert_refused(GN_POLICY, nonsense[i], -EINVAL);
        assert_refused(GN_LOG, nonsense[i], -EINVAL);
        assert_refused(GN_DIRECT, nonsense[i], -EINVAL);
    }
    parse(GN_DENSE, "x");
    assert_non_null(strstr(why, "auto, copy, lock or mapped"));
}

static void takes_whole_numbers(void **state) {
    (void)state;
    assert_value(GN_STAGING, "2", 2);
    assert_value(GN_IO_DEPTH, "0", 0);
    assert_value(GN_FAULT_RESULT, "-5", -5);
    assert_value(GN_FAULT_AT, "9223372036854775807", INT64_MAX);
    static const char *const nonsense[] = {"", " 3", "3 ", "+3", "3.0", "0x3", "3M", "three", "--3", "-", "3\n"};
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        assert_refused(GN_STAGING, nonsense[i], -EINVAL);
        assert_refused(GN_IO_DEPTH, nonsense[i], -EINVAL);
        assert_refused(GN_PREFILL_TOKENS, nonsense[i], -EINVAL);
        assert_refused(GN_FAULT_RESULT, nonsense[i], -EINVAL);
    }
    assert_refused(GN_STAGING, "1", -ERANGE);
    assert_refused(GN_STAGING, "-4", -ERANGE);
    assert_refused(GN_STAGING, "1025", -ERANGE);
    assert_refused(GN_IO_DEPTH, "-1", -ERANGE);
    assert_refused(GN_FAULT_AT, "9223372036854775808", -ERANGE);
    assert_refused(GN_FAULT_RESULT, "-4096", -ERANGE);
}

static void takes_text(void **state) {
    (void)state;
    static const char *const texts[] = {"x", "/a b/c,d=e.csv", "-", "50%", "\xff"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_int_equal(parse(GN_TRACE, texts[i]), 0);
        assert_true(knobs.given[GN_TRACE]);
        assert_ptr_equal(knobs.text[GN_TRACE], texts[i]);
    }
    static const char *const nonsense[] = {"", "a\nb", "a\n", "\r"};
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        assert_refused(GN_TRACE, nonsense[i], -EINVAL);
        assert_null(knobs.text[GN_TRACE]);
        assert_non_null(strstr(why, "give a file"));
    }
}

// Text of which every knob can say that it is wrong.
static bool can_refuse(int k) {
    return gn_knob_table[k].kind != GN_KIND_TEXT || gn_knob_table[k].fits;
}

static void refuses_nonsense_everywhere(void **state) {
    (void)state;
    static const char *const nonsense[] = {"", "?", "-", "\xff\xfe", "1e3", "99999999999999999999", "%s%n", "0x1"};
    for (int k = 0; k < GN_KNOB_COUNT; k++) {
        for (size_t i = 0; i < (can_refuse(k) ? sizeof nonsense / sizeof *nonsense : 1); i++) {
            assert_true(parse((enum gn_knob)k, nonsense[i]) < 0);
            assert_non_null(strstr(why, "--here"));
        }
    }
}

static int from_arguments(int argc, const char *const *argv, int *i) {
    gn_knobs_default(&knobs);
    why[0] = '\0';
    return gn_knobs_from_argument(&knobs, argc, (char *const *)argv, i, why, sizeof why);
}

static void takes_arguments(void **state) {
    (void)state;
    const char *argv[] = {"--ram", "2GiB", "--ram=3GiB", "--ramp", "--ram"};
    int i = 0;
    assert_int_equal(from_arguments(5, argv, &i), 1);
    assert_int_equal(i, 1);
    assert_true(knobs.value[GN_RAM] == 2 * GIB);
    i = 2;
    assert_int_equal(from_arguments(5, argv, &i), 1);
    assert_int_equal(i, 2);
    assert_true(knobs.value[GN_RAM] == 3 * GIB);
    i = 3; // another option that starts alike
    assert_int_equal(from_arguments(5, argv, &i), 0);
    i = 4;
    assert_int_equal(from_arguments(5, argv, &i), -EINVAL);
    assert_non_null(strstr(why, "--ram needs a value"));
    const char *nonsense[] = {"--ram="};
    i = 0;
    assert_int_equal(from_arguments(1, nonsense, &i), -EINVAL);
}

static void every_flag_refuses_nonsense(void **state) {
    (void)state;
    for (int k = 0; k < GN_KNOB_COUNT; k++) {
        const char *argv[] = {gn_knob_table[k].flag, "nonsense"};
        int i = 0;
        if (argv[0] && can_refuse(k)) {
            assert_int_equal(from_arguments(2, argv, &i), -EINVAL);
            assert_non_null(strstr(why, argv[0]));
        }
    }
}

static void clear_environment(void) {
    for (int k = 0; k < GN_KNOB_COUNT; k++) {
        unsetenv(gn_knob_table[k].environment);
    }
}

static void every_variable_refuses_nonsense(void **state) {
    (void)state;
    for (int k = 0; k < GN_KNOB_COUNT; k++) {
        clear_environment();
        setenv(gn_knob_table[k].environment, can_refuse(k) ? "nonsense" : "two\nlines", 1);
        gn_knobs_default(&knobs);
        assert_int_equal(gn_knobs_from_environment(&knobs, why, sizeof why), -EINVAL);
        assert_non_null(strstr(why, gn_knob_table[k].environment));
        setenv(gn_knob_table[k].environment, "", 1); // empty: as if it were not there
        assert_int_equal(gn_knobs_from_environment(&knobs, why, sizeof why), 0);
        assert_false(knobs.given[k]);
    }
    clear_environment();
}

// What a call writes to standard error.
static void read_stderr_of(void (*call)(void), char *text, size_t size) {
    FILE *file = tmpfile();
    fflush(stderr);
    int saved = dup(STDERR_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    call();
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(file);
    text[fread(text, 1, size - 1, file)] = '\0';
    fclose(file);
}

static void read_environment(void) {
    gn_knobs_default(&knobs);
    assert_int_equal(gn_knobs_from_environment(&knobs, why, sizeof why), 0);
}

static void warns_of_an_unknown_variable(void **state) {
    (void)state;
    char text[512];
    clear_environment();
    setenv("GUANACO_PLUGIN", "x", 1);
    read_stderr_of(read_environment, text, sizeof text);
    assert_string_equal(text, "");
    setenv("GUANACO_RAMM", "2GiB", 1);
    setenv("GUANACO_IO", "threads", 1);
    read_stderr_of(read_environment, text, sizeof text);
    assert_non_null(strstr(text, "warning"));
    assert_non_null(strstr(text, "GUANACO_RAMM"));
    assert_true(knobs.value[GN_IO] == 2 && knobs.given[GN_IO]);
    unsetenv("GUANACO_RAMM");
    unsetenv("GUANACO_PLUGIN");
    clear_environment();
}

static void arguments_win_over_the_environment(void **state) {
    (void)state;
    clear_environment();
    setenv("GUANACO_RAM", "1GiB", 1);
    gn_knobs_default(&knobs);
    assert_int_equal(gn_knobs_from_environment(&knobs, why, sizeof why), 0);
    const char *argv[] = {"--ram", "2GiB"};
    int i = 0;
    assert_int_equal(gn_knobs_from_argument(&knobs, 2, (char *const *)argv, &i, why, sizeof why), 1);
    assert_true(knobs.value[GN_RAM] == 2 * GIB);
    clear_environment();
}

static void export_is_read_back(void **state) {
    (void)state;
    static const char *const shares[] = {"min", "50%", "12.34%", "100%", "1048577B"};
    for (size_t s = 0; s < sizeof shares / sizeof *shares; s++) {
        clear_environment();
        assert_int_equal(parse(GN_EXPERT_CACHE, shares[s]), 0);
        gn_knob_set(&knobs, GN_RAM, 3 * GIB + 1);
        gn_knob_set(&knobs, GN_RESERVE, 0);
        gn_knob_set(&knobs, GN_IO, 2);
        gn_knob_set(&knobs, GN_DIRECT, 0);
        gn_knob_set(&knobs, GN_STAGING, 5);
        gn_knob_set(&knobs, GN_FAULT_RESULT, -28);
        assert_int_equal(gn_knob_parse(&knobs, GN_TRACE, "a b.csv", "--here", why, sizeof why), 0);
        setenv("GUANACO_DENSE", "lock", 1); // not given: taken out
        gn_knobs_export(&knobs);
        struct gn_knobs again;
        gn_knobs_default(&again);
        assert_int_equal(gn_knobs_from_environment(&again, why, sizeof why), 0);
        assert_memory_equal(again.value, knobs.value, sizeof knobs.value);
        assert_string_equal(again.text[GN_TRACE], "a b.csv");
        for (int k = 0; k < GN_KNOB_COUNT; k++) {
            assert_int_equal(again.given[k], knobs.given[k]);
        }
    }
    clear_environment();
}

static void the_table_is_whole(void **state) {
    (void)state;
    for (int k = 0; k < GN_KNOB_COUNT; k++) {
        const struct gn_knob_info *info = &gn_knob_table[k];
        assert_non_null(info->environment);
        assert_int_equal(strncmp(info->environment, "GUANACO_", 8), 0);
        assert_non_null(info->value_name);
        assert_true(info->help && *info->help);
        assert_true(info->least <= info->most);
        assert_true((info->kind == GN_KIND_CHOICE || info->kind == GN_KIND_BOOL) == (info->choices != NULL));
        assert_true((info->kind == GN_KIND_TEXT) == (info->wanted != NULL));
        if (k == GN_MAX_EXPERTS) { // the names, and the order, that users of an earlier tool know
            assert_string_equal(info->flag, "--guanaco-max-experts");
            assert_true(info->environment_first);
        } else if (info->flag) { // --some-name and GUANACO_SOME_NAME are the same name
            assert_int_equal(strlen(info->flag) - 2, strlen(info->environment) - 8);
        }
    }
}

static void the_environment_has_its_way_where_it_should(void **state) {
    (void)state;
    char *argv[] = {"--guanaco-max-experts", "7", "--staging", "5", "--guanaco-max-experts", "none"};
    setenv("GUANACO_MAX_EXPERTS", "9", 1);
    setenv("GUANACO_STAGING", "9", 1);
    gn_knobs_default(&knobs);
    assert_int_equal(gn_knobs_from_environment(&knobs, why, sizeof why), 0);
    int i = 0;
    assert_int_equal(gn_knobs_from_argument(&knobs, 6, argv, &i, why, sizeof why), 1);
    assert_int_equal(i, 1);
    i = 2;
    assert_int_equal(gn_knobs_from_argument(&knobs, 6, argv, &i, why, sizeof why), 1);
    assert_int_equal(knobs.value[GN_MAX_EXPERTS], 9);
    assert_int_equal(knobs.value[GN_STAGING], 5);
    i = 4; // wrong is wrong all the same
    assert_int_equal(gn_knobs_from_argument(&knobs, 6, argv, &i, why, sizeof why), -EINVAL);
    unsetenv("GUANACO_MAX_EXPERTS");
    unsetenv("GUANACO_STAGING");
    i = 0;
    assert_int_equal(gn_knobs_from_argument(&knobs, 6, argv, &i, why, sizeof why), 1);
    assert_int_equal(knobs.value[GN_MAX_EXPERTS], 7);
}

static void help_names_everything(void **state) {
    (void)state;
    static void (*const printers[])(FILE *) = {gn_knobs_print_help, gn_knobs_print_markdown};
    for (int p = 0; p < 2; p++) {
        char *text;
        size_t size;
        FILE *to = open_memstream(&text, &size);
        printers[p](to);
        fclose(to);
        for (int k = 0; k < GN_KNOB_COUNT; k++) {
            if (gn_knob_table[k].flag) {
                assert_non_null(strstr(text, gn_knob_table[k].flag));
                assert_non_null(strstr(text, gn_knob_table[k].environment));
            } else {
                assert_null(strstr(text, gn_knob_table[k].environment));
            }
        }
        free(text);
    }
}

// The README's table is the one that the program would print. When it differs, the right one is printed.
static void the_readme_is_up_to_date(void **state) {
    (void)state;
    char path[PATH_MAX], readme[1 << 16], *table;
    snprintf(path, sizeof path, "%.*s/../../README.md", (int)(strrchr(__FILE__, '/') - __FILE__), __FILE__);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    readme[fread(readme, 1, sizeof readme - 1, file)] = '\0';
    fclose(file);
    size_t size;
    FILE *to = open_memstream(&table, &size);
    gn_knobs_print_markdown(to);
    fclose(to);
    bool same = strstr(readme, table) != NULL;
    if (!same) {
        fprintf(stderr, "README.md should have this table:\n%s", table); // cmocka would cut it short
    }
    free(table);
    assert_true(same);
}

static void formats_bytes(void **state) {
    (void)state;
    char text[32];
    assert_string_equal(gn_format_bytes(0, text), "0 B");
    assert_string_equal(gn_format_bytes(1023, text), "1023 B");
    assert_string_equal(gn_format_bytes(1024, text), "1.00 KiB");
    assert_string_equal(gn_format_bytes((1 << 20) - 1, text), "1.00 MiB");
    assert_string_equal(gn_format_bytes((uint64_t)GIB * 3 / 2, text), "1.50 GiB");
    assert_string_equal(gn_format_bytes(UINT64_MAX, text), "16.00 EiB");
}

static void parses_decimals(void **state) {
    (void)state;
    double value;
    assert_int_equal(gn_parse_decimal("0.8", &value), 0);
    assert_true(value > 0.7999 && value < 0.8001);
    assert_int_equal(gn_parse_decimal("-1", &value), 0);
    assert_true(value == -1);
    static const char *const nonsense[] = {"", "x", "1e3", "0,8", "--1", "nan", "1.2.3", "1 ", "."};
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        assert_int_equal(gn_parse_decimal(nonsense[i], &value), -EINVAL);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_sizes),
        cmocka_unit_test(refuses_sizes),
        cmocka_unit_test(survives_long_text),
        cmocka_unit_test(takes_shares),
        cmocka_unit_test(auto_takes_a_size_back),
        cmocka_unit_test(takes_choices_and_switches),
        cmocka_unit_test(takes_whole_numbers),
        cmocka_unit_test(takes_text),
        cmocka_unit_test(refuses_nonsense_everywhere),
        cmocka_unit_test(takes_arguments),
        cmocka_unit_test(every_flag_refuses_nonsense),
        cmocka_unit_test(every_variable_refuses_nonsense),
        cmocka_unit_test(warns_of_an_unknown_variable),
        cmocka_unit_test(arguments_win_over_the_environment),
        cmocka_unit_test(export_is_read_back),
        cmocka_unit_test(the_table_is_whole),
        cmocka_unit_test(the_environment_has_its_way_where_it_should),
        cmocka_unit_test(help_names_everything),
        cmocka_unit_test(the_readme_is_up_to_date),
        cmocka_unit_test(formats_bytes),
        cmocka_unit_test(parses_decimals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
