// What the tests of locked memory need: how much is locked, and a process that may not lock what it likes.
#pragma once

#include <errno.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

// VmLck of this process, bytes.
static inline uint64_t locked_bytes(void) {
    FILE *status = fopen("/proc/self/status", "re");
    char line[256];
    uint64_t kib = 0;
    while (status && fgets(line, sizeof line, status) && sscanf(line, "VmLck: %" SCNu64, &kib) != 1) {
    }
    if (status) {
        fclose(status);
    }
    return kib * 1024;
}

// Limits what this process may lock, for good: without CAP_IPC_LOCK, which root has, the limit holds. 0 or -1.
static inline int limit_locking(uint64_t bytes) {
    struct rlimit limit = {bytes, bytes};
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];
    if (setrlimit(RLIMIT_MEMLOCK, &limit) || syscall(SYS_capget, &header, data)) {
        return -1;
    }
    data[CAP_IPC_LOCK / 32].effective &= ~(1u << CAP_IPC_LOCK % 32);
    data[CAP_IPC_LOCK / 32].permitted &= ~(1u << CAP_IPC_LOCK % 32);
    return (int)syscall(SYS_capset, &header, data);
}
