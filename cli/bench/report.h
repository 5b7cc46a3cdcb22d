// What a benchmark found out, in four forms.
#pragma once

#include "bench/bench.h"

#include <stdio.h>

void bench_print_table(const struct bench *bench, FILE *to);
void bench_write_json(const struct bench *bench, FILE *to); // every round, and the medians
void bench_write_csv(const struct bench *bench, FILE *to);  // a line for each cell, medians
void bench_write_svg(const struct bench *bench, FILE *to);  // tokens/s against budget, decode and prefill
