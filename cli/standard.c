#include "standard.h"

#include "cli.h"

#include "config/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void standard_open(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
            open("/dev/null", O_RDWR); // takes the lowest number that is free: this one
        }
    }
}

int standard_finish(int code) {
    bool earlier = ferror(stdout);
    errno = 0;
    bool failed = fflush(stdout) || earlier;
    if (failed && code == EXIT_OK) {
        gn_error("cannot write to standard output: %s; what was written is not whole",
                 errno ? strerror(errno) : "an earlier write failed");
        return EXIT_FAILED;
    }
    return code;
}
