// A log line is written whole.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "config/log.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

// What gn_warn("%s", text) writes to standard error.
static void logged(const char *text, char *line, size_t size) {
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stderr);
    int before = dup(STDERR_FILENO);
    assert_true(before >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    gn_warn("%s", text);
    fflush(stderr);
    dup2(before, STDERR_FILENO);
    close(before);
    rewind(file);
    line[fread(line, 1, size - 1, file)] = '\0';
    fclose(file);
}

static void check(const char *piece, size_t times, const char *shown) {
    static char text[4096], line[16384], expected[16384];
    size_t given = 0, wanted = (size_t)snprintf(expected, sizeof expected, "guanaco: warning: ");
    for (size_t i = 0; i < times; i++) {
        given += (size_t)snprintf(text + given, sizeof text - given, "%s", piece);
        wanted += (size_t)snprintf(expected + wanted, sizeof expected - wanted, "%s", shown);
    }
    snprintf(expected + wanted, sizeof expected - wanted, "\n");
    logged(text, line, sizeof line);
    assert_string_equal(line, expected);
}

static void the_longest_text_of_a_mode_is_whole(void **state) {
    (void)state;
    check("m", 10, "m");
    check("m", 1023, "m");
    check("m", 1500, "m");
    check("m", 2047, "m"); // guanaco_mode()'s
}

static void what_is_shown_longer_is_whole(void **state) {
    (void)state;
    check("\033", 2047, "\\x1b");
}

// With its line's end, too.
static void a_longer_one_is_cut(void **state) {
    (void)state;
    static char text[4096], line[16384];
    memset(text, 'm', sizeof text - 1);
    logged(text, line, sizeof line);
    assert_int_equal(strlen(line), strlen("guanaco: warning: ") + GN_LOG_LINE - 1 + strlen("\n"));
    assert_int_equal(line[strlen(line) - 1], '\n');
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_longest_text_of_a_mode_is_whole),
        cmocka_unit_test(what_is_shown_longer_is_whole),
        cmocka_unit_test(a_longer_one_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
