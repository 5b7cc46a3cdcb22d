// What the drive gives when nothing else is done: whole experts of the model, in random order, past the page cache,
// with so many reads in flight.
#pragma once

#include "bench/bench.h"
#include "model_file.h"

// Measures each depth for a part of a second and adds one round to *drive. Takes a few dozen MiB of memory while it
// does: run it in a child process. Returns false with one plain line in drive->why.
bool bench_drive_measure(const struct model_file *model, const struct gn_knobs *knobs, struct bench_drive *drive);
