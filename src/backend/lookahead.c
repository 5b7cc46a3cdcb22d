#include "backend/lookahead.h"

#include "backend/router.h"
#include "exec/ahead.h"
#include "predict/guesses.h"
#include "stats/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Guesses for one token: the choices of its router and half as many again, as near misses often come true.
#define MORE_GUESSES(k) ((k) + (k) / 2)
#define MOST_TOKENS 4      // a batch of more uses too many experts to guess them one by one
#define HARDLY_MISSES 0.05 // experts per event: fewer are not worth a guess

// How often a guess must come true to be read. While the drive keeps up, a read in vain costs nothing but its turn;
// when computing waits for the drive, it costs its whole time. In between the bar rises with the share of time stalled.
#define LOW_BAR 0.35
#define HIGH_BAR 0.5
#define KEEPS_UP 0.1 // share of time stalled
#define HELD_UP 0.25
#define TOKENS 16.0 // over which that share is averaged

struct gn_lookahead {
    double stalled; // share of time that computing waited for reads lately
    uint64_t last_ns, last_wait_ns;
    const struct gn_stream *stream;
    struct gn_guesses *guesses;
    struct gn_router *routers; // [n_layers]
    bool *looked;              // [n_layers] whether the router was looked for
};

struct gn_lookahead *gn_lookahead_open(const struct gn_stream *stream) {
    uint32_t n = stream->map.n_layers;
    struct gn_lookahead *lookahead = calloc(1, sizeof *lookahead);
    if (!lookahead) {
        return NULL;
    }
    lookahead->stream = stream;
    lookahead->guesses = gn_guesses_open(n);
    lookahead->routers = calloc(n, sizeof *lookahead->routers);
    lookahead->looked = calloc(n, sizeof *lookahead->looked);
    if (!lookahead->guesses || !lookahead->routers || !lookahead->looked) {
        gn_lookahead_close(lookahead);
        return NULL;
    }
    return lookahead;
}

void gn_lookahead_close(struct gn_lookahead *lookahead) {
    if (lookahead) {
        gn_guesses_close(lookahead->guesses);
        free(lookahead->routers);
        free(lookahead->looked);
        free(lookahead);
    }
}

// What the layer's first product multiplies: the normed input of the layer.
static const struct gn_run_input *layer_input(const struct gn_moe_run *run) {
    const struct gn_operand *rows = &run->nodes[0].operand[1];
    bool one_row_each = rows->kind == GN_OPERAND_INPUT && run->inputs[rows->index].tensor->ne[1] == 1;
    return one_row_each ? &run->inputs[rows->index] : NULL;
}

void gn_lookahead_learn(struct gn_lookahead *lookahead, const struct gn_moe_run *run, uint32_t missed) {
    uint32_t l = run->layer->index;
    gn_guesses_check(lookahead->guesses, l, run->experts, run->n_experts, missed);
    if (lookahead->looked[l]) {
        return;
    }
    lookahead->looked[l] = true;
    struct gn_router *router = &lookahead->routers[l];
    gn_router_find(router, run->ids, run->layer->n_experts);
    const struct gn_run_input *input = layer_input(run);
    const struct ggml_type_traits_cpu *type = router->found && run->traits ? run->traits(router->type) : NULL;
    if (!type || !type->vec_dot || !input || input->tensor->ne[0] != router->width) {
        router->found = false;
    } else if (input->tensor->data != router->input->data) {
        router->norm = NULL; // it routes by something else than its experts take
    }
}

// The best n of `scores`, best first.
static void rank(const float *scores, int64_t n_experts, uint32_t n, uint32_t *best) {
    uint32_t have = 0;
    for (int64_t e = 0; e < n_experts; e++) {
        if (have == n && !(scores[e] > scores[best[n - 1]])) {
            continue;
        }
        uint32_t at = have < n ? have++ : n - 1;
        for (; at > 0 && scores[e] > scores[best[at - 1]]; at--) {
            best[at] = best[at - 1];
        }
        best[at] = (uint32_t)e;
    }
}

// Appends an expert if it is not there.
static void add_guess(uint32_t *guesses, uint32_t *n, uint32_t expert) {
    for (uint32_t i = 0; i < *n; i++) {
        if (guesses[i] == expert) {
            return;
        }
    }
    if (*n < GN_GUESSES) {
        guesses[(*n)++] = expert;
    }
}

// The layer's input as the next layer's norm would have made it.
static void renorm(const struct gn_router *from, const struct gn_router *to, const float *input, float *renormed) {
    for (int64_t i = 0; i < to->width; i++) {
        renormed[i] = from->norm[i] != 0 ? input[i] / from->norm[i] * to->norm[i] : 0;
    }
}

static uint32_t guess(const struct gn_lookahead *lookahead, const struct gn_moe_run *run, struct gn_scratch *scratch,
                      uint32_t next, uint32_t guesses[GN_GUESSES]) {
    const struct gn_router *from = &lookahead->routers[run->layer->index], *to = &lookahead->routers[next];
    const struct gn_run_input *input = layer_input(run);
    uint32_t each = (uint32_t)MORE_GUESSES(run->n_used), best[MOST_TOKENS][GN_GUESSES] = {{0}};
    each = each < GN_GUESSES ? each : GN_GUESSES;
    each = each < (uint32_t)to->n_experts ? each : (uint32_t)to->n_experts;
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
        rank(scores, to->n_experts, each, best[token]);
    }
    uint32_t n = 0;
    for (uint32_t r = 0; r < each; r++) {
        for (int64_t token = 0; token < run->n_tokens; token++) {
            add_guess(guesses, &n, best[token][r]);
        }
    }
    return n;
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

static double bar(const struct gn_lookahead *lookahead) {
    double held_up = (lookahead->stalled - KEEPS_UP) / (HELD_UP - KEEPS_UP);
    return LOW_BAR + (HIGH_BAR - LOW_BAR) * fmin(fmax(held_up, 0), 1);
}

void gn_lookahead_plan(struct gn_lookahead *lookahead, const struct gn_moe_run *run, struct gn_scratch *scratch) {
    uint32_t next = run->layer->index + 1;
    if (run->layer->index == 0) {
        note_stall(lookahead);
    }
    if (next >= lookahead->stream->map.n_layers || run->n_tokens > MOST_TOKENS || !lookahead->routers[next].found ||
        !lookahead->routers[run->layer->index].found ||
        lookahead->routers[next].width != lookahead->routers[run->layer->index].width ||
        gn_guesses_misses(lookahead->guesses, next) < HARDLY_MISSES) {
        return;
    }
    uint32_t guesses[GN_GUESSES], n = guess(lookahead, run, scratch, next, guesses);
    gn_guesses_note(lookahead->guesses, next, guesses, n);
    n = gn_guesses_worth(lookahead->guesses, next, bar(lookahead), guesses);
    gn_ahead_plan(run->stream, run->stream->map.layers[next], guesses, n);
}
