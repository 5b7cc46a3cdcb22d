// The kernel's read-ahead for mapped files: how much around a missing page is read with it. One setting per block
// device.
#pragma once

#include "bench/bench.h"

#include <sys/types.h>

#define BENCH_USUAL_READ_AHEAD 128 // KiB, Linux's own default

// Finds the setting of the device that a file is on (st_dev), below `root` ("" but in tests): the device's queue, that
// of the disk it is a partition of, or its backing-device information where there is no block device. Returns false
// when there is none.
bool bench_read_ahead_find(const char *root, dev_t device, struct bench_read_ahead *out);

// Returns 0 or a negative errno.
int bench_read_ahead_set(const struct bench_read_ahead *read_ahead, unsigned kib);
