// What the figures belong to: the model, the machine, the workload's lengths.
#pragma once

#include "bench/bench.h"
#include "bench/options.h"
#include "model_file.h"

#include "llama.h"

void bench_find_facts(struct bench *bench, const struct bench_options *options, const struct model_file *file,
                      const struct llama_context_params *context_params);
