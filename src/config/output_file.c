#include "config/output_file.h"

#include "config/descriptor.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEMPORARY ".XXXXXX" // ends the name of the file that is to take another's place

// ------------------------------------------------------------------------------------------------ which file it is

// The folder of a path, and the name in it. False: the path is too long, or ends in "/".
static bool split_path(const char *path, char folder[static PATH_MAX], const char **name) {
    const char *slash = strrchr(path, '/');
    size_t length = slash ? (size_t)(slash - path) + 1 : 0;
    *name = path + length;
    if (length >= PATH_MAX || !**name || strlen(*name) > NAME_MAX) {
        return false;
    }
    memcpy(folder, length ? path : ".", length ? length : 1);
    folder[length ? length : 1] = '\0';
    return true;
}

static struct gn_file_id id_of_status(const struct stat *status) {
    return (struct gn_file_id){.regular = S_ISREG(status->st_mode), .dev = status->st_dev, .ino = status->st_ino};
}

static struct gn_file_id id_of_path(const char *path) {
    struct stat status;
    char folder[PATH_MAX];
    const char *name;
    if (!stat(path, &status)) {
        return id_of_status(&status);
    }
    if (errno != ENOENT || !split_path(path, folder, &name) || stat(folder, &status)) {
        return (struct gn_file_id){.regular = false};
    }
    struct gn_file_id id = {.regular = true, .dev = status.st_dev, .ino = status.st_ino};
    snprintf(id.name, sizeof id.name, "%s", name);
    return id;
}

static bool same(const struct gn_file_id *a, const struct gn_file_id *b) {
    return a->regular && b->regular && a->dev == b->dev && a->ino == b->ino && !strcmp(a->name, b->name);
}

// ------------------------------------------------------------------------------------------------ what may be written

// Reads the first bytes. Returns how many, or -1 when the file cannot be read.
static ssize_t first_bytes(const char *path, char bytes[static 8]) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    ssize_t got = fd < 0 ? -1 : pread(fd, bytes, 8, 0);
    if (fd >= 0) {
        close(fd);
    }
    return got;
}

// A FIFO with a name, which makes whoever opens it wait; not a pipe behind /dev/fd.
static bool is_named_fifo(const char *path) {
    char resolved[PATH_MAX];
    struct stat status;
    return realpath(path, resolved) && !lstat(resolved, &status) && S_ISFIFO(status.st_mode);
}

// Why a file that exists will not do; NULL: it does.
static const char *unfit(enum gn_output_kind kind, const char *path, mode_t mode) {
    if (S_ISDIR(mode)) {
        return "is a directory; name a file in it";
    }
    if (S_ISFIFO(mode) && (kind != GN_OUTPUT_STREAM || is_named_fifo(path))) {
        return "is a FIFO; name a file";
    }
    if (S_ISBLK(mode) || S_ISSOCK(mode) || (S_ISCHR(mode) && kind != GN_OUTPUT_STREAM)) {
        return S_ISSOCK(mode) ? "is a socket; name a file" : "is a device; name a file";
    }
    if (!S_ISREG(mode)) {
        return NULL;
    }
    char start[8];
    ssize_t got = first_bytes(path, start);
    if (got >= 4 && !memcmp(start, "GGUF", 4)) {
        return "is a GGUF file, a model or an imatrix, which is not overwritten; name another file";
    }
    bool hot_set = got == 8 && !memcmp(start, GN_HOT_SET_MAGIC, 8);
    if (kind == GN_OUTPUT_HOT_SET && got != 0 && !hot_set) {
        return got < 0 ? "cannot be read; check who may read it"
                       : "is no hot set, and is not overwritten; name another file, or one that does not exist yet";
    }
    return NULL;
}

const char *gn_output_unfit(enum gn_output_kind kind, const char *path) {
    struct stat status;
    return stat(path, &status) ? NULL : unfit(kind, path, status.st_mode);
}

// Whether the file, or its folder where the file is new or replaced, may be written. Returns 0 or an errno.
static int not_allowed(enum gn_output_kind kind, const char *path, bool exists) {
    char folder[PATH_MAX], resolved[PATH_MAX];
    const char *name;
    if (exists && kind == GN_OUTPUT_STREAM) {
        return access(path, W_OK) ? errno : 0;
    }
    if (exists && !realpath(path, resolved)) {
        return errno;
    }
    if (!split_path(exists ? resolved : path, folder, &name)) {
        return strlen(path) < PATH_MAX ? EISDIR : ENAMETOOLONG;
    }
    if (kind != GN_OUTPUT_STREAM && strlen(name) + strlen(TEMPORARY) > NAME_MAX) {
        return ENAMETOOLONG;
    }
    return access(folder, W_OK | X_OK) ? errno : 0;
}

static bool check_alone(enum gn_output_kind kind, const char *option, const char *path, char *why, size_t why_size) {
    struct stat status, link;
    bool exists = !stat(path, &status);
    int error = exists || errno == ENOENT ? 0 : errno;
    const char *wrong = exists ? unfit(kind, path, status.st_mode) : NULL;
    if (!exists && !error && !lstat(path, &link)) {
        wrong = "is a link that leads nowhere; remove it, or name another file";
    }
    if (wrong) {
        snprintf(why, why_size, "%s: %s %s", option, path, wrong);
        return false;
    }
    error = error ? error : not_allowed(kind, path, exists);
    if (error) {
        snprintf(why, why_size, "%s: cannot write %s: %s", option, path, strerror(error));
    }
    return !error;
}

// Standard streams that are regular files: what is read there, or written, is not to be lost either.
static const char *same_as_standard(const struct gn_file_id *id) {
    static const char *const names[] = {"what standard input comes from", "what standard output goes to",
                                        "what standard error goes to"};
    for (int fd = 0; fd < 3; fd++) {
        struct stat status;
        if (!fstat(fd, &status)) {
            struct gn_file_id standard = id_of_status(&status);
            if (same(id, &standard)) {
                return names[fd];
            }
        }
    }
    return NULL;
}

bool gn_outputs_add(struct gn_outputs *outputs, enum gn_output_kind kind, const char *option, const char *path,
                    char *why, size_t why_size) {
    if (!path) {
        return true;
    }
    if (!check_alone(kind, option, path, why, why_size)) {
        return false;
    }
    struct gn_output output = {.option = option, .path = path, .id = id_of_path(path)};
    for (unsigned o = 0; o < outputs->n; o++) {
        if (same(&output.id, &outputs->output[o].id)) {
            snprintf(why, why_size, "%s and %s both write %s; name two files", outputs->output[o].option, option, path);
            return false;
        }
    }
    const char *standard = same_as_standard(&output.id);
    if (standard || outputs->n == sizeof outputs->output / sizeof *outputs->output) {
        snprintf(why, why_size, "%s: %s is %s; name another file", option, path,
                 standard ? standard : "one output too many");
        return false;
    }
    outputs->output[outputs->n++] = output;
    return true;
}

bool gn_outputs_spare(const struct gn_outputs *outputs, const char *what, const char *path, char *why,
                      size_t why_size) {
    if (!path || outputs->n == 0) {
        return true;
    }
    struct gn_file_id id = id_of_path(path);
    for (unsigned o = 0; o < outputs->n; o++) {
        if (same(&id, &outputs->output[o].id)) {
            snprintf(why, why_size, "%s would overwrite %s, %s; name another file", outputs->output[o].option, what,
                     path);
            return false;
        }
    }
    return true;
}

// ------------------------------------------------------------------------------------------------ writing

int gn_output_open(const char *path) {
    int fd = gn_above_standard(open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666));
    struct stat status;
    if (fd < 0) {
        return -errno;
    }
    int failed = fstat(fd, &status) ? errno : 0;
    if (!failed && S_ISREG(status.st_mode)) {
        failed = ftruncate(fd, 0) ? errno : 0;
    } else if (!failed && S_ISBLK(status.st_mode)) {
        failed = EINVAL;
    }
    if (!failed && fcntl(fd, F_SETFL, O_WRONLY)) { // from here on a full pipe makes us wait
        failed = errno;
    }
    if (failed) {
        close(fd);
    }
    return failed ? -failed : fd;
}

static int write_all(int fd, const char *bytes, size_t n) {
    while (n > 0) {
        ssize_t put = write(fd, bytes, n);
        if (put < 0 && errno != EINTR) {
            return errno;
        }
        if (put == 0) {
            return EIO;
        }
        bytes += put > 0 ? put : 0;
        n -= put > 0 ? (size_t)put : 0;
    }
    return 0;
}

// Some file systems have no fsync(); that is no reason to lose the file.
static int settle(int fd) {
    return fsync(fd) && errno != EINVAL && errno != ENOTSUP ? errno : 0;
}

// The old file's mode, and its owner where we may set that.
static int take_over(int fd, const struct stat *old, bool exists, mode_t mode) {
    if (exists && (old->st_uid != geteuid() || old->st_gid != getegid()) && fchown(fd, old->st_uid, old->st_gid)) {
        errno = 0; // only root may: the file is then ours
    }
    return fchmod(fd, exists ? old->st_mode & 07777 : mode) ? errno : 0;
}

int gn_replace_file(const char *path, const void *bytes, size_t n, mode_t mode) {
    char target[PATH_MAX], temporary[PATH_MAX];
    struct stat old;
    bool exists = !stat(path, &old);
    if (exists && !S_ISREG(old.st_mode)) {
        return S_ISDIR(old.st_mode) ? -EISDIR : -EINVAL;
    }
    if (exists ? !realpath(path, target) : (size_t)snprintf(target, sizeof target, "%s", path) >= sizeof target) {
        return exists ? -errno : -ENAMETOOLONG;
    }
    if ((size_t)snprintf(temporary, sizeof temporary, "%s" TEMPORARY, target) >= sizeof temporary) {
        return -ENAMETOOLONG;
    }
    int made = mkostemp(temporary, O_CLOEXEC);
    if (made < 0) {
        return -errno;
    }
    int fd = gn_above_standard(made);
    int failed = fd < 0 ? errno : take_over(fd, &old, exists, mode);
    failed = failed ? failed : write_all(fd, bytes, n);
    failed = failed ? failed : settle(fd);
    if (fd >= 0 && close(fd) && !failed) {
        failed = errno;
    }
    failed = failed ? failed : rename(temporary, target) ? errno : 0;
    if (failed) {
        unlink(temporary);
    }
    return -failed;
}
