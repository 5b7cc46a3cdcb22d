#include "threads.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>

// Whether the processor is the first of those that share its core.
static bool first_of_core(int processor) {
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", processor);
    FILE *file = fopen(path, "re");
    int first = processor;
    if (file) {
        if (fscanf(file, "%d", &first) != 1) {
            first = processor;
        }
        fclose(file);
    }
    return first == processor;
}

int threads_default(void) {
    cpu_set_t allowed;
    int cores = 0, processors = 0;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
        for (int p = 0; p < CPU_SETSIZE; p++) {
            if (CPU_ISSET(p, &allowed)) {
                processors++;
                cores += first_of_core(p);
            }
        }
    }
    return cores > 0 ? cores : processors > 0 ? processors : 1;
}
