// The parts of guanaco simulate, to each other.
//
//   simulate.c        the request, the trace, the replays
//   simulate_print.c  the results as tables, CSV or JSON
//   simulate_svg.c    hit rate against budget, drawn
//   simulate_prefetch.c  what PILOT would have foreseen
//   simulate_tiers.h  the same with tiers above the RAM
#pragma once

#include "config/knobs.h"
#include "trace/facts.h"
#include "trace/replay.h"

#define MAX_BUDGETS 32
#define MAX_POLICIES 32

struct budget {
    char name[40];  // as it was given
    double share;   // of all experts; 0: another was given
    uint64_t slots; // of the largest size; 0: another was given
    uint64_t bytes; // for slots
};

struct simulation {
    struct gn_trace trace;
    struct gn_replay_events events;
    struct gn_trace_facts facts;
    uint64_t all_bytes;
    bool bytes_known, weights_known, has_prompt;
    struct budget budgets[MAX_BUDGETS];
    int n_budgets;
    const struct guanaco_policy *policies[MAX_POLICIES + 1]; // and NULL: the bound
    int n_policies;
    struct gn_parameters parameters; // of the policy, if there is one alone
    struct gn_replay_result result[MAX_POLICIES + 1][MAX_BUDGETS];
};

enum simulation_output { SIMULATION_TEXT, SIMULATION_CSV, SIMULATION_JSON };

enum figure {
    HIT_PERCENT,
    WEIGHTED_PERCENT,
    CUMULATIVE_PERCENT,
    MISSES,
    MEBIBYTES,
    EVICTIONS,
    CHURN_PERCENT,
};

const char *simulation_row(const struct simulation *simulation, int p); // p = n_policies: the bound
double simulation_figure(const struct simulation *simulation, int p, int b, enum figure which);

void simulation_print_trace(const struct simulation *simulation, const char *path, double uses);
void simulation_print_text(const struct simulation *simulation, const char *path);
void simulation_print_csv(const struct simulation *simulation);
void simulation_print_json(const struct simulation *simulation, const char *path);
// Replays the trace at every budget with these options, budget apart, and prints what PILOT would have foreseen. False
// after an error line.
bool simulation_prefetch(const struct simulation *simulation, const struct gn_cache_options *options, double mass,
                         enum simulation_output output, const char *path);
bool simulation_draw(const struct simulation *simulation, const char *path); // false after an error line
