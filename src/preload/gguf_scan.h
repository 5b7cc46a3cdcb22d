// Does a GGUF file hold routed experts? Answered from its header alone.
#pragma once

#include <stdbool.h>

// True when a tensor of the file is a routed expert's weight (its name has "_exps." or "_chexps."). Shards need no
// architecture keys. Malformed, truncated or huge headers, and files that are not GGUF, are false.
//
// Needs nothing but system calls and the stack (some 9 KiB of it), leaves the file offset and errno alone, and reads at
// most the header.
bool gn_gguf_has_experts(int fd);
