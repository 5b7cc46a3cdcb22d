#include "config/descriptor.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

int gn_above_standard(int fd) {
    if (fd < 0 || fd > STDERR_FILENO) {
        return fd;
    }
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), error = errno;
    close(fd);
    errno = error;
    return moved;
}
