// Who is let in: an expert that would push another one out must have missed before, not long ago. So what is used once
// pushes nothing out; it passes through staging. Works with any policy. Free slots are open to all.
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct gn_admission_options {
    uint32_t window; // tokens between two misses, at most; 0: no filter
};

struct gn_admission;

struct gn_admission *gn_admission_open(const struct gn_admission_options *options,
                                       uint32_t n_entries);              // NULL: no memory
void gn_admission_close(struct gn_admission *admission);                 // NULL is allowed
void gn_admission_begin(struct gn_admission *admission, uint32_t layer); // of the first use of each event
void gn_admission_miss(struct gn_admission *admission, uint32_t entry);
bool gn_admission_admits(const struct gn_admission *admission, uint32_t entry); // one that missed in this event
