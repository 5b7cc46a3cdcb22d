// The page cache of a model's files: emptied before a run, so that nothing is served from what another has left.
#pragma once

#include "model_file.h"

// Drops all pages of the model from the page cache. Returns the share (0 … 1) that stays there because somebody else
// has it in use, or a negative number when the kernel does not let us see.
double bench_page_cache_drop(const struct model_file *model);

// Touches every page that this process has mapped of the model's files.
void bench_page_cache_touch(const struct model_file *model);
