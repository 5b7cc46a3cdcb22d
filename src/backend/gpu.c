#include "backend/gpu.h"

#include "backend/gpu_tier.h"
#include "config/log.h"
#include "exec/seed.h"
#include "stats/stats.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WHOLE_PASSES 4 // that bring no new layer: what has not come by then is taken for a layer that never runs

struct gn_gpu {
    struct gn_stream *stream;
    const struct gn_knobs *knobs;
    struct gn_gpu_tier tiers[GN_MOST_TIERS];
    uint32_t n_tiers;
    struct gn_gpu_layers layers;
    bool opened;
    bool cut_short;                  // the pass through the layers has left one out
    uint32_t whole_passes;           // since a new layer has come
    struct gn_tier **tier_of;        // [layers] the stream's: the tier that serves each
    struct gn_promotion *promotions; // [most experts of any layer]
    uint32_t *candidates;            // [most experts of any layer] that may come up
    // The running event.
    struct gn_gpu_tier *now;
    bool prefill, computes;
    uint64_t started_ns, submitted_ns;
};

// ------------------------------------------------------------------------------------------------- life

// Opens the devices that are asked for. Returns how many there are.
static uint32_t find_devices(struct gn_gpu *gpu, const struct gn_tier_list *list) {
    for (uint32_t i = 0; i < list->n; i++) {
        const struct gn_tier_wish *wish = &list->tier[i];
        const char *name = wish->name[0] ? wish->name : NULL;
        struct gn_gpu_tier *tier = &gpu->tiers[gpu->n_tiers];
        *tier = (struct gn_gpu_tier){.wish = *wish, .policy = &GN_TIER_POLICY};
        char why[256];
        if (wish->policy[0] && gn_policy_find(wish->policy, &tier->policy, why, sizeof why)) {
            gn_warn("--tiers: %s", why);
            continue;
        }
        tier->device.fault_at = gpu->knobs->value[GN_FAULT_GPU];
        ggml_backend_dev_t device = gn_gpu_find(name);
        if (!device) {
            gn_warn("there is no %s that llama.cpp knows of: no experts are held there", name ? name : "GPU");
        } else if (!gn_gpu_device_open(&tier->device, device)) {
            gn_warn("%s cannot be used: no experts are held there", ggml_backend_dev_name(device));
        } else {
            gpu->n_tiers++;
        }
    }
    return gpu->n_tiers;
}

// Says once that a GPU could be used, to whoever has not said that it should not be.
static void mention_gpu(const struct gn_knobs *knobs) {
    static atomic_flag said = ATOMIC_FLAG_INIT;
    ggml_backend_dev_t device = gn_gpu_find(NULL);
    if (device && !knobs->given[GN_GPU_CACHE] && !knobs->given[GN_TIERS] && !atomic_flag_test_and_set(&said)) {
        size_t free_bytes, total_bytes;
        ggml_backend_dev_memory(device, &free_bytes, &total_bytes);
        gn_info("%s (%.1f GiB free) could hold and compute the most used experts: --gpu-cache auto",
                ggml_backend_dev_name(device), (double)free_bytes / (1 << 30));
    }
}

static struct gn_gpu *open_gpu(struct gn_stream *stream, const struct gn_knobs *knobs) {
    struct gn_tier_list list;
    char why[256];
    if (gn_tiers_from_knobs(knobs, &list, why, sizeof why)) {
        gn_warn("%s", why);
        return NULL;
    }
    if (list.n == 0) {
        mention_gpu(knobs);
    }
    if (list.n == 0 || stream->map.n_layers == 0) {
        return NULL;
    }
    struct gn_gpu *gpu = calloc(1, sizeof *gpu);
    if (!gpu) {
        gn_warn("no memory to hold experts on a GPU: all stay with the CPU");
        return NULL;
    }
    uint32_t most = gn_expert_map_most_experts(&stream->map), n = stream->map.n_layers;
    gpu->stream = stream;
    gpu->knobs = knobs;
    gpu->layers = (struct gn_gpu_layers){calloc(n, sizeof *gpu->layers.layer), n};
    gpu->promotions = calloc(most, sizeof *gpu->promotions);
    gpu->candidates = calloc(most, sizeof *gpu->candidates);
    gpu->tier_of = calloc(n, sizeof(struct gn_tier *));
    bool has_memory = gpu->layers.layer && gpu->tier_of && gpu->promotions && gpu->candidates;
    if (!has_memory) {
        gn_warn("no memory to hold experts on a GPU: all stay with the CPU");
    }
    if (!has_memory || find_devices(gpu, &list) == 0) {
        gn_gpu_close(gpu);
        return NULL;
    }
    return gpu;
}

struct gn_gpu *gn_gpu_of(struct gn_stream *stream, const struct gn_knobs *knobs) {
    if (!stream->gpu_asked) {
        stream->gpu_asked = true;
        stream->gpu = open_gpu(stream, knobs);
    }
    return stream->gpu;
}

void gn_gpu_close(struct gn_gpu *gpu) {
    if (gpu) {
        for (uint32_t t = 0; t < gpu->n_tiers; t++) {
            gn_gpu_tier_close(&gpu->tiers[t]);
        }
        free(gpu->tier_of); // the stream has ended
        free(gpu->layers.layer);
        free(gpu->promotions);
        free(gpu->candidates);
        free(gpu);
    }
}

// ------------------------------------------------------------------------------------------------- learning the layers

// Layers in order, as llama.cpp splits them by default: a share for each device, by its tier's size.
static void share_out_layers(struct gn_gpu *gpu) {
    uint64_t all = 0, before = 0;
    uint32_t n = 0, given = 0, l = 0;
    for (uint32_t t = 0; t < gpu->n_tiers; t++) {
        gpu->tiers[t].budget = gn_gpu_tier_budget(&gpu->tiers[t], &gpu->layers);
        all += gpu->tiers[t].budget;
    }
    for (uint32_t i = 0; i < gpu->layers.n; i++) {
        n += gpu->layers.layer[i].fits;
    }
    for (uint32_t t = 0; t < gpu->n_tiers && all > 0; t++) {
        before += gpu->tiers[t].budget;
        uint32_t until = (uint32_t)((double)n * (double)before / (double)all + 0.5);
        for (; l < gpu->layers.n && given < until; l++) {
            if (gpu->layers.layer[l].fits) {
                gpu->layers.layer[l].tier = &gpu->tiers[t];
                given++;
            }
        }
    }
}

// Tells the tier what is known of a layer's experts from elsewhere.
static void tell_chances(const struct gn_gpu *gpu, uint32_t l) {
    for (uint32_t e = 0; e < gpu->layers.layer[l].n_experts; e++) {
        float chance = gn_seed_chance(gpu->stream, gn_cache_entry(gpu->stream->cache, l, e));
        if (chance > 0) {
            gn_tier_prior(gpu->tier_of[l], l, e, chance);
        }
    }
}

struct seen {
    uint32_t n, fit, first_unfit; // first_unfit: its block
};

static struct seen count_seen(const struct gn_gpu *gpu) {
    struct seen seen = {0};
    for (uint32_t l = gpu->layers.n; l-- > 0;) {
        const struct gn_gpu_layer *layer = &gpu->layers.layer[l];
        seen.n += layer->slices != 0;
        seen.fit += layer->fits;
        if (layer->slices && !layer->fits) {
            seen.first_unfit = gpu->stream->map.layers[l]->block;
        }
    }
    return seen;
}

// Says which layers no device can have.
static void say_unfit(const struct gn_gpu *gpu) {
    struct seen seen = count_seen(gpu);
    const char *who = gpu->n_tiers == 1 ? gpu->tiers[0].device.name : "one of the GPUs";
    if (seen.fit == 0) {
        gn_warn("all %u layers stay with the CPU: %s cannot hold their weights or compute their operations; take the "
                "model in another quantisation, or leave the GPU out",
                seen.n, who);
    } else if (seen.fit < seen.n) {
        gn_warn("%u of %u layers stay with the CPU (block %u for one): %s cannot hold their weights or compute their "
                "operations; the model in another quantisation may have none such",
                seen.n - seen.fit, seen.n, seen.first_unfit, who);
    }
}

// Gives back the devices of tiers that serve nothing.
static void close_idle(struct gn_gpu *gpu) {
    for (uint32_t t = 0; t < gpu->n_tiers; t++) {
        if (!gpu->tiers[t].open) {
            gn_gpu_tier_close(&gpu->tiers[t]);
        }
    }
}

// Opens the tiers. Those that do not open serve no layer.
static void open_tiers(struct gn_gpu *gpu, const struct gn_moe_run *run) {
    gpu->opened = true;
    say_unfit(gpu);
    share_out_layers(gpu);
    for (uint32_t t = 0; t < gpu->n_tiers; t++) {
        struct gn_gpu_tier *tier = &gpu->tiers[t];
        if (tier->budget > 0) {
            gn_gpu_tier_open(tier, &gpu->layers, run, (uint32_t)gpu->knobs->value[GN_GPU_INSERTS]);
        }
    }
    close_idle(gpu);
    gpu->stream->tiers = gpu->tier_of;
    for (uint32_t l = 0; l < gpu->layers.n; l++) {
        struct gn_gpu_layer *layer = &gpu->layers.layer[l];
        if (layer->tier && !layer->tier->open) {
            layer->tier = NULL;
        }
        if (layer->tier) {
            gpu->tier_of[l] = &layer->tier->experts;
            tell_chances(gpu, l);
        }
    }
}

// A layer that comes in pieces (its products lie in several graphs) is not held on a device.
static void see(struct gn_gpu *gpu, const struct gn_moe_run *run) {
    struct gn_gpu_layer *layer = &gpu->layers.layer[run->layer->index];
    uint32_t all = (1u << run->layer->n_slices) - 1;
    layer->signature = gn_gpu_signature(run);
    layer->n_experts = run->layer->n_experts;
    layer->slices |= run->slices;
    layer->top_k = (uint32_t)run->n_used;
    layer->fits = run->slices == all && gn_gpu_shape_of(run, &layer->shape);
    for (uint32_t t = 0; layer->fits && t < gpu->n_tiers; t++) {
        struct gn_gpu_tier *tier = &gpu->tiers[t];
        layer->fits = gn_gpu_graph_supported(run, tier->device.device, &layer->shape);
    }
}

// Follows the passes through the layers: one has ended when one of its layers comes again, whatever their order.
static void follow(struct gn_gpu *gpu, const struct gn_moe_run *run, bool left_out) {
    struct gn_gpu_layer *layer = &gpu->layers.layer[run->layer->index];
    gpu->cut_short |= left_out;
    if (layer->passed & run->slices) {
        gpu->whole_passes += !gpu->cut_short;
        gpu->cut_short = false;
        for (uint32_t l = 0; l < gpu->layers.n; l++) {
            gpu->layers.layer[l].passed = 0;
        }
    }
    layer->passed |= run->slices;
}

// Opens the tiers when all layers have been seen, or those that run: a model may have some that do not (for the
// prediction of several tokens, say). These show in passes that bring nothing new; in several, since a pass may be
// aborted. That waits for a run that the tiers may serve; where there can be none, no tier opens. Returns whether they
// are open for this run.
static bool learn(struct gn_gpu *gpu, const struct gn_moe_run *run, bool left_out) {
    const struct gn_gpu_layer *layer = &gpu->layers.layer[run->layer->index];
    bool again = layer->slices & run->slices;
    follow(gpu, run, left_out);
    if (!again) {
        see(gpu, run);
        gpu->whole_passes = 0;
    }
    struct seen seen = count_seen(gpu);
    if (seen.n < gpu->layers.n && gpu->whole_passes < WHOLE_PASSES) {
        return false;
    }
    if (layer->fits) {
        open_tiers(gpu, run);
        return again;
    }
    if (seen.fit == 0) {
        gpu->opened = true;
        say_unfit(gpu);
        close_idle(gpu);
    }
    return false;
}

// ------------------------------------------------------------------------------------------------- events

// How many rows the device may have of the run. It need not have all of a prompt that it could: the CPU would wait.
static uint32_t most_rows(const struct gn_gpu *gpu, const struct gn_moe_run *run) {
    const struct gn_gpu_tier *tier = gpu->now;
    if (!gpu->prefill || !tier->measures) {
        return tier->most_rows;
    }
    double share = (double)gn_payoff_share(&tier->prefill) * (double)(run->n_used * run->n_tokens);
    return share < tier->most_rows ? (uint32_t)share : tier->most_rows;
}

// Puts the experts that the tier holds behind the others.
static void look_up(struct gn_gpu *gpu, struct gn_moe_run *run) {
    struct gn_tier *experts = &gpu->now->experts;
    uint32_t layer = run->layer->index, rows = 0, n_held = 0, most = most_rows(gpu, run);
    uint32_t first = gn_cache_layout(experts->cache)->classes[gn_tier_class(experts, layer)].first_slot;
    uint32_t *slot_of_held = run->next;
    run->n_cpu = 0;
    for (uint32_t i = 0; i < run->n_experts; i++) {
        uint32_t expert = run->experts[i];
        uint32_t slot = gpu->prefill ? gn_tier_peek(experts, layer, expert) : gn_tier_lookup(experts, layer, expert);
        if (slot != GN_NONE && rows + run->count[expert] <= most) {
            rows += run->count[expert];
            slot_of_held[n_held] = slot - first;
            run->held[n_held++] = expert;
            gn_cache_used_elsewhere(gpu->stream->cache, gn_cache_entry(gpu->stream->cache, layer, expert));
        } else {
            run->experts[run->n_cpu++] = expert;
        }
    }
    memcpy(run->experts + run->n_cpu, run->held, n_held * sizeof *run->held);
    memcpy(run->slots + run->n_cpu, slot_of_held, n_held * sizeof *run->slots);
    gpu->computes = n_held > 0;
    gn_count(gpu_hits, n_held);
}

bool gn_gpu_begin(struct gn_gpu *gpu, struct gn_moe_run *run, bool prefill, bool left_out) {
    if (!gpu->opened && !learn(gpu, run, left_out)) {
        return false;
    }
    const struct gn_gpu_layer *layer = &gpu->layers.layer[run->layer->index];
    if (!layer->tier) {
        return false;
    }
    if (layer->signature != gn_gpu_signature(run)) { // an adapter, for one, adds operations
        gn_count(gpu_not_served, 1);
        return false;
    }
    gpu->now = layer->tier;
    gpu->prefill = prefill;
    if (!prefill) {
        gn_tier_begin(&gpu->now->experts);
    }
    look_up(gpu, run);
    return true;
}

// From now on all is the CPU's.
static void give_up(struct gn_gpu *gpu) {
    for (uint32_t l = 0; l < gpu->layers.n; l++) {
        if (gpu->layers.layer[l].tier == gpu->now) {
            gpu->layers.layer[l].tier = NULL;
            gpu->tier_of[l] = NULL;
        }
    }
}

enum ggml_status gn_gpu_start(struct gn_gpu *gpu, struct gn_moe_run *run, struct gn_scratch *scratch) {
    gpu->started_ns = gpu->submitted_ns = gn_now_ns();
    if (!gpu->computes) {
        return GGML_STATUS_SUCCESS;
    }
    struct gn_gpu_tier *tier = gpu->now;
    const struct gn_gpu_pool *pool = &tier->pools[gn_tier_class(&tier->experts, run->layer->index)];
    enum ggml_status status = gn_gpu_graph_start(&tier->graph, run, scratch, &tier->device, pool);
    gpu->submitted_ns = gn_now_ns();
    if (status == GGML_STATUS_SUCCESS) {
        return status;
    }
    gpu->computes = false;
    if (status == GGML_STATUS_ALLOC_FAILED) {
        gn_warn("%s: no memory to compute there: its experts are the CPU's from now on", tier->device.name);
    } else {
        gn_fail("%s failed to compute the experts of block %u; they are the CPU's from now on", tier->device.name,
                run->layer->block);
    }
    gn_gpu_end(gpu, run, false);
    give_up(gpu); // what it holds stays there until the model goes: a device that failed is not to be touched
    return status;
}

void gn_gpu_finish(struct gn_gpu *gpu, struct gn_moe_run *run) {
    struct gn_gpu_tier *tier = gpu->now;
    uint64_t cpu_done = gn_now_ns();
    uint32_t on_device = run->n_experts - run->n_cpu, on_cpu = run->n_cpu;
    if (gpu->computes) {
        gn_gpu_graph_finish(&tier->graph, run, &tier->device);
        gn_count(gpu_wait_ns, gn_now_ns() - cpu_done);
    }
    if (gpu->prefill) {
        on_device = run->row_start[run->n_experts] - run->row_start[run->n_cpu];
        on_cpu = run->row_start[run->n_cpu];
    }
    gn_payoff_event(gpu->prefill ? &tier->prefill : &tier->decode, cpu_done - gpu->submitted_ns, on_cpu,
                    gn_now_ns() - gpu->started_ns, on_device);
    gpu->computes = false;
}

// Has the tier take in what pays, and end when nothing does.
static void weigh(struct gn_gpu *gpu) {
    struct gn_gpu_tier *tier = gpu->now;
    tier->experts.margin = gn_payoff_margin(&tier->decode, GN_TIER_MARGIN);
    if (isinf(tier->experts.margin)) {
        gn_info("mode: %s costs more than it brings (%.2f ms for each expert more than the CPU would take): its "
                "experts are the CPU's from now on; --gpu-inserts N keeps it",
                tier->device.name, (double)-tier->decode.saved_ns / 1e6);
        give_up(gpu);
        gn_gpu_tier_close(tier);
    }
}

// What may come up: the event's experts, and, as long as there is room, what is expected of the layer. Returns how
// many.
static uint32_t list_candidates(const struct gn_gpu *gpu, const struct gn_moe_run *run) {
    const struct gn_cache *ram = gpu->stream->cache;
    uint32_t n = run->n_cpu, layer = run->layer->index;
    memcpy(gpu->candidates, run->experts, n * sizeof *gpu->candidates);
    bool room = gn_tier_has_room(&gpu->now->experts, layer);
    for (uint32_t e = 0; room && e < run->layer->n_experts; e++) {
        uint32_t entry = gn_cache_entry(ram, layer, e);
        if (run->count[e] == 0 && gn_seed_chance(gpu->stream, entry) > 0 && gn_cache_peek(ram, entry) != GN_NONE) {
            gpu->candidates[n++] = e;
        }
    }
    return n;
}

void gn_gpu_end(struct gn_gpu *gpu, const struct gn_moe_run *run, bool done) {
    if (gpu->prefill) {
        return;
    }
    struct gn_gpu_tier *tier = gpu->now;
    const struct gn_layer *layer = run->layer;
    uint32_t n = done ? list_candidates(gpu, run) : 0;
    n = gn_tier_promote(&tier->experts, gpu->stream->cache, layer->index, gpu->candidates, n, gpu->promotions);
    uint32_t class = gn_tier_class(&tier->experts, layer->index);
    for (uint32_t i = 0; i < n; i++) {
        const struct gn_promotion *promotion = &gpu->promotions[i];
        const uint8_t *slices[GN_MAX_SLICES];
        const void *parts[GN_GPU_PARTS];
        for (uint32_t s = 0; s < layer->n_slices; s++) {
            slices[s] =
                gn_slice_data(&layer->slices[s], promotion->expert, gpu->stream->slot_memory[promotion->ram_slot]);
        }
        gn_gpu_parts_of(run, promotion->expert, slices, parts);
        uint64_t start = gn_now_ns();
        gn_gpu_pool_put(&tier->pools[class], &tier->device,
                        promotion->slot - gn_cache_layout(tier->experts.cache)->classes[class].first_slot, parts);
        gn_payoff_copy(&tier->decode, gn_now_ns() - start);
    }
    gn_tier_end(&tier->experts);
    if (tier->measures && done) {
        weigh(gpu);
    }
}

size_t gn_gpu_describe(const struct gn_gpu *gpu, char *text, size_t size) {
    size_t used = 0;
    for (uint32_t t = 0; gpu && t < gpu->n_tiers; t++) {
        if (gpu->tiers[t].open && used + 2 < size) {
            used += (size_t)snprintf(text + used, size - used, "; ");
            gn_gpu_tier_describe(&gpu->tiers[t], text + used, size - used);
            used += strlen(text + used);
        }
    }
    return used;
}
