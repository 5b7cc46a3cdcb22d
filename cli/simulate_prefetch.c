// guanaco simulate --prefetch pilot: which experts the learnt table would have named in time.
#include "simulate.h"

#include "json.h"

#include "config/log.h"
#include "trace/foresee.h"

#include <inttypes.h>
#include <stdlib.h>

// How often a guess must come true to be read: when the drive keeps up, and when decoding waits for it.
static const double bars[] = {GN_GUESS_LOW_BAR, GN_GUESS_HIGH_BAR};
#define BARS (sizeof bars / sizeof *bars)

struct foresight {
    struct gn_foresight of[MAX_BUDGETS][BARS];
    struct gn_guesses_figures *layers; // [n_layers]
};

static double share(uint64_t part, uint64_t whole) {
    return whole > 0 ? (double)part / (double)whole : 0;
}

static bool replay(const struct simulation *simulation, const struct gn_cache_options *options, double mass,
                   struct foresight *foresight) {
    foresight->layers = calloc(simulation->trace.n_layers, sizeof *foresight->layers);
    bool good = foresight->layers;
    for (int b = 0; b < simulation->n_budgets && good; b++) {
        struct gn_cache_options of_budget = *options;
        of_budget.budget = simulation->budgets[b].bytes;
        for (size_t bar = 0; bar < BARS && good; bar++) {
            struct gn_foresee_options how = {.mass = mass, .bar = bars[bar]};
            int failed = gn_foresee(&simulation->trace, &simulation->events, &of_budget, &how, &foresight->of[b][bar],
                                    foresight->layers);
            good = !failed;
        }
    }
    if (!good) {
        gn_error("the trace cannot be replayed: memory is short, or the policy named a victim that is none");
    }
    return good;
}

static void print_text(const struct simulation *simulation, const struct foresight *foresight) {
    const struct gn_foresight *any = &foresight->of[0][0];
    char bytes[32];
    printf("pilot names %.1f %% of the experts that a layer uses, from those of the layer before; its table takes %s\n",
           100 * share(any->foreseen, any->used), gn_format_bytes(any->table_bytes, bytes));
    printf("of each layer, %%:");
    for (uint32_t l = 0; l < simulation->trace.n_layers; l++) {
        printf(" %.0f", 100 * share(foresight->layers[l].foreseen, foresight->layers[l].used));
    }
    double tokens = simulation->events.n_tokens;
    printf("\n\n%-10s %-6s %14s %14s %14s %14s %20s\n", "budget", "bar", "misses/token", "read/token", "of them used",
           "of the misses", "in vain, MiB/token");
    for (int b = 0; b < simulation->n_budgets; b++) {
        for (size_t bar = 0; bar < BARS; bar++) {
            const struct gn_foresight *of = &foresight->of[b][bar];
            printf("%-10s %-6.2f %14.1f %14.1f %12.1f %% %12.1f %%", simulation->budgets[b].name, bars[bar],
                   (double)of->missed / tokens, (double)of->read / tokens, 100 * share(of->useful, of->read),
                   100 * share(of->useful, of->missed));
            simulation->bytes_known ? printf(" %20.1f\n", (double)of->wasted_bytes / tokens / (1 << 20))
                                    : printf(" %20s\n", "-");
        }
    }
}

static void print_csv(const struct simulation *simulation, const struct foresight *foresight) {
    puts("budget,budget_bytes,bar,used,foreseen,misses,read,useful,wasted_bytes");
    for (int b = 0; b < simulation->n_budgets; b++) {
        for (size_t bar = 0; bar < BARS; bar++) {
            const struct gn_foresight *of = &foresight->of[b][bar];
            printf("%s,%" PRIu64 ",%.2f,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",",
                   simulation->budgets[b].name, simulation->budgets[b].bytes, bars[bar], of->used, of->foreseen,
                   of->missed, of->read, of->useful);
            simulation->bytes_known ? printf("%" PRIu64 "\n", of->wasted_bytes) : printf("\n");
        }
    }
}

static void print_json(const struct simulation *simulation, const struct foresight *foresight, const char *path) {
    struct json json = {.to = stdout};
    json_open(&json, NULL, '{');
    json_string(&json, "trace", path);
    json_integer(&json, "tokens", simulation->events.n_tokens);
    json_integer(&json, "table_bytes", foresight->of[0][0].table_bytes);
    json_open(&json, "layers", '[');
    for (uint32_t l = 0; l < simulation->trace.n_layers; l++) {
        json_open(&json, NULL, '{');
        json_integer(&json, "layer", simulation->trace.layers[l].number);
        json_integer(&json, "used", foresight->layers[l].used);
        json_integer(&json, "foreseen", foresight->layers[l].foreseen);
        json_close(&json, '}');
    }
    json_close(&json, ']');
    json_open(&json, "results", '[');
    for (int b = 0; b < simulation->n_budgets; b++) {
        for (size_t bar = 0; bar < BARS; bar++) {
            const struct gn_foresight *of = &foresight->of[b][bar];
            json_open(&json, NULL, '{');
            json_string(&json, "budget", simulation->budgets[b].name);
            json_integer(&json, "budget_bytes", simulation->budgets[b].bytes);
            json_number(&json, "bar", bars[bar]);
            json_integer(&json, "misses", of->missed);
            json_integer(&json, "read", of->read);
            json_integer(&json, "useful", of->useful);
            if (simulation->bytes_known) {
                json_integer(&json, "wasted_bytes", of->wasted_bytes);
            }
            json_close(&json, '}');
        }
    }
    json_close(&json, ']');
    json_close(&json, '}');
}

bool simulation_prefetch(const struct simulation *simulation, const struct gn_cache_options *options, double mass,
                         enum simulation_output output, const char *path) {
    static struct foresight foresight;
    bool good = replay(simulation, options, mass, &foresight);
    if (good) {
        switch (output) {
        case SIMULATION_CSV:
            print_csv(simulation, &foresight);
            break;
        case SIMULATION_JSON:
            print_json(simulation, &foresight, path);
            break;
        case SIMULATION_TEXT:
            print_text(simulation, &foresight);
            break;
        }
    }
    free(foresight.layers);
    return good;
}
