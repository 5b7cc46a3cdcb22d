// What the tests of files, readers and engines share: a file of a known pattern, reads of it, and standard error
// caught. Failures end the test.
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "io/reader.h"

#define FILE_BYTES ((size_t)6 * 1024 * 1024 + 1234)
#define SLOT_BYTES ((size_t)64 * 1024)

extern char folder[4096]; // for the files of the tests
extern char model[4200];  // the path of the file that most tests read, FILE_BYTES of pattern

// Makes both, before any test, in TMPDIR or here; and removes the folder with whatever failed tests have left in it.
int begin_files(void);
void end_files(void);

// One way to read.
struct variant {
    enum gn_reader_kind kind;
    bool direct;
    const char *label;
};

// The variant in a test's state. Skips the test where there are no direct reads or no io_uring, so that it never passes
// for want of them.
const struct variant *require(void *state);

// Whether the `bytes` of data are the pattern from `offset` on.
bool is_pattern(const uint8_t *data, uint64_t offset, size_t bytes);

// Writes bytes of pattern to a new file in the folder, and to the disk. Returns its path, to be freed.
char *make_file(const char *name, size_t bytes);
void remove_file(char *path); // and frees the path

// The same, with no page of it in the page cache. Skips the test where the cache keeps them.
char *make_uncached(const char *name, size_t bytes);
size_t pages_in_cache(const char *path, size_t bytes);

struct gn_file *open_file(const char *path, bool direct);
struct gn_reader *open_with(const struct variant *variant, struct gn_reader_options options);

// Memory for n reads, none of it pattern. To be freed.
uint8_t *make_slots(size_t n);

// A read of the `bytes` at `offset`, at any alignment, widened to whole blocks.
struct gn_read make_read(const struct gn_file *file, uint64_t offset, uint32_t bytes, void *to);

// Reads, waits, and returns the read's result.
int read_one(struct gn_reader *reader, struct gn_read *read);

// Whether the read went well and brought the pattern.
bool arrived(const struct gn_read *read);

uint64_t random_below(uint64_t limit);

// Long enough for a changed file to get another time stamp.
void let_time_pass(void);

// What is written to standard error between the two, in this process. To be freed.
void begin_capture(void);
char *end_capture(void);

size_t count_lines(const char *text);
