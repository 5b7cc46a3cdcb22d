// Decodes tiny models of every Mixture-of-Experts architecture with a device tier, and compares the logits with those
// of stock llama.cpp over the same tokens.
//
//     conformance-device TINY LOGITS PLUGIN FOLDER [CASE...]
//
// A device sums up in another order than a CPU does, and need not round what it multiplies as a CPU does: the
// normalised mean squared error is compared, not the bits. Two cases:
//
// - All weights F32: the error from stock's logits is at most 1e-5.
// - Quantised weights: a CPU rounds activations to 8 bits, devices may not. What is right is told by the same model
//   with its weights' values in F32: the device must be as near to that as stock is, twice the error at most.
//
// In every case no more is allowed than a small part of what one zeroed expert does, and both tiers must have hits.
#include "harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BOUND 1e-5
#define AS_NEAR 2       // times stock's own error
#define SMALL_PART 0.25 // of what one expert does

// Dense weights as well: where a CPU rounds their inputs to 8 bits, a difference vanishes or grows.
#define F32 "--type F32 --widen"

// Quantised, deepseek2 says nothing: it chooses groups of experts first, and rounding decides near ties between them,
// in stock as well. In F32 it is among the architectures.
static const struct variant variants[] = {
    {"type-Q4_K", "qwen3moe", "--type Q4_K", ""},
    {"MXFP4-gpt-oss", "gpt-oss", "--type MXFP4", ""},
    {"fused-cohere2moe", "cohere2moe", F32 " --fused", ""},
    {"fused-deepseek2", "deepseek2", F32 " --fused", ""},
    {"fused-gemma4", "gemma4", F32 " --fused", ""},
    {"fused-qwen35moe", "qwen35moe", F32 " --fused", ""},
    {"fused-qwen3next", "qwen3next", "--type mixed --fused", ""},
    {"64-experts", "qwen3moe", F32 " --experts 64 --used 8", ""},
    {"one-used", "qwen3moe", F32 " --used 1", ""},
    {NULL, NULL, NULL, NULL},
};

// What of the line `counters: …` in the log; -1 when it is not there.
static long counter(const char *log, const char *name) {
    FILE *file = fopen(log, "r");
    char line[1024], *at = NULL;
    long value = -1;
    while (file && fgets(line, sizeof line, file)) {
        at = strncmp(line, "counters:", 9) == 0 ? strstr(line, name) : NULL;
        if (at) {
            sscanf(at + strlen(name), "%ld", &value);
        }
    }
    if (file) {
        fclose(file);
    }
    return value;
}

// NAN when the files cannot be compared.
static double error_of(const char *reference, const char *result) {
    FILE *files[2] = {fopen(reference, "rb"), fopen(result, "rb")};
    double squares = 0, differences = 0;
    float values[2][4096];
    for (size_t n = 1; files[0] && files[1] && n;) {
        n = fread(values[0], sizeof(float), 4096, files[0]);
        if (fread(values[1], sizeof(float), 4096, files[1]) != n) {
            squares = 0;
            break;
        }
        for (size_t i = 0; i < n; i++) {
            double difference = (double)values[0][i] - (double)values[1][i];
            squares += (double)values[0][i] * (double)values[0][i];
            differences += difference * difference;
        }
    }
    for (int i = 0; i < 2; i++) {
        if (files[i]) {
            fclose(files[i]);
        }
    }
    return squares > 0 ? differences / squares : (double)NAN;
}

struct figures {
    double device, allowed, zeroed;
    long device_hits, hits, not_served;
};

static int run_device(const struct harness *harness, const struct test_case *c, const char *stock, const char *out,
                      struct figures *figures) {
    char options[2 * PATH_MAX + 64], log[PATH_MAX];
    snprintf(options, sizeof options, "--again --ubatch 32 --decode 12 --plugin %s --follow %s", harness->plugin,
             stock);
    setenv("GUANACO_GPU_CACHE", "80%", 1);
    int code = harness_logits(harness, c, out, options);
    harness_file(harness, c, "log", log);
    figures->device_hits = counter(log, "gpu_hits");
    figures->hits = counter(log, " hits");
    figures->not_served = counter(log, "gpu_not_served");
    return code;
}

static int judge(const struct figures *figures, char *why, size_t size) {
    char text[256];
    snprintf(text, sizeof text, "error %.1e of %.1e, %.1e by a zeroed expert; hits: device %ld, RAM %ld",
             figures->device, figures->allowed, figures->zeroed, figures->device_hits, figures->hits);
    const char *wrong = figures->device_hits <= 0 || figures->hits <= 0 ? "a tier has no hits: "
                        : figures->not_served != 0                      ? "not served: "
                        : !(figures->device <= figures->allowed)        ? "too far off: "
                                                                        : "";
    snprintf(why, size, "%s%s", wrong, text);
    return *wrong != 0;
}

static int check_case(const struct harness *harness, const struct test_case *c, int index, char *why, size_t size) {
    (void)index;
    char stock[PATH_MAX], device[PATH_MAX], other[PATH_MAX], follow[PATH_MAX + 64];
    harness_file(harness, c, "stock", stock);
    harness_file(harness, c, "device", device);
    harness_file(harness, c, "other", other);
    snprintf(follow, sizeof follow, "--again --ubatch 32 --decode 12 --follow %s", stock);
    int code = harness_make(harness, c, "");
    if (code == SKIPPED) {
        snprintf(why, size, "this llama.cpp does not know it");
        return SKIPPED;
    }
    if (code || (code = harness_logits(harness, c, stock, "--again --ubatch 32 --decode 12"))) {
        return harness_complain(why, size, "making the model or running stock", code);
    }
    struct figures figures = {.allowed = BOUND};
    if ((code = run_device(harness, c, stock, device, &figures))) {
        return harness_complain(why, size, "with the device", code);
    }
    figures.device = error_of(stock, device);
    if ((code = harness_make(harness, c, "--zero-expert last:0")) ||
        (code = harness_logits(harness, c, other, follow))) {
        return harness_complain(why, size, "the model with a zeroed expert", code);
    }
    figures.zeroed = error_of(stock, other);
    if (!strstr(c->model_options, F32)) {
        if ((code = harness_make(harness, c, "--widen")) || (code = harness_logits(harness, c, other, follow))) {
            return harness_complain(why, size, "the model in F32", code);
        }
        figures.allowed = fmax(BOUND, AS_NEAR * error_of(other, stock));
        figures.device = error_of(other, device);
    }
    figures.allowed = fmin(figures.allowed, SMALL_PART * figures.zeroed);
    return judge(&figures, why, size);
}

int main(int argc, char **argv) {
    if (argc < 5) {
        fputs("usage: conformance-device TINY LOGITS PLUGIN FOLDER [CASE...]\n", stderr);
        return 2;
    }
    char line[PATH_MAX + 32];
    snprintf(line, sizeof line, "'%s' --has-device 2>/dev/null", argv[2]);
    if (system(line)) {
        puts("skipped [gpu]: llama.cpp knows of no GPU here");
        return SKIPPED;
    }
    // A software device computes with all cores, and the CPU with all that is left: they would only wait for each
    // other.
    setenv("LP_NUM_THREADS", "1", 0);
    // Some of what Vulkan computes in 16 bits would decide near ties in routers otherwise, and one expert more or less
    // hides all else.
    setenv("GGML_VK_DISABLE_F16", "1", 0);
    // Most of the first batch is a prompt, the rest is decoded.
    setenv("GUANACO_PREFILL_TOKENS", "17", 1);
    setenv("GUANACO_EXPERT_CACHE", "50%", 1);
    setenv("GUANACO_GPU_INSERTS", "32", 1); // else what comes up is measured
    struct harness harness = {
        .tiny = argv[1],
        .logits = argv[2],
        .plugin = argv[3],
        .folder = argv[4],
        .model_options = F32,
        .variants = variants,
        .at_once = 1, // a software device takes all cores
        .check = check_case,
    };
    return harness_run(&harness, argv + 5);
}
