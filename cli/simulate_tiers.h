// guanaco simulate --tiers: a trace through RAM and the devices above it, and how long tokens would take.
//
//   simulate_tiers.c        the request, the replays
//   simulate_tiers_print.c  the results as text, CSV, JSON or SVG
#pragma once

#include "simulate.h"

#include "flags.h"

#include "config/tiers.h"
#include "trace/time_model.h"

struct tiers_request {
    const char *list; // NULL: no tiers
    int64_t inserts;
    double margin;                         // uses
    double gpu_rate, ram_rate, disk, link; // GB/s
    double dense_ms;                       // negative: as the trace tells
};

#define TIERS_OPTIONS 8
extern const struct flag tiers_flags[TIERS_OPTIONS];
extern const size_t n_tiers_flags;

const char *tiers_given(const struct tiers_request *request); // an option, but for --tiers, that is not its default

// The tiers, the first of them of some size.
struct tiers_run {
    char size[40]; // as it was given
    uint64_t bytes;
    struct gn_replay_tiers_result result;
    struct tiers_late { // the same, of the second half of the tokens: when the tiers have filled
        uint64_t uses, hits[GN_MOST_TIERS], misses, missed_bytes, inserts;
    } late;
    struct gn_time time, late_time;
};

struct tiers_simulation {
    const struct simulation *of;
    struct gn_tier_list list;
    const struct guanaco_policy *policies[GN_MOST_TIERS];
    struct gn_time_model machine;
    struct gn_replay_tiers_options options;
    int n_runs; // the first as asked for, then those of other sizes
    struct tiers_run runs[MAX_BUDGETS + 1];
};

// Reads --tiers. Returns an exit code, after an error line.
int tiers_parse(struct tiers_simulation *tiers, const struct tiers_request *request);

// Replays the trace: as asked for, and with the first tier of each size in simulation->budgets. ram: how the RAM's
// cache is to be, its policy excepted. most_staging: experts for which the RAM's bytes have room beside the slots; 0:
// all are slots. False after an error line.
bool tiers_replay(struct tiers_simulation *tiers, const struct simulation *simulation,
                  const struct tiers_request *request, const struct gn_cache_options *ram, uint32_t most_staging);

// Tier t's share of all uses of decode, of the second half only if late. t = list.n: what was read from disk.
double tiers_percent(const struct tiers_run *run, uint32_t n_tiers, uint32_t t, bool late);
double tiers_per_second(const struct gn_time *time); // tokens; 0: not known

void tiers_print_text(const struct tiers_simulation *tiers);
void tiers_print_csv(const struct tiers_simulation *tiers);
void tiers_print_json(const struct tiers_simulation *tiers, const char *path);
bool tiers_draw(const struct tiers_simulation *tiers, const char *path); // false after an error line
