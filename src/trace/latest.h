// Which of the residents is wanted again latest: a heap of (entry, event that wants it next). An entry is noted anew
// each time that it is used; what was noted before then counts no more, which the caller can tell: the event is
// another.
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct gn_wanted {
    uint32_t next, entry; // next: UINT32_MAX when no event wants it again
};

// Begin with all zeros; noted[] has room for as many as are ever in it, and is the caller's.
struct gn_latest {
    struct gn_wanted *noted;
    uint32_t n;
};

void gn_latest_add(struct gn_latest *latest, struct gn_wanted wanted);

// Takes out the one that is wanted latest; of several, that with the lowest entry. False: there is none.
bool gn_latest_take(struct gn_latest *latest, struct gn_wanted *wanted);
