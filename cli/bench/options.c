#include "bench/options.h"

#include "config/parse.h"
#include "flags.h"
#include "io/reader.h"

#include <stddef.h>
#include <string.h>

#define AT(field) offsetof(struct bench_options, field)

static const struct flag table[] = {
    {"-m", "--model", FLAG_TEXT, AT(model), 0, 0, 0, "FILE",
     "the model, which may also stand alone; of shards any one [the demo model]"},
    {NULL, "--expert-cache", FLAG_TEXT, AT(expert_cache), 0, 0, 0, "LIST",
     "budgets for experts alone, separated by commas: shares of all experts, or sizes [10%,25%,50%,100%]"},
    {NULL, "--ram", FLAG_TEXT, AT(ram), 0, 0, 0, "LIST",
     "budgets for the whole process, separated by commas, such as 2GiB,4GiB"},
    {NULL, "--limit", FLAG_TEXT, AT(limit), 0, 0, 0, "SIZE",
     "memory limit of the mapped baseline; streamed runs are then put in a control group as well, of their budget and "
     "a little [what the middle budget comes to; streamed runs in no group]"},
    {NULL, "--no-resident", FLAG_SWITCH, AT(no_resident), 0, 0, 0, NULL,
     "leave out stock with everything in memory, both times"},
    {NULL, "--no-busy", FLAG_SWITCH, AT(no_busy), 0, 0, 0, NULL,
     "leave out stock with everything in memory while the drive has to read"},
    {NULL, "--no-mmap", FLAG_SWITCH, AT(no_mmap), 0, 0, 0, NULL, "leave out stock mapped under a memory limit"},
    {NULL, "--no-stock", FLAG_SWITCH, AT(no_stock), 0, 0, 0, NULL, "leave out all three"},
    {"-n", "--predict", FLAG_INTEGER, AT(predict), 64, 1, 1 << 20, "N", "tokens decoded against the clock [64]"},
    {NULL, "--prompt", FLAG_INTEGER, AT(prompt), 0, 0, 1 << 20, "N",
     "tokens of the prompt; 0: 512, or what the model's context leaves [0]"},
    {NULL, "--warm-up", FLAG_INTEGER, AT(warm_up), 32, 0, 1 << 20, "N",
     "tokens decoded before the clock starts, so that what is held fits the text [32]"},
    {"-r", "--repeat", FLAG_INTEGER, AT(rounds), 3, 1, 64, "N", "rounds; each runs everything once [3]"},
    {"-f", "--file", FLAG_TEXT, AT(text_file), 0, 0, 0, "FILE", "the text to decode [one of our own]"},
    {"-t", "--threads", FLAG_INTEGER, AT(threads), 0, 0, 512, "N", "threads; 0: one for each core [0]"},
    {"-ub", "--ubatch-size", FLAG_INTEGER, AT(ubatch), 512, 1, 1 << 20, "N",
     "tokens of the prompt computed at once [512]"},
    {NULL, "--seconds", FLAG_INTEGER, AT(seconds), 60, 1, 1 << 20, "N",
     "stop decoding after so long, in each run: something slow then decodes fewer tokens [60]"},
    {NULL, "--timeout", FLAG_INTEGER, AT(timeout), 1800, 1, 1 << 20, "N",
     "give one run up after so many seconds, loading included [1800]"},
    {NULL, "--json", FLAG_TEXT, AT(json), 0, 0, 0, "FILE", "write all figures of all rounds as JSON"},
    {NULL, "--csv", FLAG_TEXT, AT(csv), 0, 0, 0, "FILE", "write the table as CSV"},
    {NULL, "--svg", FLAG_TEXT, AT(svg), 0, 0, 0, "FILE", "draw tokens/s against the budget, roof and baselines in it"},
    {"-v", "--verbose", FLAG_SWITCH, AT(verbose), 0, 0, 0, NULL, "print llama.cpp's log"},
};
#define FLAGS (sizeof table / sizeof *table)

// ------------------------------------------------------------------------------------------------ budgets

static bool add_budget(struct bench_options *options, enum gn_knob knob, const char *text, char *why, size_t why_size) {
    struct gn_knobs knobs = {0};
    if (gn_knob_parse(&knobs, knob, text, gn_knob_table[knob].flag, why, why_size)) {
        return false;
    }
    if (!knobs.given[knob]) {
        snprintf(why, why_size, "%s: a benchmark needs budgets that stay, not auto; give sizes%s",
                 gn_knob_table[knob].flag, knob == GN_RAM ? "" : " or shares such as 25%");
        return false;
    }
    if (options->n_budgets == BENCH_BUDGETS) {
        snprintf(why, why_size, "%s: %d budgets at most; leave some out", gn_knob_table[knob].flag, BENCH_BUDGETS);
        return false;
    }
    options->budgets[options->n_budgets++] = (struct bench_budget){knob, knobs.value[knob]};
    return true;
}

static bool add_budgets(struct bench_options *options, enum gn_knob knob, const char *list, char *why,
                        size_t why_size) {
    while (list) {
        char text[64];
        size_t length = strcspn(list, ",");
        snprintf(text, sizeof text, "%.*s", (int)(length < sizeof text ? length : sizeof text - 1), list);
        if (!add_budget(options, knob, text, why, why_size)) {
            return false;
        }
        list = list[length] ? list + length + 1 : NULL;
    }
    return true;
}

// The lists, or one budget of the environment, or shares.
static bool find_budgets(struct bench_options *options, char *why, size_t why_size) {
    static const enum gn_knob knobs[] = {GN_EXPERT_CACHE, GN_RAM};
    if (!add_budgets(options, GN_EXPERT_CACHE, options->expert_cache, why, why_size) ||
        !add_budgets(options, GN_RAM, options->ram, why, why_size)) {
        return false;
    }
    for (int k = 0; k < 2 && options->n_budgets == 0; k++) {
        if (options->knobs.given[knobs[k]]) {
            options->budgets[options->n_budgets++] = (struct bench_budget){knobs[k], options->knobs.value[knobs[k]]};
        }
    }
    options->knobs.given[GN_RAM] = options->knobs.given[GN_EXPERT_CACHE] = false;
    return options->n_budgets > 0 || add_budgets(options, GN_EXPERT_CACHE, "10%,25%,50%,100%", why, why_size);
}

// ------------------------------------------------------------------------------------------------ parsing

static bool check(struct bench_options *options, char *why, size_t why_size) {
    options->no_resident |= options->no_stock;
    options->no_busy |= options->no_resident;
    options->no_mmap |= options->no_stock;
    if (options->knobs.value[GN_IO] == GN_READER_NULL) {
        snprintf(why, why_size, "--io null (GUANACO_IO) gives garbage, and a benchmark compares logits; give another");
        return false;
    }
    if (options->limit && (gn_parse_size(options->limit, &options->limit_bytes) || options->limit_bytes < 1)) {
        snprintf(why, why_size, "--limit: '%.40s' will not do; give a size such as 4GiB", options->limit);
        return false;
    }
    return find_budgets(options, why, why_size);
}

bool bench_options_parse(struct bench_options *options, int argc, char **argv, char *why, size_t why_size) {
    *options = (struct bench_options){0};
    struct flag_words words = {.table = table,
                               .n = FLAGS,
                               .options = options,
                               .knobs = &options->knobs,
                               .environment = true,
                               .alone = &options->model,
                               .stray = "one model at a time"};
    int parsed = flags_parse(&words, argc, argv, why, why_size);
    options->help = parsed == 1;
    return parsed == 1 || (parsed == 0 && check(options, why, why_size));
}

void bench_options_print_help(FILE *to) {
    fputs(
        "usage: guanaco bench [MODEL] [OPTION...]\n\n"
        "Measures how fast a model decodes and reads a prompt when its experts are streamed, at several budgets, and "
        "how\n"
        "far that is from what this machine could do at all. In each round it runs, one after another,\n\n"
        "  drive      reads of whole experts in random order, past the page cache: what the drive gives\n"
        "  resident   stock llama.cpp with every page of the model in memory, no repacking\n"
        "  +reads     the same while the drive has to read experts all the time\n"
        "  mmap       stock llama.cpp in a memory control group (where one can be made), its read-ahead Linux's usual "
        "128 KiB\n"
        "  streamed   guanaco, at each budget\n\n"
        "each in a process of its own, and prints medians over the rounds: what disturbs the machine for a while "
        "disturbs\n"
        "all alike. All decode the same tokens, and the bits of their logits are compared. Nothing is served from "
        "pages\n"
        "that another run has left in the page cache.\n\n"
        "The roof of a budget is the speed that no engine can pass which reads what this one read: the slower of "
        "stock's\n"
        "computing with everything resident, and the missing bytes at the drive's speed. The two can disturb each "
        "other, as on\n"
        "a virtual machine, whose drive may share its cores. The second roof, both, is therefore made of what stock "
        "computed\n"
        "and the drive gave beside each other: for as long as the missing bytes then take, computing goes at the pace "
        "beside\n"
        "reads, and after that at its own. An engine whose computing is faster than stock's, or suffers less from "
        "reads, can\n"
        "pass it.\n\n"
        "  guanaco bench                                       the demo model, a minute\n"
        "  guanaco bench model.gguf --svg speed.svg            a plot for the wall\n"
        "  guanaco bench model.gguf --ram 4GiB,8GiB --limit 4GiB --json figures.json\n"
        "  guanaco bench model.gguf --expert-cache 25% --policy lru --no-stock\n\n"
        "The table goes to standard output, progress to standard error. [Defaults in brackets.]\n\n",
        to);
    flags_print_help(table, FLAGS, to);
    fputs("\nWhat streams can also be set as for guanaco run (--policy, --io, --io-depth, --direct, --dense, ...): see "
          "there.\n",
          to);
}
