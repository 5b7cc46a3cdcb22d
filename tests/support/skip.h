// What a test leaves out, and says so: tests/run.sh lists it at the end with what it takes to run it.
#pragma once

// Prints "skipped [NEED]: WHY". NEED is one of the words that tests/run.sh knows, such as "io_uring".
void left_out(const char *need, const char *why, ...) __attribute__((format(printf, 2, 3)));

// "uring" for GUANACO_IO; where the kernel refuses it, says so as above and gives `other`.
const char *uring_or(const char *other);

// What main() returns: 1 for failures, 77 (which ctest calls skipped) when something was left out, else 0.
int test_result(int failures);
