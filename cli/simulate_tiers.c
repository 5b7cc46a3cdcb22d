#include "simulate_tiers.h"

#include "cli.h"

#include "config/log.h"
#include "exec/budget.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define GB 1e9
#define STRING(text) #text
#define NUMBER(macro) STRING(macro)

const struct flag tiers_flags[TIERS_OPTIONS] = {
    {NULL, "--tiers", FLAG_TEXT, offsetof(struct tiers_request, list), 0, 0, 0, "LIST",
     "where experts are held, fastest first: NAME:POLICY:SIZE for each tier, separated by commas, RAM last, such as "
     "GPU:auto:2GiB,RAM:auto:25%. POLICY auto is a run's default; a size may be a share of all experts. --budget lists "
     "other sizes of the first tier to try [default: 0%,10%,25%,50%,75%,100%]"},
    {NULL, "--gpu-inserts", FLAG_INTEGER, offsetof(struct tiers_request, inserts), GN_TIER_INSERTS, 0, 65536, "N",
     "experts that may be copied up for each token [default: " NUMBER(GN_TIER_INSERTS) "]"},
    {NULL, "--gpu-margin", FLAG_DECIMAL, offsetof(struct tiers_request, margin), GN_TIER_MARGIN, 0, 1000, "USES",
     "an expert comes up for another when it had so many uses more of late [default: 2]"},
    {NULL, "--gpu-rate", FLAG_DECIMAL, offsetof(struct tiers_request, gpu_rate), 200, 0.001, 1e6, "GB/S",
     "weights that a device computes through in a second: about 0.6 of its memory's bandwidth [default: 200, of a card "
     "with 272 to 360 GB/s]"},
    {NULL, "--ram-rate", FLAG_DECIMAL, offsetof(struct tiers_request, ram_rate), 30, 0.001, 1e6, "GB/S",
     "the same of the CPU [default: 30, of two channels of DDR4-3200 with 51 GB/s]. From a run that has all in memory: "
     "bytes of the experts that a token uses / the time that it computes them"},
    {NULL, "--disk", FLAG_DECIMAL, offsetof(struct tiers_request, disk), 3, 0.001, 1e6, "GB/S",
     "what the drive reads in a second, in whole experts; guanaco bench measures it [default: 3]"},
    {NULL, "--link", FLAG_DECIMAL, offsetof(struct tiers_request, link), 12, 0.001, 1e6, "GB/S",
     "what is copied to a device in a second [default: 12, of 8 lanes of PCIe 4.0 with 15.8 GB/s]"},
    {NULL, "--dense-ms", FLAG_DECIMAL, offsetof(struct tiers_request, dense_ms), -1, 0, 1e6, "MS",
     "milliseconds of a token that go to all but routed experts [default: the trace's dense weights at the rate of the "
     "first tier, which is too little: there is no output layer in it, and no waiting for the device]"},
};
const size_t n_tiers_flags = sizeof tiers_flags / sizeof *tiers_flags;

// ------------------------------------------------------------------------------------------------ request

const char *tiers_given(const struct tiers_request *request) {
    for (size_t o = 0; o < n_tiers_flags; o++) {
        const struct flag *option = &tiers_flags[o];
        const char *field = (const char *)request + option->at;
        if ((option->kind == FLAG_INTEGER && *(const int64_t *)field != (int64_t)option->fallback) ||
            (option->kind == FLAG_DECIMAL && *(const double *)field != option->fallback)) {
            return option->alias;
        }
    }
    return NULL;
}

int tiers_parse(struct tiers_simulation *tiers, const struct tiers_request *request) {
    char why[1024];
    if (gn_tiers_parse(request->list, &tiers->list, why, sizeof why)) {
        gn_error("--tiers: %s", why);
        return EXIT_USAGE;
    }
    for (uint32_t t = 0; t < tiers->list.n; t++) {
        const struct gn_tier_wish *wish = &tiers->list.tier[t];
        bool is_ram = t == tiers->list.n - 1;
        tiers->policies[t] = is_ram ? gn_policies[0] : &GN_TIER_POLICY;
        if (wish->policy[0] && gn_policy_find(wish->policy, &tiers->policies[t], why, sizeof why)) {
            gn_error("--tiers: %s", why);
            return EXIT_USAGE;
        }
        if (wish->size == GN_TIER_AUTO) {
            gn_error("--tiers: what %s would have free is not known here; give it a size", wish->name);
            return EXIT_USAGE;
        }
    }
    return EXIT_OK;
}

// ------------------------------------------------------------------------------------------------ replay

static uint64_t all_experts(const struct simulation *simulation) {
    uint64_t bytes = 0;
    for (uint32_t l = 0; l < simulation->trace.n_layers; l++) {
        bytes += simulation->trace.layers[l].n_experts * simulation->trace.layers[l].expert_bytes;
    }
    return bytes;
}

static uint64_t largest_slot(const struct simulation *simulation, bool is_ram) {
    uint64_t largest = 0;
    for (uint32_t l = 0; l < simulation->trace.n_layers; l++) {
        const struct gn_trace_layer *layer = &simulation->trace.layers[l];
        uint64_t bytes = is_ram ? gn_trace_slot_bytes(layer) : layer->expert_bytes;
        largest = bytes > largest ? bytes : largest;
    }
    return largest;
}

struct size {
    double share; // of all experts, unless
    uint64_t bytes;
    bool in_bytes;
};

// Bytes for slots of a tier. A device has no staging, and no room for reads of whole blocks.
static uint64_t size_tier(const struct simulation *simulation, bool is_ram, struct size size, uint32_t most_staging) {
    uint64_t all = is_ram ? simulation->all_bytes : all_experts(simulation);
    if (!size.in_bytes) {
        return (uint64_t)(size.share * (double)all + 0.5);
    }
    uint64_t bytes = size.bytes;
    if (is_ram && most_staging > 0) {
        bytes = gn_budget_split(bytes, largest_slot(simulation, true), most_staging).slots;
    }
    return bytes < all ? bytes : all;
}

static uint64_t size_wish(const struct tiers_simulation *tiers, uint32_t t, uint32_t most_staging) {
    const struct gn_tier_wish *wish = &tiers->list.tier[t];
    struct size size = {wish->share, wish->bytes, wish->size == GN_TIER_BYTES};
    return size_tier(tiers->of, t == tiers->list.n - 1, size, most_staging);
}

static uint64_t size_budget(const struct tiers_simulation *tiers, const struct budget *budget, uint32_t most_staging) {
    struct size size = {budget->share, budget->bytes, budget->bytes > 0};
    bool is_ram = tiers->list.n == 1;
    if (budget->slots > 0) {
        return budget->slots * largest_slot(tiers->of, is_ram);
    }
    return size_tier(tiers->of, is_ram, size, most_staging);
}

struct watch {
    struct tiers_run *run;
    uint32_t half, n_devices, tokens;
};

static void see(void *context, const struct gn_replay_use *use) {
    struct watch *watch = context;
    struct tiers_late *late = &watch->run->late;
    gn_time_add(&watch->run->time, use);
    gn_time_add(&watch->run->late_time, use);
    watch->tokens += use->first;
    if (use->decode && watch->tokens > watch->half) {
        late->uses += use->held + use->hits + use->misses;
        late->hits[use->device == GN_NONE ? 0 : use->device] += use->held;
        late->hits[watch->n_devices] += use->hits;
        late->misses += use->misses;
        late->missed_bytes += use->misses * use->expert_bytes;
        late->inserts += use->inserts;
    }
}

static bool run_once(struct tiers_simulation *tiers, const char *size, uint64_t bytes) {
    struct gn_replay_tiers_options *options = &tiers->options;
    struct tiers_run *run = &tiers->runs[tiers->n_runs++];
    uint32_t half = tiers->of->events.n_tokens / 2;
    *run = (struct tiers_run){
        .bytes = bytes, .time = {.model = tiers->machine}, .late_time = {.model = tiers->machine, .skip = half}};
    snprintf(run->size, sizeof run->size, "%s", size);
    *(options->n_devices > 0 ? &options->device[0].budget : &options->ram.budget) = bytes;
    struct watch watch = {run, half, options->n_devices, 0};
    options->each = see;
    options->context = &watch;
    int failed = gn_replay_tiers(&tiers->of->events, options, &run->result);
    options->context = NULL;
    gn_time_end(&run->time);
    gn_time_end(&run->late_time);
    if (failed) {
        gn_error(failed == -EBADMSG ? "an eviction policy of --tiers cannot be used: it named a victim that is none"
                                    : "no memory to replay the trace");
    }
    return !failed;
}

static uint32_t top_k(const struct simulation *simulation) {
    uint32_t most = simulation->trace.top_k;
    for (uint32_t e = 0; simulation->trace.top_k == 0 && e < simulation->events.n_events; e++) {
        const struct gn_replay_event *event = &simulation->events.events[e];
        most = event->decode && event->n > most ? event->n : most;
    }
    return most;
}

static struct gn_time_model machine(const struct tiers_simulation *tiers, const struct tiers_request *request) {
    double first_rate = tiers->list.n > 1 ? request->gpu_rate : request->ram_rate, dense = 0;
    for (uint32_t l = 0; l < tiers->of->trace.n_layers; l++) {
        dense += (double)tiers->of->trace.layers[l].dense_bytes;
    }
    return (struct gn_time_model){
        .device_rate = request->gpu_rate * GB,
        .ram_rate = request->ram_rate * GB,
        .disk_rate = request->disk * GB,
        .link_rate = request->link * GB,
        .rest = request->dense_ms >= 0 ? request->dense_ms / 1000 : dense / (first_rate * GB),
    };
}

bool tiers_replay(struct tiers_simulation *tiers, const struct simulation *simulation,
                  const struct tiers_request *request, const struct gn_cache_options *ram, uint32_t most_staging) {
    uint32_t last = tiers->list.n - 1;
    tiers->of = simulation;
    tiers->machine = machine(tiers, request);
    tiers->options = (struct gn_replay_tiers_options){.n_devices = last, .ram = *ram, .top_k = top_k(simulation)};
    tiers->options.ram.policy = tiers->policies[last];
    tiers->options.ram.budget = size_wish(tiers, last, most_staging);
    for (uint32_t d = 0; d < last; d++) {
        tiers->options.device[d] = (struct gn_replay_device){
            .budget = size_wish(tiers, d, most_staging),
            .policy = tiers->policies[d],
            .inserts = (uint32_t)request->inserts,
            .margin = (float)request->margin,
        };
    }
    uint64_t bytes = last > 0 ? tiers->options.device[0].budget : tiers->options.ram.budget;
    bool good = run_once(tiers, tiers->list.tier[0].size_text, bytes);
    for (int b = 0; good && b < simulation->n_budgets; b++) {
        const struct budget *budget = &simulation->budgets[b];
        good = run_once(tiers, budget->name, size_budget(tiers, budget, most_staging));
    }
    return good;
}

// ------------------------------------------------------------------------------------------------ figures

double tiers_percent(const struct tiers_run *run, uint32_t n_tiers, uint32_t t, bool late) {
    uint64_t uses = late ? run->late.uses : run->result.uses, part;
    if (t == n_tiers) {
        part = late ? run->late.misses : run->result.ram.misses;
    } else if (late) {
        part = run->late.hits[t];
    } else {
        part = t == n_tiers - 1 ? run->result.ram.hits : run->result.device[t].hits;
    }
    return uses ? 100 * (double)part / (double)uses : 0;
}

double tiers_per_second(const struct gn_time *time) {
    return time->seconds > 0 ? time->tokens / time->seconds : 0;
}
