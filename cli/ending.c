#include "ending.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

const char *describe_ending(int status, char *text, size_t size) {
    static const int crashes[] = {SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE, SIGSYS, SIGTRAP};
    if (!WIFSIGNALED(status)) {
        snprintf(text, size, "ended with exit code %d", WEXITSTATUS(status));
        return text;
    }
    int signal_number = WTERMSIG(status);
    bool crashed = false;
    for (size_t s = 0; s < sizeof crashes / sizeof *crashes; s++) {
        crashed = crashed || crashes[s] == signal_number;
    }
    snprintf(text, size, "%s signal %d (%s)%s", crashed ? "crashed with" : "was killed by", signal_number,
             strsignal(signal_number), signal_number == SIGKILL ? ", as the kernel does when memory is short" : "");
    return text;
}
