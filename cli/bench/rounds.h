// The measuring itself: rounds, and in each the drive and every cell once, one after another. A cell's process is fresh
// each time: nothing is shared but the machine, the memory needed at once is that of one cell, and since the rounds
// interleave the cells, what disturbs the machine for a while disturbs all of them alike.
#pragma once

#include "bench/bench.h"
#include "bench/cell.h"

// Fills in the samples, the drive and the comparison of logits. Returns false when it was interrupted.
bool bench_run_rounds(struct bench *bench, struct bench_setup *setup);
