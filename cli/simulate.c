// guanaco simulate: what each eviction policy would do with a recorded routing, at any budget.
#include "simulate_tiers.h"

#include "cli.h"
#include "flags.h"
#include "model_file.h"

#include "config/log.h"
#include "config/output_file.h"
#include "config/parse.h"
#include "exec/budget.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct request {
    const char *path, *model, *policy, *budgets, *drawing, *expert_size, *rules;
    bool csv, json;
    int64_t expert_bytes;  // 0: as the trace says
    bool pool;             // by the rules of BigMoeOnEdge's curves
    struct gn_knobs knobs; // those that a run has as well
    struct tiers_request tiers;
};

#define AT(field) offsetof(struct request, field)

static const struct flag table[] = {
    {NULL, "--model", FLAG_TEXT, AT(model), 0, 0, 0, "FILE",
     "the model that was traced, any of its shards: its header says how large slots are. A size in --budget is then "
     "what --expert-cache would be, staging slots included"},
    {NULL, "--policy", FLAG_TEXT, AT(policy), 0, 0, 0, "NAME", "one policy, the path of one (./mine.so), or all [all]"},
    {NULL, "--budget", FLAG_TEXT, AT(budgets), 0, 0, 0, "LIST",
     "room for experts, separated by commas: shares of all experts such as 10%, slots such as 500slots, or sizes such "
     "as "
     "2GiB [5%,10%,20%,30%,50%]"},
    {NULL, "--expert-bytes", FLAG_TEXT, AT(expert_size), 0, 0, 0, "SIZE",
     "take every expert to be of this size; JSON lines do not tell it"},
    {NULL, "--rules", FLAG_TEXT, AT(rules), 0, 0, 0, "NAME",
     "engine, or pool: as BigMoeOnEdge counts its published curves (one pool of bytes, and prompts push out, too) "
     "[engine]"},
    {NULL, "--csv", FLAG_SWITCH, AT(csv), 0, 0, 0, NULL, "print CSV instead of tables"},
    {NULL, "--json", FLAG_SWITCH, AT(json), 0, 0, 0, NULL, "print JSON instead of tables"},
    {NULL, "--svg", FLAG_TEXT, AT(drawing), 0, 0, 0, "FILE", "also draw hit rate against budget"},
};
#define OPTIONS (sizeof table / sizeof *table)

// Settings of a run that have a meaning here.
static const enum gn_knob shared_knobs[] = {GN_POLICY_OPTIONS, GN_ADMISSION,      GN_ADMISSION_WINDOW, GN_STAGING,
                                            GN_PIN_HOT,        GN_PIN_HOT_BUDGET, GN_PIN_DECAY,        GN_PIN_WARM_UP,
                                            GN_LAYER_SHARES,   GN_PREFETCH,       GN_PILOT_MASS};

static void print_usage(FILE *to) {
    fputs(
        "usage: guanaco simulate TRACE [OPTION...]\n\n"
        "Replays a recorded routing through the cache that a run uses, once for each policy and budget, and through\n"
        "the best that could have been done by one who knows the future (belady). So a trace answers in a second\n"
        "which policy to take, and what more memory would bring. TRACE is a route_trace v1 file (CSV), which --trace\n"
        "FILE of a run writes, or JSON lines {\"tok\": n, \"layers\": [[expert, ...], ...]}.\n\n"
        "  guanaco simulate routing.csv --budget 10%,500slots,4GiB\n"
        "  guanaco simulate routing.jsonl --expert-bytes 3MiB --policy lru --svg curve.svg\n"
        "  guanaco simulate routing.csv --tiers GPU:auto:25%,RAM:auto:25% --gpu-rate 500 --dense-ms 6\n\n"
        "[Defaults in brackets.]\n\n",
        to);
    flags_print_help(table, OPTIONS, to);
    fputs("\nAs in a run, and explained there: --policy-options, --admission, --admission-window, --staging,\n"
          "--pin-hot-experts and its companions, --layer-shares.\n"
          "--prefetch pilot prints instead how many of the misses the table that a run learns as it goes names before\n"
          "they are asked for, and what it would read in vain; --pilot-mass as there.\n\n"
          "hit rate          of the experts that tokens asked for, how many were in memory. Prompts are replayed, not\n"
          "                  counted: they fill free memory, and push nothing out\n"
          "by weight         the same, each use as heavy as the router made it\n"
          "misses a token    experts read for a token\n"
          "MiB a token       their size: divided by what the drive reads in a second, the time that a token waits\n"
          "churn             of the misses, those of experts that had been pushed out within the last 8 tokens\n\n"
          "Below the token cycle (all experts that one token uses) lru and fifo hit next to nothing: each expert is\n"
          "pushed out just before it is wanted again.\n\n"
          "Tiers: experts may also be held, and computed, by devices above the RAM (a GPU). What is in one tier is in "
          "no\n"
          "other; an expert comes up from RAM when it was used more of late than the one that must go.\n\n",
          to);
    flags_print_help(tiers_flags, n_tiers_flags, to);
    fputs("\nPrinted are, for each tier, what it found of all that tokens asked for (later: in the second half of the "
          "trace,\n"
          "when the tiers have filled), and how many experts came into it for a token. What the tokens would take: of "
          "each\n"
          "layer, the longest of the device's time, the CPU's, and the disk's with the last expert computed after it; "
          "and\n"
          "the whole token no less than the link needs for its copies. So sizes can be chosen before hardware is "
          "bought.\n",
          to);
}

// ------------------------------------------------------------------------------------------------ request

static int usage_error(const char *format, const char *word) {
    gn_log(GN_LOG_ERROR, "%s'%.40s'; guanaco simulate --help tells more", format, word);
    return EXIT_USAGE;
}

// The number before an ending of text. False when it does not end so.
static bool number_before(const char *text, const char *ending, double *number) {
    char digits[32];
    size_t length = strlen(text), rest = strlen(ending);
    if (length <= rest || length - rest >= sizeof digits || strcmp(text + length - rest, ending) != 0) {
        return false;
    }
    memcpy(digits, text, length - rest);
    digits[length - rest] = '\0';
    return gn_parse_decimal(digits, number) == 0;
}

// A share of nothing is one for tiers alone.
static bool parse_budget(const char *text, bool zero, struct budget *budget) {
    double number = 0;
    *budget = (struct budget){0};
    snprintf(budget->name, sizeof budget->name, "%s", text);
    if (number_before(text, "%", &number)) {
        budget->share = number / 100;
        return (number > 0 || (zero && number == 0)) && number <= 100;
    }
    if (number_before(text, "slots", &number)) {
        budget->slots = number >= 1 && number < 1e9 ? (uint64_t)number : 0;
        return budget->slots > 0 && (double)budget->slots == number;
    }
    int64_t bytes = 0;
    bool good = gn_parse_size(text, &bytes) == 0 && bytes > 0;
    budget->bytes = (uint64_t)bytes;
    return good;
}

static int parse_budgets(struct simulation *simulation, const char *list, bool zero) {
    static const char wanted[] =
        "--budget: give shares such as 10%, slots such as 500slots or sizes such as 2GiB, not ";
    while (list) {
        struct budget *budget = &simulation->budgets[simulation->n_budgets];
        size_t length = strcspn(list, ",");
        char text[sizeof budget->name];
        if (simulation->n_budgets == MAX_BUDGETS) {
            return usage_error("--budget: 32 budgets at most, without ", list);
        }
        if (length >= sizeof text) {
            return usage_error(wanted, list);
        }
        memcpy(text, list, length);
        text[length] = '\0';
        if (!parse_budget(text, zero, budget)) {
            return usage_error(wanted, text);
        }
        simulation->n_budgets++;
        list = list[length] ? list + length + 1 : NULL;
    }
    return EXIT_OK;
}

static int choose_policies(struct simulation *simulation, const struct request *request) {
    char why[1024];
    const char *options = request->knobs.text[GN_POLICY_OPTIONS];
    if (!strcasecmp(request->policy, "all")) {
        for (int p = 0; gn_policies[p] && p < MAX_POLICIES; p++) {
            simulation->policies[simulation->n_policies++] = gn_policies[p];
        }
        return options ? usage_error("--policy-options: name the --policy that is to have ", options) : EXIT_OK;
    }
    simulation->n_policies = 1;
    if (gn_policy_find(request->policy, &simulation->policies[0], why, sizeof why)) {
        gn_error("--policy: %s", why);
        return EXIT_USAGE;
    }
    if (gn_parameters_parse(simulation->policies[0], options, &simulation->parameters, why, sizeof why)) {
        gn_error("--policy-options: %s", why);
        return EXIT_USAGE;
    }
    return EXIT_OK;
}

static bool is_shared(enum gn_knob knob) {
    for (size_t k = 0; k < sizeof shared_knobs / sizeof *shared_knobs; k++) {
        if (shared_knobs[k] == knob) {
            return true;
        }
    }
    return false;
}

static int check_knobs(const struct request *request) {
    for (int k = 0; k < GN_KNOB_COUNT; k++) {
        if (request->knobs.given[k] && !is_shared((enum gn_knob)k)) {
            return usage_error("there is no option ", gn_knob_table[k].flag);
        }
        if (request->knobs.given[k] && request->pool) {
            return usage_error("--rules pool knows nothing of ", gn_knob_table[k].flag);
        }
    }
    return EXIT_OK;
}

// A trace knows what was chosen, not by which weights.
static int check_prefetch(const struct request *request) {
    const struct gn_knobs *knobs = &request->knobs;
    if (!knobs->given[GN_PREFETCH]) {
        return knobs->given[GN_PILOT_MASS] ? usage_error("--pilot-mass is for ", "--prefetch pilot") : EXIT_OK;
    }
    if (knobs->value[GN_PREFETCH] != GN_PREFETCH_PILOT) {
        return usage_error("a trace does not know the routers' weights: the guesses that it can check are those of ",
                           "--prefetch pilot");
    }
    return request->drawing ? usage_error("there is nothing to draw of --prefetch; leave out ", "--svg") : EXIT_OK;
}

// With tiers, and without, some options have no meaning.
static int check_tiers(struct request *request) {
    if (!request->tiers.list) {
        const char *lonely = tiers_given(&request->tiers);
        request->policy = request->policy ? request->policy : "all";
        request->budgets = request->budgets ? request->budgets : "5%,10%,20%,30%,50%";
        return lonely ? usage_error("give --tiers with ", lonely) : EXIT_OK;
    }
    if (request->policy || request->knobs.text[GN_POLICY_OPTIONS]) {
        return usage_error("--tiers names a policy for each tier; leave out ",
                           request->policy ? "--policy" : "--policy-options");
    }
    request->budgets = request->budgets ? request->budgets : "0%,10%,25%,50%,75%,100%";
    return request->pool ? usage_error("--rules pool knows nothing of ", "--tiers") : EXIT_OK;
}

static int check_request(struct request *request) {
    request->pool = !strcmp(request->rules, "pool");
    if (!request->pool && strcmp(request->rules, "engine") != 0) {
        return usage_error("--rules: give engine or pool, not ", request->rules);
    }
    if (request->expert_size && (gn_parse_size(request->expert_size, &request->expert_bytes) ||
                                 request->expert_bytes < 1 || request->expert_bytes > INT64_C(1) << 40)) {
        return usage_error("--expert-bytes: give a size such as 3MiB, not ", request->expert_size);
    }
    if (request->model && request->expert_bytes) {
        return usage_error("the model tells the size of experts; leave out ", "--expert-bytes");
    }
    if (request->csv && request->json) {
        return usage_error("one form at a time: leave out --csv or ", "--json");
    }
    if (!request->path) {
        return usage_error("name a trace: ", "guanaco simulate TRACE");
    }
    if (request->tiers.list && request->knobs.given[GN_PREFETCH]) {
        return usage_error("--tiers replays no guesses; leave out ", "--prefetch");
    }
    int code = check_knobs(request);
    code = code ? code : check_prefetch(request);
    return code ? code : check_tiers(request);
}

// The drawing overwrites nothing that is read.
static bool check_drawing(const struct request *request, const struct tiers_simulation *tiers) {
    struct gn_outputs outputs = {0};
    char why[1024];
    const char *policy = request->policy && strchr(request->policy, '/') ? request->policy : NULL;
    bool good = gn_outputs_add(&outputs, GN_OUTPUT_REPLACED, "--svg", request->drawing, why, sizeof why) &&
                gn_outputs_spare(&outputs, "the trace", request->path, why, sizeof why) &&
                gn_outputs_spare(&outputs, "the model", request->model, why, sizeof why) &&
                gn_outputs_spare(&outputs, "the policy", policy, why, sizeof why);
    for (uint32_t t = 0; good && t < tiers->list.n; t++) {
        const char *name = tiers->list.tier[t].policy;
        good = gn_outputs_spare(&outputs, "a policy", strchr(name, '/') ? name : NULL, why, sizeof why);
    }
    if (!good) {
        gn_error("%s", why);
    }
    return good;
}

// ------------------------------------------------------------------------------------------------ trace

// Takes the sizes of a model's experts and slots. A layer is numbered by its block, or counted.
static bool take_sizes(struct gn_trace *trace, const struct model_file *model, char *why, size_t why_size) {
    if (model->n_layers != trace->n_layers) {
        snprintf(why, why_size, "--model: the trace has %u layers with experts, this model %u", trace->n_layers,
                 model->n_layers);
        return false;
    }
    for (uint32_t l = 0; l < trace->n_layers; l++) {
        struct gn_trace_layer *layer = &trace->layers[l];
        const struct model_layer *from = &model->layers[l];
        if ((layer->number != from->block && layer->number != l) || layer->n_experts > from->n_experts) {
            snprintf(why, why_size, "--model: layer %u of the trace, of %u experts, is not that of this model",
                     layer->number, layer->n_experts);
            return false;
        }
        layer->n_experts = from->n_experts;
        layer->expert_bytes = from->expert_bytes;
        layer->slot_bytes = from->slot_bytes;
        trace->n_experts = from->n_experts > trace->n_experts ? from->n_experts : trace->n_experts;
    }
    return true;
}

static bool size_trace(struct simulation *simulation, const struct request *request, char *why, size_t why_size) {
    struct gn_trace *trace = &simulation->trace;
    bool good = true;
    if (request->model) {
        struct model_file model;
        good = model_file_open(request->model, &model, why, why_size) && take_sizes(trace, &model, why, why_size);
        model_file_close(&model);
    }
    for (uint32_t l = 0; l < trace->n_layers; l++) {
        if (request->expert_bytes > 0) {
            trace->layers[l].expert_bytes = (uint64_t)request->expert_bytes;
            trace->layers[l].slot_bytes = 0;
        }
        simulation->bytes_known = simulation->bytes_known || trace->layers[l].expert_bytes > 1;
    }
    for (size_t r = 0; r < trace->n_rows; r++) {
        simulation->weights_known = simulation->weights_known || trace->rows[r].weight > 0;
        simulation->has_prompt = simulation->has_prompt || !trace->rows[r].decode;
    }
    return good;
}

static bool open_trace(struct simulation *simulation, const struct request *request) {
    char why[1024];
    if (gn_trace_read(request->path, &simulation->trace, why, sizeof why) ||
        !size_trace(simulation, request, why, sizeof why)) {
        gn_error("%s", why);
        return false;
    }
    if (gn_replay_open(&simulation->trace, &simulation->events) ||
        gn_trace_find_facts(&simulation->events, &simulation->facts)) {
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

// ------------------------------------------------------------------------------------------------ replay

static void size_budget(const struct simulation *simulation, const struct request *request, struct budget *budget) {
    uint64_t largest = 0;
    for (uint32_t l = 0; l < simulation->trace.n_layers; l++) {
        uint64_t bytes = gn_trace_slot_bytes(&simulation->trace.layers[l]);
        largest = bytes > largest ? bytes : largest;
    }
    if (budget->share > 0) {
        budget->bytes = (uint64_t)(budget->share * (double)simulation->all_bytes + 0.5);
    } else if (budget->slots > 0) {
        budget->bytes = budget->slots * largest;
    } else if (request->model) {
        uint32_t staging = (uint32_t)request->knobs.value[GN_STAGING];
        budget->bytes = gn_budget_split(budget->bytes, largest, staging).slots;
    }
    budget->bytes = budget->bytes < simulation->all_bytes ? budget->bytes : simulation->all_bytes;
}

// The cache of a run with these settings, policy and budget apart.
static struct gn_cache_options cache_options(const struct gn_knobs *knobs) {
    bool second_miss = knobs->value[GN_ADMISSION] == GN_ADMISSION_SECOND_MISS;
    return (struct gn_cache_options){
        .admission.window = second_miss ? (uint32_t)knobs->value[GN_ADMISSION_WINDOW] : 0,
        .shares = (enum gn_shares_kind)knobs->value[GN_LAYER_SHARES],
        .pins =
            {
                .most = (uint32_t)knobs->value[GN_PIN_HOT],
                .bytes = (uint64_t)knobs->value[GN_PIN_HOT_BUDGET],
                .decay = (double)knobs->value[GN_PIN_DECAY] / 100,
                .warm_up = (uint32_t)knobs->value[GN_PIN_WARM_UP],
            },
    };
}

static int replay_one(struct simulation *simulation, const struct request *request, int p, int b) {
    struct gn_replay_result *result = &simulation->result[p][b];
    uint64_t bytes = simulation->budgets[b].bytes;
    const struct guanaco_policy *policy = simulation->policies[p];
    if (request->pool) {
        return gn_replay_pool(&simulation->trace, &simulation->events, policy, bytes, result);
    }
    if (!policy) {
        return gn_replay_belady(&simulation->events, bytes, result);
    }
    struct gn_cache_options options = cache_options(&request->knobs);
    options.budget = bytes;
    options.policy = policy;
    options.parameters = simulation->n_policies == 1 ? &simulation->parameters : NULL;
    return gn_replay_cache(&simulation->events, &options, result);
}

static bool replay(struct simulation *simulation, const struct request *request) {
    for (int b = 0; b < simulation->n_budgets; b++) {
        for (int p = 0; p <= simulation->n_policies; p++) {
            int failed = replay_one(simulation, request, p, b);
            if (failed == -EBADMSG) {
                gn_error("the eviction policy %s cannot be used: it named a victim that is none",
                         simulation->policies[p]->name);
                return false;
            }
            if (failed) {
                gn_error("no memory to replay the trace");
                return false;
            }
        }
    }
    return true;
}

static bool print(const struct simulation *simulation, const struct request *request) {
    if (request->csv) {
        simulation_print_csv(simulation);
    } else if (request->json) {
        simulation_print_json(simulation, request->path);
    } else {
        simulation_print_text(simulation, request->path);
    }
    return !request->drawing || simulation_draw(simulation, request->drawing);
}

// Without a choice of policy, with a run's own.
static bool foresee(const struct simulation *simulation, const struct request *request) {
    const struct guanaco_policy *policy = simulation->policies[0];
    char why[256];
    if (simulation->n_policies > 1 &&
        gn_policy_find(gn_knob_table[GN_POLICY].fallback_text, &policy, why, sizeof why)) {
        gn_error("%s", why);
        return false;
    }
    struct gn_cache_options options = cache_options(&request->knobs);
    options.policy = policy;
    options.parameters = simulation->n_policies == 1 ? &simulation->parameters : NULL;
    enum simulation_output output = request->csv ? SIMULATION_CSV : request->json ? SIMULATION_JSON : SIMULATION_TEXT;
    return simulation_prefetch(simulation, &options, gn_knob_fraction(request->knobs.value[GN_PILOT_MASS]), output,
                               request->path);
}

static bool answer(struct simulation *simulation, const struct request *request) {
    for (int b = 0; b < simulation->n_budgets; b++) {
        size_budget(simulation, request, &simulation->budgets[b]);
    }
    if (request->knobs.given[GN_PREFETCH]) {
        return foresee(simulation, request);
    }
    return replay(simulation, request) && print(simulation, request);
}

static bool simulate_tiers(struct simulation *simulation, struct tiers_simulation *tiers,
                           const struct request *request) {
    struct gn_cache_options ram = cache_options(&request->knobs);
    uint32_t staging = request->model ? (uint32_t)request->knobs.value[GN_STAGING] : 0;
    if (!tiers_replay(tiers, simulation, &request->tiers, &ram, staging)) {
        return false;
    }
    if (request->csv) {
        tiers_print_csv(tiers);
    } else if (request->json) {
        tiers_print_json(tiers, request->path);
    } else {
        simulation_print_trace(simulation, request->path, (double)tiers->runs[0].result.uses);
        tiers_print_text(tiers);
    }
    return !request->drawing || tiers_draw(tiers, request->drawing);
}

// The options of both tables, as one of struct request.
static size_t join_tables(struct flag *joined) {
    memcpy(joined, table, sizeof table);
    for (size_t o = 0; o < n_tiers_flags; o++) {
        joined[OPTIONS + o] = tiers_flags[o];
        joined[OPTIONS + o].at += AT(tiers);
    }
    return OPTIONS + n_tiers_flags;
}

int command_simulate(int argc, char **argv) {
    static struct simulation simulation; // too large for a stack
    static struct tiers_simulation tiers;
    struct request request = {.rules = "engine"};
    simulation = (struct simulation){0};
    tiers = (struct tiers_simulation){0};
    struct flag joined[OPTIONS + TIERS_OPTIONS];
    struct flag_words words = {.table = joined,
                               .n = join_tables(joined),
                               .options = &request,
                               .knobs = &request.knobs,
                               .alone = &request.path,
                               .stray = "one trace at a time"};
    char why[512];
    int parsed = flags_parse(&words, argc, argv, why, sizeof why);
    if (parsed == 1) {
        print_usage(stdout);
        return EXIT_OK;
    }
    if (parsed < 0) {
        gn_error("%s", why);
        return EXIT_USAGE;
    }
    int code = check_request(&request);
    bool in_tiers = request.tiers.list;
    code = code ? code : parse_budgets(&simulation, request.budgets, in_tiers);
    code = code ? code : in_tiers ? tiers_parse(&tiers, &request.tiers) : choose_policies(&simulation, &request);
    if (code) {
        return code;
    }
    bool good = check_drawing(&request, &tiers) && open_trace(&simulation, &request) &&
                (in_tiers ? simulate_tiers(&simulation, &tiers, &request) : answer(&simulation, &request));
    gn_replay_close(&simulation.events);
    gn_trace_close(&simulation.trace);
    return good ? EXIT_OK : EXIT_FAILED;
}
