// guanaco simulate: what each eviction policy would do with a recorded routing, at any budget.
#include "cli.h"
#include "json.h"

#include "config/knobs.h"
#include "config/log.h"
#include "config/parse.h"
#include "trace/replay.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MAX_BUDGETS 32
#define MAX_POLICIES 32
#define MIB 1048576.0

struct budget {
    double share; // of all experts; 0: `bytes` was given
    uint64_t bytes;
};

struct request {
    const char *path, *policy, *budgets;
    int64_t expert_bytes; // 0: as the trace says
    struct gn_pins_options pins;
    bool json;
};

struct simulation {
    struct gn_trace trace;
    struct gn_replay_events events;
    uint64_t all_bytes;
    bool bytes_known;
    struct budget budgets[MAX_BUDGETS];
    int n_budgets;
    const struct guanaco_policy *policies[MAX_POLICIES + 1]; // and NULL: the bound
    int n_policies;
    struct gn_replay_result result[MAX_POLICIES + 1][MAX_BUDGETS];
};

static void print_usage(FILE *to) {
    fputs(
        "usage: guanaco simulate TRACE [--policy NAME|all] [--budget LIST] [--expert-bytes SIZE] [--json]\n"
        "                        [--pin-hot-experts N] [--pin-hot-experts-budget SIZE]\n\n"
        "Replays a recorded routing through the cache that a run uses, once for each policy and budget, and through\n"
        "the best that could have been done by one who knows the future (belady). Nothing else is read, so a trace\n"
        "answers in a second which policy to take, and what more memory would bring.\n\n"
        "  TRACE                a route_trace v1 file (CSV), or JSON lines {\"tok\": n, \"layers\": [[expert, ...], "
        "...]}\n"
        "  --policy NAME        one policy, or all [default: all]\n"
        "  --budget LIST        memory for experts, separated by commas: shares of all experts such as 10%, or sizes\n"
        "                       such as 2GiB [default: 5%,10%,20%,30%,50%]\n"
        "  --expert-bytes SIZE  take every expert to be of this size; JSON lines do not tell it\n"
        "  --pin-hot-experts N  hold the N experts with the most uses, whatever the policy says [default: 0]\n"
        "  --pin-hot-experts-budget SIZE\n"
        "                       as many of them as fit into this much memory\n"
        "  --json               print JSON\n\n"
        "hit rate          of the experts that tokens asked for, how many were in memory. Prompts are replayed but "
        "not\n"
        "                  counted: they fill free memory, and push nothing out\n"
        "misses a token    experts read for a token\n"
        "MiB a token       their size: divided by what the drive reads in a second, the time that a token waits\n\n"
        "Below the token cycle (all experts that one token uses) lru and fifo hit next to nothing: each expert is "
        "pushed\n"
        "out just before it is wanted again.\n\n"
        "  guanaco simulate routing.csv --budget 10%,4GiB\n"
        "  guanaco simulate routing.jsonl --expert-bytes 3MiB --policy lru\n",
        to);
}

// ------------------------------------------------------------------------------------------------ request

static int usage_error(const char *format, const char *word) {
    gn_log(GN_LOG_ERROR, "%s'%.40s'; guanaco simulate --help tells more", format, word);
    return EXIT_USAGE;
}

static bool parse_budget(const char *text, struct budget *budget) {
    size_t length = strlen(text);
    if (length == 0 || text[length - 1] != '%') {
        int64_t bytes = 0;
        bool good = gn_parse_size(text, &bytes) == 0 && bytes > 0;
        *budget = (struct budget){.bytes = (uint64_t)bytes};
        return good;
    }
    char number[32];
    double percent = 0;
    if (length > sizeof number) {
        return false;
    }
    memcpy(number, text, length - 1);
    number[length - 1] = '\0';
    bool good = gn_parse_decimal(number, &percent) == 0 && percent > 0 && percent <= 100;
    *budget = (struct budget){.share = percent / 100};
    return good;
}

static int parse_budgets(struct simulation *simulation, const char *list) {
    while (list) {
        char text[64];
        size_t length = strcspn(list, ",");
        if (simulation->n_budgets == MAX_BUDGETS) {
            return usage_error("--budget: 32 budgets at most, without ", list);
        }
        if (length >= sizeof text) {
            return usage_error("--budget: give shares such as 10% or sizes such as 2GiB, not ", list);
        }
        memcpy(text, list, length);
        text[length] = '\0';
        if (!parse_budget(text, &simulation->budgets[simulation->n_budgets++])) {
            return usage_error("--budget: give shares such as 10% or sizes such as 2GiB, not ", text);
        }
        list = list[length] ? list + length + 1 : NULL;
    }
    return EXIT_OK;
}

static int choose_policies(struct simulation *simulation, const char *name) {
    for (int p = 0; gn_policies[p] && simulation->n_policies < MAX_POLICIES; p++) {
        if (!strcasecmp(name, "all") || !strcasecmp(name, gn_policies[p]->name)) {
            simulation->policies[simulation->n_policies++] = gn_policies[p];
        }
    }
    if (simulation->n_policies == 0) {
        gn_error("--policy: there is no policy '%.40s'; give all, or one of:", name);
        for (int p = 0; gn_policies[p]; p++) {
            gn_error("  %-14s %s", gn_policies[p]->name, gn_policies[p]->help);
        }
        return EXIT_USAGE;
    }
    return EXIT_OK;
}

// Takes "--name VALUE" or "--name=VALUE". Returns the value, "" when it is missing, NULL when it is another option.
static const char *option(const char *name, int argc, char **argv, int *i) {
    size_t length = strlen(name);
    if (strncmp(argv[*i], name, length) != 0) {
        return NULL;
    }
    if (argv[*i][length] == '=') {
        return argv[*i] + length + 1;
    }
    if (argv[*i][length] != '\0') {
        return NULL;
    }
    return *i + 1 < argc ? argv[++*i] : "";
}

static int parse_arguments(struct request *request, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i], *value;
        if (!strcmp(word, "--json")) {
            request->json = true;
        } else if ((value = option("--policy", argc, argv, &i))) {
            request->policy = value;
        } else if ((value = option("--budget", argc, argv, &i))) {
            request->budgets = value;
        } else if ((value = option("--expert-bytes", argc, argv, &i))) {
            if (gn_parse_size(value, &request->expert_bytes) || request->expert_bytes < 1 ||
                request->expert_bytes > INT64_C(1) << 40) {
                return usage_error("--expert-bytes: give a size such as 3MiB, not ", value);
            }
        } else if ((value = option("--pin-hot-experts", argc, argv, &i))) {
            int64_t n = 0;
            if (gn_parse_integer(value, &n) || n < 0 || n >= GN_NONE) {
                return usage_error("--pin-hot-experts: give a number of experts, not ", value);
            }
            request->pins.most = (uint32_t)n;
        } else if ((value = option("--pin-hot-experts-budget", argc, argv, &i))) {
            int64_t bytes = 0;
            if (gn_parse_size(value, &bytes) || bytes < 0) {
                return usage_error("--pin-hot-experts-budget: give a size such as 3MiB, not ", value);
            }
            request->pins.bytes = (uint64_t)bytes;
        } else if (word[0] == '-' || request->path) {
            return usage_error(word[0] == '-' ? "there is no option " : "one trace at a time, not also ", word);
        } else {
            request->path = word;
        }
    }
    return request->path ? EXIT_OK : usage_error("name a trace: ", "guanaco simulate TRACE");
}

// ------------------------------------------------------------------------------------------------ replay

static bool open_trace(struct simulation *simulation, const struct request *request) {
    char why[1024];
    struct gn_trace *trace = &simulation->trace;
    if (gn_trace_read(request->path, trace, why, sizeof why)) {
        gn_error("%s", why);
        return false;
    }
    for (uint32_t l = 0; l < trace->n_layers; l++) {
        if (request->expert_bytes > 0) {
            trace->layers[l].expert_bytes = (uint64_t)request->expert_bytes;
        }
        simulation->bytes_known = simulation->bytes_known || trace->layers[l].expert_bytes > 1;
    }
    if (gn_replay_open(trace, &simulation->events)) {
        gn_error("%s: no memory to replay it", request->path);
        return false;
    }
    if (simulation->events.n_tokens == 0) {
        gn_error("%s: it has a prompt alone; there must be tokens of decode to count", request->path);
        return false;
    }
    simulation->all_bytes = gn_replay_all_bytes(&simulation->events);
    return true;
}

static bool replay(struct simulation *simulation, const struct request *request) {
    for (int p = 0; p <= simulation->n_policies; p++) {
        for (int b = 0; b < simulation->n_budgets; b++) {
            struct budget *budget = &simulation->budgets[b];
            if (budget->share > 0) {
                budget->bytes = (uint64_t)(budget->share * (double)simulation->all_bytes + 0.5);
            }
            struct gn_replay_result *result = &simulation->result[p][b];
            struct gn_cache_options options = {
                .budget = budget->bytes, .policy = simulation->policies[p], .pins = request->pins};
            if (options.policy ? gn_replay_cache(&simulation->events, &options, result)
                               : gn_replay_belady(&simulation->events, budget->bytes, result)) {
                gn_error("no memory to replay the trace");
                return false;
            }
        }
    }
    return true;
}

static double hit_rate(const struct gn_replay_result *result) {
    return (double)result->hits / (double)(result->hits + result->misses);
}

// What our policy gains on the best of the others, as a share of what there is to gain. False if it was not asked for.
static bool gap_closed(const struct simulation *simulation, int b, double *share) {
    double ours = -1, best = -1, bound = hit_rate(&simulation->result[simulation->n_policies][b]);
    for (int p = 0; p < simulation->n_policies; p++) {
        double rate = hit_rate(&simulation->result[p][b]);
        if (simulation->policies[p] == &gn_policy_wait) {
            ours = rate;
        } else {
            best = rate > best ? rate : best;
        }
    }
    *share = bound > best ? (ours - best) / (bound - best) : 0;
    return ours >= 0 && best >= 0;
}

// ------------------------------------------------------------------------------------------------ output

static const char *row_name(const struct simulation *simulation, int p) {
    return p < simulation->n_policies ? simulation->policies[p]->name : "belady";
}

enum figure { HIT_PERCENT, MISSES, MEBIBYTES };

static double figure(const struct simulation *simulation, int p, int b, enum figure which) {
    const struct gn_replay_result *result = &simulation->result[p][b];
    switch (which) {
    case HIT_PERCENT:
        return 100 * hit_rate(result);
    case MISSES:
        return (double)result->misses / simulation->events.n_tokens;
    default:
        return (double)result->missed_bytes / MIB / simulation->events.n_tokens;
    }
}

static void print_table(const struct simulation *simulation, const char *title, enum figure which) {
    printf("\n%-16s", title);
    for (int b = 0; b < simulation->n_budgets; b++) {
        char name[40];
        if (simulation->budgets[b].share > 0) {
            snprintf(name, sizeof name, "%.4g%%", 100 * simulation->budgets[b].share);
        } else {
            gn_format_bytes(simulation->budgets[b].bytes, name);
        }
        printf(" %10s", name);
    }
    putchar('\n');
    for (int p = 0; p <= simulation->n_policies; p++) {
        printf("  %-14s", row_name(simulation, p));
        for (int b = 0; b < simulation->n_budgets; b++) {
            printf(" %10.2f", figure(simulation, p, b, which));
        }
        putchar('\n');
    }
}

static void print_text(const struct simulation *simulation, const char *path) {
    const struct gn_trace *trace = &simulation->trace;
    const struct gn_replay_events *events = &simulation->events;
    const struct gn_replay_result *any = &simulation->result[0][0];
    char bytes[32];
    printf("%s: %u tokens after the prompt, %u layers of %u experts, %u chosen\n", path, events->n_tokens,
           trace->n_layers, trace->n_experts, trace->top_k);
    printf("all experts %s; a token uses %.1f experts\n",
           simulation->bytes_known ? gn_format_bytes(simulation->all_bytes, bytes) : "of unknown size",
           (double)(any->hits + any->misses) / events->n_tokens);
    print_table(simulation, "hit rate, %", HIT_PERCENT);
    double share;
    if (gap_closed(simulation, 0, &share)) {
        printf("  %-14s", "gap closed, %");
        for (int b = 0; b < simulation->n_budgets; b++) {
            gap_closed(simulation, b, &share);
            printf(" %10.1f", 100 * share);
        }
        printf("\n\ngap closed: how far %s goes from the best of the other policies towards belady\n",
               gn_policy_wait.name);
    }
    print_table(simulation, "misses a token", MISSES);
    if (simulation->bytes_known) {
        print_table(simulation, "MiB a token", MEBIBYTES);
    }
}

static void write_result(struct json *json, const struct simulation *simulation, int p, int b) {
    const struct gn_replay_result *result = &simulation->result[p][b];
    json_open(json, NULL, '{');
    json_string(json, "policy", row_name(simulation, p));
    json_integer(json, "budget_bytes", simulation->budgets[b].bytes);
    json_integer(json, "slots", result->slots);
    json_integer(json, "hits", result->hits);
    json_integer(json, "misses", result->misses);
    json_number(json, "hit_rate", hit_rate(result));
    json_number(json, "misses_per_token", figure(simulation, p, b, MISSES));
    if (simulation->bytes_known) {
        json_number(json, "mib_per_token", figure(simulation, p, b, MEBIBYTES));
    }
    json_integer(json, "prefill_hits", result->prefill_hits);
    json_integer(json, "prefill_misses", result->prefill_misses);
    json_close(json, '}');
}

static void print_json(const struct simulation *simulation, const char *path) {
    struct json json = {.to = stdout};
    json_open(&json, NULL, '{');
    json_string(&json, "trace", path);
    json_integer(&json, "tokens", simulation->events.n_tokens);
    json_integer(&json, "layers", simulation->trace.n_layers);
    json_integer(&json, "experts", simulation->trace.n_experts);
    if (simulation->bytes_known) {
        json_integer(&json, "all_expert_bytes", simulation->all_bytes);
    }
    json_open(&json, "results", '[');
    for (int b = 0; b < simulation->n_budgets; b++) {
        for (int p = 0; p <= simulation->n_policies; p++) {
            write_result(&json, simulation, p, b);
        }
    }
    json_close(&json, ']');
    json_close(&json, '}');
}

int command_simulate(int argc, char **argv) {
    static struct simulation simulation;
    struct request request = {.policy = "all", .budgets = "5%,10%,20%,30%,50%"};
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            print_usage(stdout);
            return EXIT_OK;
        }
    }
    int code = parse_arguments(&request, argc, argv);
    code = code ? code : parse_budgets(&simulation, request.budgets);
    code = code ? code : choose_policies(&simulation, request.policy);
    if (code) {
        return code;
    }
    bool good = open_trace(&simulation, &request) && replay(&simulation, &request);
    if (good && request.json) {
        print_json(&simulation, request.path);
    } else if (good) {
        print_text(&simulation, request.path);
    }
    gn_replay_close(&simulation.events);
    gn_trace_close(&simulation.trace);
    return good ? EXIT_OK : EXIT_FAILED;
}
