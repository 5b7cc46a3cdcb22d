#include "simulate.h"

#include "json.h"

#include "config/printable.h"

#include <inttypes.h>
#include <stdio.h>

#define MIB 1048576.0

static double percent(double part, double rest) {
    return part + rest > 0 ? 100 * part / (part + rest) : 0;
}

const char *simulation_row(const struct simulation *simulation, int p) {
    return p < simulation->n_policies ? simulation->policies[p]->name : "belady";
}

double simulation_figure(const struct simulation *simulation, int p, int b, enum figure which) {
    const struct gn_replay_result *result = &simulation->result[p][b];
    double tokens = simulation->events.n_tokens;
    uint64_t all_misses = result->misses + result->prefill_misses;
    switch (which) {
    case HIT_PERCENT:
        return percent((double)result->hits, (double)result->misses);
    case WEIGHTED_PERCENT:
        return percent(result->weight_hit, result->weight_missed);
    case CUMULATIVE_PERCENT:
        return percent((double)(result->hits + result->prefill_hits), (double)all_misses);
    case MISSES:
        return (double)result->misses / tokens;
    case MEBIBYTES:
        return (double)result->missed_bytes / MIB / tokens;
    case EVICTIONS:
        return (double)result->totals.evictions / tokens;
    case CHURN_PERCENT:
        return all_misses ? 100 * (double)result->totals.rereads / (double)all_misses : 0;
    }
    return 0;
}

// What our policy gains on the best of the others, as a share of what there is to gain. False if it was not asked for.
static bool gap_closed(const struct simulation *simulation, int b, double *share) {
    double ours = -1, best = -1, bound = simulation_figure(simulation, simulation->n_policies, b, HIT_PERCENT);
    for (int p = 0; p < simulation->n_policies; p++) {
        double rate = simulation_figure(simulation, p, b, HIT_PERCENT);
        if (simulation->policies[p] == &gn_policy_wait) {
            ours = rate;
        } else {
            best = rate > best ? rate : best;
        }
    }
    *share = bound > best ? (ours - best) / (bound - best) : 0;
    return ours >= 0 && best >= 0;
}

static void print_table(const struct simulation *simulation, const char *title, enum figure which, int rows) {
    printf("\n%-16s", title);
    for (int b = 0; b < simulation->n_budgets; b++) {
        printf(" %10s", simulation->budgets[b].name);
    }
    putchar('\n');
    for (int p = 0; p < rows; p++) {
        printf("  %-14s", simulation_row(simulation, p));
        for (int b = 0; b < simulation->n_budgets; b++) {
            printf(" %10.2f", simulation_figure(simulation, p, b, which));
        }
        putchar('\n');
    }
}

static void print_facts(const struct simulation *simulation) {
    const struct gn_trace_facts *facts = &simulation->facts;
    printf(
        "uses in a layer: Gini %.2f, the top 20 %% of experts have %.0f %%, %.0f %% as the token before, %.0f experts "
        "used at all (%u to %u)\n",
        facts->gini, 100 * facts->top_fifth, 100 * facts->overlap, facts->distinct, facts->least_distinct,
        facts->most_distinct);
}

static void print_gap(const struct simulation *simulation) {
    double share;
    if (!gap_closed(simulation, 0, &share)) {
        return;
    }
    printf("  %-14s", "gap closed, %");
    for (int b = 0; b < simulation->n_budgets; b++) {
        gap_closed(simulation, b, &share);
        printf(" %10.1f", 100 * share);
    }
    printf("\n\ngap closed: how far %s goes from the best of the other policies towards belady\n", gn_policy_wait.name);
}

static void print_slots(const struct simulation *simulation) {
    printf("\n%-16s", "slots");
    for (int b = 0; b < simulation->n_budgets; b++) {
        printf(" %10" PRIu64, simulation->result[0][b].slots);
    }
    putchar('\n');
}

void simulation_print_trace(const struct simulation *simulation, const char *path, double uses) {
    const struct gn_trace *trace = &simulation->trace;
    const struct gn_replay_events *events = &simulation->events;
    char bytes[32];
    gn_put_printable(path, stdout);
    printf(": %u tokens after the prompt, %u layers of %u experts, %u chosen\n", events->n_tokens, trace->n_layers,
           trace->n_experts, trace->top_k);
    printf("all experts %s; a token uses %.1f experts\n",
           simulation->bytes_known ? gn_format_bytes(simulation->all_bytes, bytes) : "of unknown size",
           uses / events->n_tokens);
    print_facts(simulation);
}

void simulation_print_text(const struct simulation *simulation, const char *path) {
    const struct gn_replay_result *any = &simulation->result[0][0];
    int all = simulation->n_policies + 1;
    simulation_print_trace(simulation, path, (double)(any->hits + any->misses));
    if (any->slots > 0) { // one pool of bytes has none
        print_slots(simulation);
    }
    print_table(simulation, "hit rate, %", HIT_PERCENT, all);
    print_gap(simulation);
    if (simulation->weights_known) {
        print_table(simulation, "by weight, %", WEIGHTED_PERCENT, all);
    }
    if (simulation->has_prompt) {
        print_table(simulation, "with prompts, %", CUMULATIVE_PERCENT, all);
    }
    print_table(simulation, "misses a token", MISSES, all);
    if (simulation->bytes_known) {
        print_table(simulation, "MiB a token", MEBIBYTES, all);
    }
    print_table(simulation, "evicted a token", EVICTIONS, all);
    print_table(simulation, "churn, %", CHURN_PERCENT, simulation->n_policies);
}

static const struct {
    enum figure figure;
    const char *name;
} columns[] = {{HIT_PERCENT, "hit_percent"},
               {WEIGHTED_PERCENT, "weighted_hit_percent"},
               {CUMULATIVE_PERCENT, "cumulative_hit_percent"},
               {MISSES, "misses_per_token"},
               {MEBIBYTES, "mib_per_token"},
               {EVICTIONS, "evictions_per_token"},
               {CHURN_PERCENT, "churn_percent"}};

// A figure that the trace cannot tell, or that the bound has not got.
static bool is_known(const struct simulation *simulation, int p, enum figure which) {
    return which == WEIGHTED_PERCENT ? simulation->weights_known
           : which == MEBIBYTES      ? simulation->bytes_known
           : which == CHURN_PERCENT  ? p < simulation->n_policies
                                     : true;
}

// A figure that is not known is an empty field.
void simulation_print_csv(const struct simulation *simulation) {
    printf("policy,budget,budget_bytes,slots,hits,misses,prefill_hits,prefill_misses");
    for (size_t c = 0; c < sizeof columns / sizeof *columns; c++) {
        printf(",%s", columns[c].name);
    }
    putchar('\n');
    for (int b = 0; b < simulation->n_budgets; b++) {
        for (int p = 0; p <= simulation->n_policies; p++) {
            const struct gn_replay_result *r = &simulation->result[p][b];
            printf("%s,%s,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64,
                   simulation_row(simulation, p), simulation->budgets[b].name, simulation->budgets[b].bytes, r->slots,
                   r->hits, r->misses, r->prefill_hits, r->prefill_misses);
            for (size_t c = 0; c < sizeof columns / sizeof *columns; c++) {
                bool known = is_known(simulation, p, columns[c].figure);
                known ? printf(",%.3f", simulation_figure(simulation, p, b, columns[c].figure)) : printf(",");
            }
            putchar('\n');
        }
    }
}

static void write_result(struct json *json, const struct simulation *simulation, int p, int b) {
    const struct gn_replay_result *result = &simulation->result[p][b];
    json_open(json, NULL, '{');
    json_string(json, "policy", simulation_row(simulation, p));
    json_string(json, "budget", simulation->budgets[b].name);
    json_integer(json, "budget_bytes", simulation->budgets[b].bytes);
    json_integer(json, "slots", result->slots);
    json_integer(json, "hits", result->hits);
    json_integer(json, "misses", result->misses);
    json_number(json, "hit_rate", simulation_figure(simulation, p, b, HIT_PERCENT) / 100);
    json_integer(json, "prefill_hits", result->prefill_hits);
    json_integer(json, "prefill_misses", result->prefill_misses);
    for (size_t c = 1; c < sizeof columns / sizeof *columns; c++) {
        if (is_known(simulation, p, columns[c].figure)) {
            json_number(json, columns[c].name, simulation_figure(simulation, p, b, columns[c].figure));
        }
    }
    json_close(json, '}');
}

void simulation_print_json(const struct simulation *simulation, const char *path) {
    struct json json = {.to = stdout};
    json_open(&json, NULL, '{');
    json_string(&json, "trace", path);
    json_integer(&json, "tokens", simulation->events.n_tokens);
    json_integer(&json, "layers", simulation->trace.n_layers);
    json_integer(&json, "experts", simulation->trace.n_experts);
    if (simulation->bytes_known) {
        json_integer(&json, "all_expert_bytes", simulation->all_bytes);
    }
    json_number(&json, "gini", simulation->facts.gini);
    json_number(&json, "top_fifth_share", simulation->facts.top_fifth);
    json_number(&json, "overlap_with_token_before", simulation->facts.overlap);
    json_number(&json, "distinct_experts_per_layer", simulation->facts.distinct);
    json_open(&json, "results", '[');
    for (int b = 0; b < simulation->n_budgets; b++) {
        for (int p = 0; p <= simulation->n_policies; p++) {
            write_result(&json, simulation, p, b);
        }
    }
    json_close(&json, ']');
    json_close(&json, '}');
}
