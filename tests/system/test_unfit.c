// Layers that no device can have, and devices that have none: each is said once, in one line, and all the rest goes on.
// The devices stand in for GPUs, and can compute what a case lets them.
//
//     test_unfit MODEL PLUGIN FOLDER [DEVICE]
//
// With DEVICE, a real one, MODEL has weights of a type that it does not know; skipped where it is not there. Else
// MODEL has 3 layers with weights of different types: Q8_0 in the second alone, IQ4_XS in the last alone.
#include "session.h"
#include "stand_in.h"

#include "ggml-backend.h"
#include "ggml.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PROMPT = 24, STEPS = 6, MOST_VOCAB = 4096 };

struct result {
    float logits[STEPS][MOST_VOCAB];
    int n_vocab;
    uint64_t slots, hits;
};

enum { SKIPPED = 77 };

static const char *model, *plugin, *device; // device: NULL, or a real one
static char errors[PATH_MAX];
static enum ggml_type refused; // weights that a device cannot multiply; GGML_TYPE_COUNT: any
static bool has_devices;
static struct result *result; // shared with the child
static int failures;

static bool computes(const struct ggml_tensor *operation) {
    bool product = operation->op == GGML_OP_MUL_MAT_ID;
    return !product || (refused != GGML_TYPE_COUNT && operation->src[0]->type != refused);
}

static bool add_devices(void *unused) {
    (void)unused;
    if (has_devices) {
        stand_in_register(computes);
    }
    return true;
}

// Decodes a prompt and some tokens, the same in every run. Lines go to the file of errors.
static int body(void *unused) {
    struct session session;
    struct session_options options = {.model = model, .plugin = plugin, .loaded = add_devices};
    int fd = open(errors, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    (void)unused;
    if (fd < 0 || dup2(fd, STDERR_FILENO) < 0 || session_open(&session, &options) || session.n_vocab > MOST_VOCAB) {
        return 1;
    }
    if (device && !ggml_backend_dev_by_name(device)) {
        return SKIPPED;
    }
    llama_token tokens[PROMPT + STEPS];
    for (int i = 0; i < PROMPT + STEPS; i++) {
        tokens[i] = (i * 131 + 17) % session.n_vocab;
    }
    if (session_decode(&session, tokens, PROMPT, 0)) {
        return 2;
    }
    for (int step = 0; step < STEPS; step++) {
        if (session_decode(&session, &tokens[PROMPT + step], 1, PROMPT + step)) {
            return 3;
        }
        memcpy(result->logits[step], session_logits(&session, 0), (size_t)session.n_vocab * sizeof(float));
    }
    struct guanaco_stats stats = session_stats(&session);
    result->n_vocab = session.n_vocab;
    result->slots = stats.gpu_slots;
    result->hits = stats.gpu_hits;
    session_close(&session);
    return 0;
}

static void check(bool good, const char *what, const char *of) {
    printf("%s: %s: %s\n", good ? "ok" : "FAILED", of, what);
    failures += !good;
}

// How many lines of the run's errors have the text in them.
static int count_lines(const char *text) {
    FILE *file = fopen(errors, "r");
    char line[4096];
    int n = 0;
    while (file && fgets(line, sizeof line, file)) {
        n += strstr(line, text) != NULL;
    }
    if (file) {
        fclose(file);
    }
    return n;
}

static void show_errors(void) {
    FILE *file = fopen(errors, "r");
    char line[4096];
    while (file && fgets(line, sizeof line, file)) {
        printf("    %s", line);
    }
    if (file) {
        fclose(file);
    }
}

struct test_case {
    const char *name;
    const char *tiers;      // NULL: none are asked for
    enum ggml_type refused; // GGML_TYPE_COUNT: all; GGML_TYPE_F32: none, as no weight is of it
    bool no_devices;
    const char *line;   // that is to come once; NULL: no warning at all
    const char *report; // that is to be in the last line; NULL: nothing of a tier is
};

#define COMMON ",RAM:auto:2MiB"
#define UNFIT "cannot hold their weights or compute their operations; take the model in another quantisation"

static const struct test_case cases[] = {
    {"all fit", "TEST0:auto:100%" COMMON, GGML_TYPE_F32, false, NULL, "(layers 0-2)"},
    {"none fits", "TEST0:auto:50%" COMMON, GGML_TYPE_COUNT, false, "all 3 layers stay with the CPU: TEST0 " UNFIT,
     NULL},
    {"none fits, whatever is free", "TEST0:auto:auto" COMMON, GGML_TYPE_COUNT, false,
     "all 3 layers stay with the CPU: TEST0 " UNFIT, NULL},
    {"none fits two devices", "TEST0:auto:1MiB,TEST1:auto:1MiB" COMMON, GGML_TYPE_COUNT, false,
     "all 3 layers stay with the CPU: one of the GPUs cannot hold", NULL},
    {"one does not fit", "TEST0:auto:100%" COMMON, GGML_TYPE_Q8_0, false,
     "1 of 3 layers stay with the CPU (block 1 for one): TEST0 cannot hold", "(layers 0,2)"},
    {"the last does not fit", "TEST0:auto:100%" COMMON, GGML_TYPE_IQ4_XS, false,
     "1 of 3 layers stay with the CPU (block 2 for one): TEST0 cannot hold", "(layers 0-1)"},
    {"too little for all", "TEST0:auto:50%" COMMON, GGML_TYPE_F32, false,
     "MiB hold experts of 2 of 3 layers; the others", "(layers 0,2)"},
    {"too little for any", "TEST0:auto:1KiB" COMMON, GGML_TYPE_F32, false,
     "TEST0: 0.0 MiB are too little, one layer needs ", NULL},
    {"too little for any, given in slots", "TEST0:auto:0.01%" COMMON, GGML_TYPE_F32, false,
     "TEST0: 0.0 MiB are too little, one layer needs ", NULL},
    {"no layer is left", "TEST0:auto:64MiB,TEST1:auto:1KiB" COMMON, GGML_TYPE_F32, false,
     "TEST1: no layer is left for it", "(layers 0-2)"},
    {"no device", "TEST0:auto:50%" COMMON, GGML_TYPE_COUNT, true, "there is no TEST0 that llama.cpp knows of", NULL},
    {"not asked for", NULL, GGML_TYPE_COUNT, false, NULL, NULL},
};

static void run_case(const struct test_case *c, const struct result *plain) {
    int before = failures;
    if (c->tiers) {
        setenv("GUANACO_TIERS", c->tiers, 1);
        unsetenv("GUANACO_EXPERT_CACHE");
    } else {
        unsetenv("GUANACO_TIERS");
        setenv("GUANACO_EXPERT_CACHE", "2MiB", 1);
    }
    refused = c->refused;
    has_devices = !c->no_devices;
    check(in_child(body, NULL) == 0, "it runs", c->name);
    check(count_lines("warning: ") == (c->line != NULL), "as many warnings as there should be", c->name);
    check(!c->line || count_lines(c->line) == 1, "the line comes once", c->name);
    check(count_lines("on the GPU (layers") == (c->report != NULL), "the report has a tier or none", c->name);
    check(!c->report || count_lines(c->report) == 1, "the report has its layers", c->name);
    check((result->slots > 0) == (c->report != NULL), "slots on the device, or none", c->name);
    check((result->hits > 0) == (c->report != NULL), "hits on the device, or none", c->name);
    bool same = memcmp(result->logits, plain->logits, sizeof plain->logits) == 0;
    check(same, "the logits", c->name); // the stand-ins compute as the CPU does
    if (failures > before) {
        show_errors();
    }
}

static struct result *new_result(void) {
    return mmap(NULL, sizeof(struct result), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

int main(int argc, char **argv) {
    if (argc != 4 && argc != 5) {
        fprintf(stderr, "usage: test_unfit MODEL PLUGIN FOLDER [DEVICE]\n");
        return 2;
    }
    model = argv[1];
    plugin = argv[2];
    device = argv[4];
    snprintf(errors, sizeof errors, "%s/unfit-%d.txt", argv[3], getpid());
    setenv("GUANACO_GPU_INSERTS", "32", 1);
    setenv("GUANACO_EXPERT_CACHE", "2MiB", 1);
    static struct result plain;
    result = new_result();
    int code = in_child(body, NULL);
    check(code == 0 || code == SKIPPED, "it runs", "without tiers");
    plain = *result;
    for (size_t i = 0; !device && i < sizeof cases / sizeof *cases; i++) {
        run_case(&cases[i], &plain);
    }
    if (device && code == 0) {
        char tiers[128], line[256];
        snprintf(tiers, sizeof tiers, "%s:auto:50%%" COMMON, device);
        snprintf(line, sizeof line, "all 3 layers stay with the CPU: %s " UNFIT, device);
        run_case(&(struct test_case){"none fits", tiers, GGML_TYPE_COUNT, true, line, NULL}, &plain);
    }
    unlink(errors);
    return failures ? 1 : code;
}
