// How another process ended, in words.
#pragma once

#include <stddef.h>

// Describes a status of waitpid(), to follow what ended in a sentence: "was killed by signal 9 (Killed), as the kernel
// does when memory is short", "crashed with signal 11 (Segmentation fault)", "ended with exit code 1". Returns text.
const char *describe_ending(int status, char *text, size_t size);
