// Keeps the process alive when a page of a mapped file cannot be had any more: the file was cut, or the drive fails.
// The kernel sends SIGBUS then. The page is replaced by zeros and the mapping marked as torn; whoever computes looks
// afterwards and throws the result away.
//
// A handler for SIGBUS is installed with the first mapping that is guarded. What happens elsewhere goes to the handler
// that was there before, or ends the process as it would have.
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct gn_guard;

// Guards a mapping. Returns NULL when memory is short, or the handler cannot be installed.
struct gn_guard *gn_guard_open(void *mapping, size_t bytes);
void gn_guard_close(struct gn_guard *guard); // before it is unmapped; NULL is allowed
// In a child process after fork(): another thread may have held the lock. Safe in a handler of pthread_atfork().
void gn_guards_forked(void);
bool gn_guard_torn(const struct gn_guard *guard); // any thread; false for NULL
