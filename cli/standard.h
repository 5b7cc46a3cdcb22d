// The standard streams of this process.
#pragma once

// Opens those that are closed on /dev/null, so that no file of ours, or of a program that this one becomes, takes their
// place. First of all in main().
void standard_open(void);

// Writes out what standard output still buffers. Returns `code`, or EXIT_FAILED after one line when that was 0 and
// something could not be written. Last of all in main().
int standard_finish(int code);
