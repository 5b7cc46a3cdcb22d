#include "bench/undo.h"

#include "config/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

// ------------------------------------------------------------------------------------------------ the guard

static void put_back(const char *path, const char *text) {
    FILE *file = fopen(path, "we");
    bool good = file && fputs(text, file) >= 0;
    good = file && fclose(file) == 0 && good;
    if (!good) {
        gn_error("cannot set %s back to %s: %s", path, text, strerror(errno));
    }
}

// A group is busy until the last of its processes is gone.
static void remove_directory(const char *path) {
    for (int tries = 0; tries < 100; tries++) {
        if (rmdir(path) == 0 || errno == ENOENT) {
            return;
        }
        usleep(50 * 1000);
    }
    gn_error("cannot remove the control group %s: %s", path, strerror(errno));
}

// "w PATH\tTEXT" or "d PATH"
static void undo_line(char *line) {
    line[strcspn(line, "\n")] = '\0';
    if (line[0] == 'd') {
        remove_directory(line + 2);
        return;
    }
    char *text = strchr(line, '\t');
    if (line[0] == 'w' && text) {
        *text++ = '\0';
        put_back(line + 2, text);
    }
}

// Keeps what comes until the other end is closed, then acts on it, the last first.
static _Noreturn void guard(int from) {
    static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE};
    for (size_t s = 0; s < sizeof ignored / sizeof *ignored; s++) {
        signal(ignored[s], SIG_IGN);
    }
    setsid(); // out of the terminal's reach
    // A pipe that our standard output goes to must not wait for us.
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    dup2(null, STDIN_FILENO);
    dup2(null, STDOUT_FILENO);
    char **lines = NULL, *line = NULL;
    size_t n = 0, size = 0;
    FILE *file = fdopen(from, "r");
    while (file && getline(&line, &size, file) > 0) {
        char **more = realloc(lines, (n + 1) * sizeof *lines);
        if (more) {
            lines = more;
            lines[n] = strdup(line);
            n += lines[n] != NULL;
        }
    }
    while (n > 0) {
        undo_line(lines[--n]);
    }
    _exit(0);
}

// ------------------------------------------------------------------------------------------------ our side

bool bench_undo_start(struct bench_undo *undo, char *why, size_t why_size) {
    int ends[2];
    fflush(NULL);
    if (pipe2(ends, O_CLOEXEC)) {
        snprintf(why, why_size, "cannot make a pipe: %s", strerror(errno));
        return false;
    }
    pid_t pid = fork();
    if (pid == 0) {
        close(ends[1]);
        guard(ends[0]);
    }
    close(ends[0]);
    *undo = (struct bench_undo){.to = ends[1], .guard = pid};
    if (pid < 0) {
        close(ends[1]);
        snprintf(why, why_size, "cannot start a process: %s", strerror(errno));
    }
    return pid > 0;
}

static bool send_line(const struct bench_undo *undo, const char *line) {
    size_t length = strlen(line);
    return write(undo->to, line, length) == (ssize_t)length;
}

bool bench_undo_value(struct bench_undo *undo, const char *path, const char *text) {
    char line[PIPE_BUF];
    return (size_t)snprintf(line, sizeof line, "w %s\t%s\n", path, text) < sizeof line && send_line(undo, line);
}

bool bench_undo_directory(struct bench_undo *undo, const char *path) {
    char line[PIPE_BUF];
    return (size_t)snprintf(line, sizeof line, "d %s\n", path) < sizeof line && send_line(undo, line);
}

void bench_undo_finish(struct bench_undo *undo) {
    close(undo->to);
    while (waitpid(undo->guard, NULL, 0) < 0 && errno == EINTR) {
    }
}
