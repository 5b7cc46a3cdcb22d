// Which experts are hot: those with the most uses, old uses counting less. The cache holds hot experts for as long as
// they are hot, whatever its policy says; it evicts one only when nothing else is left to evict.
//
// Uses are counted all the time; the hot ones are chosen again at intervals, so that a hotter expert takes the place of
// one that has cooled. Part of a cache: its thread, its entry numbers. gn_pins_use() is one addition and allocates
// nothing; gn_pins_choose() goes a few times over all entries.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define GN_PINS_INTERVAL 200 // events from one choice to the next

struct gn_pins_options {
    uint32_t most;    // experts that may be hot, of all layers together; 0: as many as `bytes` allow
    uint64_t bytes;   // that their slots may take; 0: as many as `most` allows. Both 0: no pins
    double decay;     // what is left of a count from one choice to the next; above 0, at most 1. 0: 0.95
    uint32_t warm_up; // events before the first choice; 0: GN_PINS_INTERVAL
};

struct gn_pins;

// entry_bytes: [n_entries], copied. Returns NULL when memory is short.
struct gn_pins *gn_pins_open(const struct gn_pins_options *options, uint32_t n_entries, const uint64_t *entry_bytes);
void gn_pins_close(struct gn_pins *pins); // NULL is allowed

void gn_pins_use(struct gn_pins *pins, uint32_t entry);
// Counts an event. Returns whether the choice is due.
bool gn_pins_event(struct gn_pins *pins);
// Chooses the hottest anew. Of equally hot ones those stay that are hot already, then those with lower numbers.
void gn_pins_choose(struct gn_pins *pins);
uint64_t gn_pins_choices(const struct gn_pins *pins); // made so far
bool gn_pins_hot(const struct gn_pins *pins, uint32_t entry);

// Makes an entry as hot as if it had been used in a share `chance` of the last tokens, and lets the next event choose.
// For what is known of a model before it runs.
void gn_pins_prior(struct gn_pins *pins, uint32_t entry, float chance);

struct gn_pins_figures {
    uint64_t uses;      // counted
    uint32_t seen;      // entries used at least once
    uint32_t hot, most; // entries that are hot, and that may be: the number given, or what was found to fit the bytes
    uint32_t distinct;  // entries that were hot at any time
    float least, greatest; // counts of the hot ones; 0 when there are none
};
struct gn_pins_figures gn_pins_figures(const struct gn_pins *pins);
