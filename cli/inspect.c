// guanaco inspect: what a model's experts look like, and how far a budget goes.
#include "cli.h"
#include "engine.h"
#include "flags.h"
#include "json.h"
#include "log_filter.h"
#include "model_file.h"
#include "plan.h"

#include "cache/cache.h"
#include "config/log.h"
#include "config/printable.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct budget_line {
    char name[32];
    uint64_t bytes, slots;
    double share; // of all experts
};

struct facts {
    struct model_file model;
    uint64_t cycle, all_slots, experts;
    struct budget_line budgets[8];
    int n_budgets;
    int64_t context; // 0: memory is not measured
    struct measured measured;
};

struct request {
    const char *path;
    int64_t context;
    bool json;
};

static const struct flag table[] = {
    {"-c", "--context", FLAG_INTEGER, offsetof(struct request, context), 0, 1, 1 << 24, "N",
     "also tell how much memory a run with a context of N tokens needs"},
    {NULL, "--json", FLAG_SWITCH, offsetof(struct request, json), 0, 0, 0, NULL, "print JSON"},
};
#define OPTIONS (sizeof table / sizeof *table)

static void print_usage(FILE *to) {
    fputs(
        "usage: guanaco inspect [MODEL] [OPTION...]\n\n"
        "Shows a model's experts, their sizes, and what a budget would hold. Reads the header alone. MODEL is a .gguf "
        "file,\n"
        "of a model in shards any one; the demo model, if none is given.\n\n"
        "  guanaco inspect\n"
        "  guanaco inspect model.gguf --context 8192\n\n",
        to);
    flags_print_help(table, OPTIONS, to);
}

static uint64_t slots_within(const struct model_file *model, uint64_t budget) {
    struct gn_cache_layer *layers = calloc(model->n_layers, sizeof *layers);
    struct gn_cache *cache = NULL;
    uint64_t slots = 0;
    if (layers) {
        for (uint32_t l = 0; l < model->n_layers; l++) {
            layers[l] = (struct gn_cache_layer){.n_experts = model->layers[l].n_experts,
                                                .slot_bytes = model->layers[l].slot_bytes};
        }
        struct gn_cache_options options = {
            .layers = layers, .n_layers = model->n_layers, .budget = budget, .policy = gn_policies[0]};
        if (gn_cache_open(&options, &cache) == 0) {
            slots = gn_cache_slots(cache);
        }
    }
    gn_cache_close(cache);
    free(layers);
    return slots;
}

static void add_budgets(struct facts *facts, const char *of, uint64_t whole) {
    for (uint64_t percent = 25; percent <= 100; percent += 25) {
        struct budget_line *line = &facts->budgets[facts->n_budgets++];
        snprintf(line->name, sizeof line->name, "%" PRIu64 " %% of %s", percent, of);
        line->bytes = (uint64_t)((double)whole * (double)percent / 100);
        line->slots = slots_within(&facts->model, line->bytes);
        line->share = (double)line->slots / (double)facts->experts;
    }
}

static void find_facts(struct facts *facts) {
    const struct model_file *model = &facts->model;
    for (uint32_t l = 0; l < model->n_layers; l++) {
        facts->experts += model->layers[l].n_experts;
    }
    facts->cycle = model_token_cycle(model);
    facts->all_slots = model_all_slots(model);
    if (facts->experts > 0) {
        add_budgets(facts, "T", facts->cycle);
        add_budgets(facts, "all", facts->all_slots);
    }
}

// ------------------------------------------------------------------------------------------------ text

static bool same_experts(const struct model_layer *a, const struct model_layer *b) {
    if (a->n_experts != b->n_experts || a->expert_bytes != b->expert_bytes || a->n_slices != b->n_slices ||
        a->chunk != b->chunk) {
        return false;
    }
    for (uint32_t s = 0; s < a->n_slices; s++) {
        if (strcmp(a->slice[s], b->slice[s]) != 0 || strcmp(a->type[s], b->type[s]) != 0) {
            return false;
        }
    }
    return true;
}

static void print_layers(const struct model_file *model) {
    char bytes[32];
    puts("\none expert");
    for (uint32_t first = 0, last; first < model->n_layers; first = last + 1) {
        const struct model_layer *layer = &model->layers[first];
        for (last = first; last + 1 < model->n_layers && same_experts(layer, &model->layers[last + 1]); last++) {
        }
        char range[32];
        snprintf(range, sizeof range, first == last ? "layer %u" : "layers %u-%u", layer->block,
                 model->layers[last].block);
        printf("  %-16s %-10s %u experts%s:", range, gn_format_bytes(layer->expert_bytes, bytes), layer->n_experts,
               layer->chunk ? " (second set)" : "");
        for (uint32_t s = 0; s < layer->n_slices; s++) {
            fputs(s ? ", " : " ", stdout);
            gn_put_printable(layer->slice[s], stdout);
            printf(" %s", layer->type[s]);
        }
        putchar('\n');
    }
}

static void print_budgets(const struct facts *facts) {
    char bytes[32];
    printf("\ntoken cycle T      %s: what a token reads when nothing is held (%" PRIu64
           " experts in each of %u layers)\n",
           gn_format_bytes(facts->cycle, bytes), facts->model.top_k, facts->model.n_layers);
    puts("\nmemory for experts               slots   share held");
    for (int b = 0; b < facts->n_budgets; b++) {
        const struct budget_line *line = &facts->budgets[b];
        printf("  %-14s %10s %8" PRIu64 " %10.1f %%\n", line->name, gn_format_bytes(line->bytes, bytes), line->slots,
               100 * line->share);
    }
}

static void print_memory(const struct facts *facts) {
    char bytes[32];
    const struct measured *measured = &facts->measured;
    printf("\nmemory for a run with a context of %" PRId64 " tokens\n", facts->context);
    printf("  dense weights    %s\n", gn_format_bytes(facts->model.dense_bytes, bytes));
    printf("  KV cache         %s\n", gn_format_bytes(measured->kv, bytes));
    printf("  compute buffers  %s\n", gn_format_bytes(measured->compute, bytes));
    printf("  the program      %s\n", gn_format_bytes(measured->overhead, bytes));
    if (facts->experts > 0) {
        printf("  2 experts        %s\n", gn_format_bytes(2 * model_largest_slot(&facts->model), bytes));
        printf("  least --ram      %s\n", gn_format_bytes(plan_least(&facts->model, measured), bytes));
    }
}

// A line with what a file says.
static void print_line(const char *label, const char *text) {
    fputs(label, stdout);
    gn_put_printable(text, stdout);
    putchar('\n');
}

static void print_text(const struct facts *facts) {
    const struct model_file *model = &facts->model;
    char bytes[32];
    print_line("", model->shards[0]);
    print_line("  name             ", model->name[0] ? model->name : "(none)");
    print_line("  architecture     ", model->architecture);
    printf("  layers           %" PRIu64 ", %u with experts\n", model->blocks, model->n_layers);
    if (facts->experts > 0) {
        printf("  experts          %" PRIu64 " a layer, %" PRIu64 " used by each token\n", model->experts,
               model->top_k);
    }
    printf("  trained context  %" PRIu64 " tokens\n", model->context);
    printf("  files            %u %s, %s\n", model->n_shards, model->n_shards == 1 ? "file" : "shards",
           gn_format_bytes(model->file_bytes, bytes));
    printf("  dense weights    %s\n", gn_format_bytes(model->dense_bytes, bytes));
    printf("  all experts      %s\n", gn_format_bytes(model->expert_bytes, bytes));
    if (facts->experts == 0) {
        puts("\nno experts: nothing would be streamed; guanaco runs this model as llama.cpp does");
    } else {
        print_layers(model);
        print_budgets(facts);
    }
    if (facts->context > 0) {
        print_memory(facts);
    }
}

// ------------------------------------------------------------------------------------------------ JSON

static void write_layer(struct json *json, const struct model_layer *layer) {
    json_open(json, NULL, '{');
    json_integer(json, "layer", layer->block);
    json_string(json, "set", layer->chunk ? "chexps" : "exps");
    json_integer(json, "experts", layer->n_experts);
    json_integer(json, "expert_bytes", layer->expert_bytes);
    json_integer(json, "slot_bytes", layer->slot_bytes);
    json_open(json, "types", '{');
    for (uint32_t s = 0; s < layer->n_slices; s++) {
        json_string(json, layer->slice[s], layer->type[s]);
    }
    json_close(json, '}');
    json_close(json, '}');
}

static void write_lists(struct json *json, const struct facts *facts) {
    json_open(json, "shards", '[');
    for (uint32_t s = 0; s < facts->model.n_shards; s++) {
        json_string(json, NULL, facts->model.shards[s]);
    }
    json_close(json, ']');
    json_open(json, "expert_layers", '[');
    for (uint32_t l = 0; l < facts->model.n_layers; l++) {
        write_layer(json, &facts->model.layers[l]);
    }
    json_close(json, ']');
    json_open(json, "budgets", '[');
    for (int b = 0; b < facts->n_budgets; b++) {
        json_open(json, NULL, '{');
        json_string(json, "budget", facts->budgets[b].name);
        json_integer(json, "bytes", facts->budgets[b].bytes);
        json_integer(json, "slots", facts->budgets[b].slots);
        json_number(json, "share", facts->budgets[b].share);
        json_close(json, '}');
    }
    json_close(json, ']');
}

static void print_json(const struct facts *facts) {
    const struct model_file *model = &facts->model;
    struct json json = {.to = stdout};
    json_open(&json, NULL, '{');
    json_string(&json, "name", model->name);
    json_string(&json, "architecture", model->architecture);
    json_integer(&json, "layers", model->blocks);
    json_integer(&json, "layers_with_experts", model->n_layers);
    json_integer(&json, "experts", model->experts);
    json_integer(&json, "top_k", model->top_k);
    json_integer(&json, "trained_context", model->context);
    json_integer(&json, "tensors", model->n_tensors);
    json_integer(&json, "file_bytes", model->file_bytes);
    json_integer(&json, "dense_bytes", model->dense_bytes);
    json_integer(&json, "expert_bytes", model->expert_bytes);
    json_integer(&json, "token_cycle_bytes", facts->cycle);
    write_lists(&json, facts);
    if (facts->context > 0) {
        json_open(&json, "memory", '{');
        json_integer(&json, "context", (uint64_t)facts->context);
        json_integer(&json, "kv_bytes", facts->measured.kv);
        json_integer(&json, "compute_bytes", facts->measured.compute);
        json_integer(&json, "program_bytes", facts->measured.overhead);
        json_integer(&json, "least_ram_bytes", plan_least(model, &facts->measured));
        json_close(&json, '}');
    }
    json_close(&json, '}');
}

// ------------------------------------------------------------------------------------------------ command

static bool measure(struct facts *facts, char *why, size_t why_size) {
    struct llama_model_params model_params = llama_model_default_params();
    struct llama_context_params context_params = llama_context_default_params();
    char plugin[PATH_MAX];
    bool streamed = facts->experts > 0 && engine_find_plugin(plugin, sizeof plugin, why, why_size);
    model_params.n_gpu_layers = 0;
    model_params.use_extra_bufts = false;
    context_params.n_ctx = (uint32_t)facts->context;
    context_params.n_outputs_max = 1;
    return plan_measure(&facts->model, &model_params, &context_params, streamed ? plugin : NULL, false,
                        &facts->measured, why, why_size);
}

int command_inspect(int argc, char **argv) {
    static struct facts facts; // too large for a stack
    struct request request = {0};
    facts = (struct facts){0};
    struct flag_words words = {
        .table = table, .n = OPTIONS, .options = &request, .alone = &request.path, .stray = "one model at a time"};
    char why[1024];
    int parsed = flags_parse(&words, argc, argv, why, sizeof why);
    if (parsed == 1) {
        print_usage(stdout);
        return EXIT_OK;
    }
    const char *path = request.path ? request.path : demo_model();
    if (parsed == 0 && !path) {
        snprintf(why, sizeof why, "the demo model is not there; name a .gguf file");
    }
    if (parsed < 0 || !path) {
        gn_error("%s", why);
        return EXIT_USAGE;
    }
    facts.context = request.context;
    log_filter_install(false);
    bool good = model_file_open(path, &facts.model, why, sizeof why);
    if (good) {
        find_facts(&facts);
        good = facts.context == 0 || measure(&facts, why, sizeof why);
    }
    if (!good) {
        gn_error("%s", why);
    } else if (request.json) {
        print_json(&facts);
    } else {
        print_text(&facts);
    }
    model_file_close(&facts.model);
    return good ? EXIT_OK : EXIT_FAILED;
}
