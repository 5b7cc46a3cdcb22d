// Files that are read from beginning to end: traces, prompts, an imatrix.
#pragma once

#include <stdio.h>

// Opens a file for reading and never waits: a FIFO that nobody writes is an empty file. A pipe that somebody writes,
// such as a shell's <(command), is read as usual. Returns the stream, closed on exec, or NULL with errno; EISDIR for a
// folder.
FILE *gn_input_open(const char *path);
