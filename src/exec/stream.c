#include "exec/stream.h"

#include "config/log.h"
#include "config/numbers.h"
#include "config/output_file.h"
#include "exec/fetch.h"
#include "exec/growth.h"
#include "exec/locking.h"
#include "exec/models.h"
#include "exec/report.h"
#include "exec/seed.h"
#include "stats/stats.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE ((uint64_t)2 << 20)

struct gn_stream *gn_stream_open(void) {
    static _Atomic uint64_t opened;
    struct gn_stream *stream = calloc(1, sizeof *stream);
    if (stream) {
        stream->serial = atomic_fetch_add(&opened, 1) + 1;
        pthread_mutex_init(&stream->lock, NULL);
        gn_models_add(stream);
    }
    return stream;
}

void gn_stream_break(struct gn_stream *stream, const char *format, ...) {
    if (!stream->broken) {
        va_list args;
        va_start(args, format);
        vsnprintf(stream->error, sizeof stream->error, format, args);
        va_end(args);
        stream->broken = true;
    }
}

// Gives back all that gn_stream_start() took.
static void stop(struct gn_stream *stream) {
    gn_reader_close(stream->reader);
    stream->reader = NULL;
    gn_fetch_close(stream);
    gn_spares_close(&stream->spares);
    gn_seed_close(stream);
    gn_locking_close(stream);
    gn_cache_close(stream->cache);
    stream->cache = NULL;
    free(stream->slot_memory);
    stream->slot_memory = NULL;
    free(stream->slot_touched);
    stream->slot_touched = NULL;
    free(stream->held);
    stream->held = NULL;
    free(stream->ahead.experts);
    free(stream->ahead.foreseen);
    stream->ahead = (struct gn_ahead){0};
    if (stream->region) {
        munmap(stream->region, gn_stream_region_bytes(stream));
        stream->region = NULL;
        stream->memory = NULL;
    }
}

static void uncount(const struct gn_stream *stream) {
    atomic_fetch_sub(&gn_stats.streamed_layers, stream->map.n_layers);
    atomic_fetch_sub(&gn_stats.expert_bytes, stream->map.bytes);
    atomic_fetch_sub(&gn_stats.slots, gn_cache_open_slots(stream->cache));
    atomic_fetch_sub(&gn_stats.slot_bytes, gn_cache_open_bytes(stream->cache));
    atomic_fetch_sub(&gn_stats.staging_bytes, stream->spares.bytes);
}

// Gives back what a started stream has, and takes it out of the counters.
static void end(struct gn_stream *stream) {
    gn_report_final(stream);
    uncount(stream);
    stop(stream);
    gn_growth_end(stream);
    stream->started = false;
    stream->held_bytes = 0;
}

void gn_stream_forked(struct gn_stream *stream) {
    pthread_mutex_init(&stream->lock, NULL);
    gn_tracer_forked(stream->tracer);
    stream->tracer = NULL;
    gn_seed_forked(stream);
    gn_reader_forked(stream->reader);
    stream->reader = NULL;
    if (stream->started) {
        uncount(stream);
        gn_growth_end(stream);
        stream->forked = true;
    }
    // Locks on memory are not inherited.
    atomic_fetch_sub(&gn_stats.locked_bytes, stream->locked_counted);
    stream->locked_counted = 0;
    stream->locks = (struct gn_locks){0};
    stream->locked_slots = NULL;
    // Devices and their drivers do not work in a child either.
    stream->gpu_asked = stream->gpu_asked || stream->started;
    stream->gpu = NULL;
    stream->tiers = NULL;
    stream->started = false;
    stream->held_bytes = 0;
    stream->fetch = NULL;
    stream->spares = (struct gn_spares){0};
    stream->cache = NULL;
    stream->slot_memory = NULL;
    stream->slot_touched = NULL;
    stream->held = NULL;
    stream->ahead = (struct gn_ahead){0};
    stream->region = NULL;
    stream->memory = NULL;
    stream->memory_bytes = 0;
}

void gn_stream_close(struct gn_stream *stream) {
    if (!stream) {
        return;
    }
    gn_models_remove(stream);
    if (stream->started) {
        end(stream);
    }
    gn_locking_end(stream);
    gn_tracer_close(stream->tracer);
    gn_expert_map_free(&stream->map);
    pthread_mutex_destroy(&stream->lock);
    free(stream);
}

static int fail(struct gn_stream *stream, int error, const char *what) {
    snprintf(stream->error, sizeof stream->error, "%s: %s", what, strerror(-error));
    return error;
}

// What the program registered, or else what the setting says.
static int choose_policy(struct gn_stream *stream, const struct gn_knobs *knobs, struct gn_parameters *parameters) {
    stream->policy = gn_policy_registered();
    if (stream->policy) {
        gn_parameters_default(stream->policy, parameters);
        return 0;
    }
    char why[sizeof stream->error - 48];
    int failed = gn_policy_find(knobs->text[GN_POLICY], &stream->policy, why, sizeof why);
    if (failed) {
        snprintf(stream->error, sizeof stream->error, "--policy (GUANACO_POLICY): %s", why);
        return failed;
    }
    failed = gn_parameters_parse(stream->policy, knobs->text[GN_POLICY_OPTIONS], parameters, why, sizeof why);
    if (failed) {
        snprintf(stream->error, sizeof stream->error, "--policy-options (GUANACO_POLICY_OPTIONS): %s", why);
    }
    return failed;
}

static int open_cache(struct gn_stream *stream, const struct gn_budget *budget, const struct gn_parameters *parameters,
                      const struct gn_knobs *knobs) {
    struct gn_cache_layer *layers = calloc(stream->map.n_layers, sizeof *layers);
    if (!layers) {
        return -ENOMEM;
    }
    for (uint32_t l = 0; l < stream->map.n_layers; l++) {
        layers[l].n_experts = stream->map.layers[l]->n_experts;
        layers[l].slot_bytes = stream->map.layers[l]->slot_bytes;
    }
    struct gn_cache_options options = {
        .layers = layers,
        .n_layers = stream->map.n_layers,
        .budget = budget->slots,
        .policy = stream->policy,
        .parameters = parameters,
        .admission.window =
            knobs->value[GN_ADMISSION] == GN_ADMISSION_SECOND_MISS ? (uint32_t)knobs->value[GN_ADMISSION_WINDOW] : 0,
        .shares = (enum gn_shares_kind)knobs->value[GN_LAYER_SHARES],
        .pins =
            {
                .most = (uint32_t)knobs->value[GN_PIN_HOT],
                .bytes = (uint64_t)knobs->value[GN_PIN_HOT_BUDGET],
                .decay = (double)knobs->value[GN_PIN_DECAY] / 100,
                .warm_up = (uint32_t)knobs->value[GN_PIN_WARM_UP],
            },
    };
    int failed = gn_cache_open(&options, &stream->cache);
    free(layers);
    return failed;
}

// Tells every slot and spare where in the region it lies.
static void place_slots(struct gn_stream *stream) {
    for (uint32_t slot = 0; slot < gn_cache_slots(stream->cache); slot++) {
        stream->slot_memory[slot] = stream->memory + gn_layout_slot_offset(gn_cache_layout(stream->cache), slot);
    }
    uint8_t *at = stream->memory + gn_cache_bytes(stream->cache);
    for (uint32_t i = 0; i < stream->spares.n; i++) {
        stream->spares.spare[i].memory = at;
        at += gn_cache_layout(stream->cache)->classes[stream->spares.spare[i].size_class].slot_bytes;
    }
}

// One region for slots and spares. Only what is used is ever touched; huge pages make the first touch cheap.
static int take_memory(struct gn_stream *stream, uint32_t n_spares) {
    int failed = gn_spares_open(&stream->spares, stream->cache, n_spares);
    stream->slot_memory = malloc((gn_cache_slots(stream->cache) + 1) * sizeof *stream->slot_memory);
    stream->slot_touched = calloc(gn_cache_slots(stream->cache) + 1, sizeof *stream->slot_touched);
    stream->ahead.experts = calloc(n_spares, sizeof *stream->ahead.experts);
    stream->ahead.foreseen = calloc((size_t)stream->map.n_layers * GN_SOURCES, sizeof *stream->ahead.foreseen);
    if (failed || !stream->slot_memory || !stream->slot_touched || !stream->ahead.experts || !stream->ahead.foreseen) {
        return -ENOMEM;
    }
    stream->memory_bytes = gn_cache_bytes(stream->cache) + stream->spares.bytes;
    void *memory = mmap(NULL, stream->memory_bytes + HUGE_PAGE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        return -errno;
    }
    stream->region = memory;
    // A child has no slots: a direct read that is in flight during fork() could otherwise land in the child's copy of
    // a page, and the parent would compute with what was there before.
    if (madvise(memory, stream->memory_bytes + HUGE_PAGE, MADV_DONTFORK)) {
        gn_debug("slots are shared with forked processes: %s", strerror(errno));
    }
    stream->memory = (uint8_t *)(((uintptr_t)memory + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
    if (gn_stream_wants_huge_pages(stream) && madvise(stream->memory, stream->memory_bytes, MADV_HUGEPAGE)) {
        gn_debug("no huge pages for the expert slots: %s", strerror(errno));
    }
    place_slots(stream);
    return 0;
}

bool gn_stream_wants_huge_pages(const struct gn_stream *stream) {
    return stream->memory_bytes >= 8 * HUGE_PAGE;
}

uint64_t gn_stream_region_bytes(const struct gn_stream *stream) {
    return stream->region ? stream->memory_bytes + HUGE_PAGE : 0;
}

// Slots keep their addresses, but nothing is ever put there.
static int stay_in_place(struct gn_stream *stream, const struct gn_knobs *knobs) {
    if (knobs->value[GN_IO] != GN_READER_MAPPED) {
        return 0;
    }
    stream->held = calloc(gn_cache_slots(stream->cache) + 1, sizeof *stream->held);
    return stream->held ? gn_expert_map_in_place(&stream->map) : -ENOMEM;
}

void gn_stream_hold(struct gn_stream *stream, uint32_t slot, const struct gn_layer *layer, uint32_t expert) {
    if (stream->held) {
        struct gn_held *held = &stream->held[slot];
        bool elsewhere = held->layer && gn_cache_peek(stream->cache, gn_cache_entry(stream->cache, held->layer->index,
                                                                                    held->expert)) != GN_NONE;
        if (held->layer && !elsewhere) {
            gn_expert_drop(held->layer, held->expert);
        }
        *held = (struct gn_held){layer, expert};
    }
}

static int open_reader(struct gn_stream *stream, const struct gn_knobs *knobs) {
    struct gn_reader_options options = {
        .kind = (enum gn_reader_kind)knobs->value[GN_IO],
        .depth = (unsigned)knobs->value[GN_IO_DEPTH],
        .fail_at = (uint64_t)knobs->value[GN_FAULT_AT],
        .fail_result = (int)knobs->value[GN_FAULT_RESULT],
    };
    return gn_reader_open(&options, &stream->reader);
}

static int find_budget(struct gn_stream *stream, const struct gn_knobs *knobs, struct gn_budget *budget) {
    struct gn_taken taken;
    int failed = gn_models_taken(stream, &taken);
    if (failed) {
        return fail(stream, failed, "cannot find out what memory there is");
    }
    failed = gn_budget_for(&stream->map, knobs, &taken, budget, stream->error, sizeof stream->error);
    gn_models_forget(&taken);
    return failed;
}

void gn_stream_know(struct gn_stream *stream, const struct gn_knobs *knobs) {
    gn_expert_map_finish(&stream->map);
    stream->claim = gn_budget_claim(&stream->map, knobs);
}

int gn_stream_check(struct gn_stream *stream, const struct gn_knobs *knobs) {
    struct gn_budget budget;
    return find_budget(stream, knobs, &budget);
}

uint64_t gn_stream_dense_room(struct gn_stream *stream, const struct gn_knobs *knobs) {
    struct gn_taken taken;
    if (gn_models_taken(stream, &taken)) {
        return 0;
    }
    int64_t room = gn_budget_room(knobs, &taken) - (int64_t)gn_budget_claim(&stream->map, knobs).least;
    for (uint32_t i = 0; i < taken.n_others; i++) {
        const struct gn_other *other = &taken.others[i];
        room -= (int64_t)(other->held > other->claim.least ? other->held : other->claim.least);
    }
    gn_models_forget(&taken);
    return room > 0 ? (uint64_t)room : 0;
}

// Says when the budget has no room for all that --guanaco-max-experts asks for.
static void say_max_experts(const struct gn_stream *stream, const struct gn_knobs *knobs,
                            const struct gn_budget *budget) {
    uint64_t wanted = gn_budget_most_slots(&stream->map, knobs);
    char want[32], have[32];
    if (knobs->value[GN_MAX_EXPERTS] > 0 && budget->slots < wanted) {
        gn_info("--guanaco-max-experts %lld (GUANACO_MAX_EXPERTS) asks for slots of %s; the budget has %s",
                (long long)knobs->value[GN_MAX_EXPERTS], gn_format_bytes(wanted, want),
                gn_format_bytes(budget->slots, have));
    }
}

static int start(struct gn_stream *stream, const struct gn_knobs *knobs) {
    struct gn_budget budget;
    memset(&stream->counts, 0, sizeof stream->counts);
    gn_stream_know(stream, knobs);
    int failed = find_budget(stream, knobs, &budget);
    if (failed) {
        return failed;
    }
    say_max_experts(stream, knobs, &budget);
    struct gn_parameters parameters;
    failed = choose_policy(stream, knobs, &parameters);
    if (failed) {
        return failed;
    }
    failed = open_cache(stream, &budget, &parameters, knobs);
    if (failed) {
        return fail(stream, failed, "cannot set up the expert cache");
    }
    failed = take_memory(stream, budget.n_staging);
    if (failed) {
        return fail(stream, failed, "cannot take the memory for expert slots");
    }
    failed = stay_in_place(stream, knobs);
    if (failed) {
        return fail(stream, failed, "cannot map the model for --io mapped (GUANACO_IO)");
    }
    gn_locking_open(stream, knobs);
    failed = open_reader(stream, knobs);
    if (failed) {
        return fail(stream, failed, "cannot open the reader that --io (GUANACO_IO) asks for");
    }
    stream->prefetch = gn_knobs_prefetch(knobs);
    stream->pilot_mass = gn_knob_fraction(knobs->value[GN_PILOT_MASS]);
    failed = gn_fetch_open(stream);
    if (failed) {
        return fail(stream, failed, "cannot set up reading");
    }
    gn_seed_open(stream, knobs);
    stream->has_pins = knobs->value[GN_PIN_HOT] || knobs->value[GN_PIN_HOT_BUDGET];
    stream->report_interval = (uint64_t)knobs->value[GN_STATS_INTERVAL];
    return 0;
}

int gn_stream_start(struct gn_stream *stream, const struct gn_knobs *knobs) {
    if (stream->started) {
        return 0;
    }
    int failed = start(stream, knobs);
    if (failed) {
        stop(stream);
        return failed;
    }
    if (stream->forked) {
        gn_info("this process was forked from one that streams: it starts with slots of its own, which are empty");
        stream->forked = false;
    }
    stream->started = true;
    stream->held_bytes = gn_stream_memory(stream);
    gn_growth_begin(stream, knobs);
    gn_count(streamed_layers, stream->map.n_layers);
    gn_count(expert_bytes, stream->map.bytes);
    gn_count(slots, gn_cache_slots(stream->cache));
    gn_count(slot_bytes, gn_cache_bytes(stream->cache));
    gn_count(staging_bytes, stream->spares.bytes);
    return 0;
}

int gn_stream_restart(struct gn_stream *stream, const struct gn_knobs *knobs) {
    for (uint32_t slot = 0; stream->held && slot < gn_cache_slots(stream->cache); slot++) {
        if (stream->held[slot].layer) { // no slot is going to remember that it is in the page cache
            gn_expert_drop(stream->held[slot].layer, stream->held[slot].expert);
        }
    }
    if (stream->started) {
        end(stream);
    }
    return gn_stream_start(stream, knobs);
}

uint64_t gn_stream_memory(const struct gn_stream *stream) {
    return gn_cache_bytes(stream->cache) + stream->spares.bytes;
}

// Whether the trace may be written: it is none of the model's files.
static bool trace_is_free(struct gn_stream *stream, const char *path) {
    struct gn_outputs outputs = {0};
    bool is_free = gn_outputs_add(&outputs, GN_OUTPUT_STREAM, "--trace (GUANACO_TRACE)", path, stream->error,
                                  sizeof stream->error);
    for (uint32_t f = 0; is_free && f < stream->map.n_files; f++) {
        is_free = gn_outputs_spare(&outputs, "the model", gn_file_path(stream->map.files[f]), stream->error,
                                   sizeof stream->error);
    }
    return is_free;
}

int gn_stream_trace(struct gn_stream *stream, const struct gn_knobs *knobs, const struct gn_tracer_model *model) {
    const char *path = knobs->text[GN_TRACE];
    if (!path || stream->tracer) {
        return 0;
    }
    gn_expert_map_finish(&stream->map);
    if (!trace_is_free(stream, path)) {
        return -EEXIST;
    }
    int failed = gn_tracer_open(path, &stream->map, model, &stream->tracer);
    if (failed == -EBUSY) {
        gn_info("--trace: %s is not traced: a process writes one trace, of the first model that computes", model->path);
        return 0;
    }
    if (failed) {
        snprintf(stream->error, sizeof stream->error, "--trace (GUANACO_TRACE): cannot write %s: %s", path,
                 strerror(-failed));
    }
    return failed;
}

// What to do about slots for less than a token: docs/residency.md has the figures.
static const char *what_works_then(const struct gn_stream *stream) {
    const struct guanaco_policy *policy = stream->policy;
    if (gn_cache_slots(stream->cache) == 0) {
        return "no policy can help, more memory can";
    }
    if (policy == &gn_policy_wait) {
        return "expected-wait, the policy in use, finds some of them again where lru would find none";
    }
    if (policy == &gn_policy_lru || policy == &gn_policy_slru || policy == &gn_policy_fifo) {
        return "this policy will find next to none of them again, --policy expected-wait (the default) some";
    }
    return "--policy expected-wait (the default) finds most of them again";
}

void gn_stream_advise(struct gn_stream *stream, uint32_t top_k) {
    if (stream->advised) {
        return;
    }
    stream->advised = true;
    uint64_t cycle = 0, slots = gn_cache_open_bytes(stream->cache);
    for (uint32_t l = 0; l < stream->map.n_layers; l++) {
        const struct gn_layer *layer = stream->map.layers[l];
        cycle += layer->slot_bytes * (top_k < layer->n_experts ? top_k : layer->n_experts);
    }
    char have[32], need[32];
    if (slots < cycle) {
        gn_warn("slots hold %s, but one token uses experts of %s: most will be read again for every token; %s",
                gn_format_bytes(slots, have), gn_format_bytes(cycle, need), what_works_then(stream));
    }
}

void gn_stream_describe(const struct gn_stream *stream, char *text, size_t size) {
    static const char *const held[] = {"resident", "copied", "locked", "mapped"}; // by enum gn_dense_mode
    uint64_t experts = 0, direct = 0;
    for (uint32_t l = 0; l < stream->map.n_layers; l++) {
        experts += stream->map.layers[l]->n_experts;
    }
    for (uint32_t f = 0; f < stream->map.n_files; f++) {
        direct += gn_file_direct(stream->map.files[f]);
    }
    const char *path = gn_models_count() > 1 && stream->map.n_files > 0 ? gn_file_path(stream->map.files[0]) : NULL;
    const char *slash = path ? strrchr(path, '/') : NULL, *name = slash ? slash + 1 : path;
    char bytes[32];
    uint32_t slots = gn_cache_open_slots(stream->cache);
    gn_format(text, size,
              "streaming %u MoE layers, %u slots (%s, %.0f %% of the experts) + %u spare, %s, %s, %s, dense %s%s%s%s",
              stream->map.n_layers, slots, gn_format_bytes(gn_cache_open_bytes(stream->cache), bytes),
              experts ? 100.0 * slots / (double)experts : 0, stream->spares.n, gn_reader_name(stream->reader),
              stream->held                    ? "in the page cache"
              : direct == stream->map.n_files ? "O_DIRECT"
              : direct                        ? "O_DIRECT for some files"
                                              : "buffered",
              stream->policy->name, held[stream->dense],
              stream->locks.n > 0 && stream->dense != GN_DENSE_LOCK ? ", locked" : "", name ? ", of " : "",
              name ? name : "");
}

bool gn_stream_held_above(const struct gn_stream *stream, uint32_t layer, uint32_t expert) {
    const struct gn_tier *tier = stream->tiers ? stream->tiers[layer] : NULL;
    return tier && gn_tier_peek(tier, layer, expert) != GN_NONE;
}
