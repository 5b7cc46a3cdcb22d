// Descriptors that are not those of the standard streams.
#pragma once

// Where a program was started with a standard stream closed, the next file that is opened takes its place, and what the
// program then prints would end up in that file. Moves `fd` above 2 and returns the new descriptor, closed on exec; -1
// with errno when `fd` is -1 already, or cannot be moved (it is closed then).
int gn_above_standard(int fd);
