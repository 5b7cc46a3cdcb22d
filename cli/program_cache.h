// llama-server keeps prompts that it has computed in memory, 8 GiB of them if it is left alone: outside any budget.
#pragma once

#include "config/knobs.h"
#include "translate.h"

// Gives the program's prompt cache (--cache-ram) a part of the budget, and says so, unless the arguments or the
// environment set its size; what it may take then is left out of the experts' part, up to a quarter of the memory. For
// a program that knows the flag. Sets a variable of the environment, and GN_PROGRAM_CACHE.
void program_cache_limit(const struct arguments *arguments, struct gn_knobs *knobs);
