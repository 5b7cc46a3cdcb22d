// Layers that no device can have, and devices that have none: each is said once, in one line, and all the rest goes on.
// The devices stand in for GPUs, and can compute what a case lets them.
//
//     test_unfit MODEL PLUGIN FOLDER [DEVICE | N PIECES BLOCKS]
//
// With DEVICE, a real one, MODEL has weights of a type that it does not know; skipped where it is not there. With N,
// PIECES and BLOCKS, MODEL is any: N of its layers run, PIECES of them in pieces; the others are of BLOCKS ("0-2").
// Else MODEL has 3 layers with weights of different types: Q8_0 in the second alone, IQ4_XS in the last alone.
//
// What runs first need not be a whole pass through the layers: a prompt in micro-batches comes without its last layer
// until its end, or is aborted.
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
    int devices_used, devices_left; // how many were open in the end, and once the model was closed
};

#define NOTHING GGML_TYPE_F64 // no weight is of it

enum { SKIPPED = 77, ABORTED = 2 };

// How the prompt comes: at once, in micro-batches of three tokens, or at once when it has been aborted some times.
enum prompt { AT_ONCE, IN_PIECES, AFTER_ABORTS };

static const char *model, *plugin, *device; // device: NULL, or a real one
static char errors[PATH_MAX];
static enum ggml_type refused; // weights that a device cannot multiply; GGML_TYPE_COUNT: any
static bool has_devices;
static enum prompt prompt;
static int until_abort;       // calls of the callback
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

static bool aborts(void *unused) {
    (void)unused;
    return --until_abort < 0;
}

// Decodes the prompt, with the logits of its last token alone. Returns what llama_decode() does.
static int decode_prompt(const struct session *session, llama_token *tokens) {
    return llama_decode(session->context, llama_batch_get_one(tokens, PROMPT));
}

// Aborts the prompt ever later, until it has ended by then. Returns whether it was aborted several times.
static bool abort_prompts(const struct session *session, llama_token *tokens) {
    int n = 0, calls = 0, code;
    llama_set_abort_callback(session->context, aborts, NULL);
    do {
        calls += 30; // a layer takes about 60
        until_abort = calls;
        code = decode_prompt(session, tokens);
        llama_memory_clear(llama_get_memory(session->context), true);
        n += code == ABORTED;
    } while (code == ABORTED);
    llama_set_abort_callback(session->context, NULL, NULL);
    return code == 0 && n >= 4;
}

// Decodes a prompt and some tokens, the same in every run. Lines go to the file of errors.
static int body(void *unused) {
    struct session session;
    struct session_options options = {
        .model = model, .plugin = plugin, .mtp = true, .n_ubatch = prompt == IN_PIECES ? 3 : 0, .loaded = add_devices};
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
    if (prompt == AFTER_ABORTS && !abort_prompts(&session, tokens)) {
        return 4;
    }
    if (decode_prompt(&session, tokens)) {
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
    result->devices_used = stand_in_open();
    session_close(&session);
    result->devices_left = stand_in_open();
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
    enum ggml_type refused; // GGML_TYPE_COUNT: all; NOTHING: none
    bool no_devices;
    const char *line;   // that is to come once; NULL: no warning at all
    const char *report; // that is to be in the last line; NULL: nothing of a tier is
    enum prompt prompt;
};

#define COMMON ",RAM:auto:2MiB"
#define UNFIT "cannot hold their weights or compute their operations; take the model in another quantisation"

static const struct test_case cases[] = {
    {"all fit", "TEST0:auto:100%" COMMON, NOTHING, false, NULL, "(layers 0-2)", AT_ONCE},
    {"none fits", "TEST0:auto:50%" COMMON, GGML_TYPE_COUNT, false, "all 3 layers stay with the CPU: TEST0 " UNFIT, NULL,
     AT_ONCE},
    {"none fits, whatever is free", "TEST0:auto:auto" COMMON, GGML_TYPE_COUNT, false,
     "all 3 layers stay with the CPU: TEST0 " UNFIT, NULL, AT_ONCE},
    {"none fits two devices", "TEST0:auto:1MiB,TEST1:auto:1MiB" COMMON, GGML_TYPE_COUNT, false,
     "all 3 layers stay with the CPU: one of the GPUs cannot hold", NULL, AT_ONCE},
    {"all fit, a prompt in pieces", "TEST0:auto:100%" COMMON, NOTHING, false, NULL, "(layers 0-2)", IN_PIECES},
    {"none fits, a prompt in pieces", "TEST0:auto:50%" COMMON, GGML_TYPE_COUNT, false,
     "all 3 layers stay with the CPU: TEST0 " UNFIT, NULL, IN_PIECES},
    {"all fit, after aborted prompts", "TEST0:auto:100%" COMMON, NOTHING, false, NULL, "(layers 0-2)", AFTER_ABORTS},
    {"none fits, after aborted prompts", "TEST0:auto:50%" COMMON, GGML_TYPE_COUNT, false,
     "all 3 layers stay with the CPU: TEST0 " UNFIT, NULL, AFTER_ABORTS},
    {"one does not fit", "TEST0:auto:100%" COMMON, GGML_TYPE_Q8_0, false,
     "1 of 3 layers stay with the CPU (block 1 for one): TEST0 cannot hold", "(layers 0,2)", AT_ONCE},
    {"the last does not fit", "TEST0:auto:100%" COMMON, GGML_TYPE_IQ4_XS, false,
     "1 of 3 layers stay with the CPU (block 2 for one): TEST0 cannot hold", "(layers 0-1)", AT_ONCE},
    {"too little for all", "TEST0:auto:50%" COMMON, NOTHING, false, "MiB hold experts of 2 of 3 layers; the others",
     "(layers 0,2)", AT_ONCE},
    {"too little for any", "TEST0:auto:1KiB" COMMON, NOTHING, false, "TEST0: 0.0 MiB are too little, one layer needs ",
     NULL, AT_ONCE},
    {"too little for any, given in slots", "TEST0:auto:0.01%" COMMON, NOTHING, false,
     "TEST0: 0.0 MiB are too little, one layer needs ", NULL, AT_ONCE},
    {"no layer is left", "TEST0:auto:64MiB,TEST1:auto:1KiB" COMMON, NOTHING, false, "TEST1: no layer is left for it",
     "(layers 0-2)", AT_ONCE},
    {"no device", "TEST0:auto:50%" COMMON, GGML_TYPE_COUNT, true, "there is no TEST0 that llama.cpp knows of", NULL,
     AT_ONCE},
    {"not asked for", NULL, GGML_TYPE_COUNT, false, NULL, NULL, AT_ONCE},
};

static void run_case(const struct test_case *c, const struct result *plain) {
    int before = failures, serving = c->report ? 1 : 0;
    if (c->tiers) {
        setenv("GUANACO_TIERS", c->tiers, 1);
        unsetenv("GUANACO_EXPERT_CACHE");
    } else {
        unsetenv("GUANACO_TIERS");
        setenv("GUANACO_EXPERT_CACHE", "2MiB", 1);
    }
    refused = c->refused;
    has_devices = !c->no_devices;
    prompt = c->prompt;
    check(in_child(body, NULL) == 0, "it runs", c->name);
    check(count_lines("warning: ") == (c->line != NULL), "as many warnings as there should be", c->name);
    check(!c->line || count_lines(c->line) == 1, "the line comes once", c->name);
    check(count_lines("on the GPU (layers") == serving, "the report has a tier or none", c->name);
    check(!c->report || count_lines(c->report) == 1, "the report has its layers", c->name);
    check((result->slots > 0) == serving, "slots on the device, or none", c->name);
    check((result->hits > 0) == serving, "hits on the device, or none", c->name);
    // Each has two streams.
    check(result->devices_used == 2 * serving, "devices without a layer are closed", c->name);
    check(result->devices_left == 0, "all are, with the model", c->name);
    bool same = memcmp(result->logits, plain[c->prompt].logits, sizeof plain->logits) == 0;
    check(same, "the logits", c->name); // the stand-ins compute as the CPU does
    if (failures > before) {
        show_errors();
    }
}

static struct result *new_result(void) {
    return mmap(NULL, sizeof(struct result), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

// On a real device.
static void run_on(const char *name, const struct result *plain) {
    char tiers[128], line[256];
    snprintf(tiers, sizeof tiers, "%s:auto:50%%" COMMON, name);
    snprintf(line, sizeof line, "all 3 layers stay with the CPU: %s " UNFIT, name);
    run_case(&(struct test_case){"none fits", tiers, GGML_TYPE_COUNT, true, line, NULL, AT_ONCE}, plain);
}

// On a model of which n layers run; of some of them no device can have any, since they come in pieces.
static void run_layers(const char *n, const char *in_pieces, const char *blocks, const struct result *plain) {
    char all[256], some[256], report[64];
    snprintf(all, sizeof all, "all %s layers stay with the CPU: TEST0 " UNFIT, n);
    snprintf(some, sizeof some, "%s of %s layers stay with the CPU (block 0 for one)", in_pieces, n);
    snprintf(report, sizeof report, "(layers %s)", blocks);
    const char *line = strcmp(in_pieces, "0") ? some : NULL;
    for (enum prompt p = AT_ONCE; p <= AFTER_ABORTS; p++) {
        run_case(&(struct test_case){"all fit", "TEST0:auto:100%,RAM:auto:8MiB", NOTHING, false, line, report, p},
                 plain);
        run_case(&(struct test_case){"none fits", "TEST0:auto:50%,RAM:auto:8MiB", GGML_TYPE_COUNT, false, all, NULL, p},
                 plain);
    }
}

int main(int argc, char **argv) {
    if (argc < 4 || argc > 7 || argc == 6) {
        fprintf(stderr, "usage: test_unfit MODEL PLUGIN FOLDER [DEVICE | N PIECES BLOCKS]\n");
        return 2;
    }
    model = argv[1];
    plugin = argv[2];
    device = argc == 5 ? argv[4] : NULL;
    snprintf(errors, sizeof errors, "%s/unfit-%d.txt", argv[3], getpid());
    setenv("GUANACO_GPU_INSERTS", "32", 1);
    setenv("GUANACO_EXPERT_CACHE", "2MiB", 1);
    static struct result plain[AFTER_ABORTS + 1]; // without tiers
    int code = 0;
    result = new_result();
    for (prompt = AT_ONCE; prompt <= (device ? AT_ONCE : AFTER_ABORTS) && code == 0; prompt++) {
        code = in_child(body, NULL);
        check(code == 0 || code == SKIPPED, "it runs", "without tiers");
        plain[prompt] = *result;
    }
    for (size_t i = 0; argc == 4 && i < sizeof cases / sizeof *cases; i++) {
        run_case(&cases[i], plain);
    }
    if (argc == 5 && code == 0) {
        run_on(device, plain);
    }
    if (argc == 7) {
        run_layers(argv[4], argv[5], argv[6], plain);
    }
    unlink(errors);
    return failures ? 1 : code;
}
