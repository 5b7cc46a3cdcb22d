#include "exec/tracer.h"

#include "config/log.h"
#include "trace/trace.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gn_tracer {
    char *path;
    struct gn_trace_writer *writer; // NULL: writing has failed
    uint32_t n_layers;
    uint64_t *seen; // [most experts of any layer] the last event that used it
    uint64_t events;
    // The batch that runs, from its first layer on.
    uint32_t layer, n_tokens, turn, step;
    bool prefill;
};

static void report(const struct gn_tracer *tracer, int error) {
    gn_error("cannot write the trace %s: %s; it ends here, the run goes on", tracer->path, strerror(-error));
}

void gn_tracer_close(struct gn_tracer *tracer) {
    if (!tracer) {
        return;
    }
    int failed = tracer->writer ? gn_trace_writer_close(tracer->writer) : 0;
    if (failed) {
        report(tracer, failed);
    }
    free(tracer->path);
    free(tracer->seen);
    free(tracer);
}

void gn_tracer_forked(struct gn_tracer *tracer) {
    if (tracer && tracer->writer) {
        gn_trace_writer_forked(tracer->writer);
    }
}

static bool blocks_are_single(const struct gn_expert_map *map) {
    for (uint32_t l = 1; l < map->n_layers; l++) {
        if (map->layers[l]->block == map->layers[l - 1]->block) {
            return false;
        }
    }
    return true;
}

// The header of a trace. Layers are numbered by block, or, if a block has two sets of experts, counted.
static int fill_header(const struct gn_expert_map *map, const struct gn_tracer_model *model, struct gn_trace *header) {
    header->layers = calloc(map->n_layers, sizeof *header->layers);
    if (!header->layers) {
        return -ENOMEM;
    }
    snprintf(header->model, sizeof header->model, "%s", model->path);
    snprintf(header->architecture, sizeof header->architecture, "%s",
             *model->architecture ? model->architecture : "unknown");
    bool single = blocks_are_single(map);
    header->n_layers = map->n_layers;
    for (uint32_t l = 0; l < map->n_layers; l++) {
        const struct gn_layer *layer = map->layers[l];
        header->layers[l] = (struct gn_trace_layer){.number = single ? layer->block : l,
                                                    .n_experts = layer->n_experts,
                                                    .expert_bytes = layer->expert_bytes,
                                                    .slot_bytes = layer->slot_bytes};
        header->n_experts = layer->n_experts > header->n_experts ? layer->n_experts : header->n_experts;
    }
    header->model_layers = model->layers;
    header->top_k = model->top_k < header->n_experts ? model->top_k : header->n_experts;
    return 0;
}

static int open_writer(struct gn_tracer *tracer, const char *path, const struct gn_expert_map *map,
                       const struct gn_tracer_model *model) {
    struct gn_trace header = {0};
    int failed = fill_header(map, model, &header);
    if (!failed) {
        tracer->seen = calloc(header.n_experts, sizeof *tracer->seen);
        failed = tracer->seen ? gn_trace_writer_open(path, &header, &tracer->writer) : -ENOMEM;
    }
    free(header.layers);
    return failed;
}

int gn_tracer_open(const char *path, const struct gn_expert_map *map, const struct gn_tracer_model *model,
                   struct gn_tracer **out) {
    static atomic_flag one_a_process = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&one_a_process)) {
        return -EBUSY;
    }
    struct gn_tracer *tracer = calloc(1, sizeof *tracer);
    int failed = -ENOMEM;
    if (tracer) {
        tracer->n_layers = map->n_layers;
        tracer->path = strdup(path);
        failed = tracer->path ? open_writer(tracer, path, map, model) : -ENOMEM;
    }
    if (failed) {
        gn_tracer_close(tracer);
        atomic_flag_clear(&one_a_process);
        return failed;
    }
    *out = tracer;
    return 0;
}

// A layer that is not further on than the last one begins a batch. What the batch is shows in its first layer: the last
// one may be run for the tokens alone whose logits are wanted. (Of a model with a single layer, a prompt in several
// batches would look like one event: each begins a turn.)
static void place(struct gn_tracer *tracer, const struct gn_routing *routing) {
    if (tracer->events > 0 && routing->layer->index > tracer->layer) {
        tracer->layer = routing->layer->index;
        return;
    }
    bool new_turn = routing->prefill && tracer->events > 0 && (!tracer->prefill || tracer->n_layers == 1);
    tracer->step = new_turn ? 0 : tracer->step + tracer->n_tokens;
    tracer->turn += new_turn;
    tracer->layer = routing->layer->index;
    tracer->n_tokens = routing->n_tokens;
    tracer->prefill = routing->prefill;
}

static int add_rows(struct gn_tracer *tracer, const struct gn_cache *cache, const struct gn_routing *routing) {
    const struct gn_layer *layer = routing->layer;
    uint32_t left_out = tracer->n_tokens > routing->n_tokens ? tracer->n_tokens - routing->n_tokens : 0;
    struct gn_trace_row row = {.turn = tracer->turn, .layer = layer->index, .decode = !routing->prefill};
    for (uint32_t token = 0; token < routing->n_tokens; token++) {
        row.step = tracer->step + (routing->prefill ? left_out + token : 0);
        for (uint32_t k = 0; k < routing->n_used; k++) {
            int32_t expert;
            memcpy(&expert, (const char *)routing->ids + k * routing->choice_stride + token * routing->token_stride,
                   sizeof expert);
            row.slot = k;
            row.expert = (uint32_t)expert;
            row.residency = gn_cache_peek(cache, gn_cache_entry(cache, layer->index, row.expert)) != GN_NONE;
            bool first = tracer->seen[row.expert] != tracer->events;
            tracer->seen[row.expert] = tracer->events;
            row.bytes = first && row.residency == 0 ? layer->expert_bytes : 0;
            int failed = gn_trace_writer_add(tracer->writer, &row);
            if (failed) {
                return failed;
            }
        }
    }
    return 0;
}

void gn_tracer_add(struct gn_tracer *tracer, const struct gn_cache *cache, const struct gn_routing *routing) {
    if (!tracer || !tracer->writer) {
        return;
    }
    place(tracer, routing);
    tracer->events++;
    int failed = add_rows(tracer, cache, routing);
    if (!failed && routing->layer->index + 1 == tracer->n_layers) { // a process that is killed has written its tokens
        failed = gn_trace_writer_flush(tracer->writer);
    }
    if (failed) {
        report(tracer, failed);
        gn_trace_writer_close(tracer->writer);
        tracer->writer = NULL;
    }
}
