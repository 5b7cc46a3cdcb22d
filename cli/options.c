#include "options.h"

#include "flags.h"

#include <stddef.h>

#define AT(field) offsetof(struct options, field)

static const struct flag table[] = {
    {"-m", "--model", FLAG_TEXT, AT(model), 0, 0, 0, "FILE",
     "the model, a .gguf file; of shards any one [the demo model]"},
    {"-p", "--prompt", FLAG_TEXT, AT(prompt), 0, 0, 0, "TEXT",
     "what to continue; - reads standard input [ask at a prompt]"},
    {"-f", "--file", FLAG_TEXT, AT(prompt_file), 0, 0, 0, "FILE", "read the prompt from a file"},
    {"-n", "--predict", FLAG_INTEGER, AT(predict), -1, -1, 1 << 30, "N",
     "tokens to generate at most; -1: until the end [-1]"},
    {"-c", "--ctx-size", FLAG_INTEGER, AT(context), 0, 0, 1 << 24, "N",
     "tokens of context; 0: what the model was trained for, at most 4096 [0]"},
    {NULL, "--chat", FLAG_SWITCH, AT(chat), 0, 0, 0, NULL, "talk: wrap prompts in the model's chat template"},
    {NULL, "--temp", FLAG_DECIMAL, AT(temperature), 0.8, 0, 100, "F",
     "temperature; 0 always takes the likeliest token [0.8]"},
    {NULL, "--top-k", FLAG_INTEGER, AT(top_k), 40, 0, 1 << 24, "N", "choose among the N likeliest tokens; 0: all [40]"},
    {NULL, "--top-p", FLAG_DECIMAL, AT(top_p), 0.95, 0, 1, "F",
     "choose among tokens that make up this probability; 1: all [0.95]"},
    {NULL, "--min-p", FLAG_DECIMAL, AT(min_p), 0.05, 0, 1, "F",
     "drop tokens below this share of the likeliest one's probability; 0: none [0.05]"},
    {NULL, "--repeat-penalty", FLAG_DECIMAL, AT(repeat_penalty), 1, 0.001, 100, "F",
     "make repetition less likely; 1: no [1]"},
    {NULL, "--repeat-last-n", FLAG_INTEGER, AT(repeat_last), 64, 0, 1 << 24, "N",
     "tokens that the penalty looks back on [64]"},
    {"-s", "--seed", FLAG_INTEGER, AT(seed), -1, -1, UINT32_MAX, "N", "random seed; -1: another one each time [-1]"},
    {"-t", "--threads", FLAG_INTEGER, AT(threads), 0, 0, 512, "N", "threads; 0: one for each core [0]"},
    {"-b", "--batch-size", FLAG_INTEGER, AT(batch), 2048, 1, 1 << 20, "N", "tokens handed to llama.cpp at once [2048]"},
    {"-ub", "--ubatch-size", FLAG_INTEGER, AT(ubatch), 512, 1, 1 << 20, "N",
     "tokens of a prompt computed at once: each step reads nearly all experts, so for long prompts more is faster, but "
     "takes memory [512]"},
    {"-ngl", "--gpu-layers", FLAG_INTEGER, AT(gpu_layers), 0, 0, 1 << 20, "N",
     "layers that a GPU takes whole, experts too [0]"},
    {NULL, "--repack", FLAG_SWITCH, AT(repack), 0, 0, 0, NULL,
     "let llama.cpp rearrange dense weights for speed; the output may then differ in the last bits"},
    {"-v", "--verbose", FLAG_SWITCH, AT(verbose), 0, 0, 0, NULL, "print llama.cpp's log"},
};
#define OPTIONS (sizeof table / sizeof *table)

bool options_parse(struct options *options, int argc, char **argv, char *why, size_t why_size) {
    *options = (struct options){0};
    struct flag_words words = {.table = table,
                               .n = OPTIONS,
                               .options = options,
                               .knobs = &options->knobs,
                               .environment = true,
                               .stray = "a prompt goes after -p, a model after -m"};
    int parsed = flags_parse(&words, argc, argv, why, why_size);
    options->help = parsed == 1;
    if (parsed == 0 && options->prompt && options->prompt_file) {
        snprintf(why, why_size, "-p and -f both give a prompt; leave one out");
        return false;
    }
    return parsed >= 0;
}

void options_print_help(FILE *to) {
    fputs(
        "usage: guanaco run [OPTION...]\n\n"
        "Generates text with a Mixture-of-Experts model whose experts stay on disk: memory holds what every token "
        "needs\n"
        "and, of the experts, as many as the budget allows. The text is the same as llama.cpp's.\n\n"
        "  guanaco run -p \"Elizabeth had hardly time to\" -n 64         the demo model\n"
        "  guanaco run -m model.gguf --ram 8GiB --chat                 talk, within 8 GiB in all\n"
        "  guanaco run -m model.gguf --expert-cache 50% -f prompt.txt  half of the experts in memory\n"
        "  cat prompt.txt | guanaco run -m model.gguf -p - --temp 0    no chance\n\n"
        "Text goes to standard output, all else to standard error. Ctrl-C ends it cleanly. [Defaults in brackets.]\n\n",
        to);
    flags_print_help(table, OPTIONS, to);
    fputs("\nStreaming. Each option may also be given by its environment variable, in any program that loads the "
          "plugin.\n"
          "Sizes: a number and B, KiB, MiB, GiB or KB, MB, GB; MiB when there is none.\n\n",
          to);
    gn_knobs_print_help(to);
}
