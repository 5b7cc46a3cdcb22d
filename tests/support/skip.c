#include "skip.h"

#include <errno.h>
#include <linux/io_uring.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool anything_left_out;

void left_out(const char *need, const char *why, ...) {
    va_list arguments;
    anything_left_out = true;
    printf("skipped [%s]: ", need);
    va_start(arguments, why);
    vprintf(why, arguments);
    va_end(arguments);
    putchar('\n');
    fflush(stdout);
}

const char *uring_or(const char *other) {
    struct io_uring_params params = {0};
    int ring = (int)syscall(SYS_io_uring_setup, 4, &params);
    if (ring < 0) {
        left_out("io_uring", "it is refused here (%s)", strerror(errno));
        return other;
    }
    close(ring);
    return "uring";
}

int test_result(int failures) {
    return failures ? 1 : anything_left_out ? 77 : 0;
}
