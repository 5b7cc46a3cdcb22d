// Text of a file on a terminal and in JSON: it acts on neither.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "config/printable.h"

#include <stdlib.h>
#include <string.h>

static void assert_shown(const char *text, const char *wanted) {
    char shown[200], *printed = NULL;
    size_t size;
    assert_string_equal(gn_printable(text, shown, sizeof shown), wanted);
    FILE *to = open_memstream(&printed, &size);
    assert_non_null(to);
    gn_put_printable(text, to);
    assert_int_equal(fclose(to), 0);
    assert_string_equal(printed, wanted);
    free(printed);
}

static void text_stays(void **state) {
    (void)state;
    assert_shown("", "");
    assert_shown("blk.0 \"x\" \\ ~", "blk.0 \"x\" \\ ~");
    assert_shown("Größe, 模型, \xf0\x9f\xa6\x99, \xc2\xa0", "Größe, 模型, \xf0\x9f\xa6\x99, \xc2\xa0");
}

static void controls_are_shown(void **state) {
    (void)state;
    assert_shown("a\033[2Jb\r\n\t\x7f", "a\\x1b[2Jb\\x0d\\x0a\\x09\\x7f");
    assert_shown("\xc2\x9b"
                 "31m",
                 "\\xc2\\x9b31m"); // CSI in one character
    assert_shown("\xe2\x80\xae", "\\xe2\\x80\\xae");
    assert_shown("\xe2\x81\xa6", "\\xe2\\x81\\xa6");
}

static void what_is_no_utf8_is_shown(void **state) {
    (void)state;
    assert_shown("\xff", "\\xff");
    assert_shown("\x9b"
                 "m",
                 "\\x9bm");
    assert_shown("\xc3", "\\xc3");
    assert_shown("\xc3("
                 "x",
                 "\\xc3(x");
    assert_shown("\xe2\x82", "\\xe2\\x82");
    assert_shown("\xc0\x80", "\\xc0\\x80");                   // overlong
    assert_shown("\xed\xa0\x80", "\\xed\\xa0\\x80");          // a surrogate
    assert_shown("\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"); // above the last
    assert_shown("\xf0\x8f\xbf\xbf", "\\xf0\\x8f\\xbf\\xbf");
}

static void what_does_not_fit_is_cut_between_characters(void **state) {
    (void)state;
    char shown[6];
    assert_string_equal(gn_printable("abcdefgh", shown, sizeof shown), "abcde");
    assert_string_equal(gn_printable("abcd\xc3\xa9", shown, sizeof shown), "abcd");
    assert_string_equal(gn_printable("ab\033", shown, sizeof shown), "ab");
    assert_string_equal(gn_printable("abc", shown, 1), "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_stays),
        cmocka_unit_test(controls_are_shown),
        cmocka_unit_test(what_is_no_utf8_is_shown),
        cmocka_unit_test(what_does_not_fit_is_cut_between_characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
