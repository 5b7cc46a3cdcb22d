#include "config/input_file.h"

#include "config/descriptor.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

FILE *gn_input_open(const char *path) {
    int fd = gn_above_standard(open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
    if (fd < 0) {
        return NULL;
    }
    struct stat status;
    int error = fstat(fd, &status) || fcntl(fd, F_SETFL, O_RDONLY) ? errno : S_ISDIR(status.st_mode) ? EISDIR : 0;
    FILE *file = error ? NULL : fdopen(fd, "r");
    if (!file) {
        error = error ? error : errno;
        close(fd);
        errno = error;
    }
    return file;
}
