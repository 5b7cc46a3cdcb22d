#include "trace/latest.h"

static bool later(struct gn_wanted a, struct gn_wanted b) {
    return a.next != b.next ? a.next > b.next : a.entry < b.entry;
}

void gn_latest_add(struct gn_latest *latest, struct gn_wanted wanted) {
    uint32_t at = latest->n++;
    for (; at > 0 && later(wanted, latest->noted[(at - 1) / 2]); at = (at - 1) / 2) {
        latest->noted[at] = latest->noted[(at - 1) / 2];
    }
    latest->noted[at] = wanted;
}

bool gn_latest_take(struct gn_latest *latest, struct gn_wanted *wanted) {
    if (latest->n == 0) {
        return false;
    }
    *wanted = latest->noted[0];
    struct gn_wanted last = latest->noted[--latest->n];
    uint32_t at = 0;
    for (uint32_t child; (child = 2 * at + 1) < latest->n; at = child) {
        child += child + 1 < latest->n && later(latest->noted[child + 1], latest->noted[child]);
        if (!later(latest->noted[child], last)) {
            break;
        }
        latest->noted[at] = latest->noted[child];
    }
    latest->noted[at] = last;
    return true;
}
