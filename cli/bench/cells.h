// Which cells a benchmark has: what was asked for, and of that what this machine can run.
#pragma once

#include "bench/bench.h"
#include "bench/options.h"
#include "model_file.h"
#include "plan.h"

// Fills bench->cells: stock resident, the same beside reads, stock mapped, then each budget. A cell that cannot run
// says why in left_out.
void bench_make_cells(struct bench *bench, const struct bench_options *options, const struct model_file *file,
                      const struct measured *measured);
