#include "backend/lookahead.h"

#include "backend/router.h"
#include "exec/ahead.h"
#include "predict/guesses.h"
#include "predict/pilot.h"
#include "predict/rank.h"
#include "predict/trial.h"
#include "stats/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// How often guesses are thought to come true before there is experience.
#define TRUST_ROUTER 0.75 // it has the model's own weights

#define RETRY 16         // batches from one run of a router to the next, where PILOT brings more
#define CLEARLY_MORE 1.1 // PILOT is to bring, to be changed for: running a router costs, but changing brings nothing

// Between these shares of time stalled, the bar for guesses rises from the low one to the high one.
#define KEEPS_UP 0.1
#define HELD_UP 0.25
#define TOKENS 16.0 // over which that share is averaged

struct gn_lookahead {
    const struct gn_stream *stream;
    uint32_t n_layers;
    double stalled; // share of time that computing waited for reads lately
    uint64_t last_ns, last_wait_ns;
    struct gn_router *routers; // [n_layers]; NULL: not to be used
    bool *looked;              // [n_layers] whether the router was looked for
    struct gn_pilot *pilot;    // NULL: not to be used
    struct gn_guesses *guesses[GN_SOURCES];
    struct gn_trial trial; // with --prefetch auto
    uint64_t batch_ns;     // when the batch began; 0: it has ended
    int64_t n_tokens;      // of the batch
    uint64_t batches;
};

static bool open_pilot(struct gn_lookahead *lookahead, const struct gn_stream *stream) {
    uint32_t *n_experts = calloc(lookahead->n_layers, sizeof *n_experts);
    for (uint32_t l = 0; n_experts && l < lookahead->n_layers; l++) {
        n_experts[l] = stream->map.layers[l]->n_experts;
    }
    lookahead->pilot = n_experts ? gn_pilot_open(lookahead->n_layers, n_experts) : NULL;
    free(n_experts);
    return lookahead->pilot;
}

struct gn_lookahead *gn_lookahead_open(const struct gn_stream *stream) {
    struct gn_lookahead *lookahead = calloc(1, sizeof *lookahead);
    if (!lookahead) {
        return NULL;
    }
    uint32_t n = stream->map.n_layers;
    lookahead->stream = stream;
    lookahead->n_layers = n;
    gn_trial_begin(&lookahead->trial);
    bool good = true;
    for (int s = 0; s < GN_SOURCES; s++) {
        lookahead->guesses[s] = gn_guesses_open(n, s == GN_SOURCE_ROUTER ? TRUST_ROUTER : GN_PILOT_TRUST);
        good = good && lookahead->guesses[s];
    }
    if (stream->prefetch != GN_PREFETCH_PILOT) {
        lookahead->routers = calloc(n, sizeof *lookahead->routers);
        lookahead->looked = calloc(n, sizeof *lookahead->looked);
        good = good && lookahead->routers && lookahead->looked;
    }
    if (stream->prefetch != GN_PREFETCH_ROUTER) {
        good = good && open_pilot(lookahead, stream);
    }
    if (!good) {
        gn_lookahead_close(lookahead);
        return NULL;
    }
    return lookahead;
}

void gn_lookahead_close(struct gn_lookahead *lookahead) {
    if (lookahead) {
        for (int s = 0; s < GN_SOURCES; s++) {
            gn_guesses_close(lookahead->guesses[s]);
        }
        gn_pilot_close(lookahead->pilot);
        free(lookahead->routers);
        free(lookahead->looked);
        free(lookahead);
    }
}

// ------------------------------------------------------------------------------------------------- learning

// What the layer's first product multiplies: the normed input of the layer.
static const struct gn_run_input *layer_input(const struct gn_moe_run *run) {
    const struct gn_operand *rows = &run->nodes[0].operand[1];
    bool one_row_each = rows->kind == GN_OPERAND_INPUT && run->inputs[rows->index].tensor->ne[1] == 1;
    return one_row_each ? &run->inputs[rows->index] : NULL;
}

static void look_for_router(struct gn_router *router, const struct gn_moe_run *run) {
    gn_router_find(router, run->ids, run->layer->n_experts);
    const struct gn_run_input *input = layer_input(run);
    const struct ggml_type_traits_cpu *type = router->found && run->traits ? run->traits(router->type) : NULL;
    if (!type || !type->vec_dot || !input || input->tensor->ne[0] != router->width) {
        router->found = false;
    } else if (input->tensor->data != router->input->data) {
        router->norm = NULL; // it routes by something else than its experts take
    }
}

// Once a token: how much of the time since the last one was spent waiting for reads.
static void note_stall(struct gn_lookahead *lookahead) {
    uint64_t now = gn_now_ns(), wait = atomic_load_explicit(&gn_stats.io_wait_ns, memory_order_relaxed);
    if (lookahead->last_ns > 0 && now > lookahead->last_ns) {
        double share = (double)(wait - lookahead->last_wait_ns) / (double)(now - lookahead->last_ns);
        lookahead->stalled += (fmin(share, 1) - lookahead->stalled) / TOKENS;
    }
    lookahead->last_ns = now;
    lookahead->last_wait_ns = wait;
}

// A batch begins with its first layer. With --prefetch auto its time, up to where its last layer begins, goes into the
// trial, of which the batch to come is then a part.
static void begin_batch(struct gn_lookahead *lookahead, const struct gn_moe_run *run) {
    note_stall(lookahead);
    lookahead->batches++;
    if (lookahead->n_tokens != run->n_tokens) { // takes another time for itself
        gn_trial_disturb(&lookahead->trial);
    }
    lookahead->n_tokens = run->n_tokens;
    lookahead->batch_ns = gn_now_ns();
}

static void end_batch(struct gn_lookahead *lookahead, const struct gn_moe_run *run) {
    if (lookahead->stream->prefetch == GN_PREFETCH_AUTO && lookahead->n_layers > 1) {
        gn_trial_step(&lookahead->trial, lookahead->batch_ns ? (double)(gn_now_ns() - lookahead->batch_ns) : 0);
        run->stream->ahead.gain = gn_trial_gain(&lookahead->trial);
    }
    lookahead->batch_ns = 0;
}

static void follow_batch(struct gn_lookahead *lookahead, const struct gn_moe_run *run) {
    if (run->layer->index == 0) {
        begin_batch(lookahead, run);
    }
    if (run->layer->index + 1 == lookahead->n_layers) {
        end_batch(lookahead, run);
    }
}

// After the last layer comes the first, of the next token.
static uint32_t layer_after(const struct gn_lookahead *lookahead, uint32_t layer) {
    return layer + 1 < lookahead->n_layers ? layer + 1 : 0;
}

// What was guessed for the layer, and whether it is so; nothing is guessed for the next one yet.
static void check_guesses(const struct gn_lookahead *lookahead, const struct gn_moe_run *run, uint32_t missed) {
    uint32_t l = run->layer->index;
    for (int s = 0; s < GN_SOURCES; s++) {
        struct gn_guesses_figures now =
            gn_guesses_check(lookahead->guesses[s], l, run->experts, run->n_experts, missed);
        gn_ahead_count_guesses(run->stream, run->layer, (enum gn_source)s, now.used, now.foreseen);
        gn_guesses_forget(lookahead->guesses[s], layer_after(lookahead, l));
    }
}

void gn_lookahead_learn(struct gn_lookahead *lookahead, const struct gn_moe_run *run, uint32_t missed, bool prefill) {
    uint32_t l = run->layer->index;
    if (!prefill) {
        follow_batch(lookahead, run);
        check_guesses(lookahead, run, missed);
    }
    if (lookahead->pilot) {
        struct gn_pilot_batch batch = {
            .ids = run->ids->data,
            .choice_stride = run->ids->nb[0],
            .token_stride = run->ids->nb[1],
            .n_used = (uint32_t)run->n_used,
            .n_tokens = (uint32_t)run->n_tokens,
        };
        gn_pilot_see(lookahead->pilot, l, &batch);
    }
    if (lookahead->routers && !lookahead->looked[l] && !prefill) {
        lookahead->looked[l] = true;
        look_for_router(&lookahead->routers[l], run);
    }
}

// ------------------------------------------------------------------------------------------------- guessing

// The layer's input as the next layer's norm would have made it.
static void renorm(const struct gn_router *from, const struct gn_router *to, const float *input, float *renormed) {
    for (int64_t i = 0; i < to->width; i++) {
        renormed[i] = from->norm[i] != 0 ? input[i] / from->norm[i] * to->norm[i] : 0;
    }
}

// The experts that the next layer's router would choose, each token's best first.
static uint32_t ask_router(const struct gn_lookahead *lookahead, const struct gn_moe_run *run,
                           struct gn_scratch *scratch, uint32_t each, uint32_t guesses[GN_GUESSES]) {
    const struct gn_router *from = &lookahead->routers[run->layer->index], *to = from + 1;
    const struct gn_run_input *input = layer_input(run);
    uint32_t best[GN_PILOT_TOKENS][GN_GUESSES], n_best[GN_PILOT_TOKENS] = {0};
    size_t floats = (size_t)(to->width + to->n_experts);
    float *renormed =
        gn_scratch_get(scratch, GN_SCRATCH_GUESS, floats * sizeof(float) + gn_router_scratch(to, run->traits) + 64);
    if (!input || !renormed) {
        return 0;
    }
    float *scores = renormed + to->width;
    for (int64_t token = 0; token < run->n_tokens; token++) {
        const float *row = (const float *)(input->data + (size_t)token * input->tensor->nb[2]);
        if (from->norm && to->norm) {
            renorm(from, to, row, renormed);
            row = renormed;
        }
        gn_router_score(to, run->traits, row, scores, scores + to->n_experts);
        n_best[token] = gn_rank(scores, (uint32_t)to->n_experts, each, best[token]);
    }
    uint32_t n = 0;
    for (uint32_t r = 0; r < each; r++) {
        for (int64_t token = 0; token < run->n_tokens; token++) {
            if (r < n_best[token]) {
                gn_rank_add(guesses, &n, GN_GUESSES, best[token][r]);
            }
        }
    }
    return n;
}

// Whether the layer's and the next one's router are known, and can be compared.
static bool has_routers(const struct gn_lookahead *lookahead, uint32_t layer) {
    if (!lookahead->routers || layer + 1 >= lookahead->n_layers) {
        return false;
    }
    const struct gn_router *from = &lookahead->routers[layer], *to = from + 1;
    return from->found && to->found && from->width == to->width;
}

// Notes one source's guesses for the layer.
static void note(const struct gn_lookahead *lookahead, enum gn_source source, uint32_t layer, const uint32_t *guesses,
                 uint32_t n, double bar) {
    const struct gn_stream *stream = lookahead->stream;
    uint32_t missing = 0;
    for (uint32_t i = 0; i < n; i++) {
        bool there = gn_cache_peek(stream->cache, gn_cache_entry(stream->cache, layer, guesses[i])) != GN_NONE ||
                     gn_stream_held_above(stream, layer, guesses[i]);
        missing |= (uint32_t)!there << i;
    }
    gn_guesses_note(lookahead->guesses[source], layer, guesses, n, missing, bar);
}

static double bar(const struct gn_lookahead *lookahead) {
    double held_up = (lookahead->stalled - KEEPS_UP) / (HELD_UP - KEEPS_UP);
    return GN_GUESS_LOW_BAR + (GN_GUESS_HIGH_BAR - GN_GUESS_LOW_BAR) * fmin(fmax(held_up, 0), 1);
}

// Has the sources guess the next layer. Returns the one to go by.
static enum gn_source guess(const struct gn_lookahead *lookahead, const struct gn_moe_run *run,
                            struct gn_scratch *scratch, uint32_t next) {
    uint32_t each = (uint32_t)GN_GUESSES_FOR(run->n_used), guesses[GN_GUESSES];
    each = each < GN_GUESSES ? each : GN_GUESSES;
    double router_brings = gn_guesses_value(lookahead->guesses[GN_SOURCE_ROUTER], next);
    double pilot_brings = gn_guesses_value(lookahead->guesses[GN_SOURCE_PILOT], next);
    bool has_router = has_routers(lookahead, run->layer->index);
    bool by_pilot = lookahead->pilot && (!has_router || pilot_brings > fmax(router_brings, 0) * CLEARLY_MORE);
    if (has_router && (!by_pilot || lookahead->batches % RETRY == 0)) {
        uint32_t n = ask_router(lookahead, run, scratch, each, guesses);
        note(lookahead, GN_SOURCE_ROUTER, next, guesses, n, bar(lookahead));
    }
    if (lookahead->pilot) {
        double mass = lookahead->stream->pilot_mass;
        uint32_t n = gn_pilot_guess(lookahead->pilot, mass, each, guesses, GN_GUESSES);
        note(lookahead, GN_SOURCE_PILOT, next, guesses, n, bar(lookahead));
    }
    return by_pilot ? GN_SOURCE_PILOT : GN_SOURCE_ROUTER;
}

// Whether this batch is to be read ahead of, as far as the trial says.
static bool is_tried(const struct gn_lookahead *lookahead) {
    return lookahead->stream->prefetch != GN_PREFETCH_AUTO || gn_trial_with(&lookahead->trial);
}

void gn_lookahead_plan(struct gn_lookahead *lookahead, const struct gn_moe_run *run, struct gn_scratch *scratch) {
    uint32_t next = layer_after(lookahead, run->layer->index);
    if (!is_tried(lookahead) || run->n_tokens > GN_PILOT_TOKENS ||
        gn_guesses_misses(lookahead->guesses[GN_SOURCE_ROUTER], next) < GN_HARDLY_MISSES) {
        return;
    }
    enum gn_source source = guess(lookahead, run, scratch, next);
    uint32_t guesses[GN_GUESSES], n = gn_guesses_worth(lookahead->guesses[source], next, guesses);
    gn_ahead_plan(run->stream, run->stream->map.layers[next], guesses, n, source);
}
