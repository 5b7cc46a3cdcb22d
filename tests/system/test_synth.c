// guanaco-synth: every type loads and runs in stock llama.cpp, sizes are as said, shards hold the same model, --skew
// and
// --locality show in the routing, wrong options are refused. And libguanaco-preload.so at work in a real loader.
//
//     test_synth GUANACO_SYNTH LIBGUANACO_PRELOAD
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backends.h"

#include <dlfcn.h>
#include <gguf.h>
#include <llama.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SHAPE "--layers 4 --embd 256 --ff 256 --experts 32 --used 4 --vocab 1024"
enum { LAYERS = 4, EXPERTS = 32, USED = 4, VOCAB = 1024, CLUSTER = 64, STEPS = 256 };

static const char *self, *synth, *preload;
static char folder[] = "test_synth.XXXXXX";

// Runs the command in the test's folder; its output, both kinds, is left in text. Returns the exit code.
static int run(const char *command, char *text, size_t size) {
    char full[1024];
    snprintf(full, sizeof full, "cd %s && %s 2>&1", folder, command);
    FILE *pipe = popen(full, "r");
    assert_non_null(pipe);
    size_t length = fread(text, 1, size - 1, pipe);
    text[length] = '\0';
    int status = pclose(pipe);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void make_model(const char *arguments, char *text, size_t size) {
    char command[512];
    snprintf(command, sizeof command, "%s %s", synth, arguments);
    int code = run(command, text, size);
    if (code != 0) {
        fail_msg("%s: exit code %d: %s", command, code, text);
    }
}

static const char *path_of(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void remove_model(const char *name) {
    assert_int_equal(unlink(path_of(name)), 0);
}

// How the experts were used: counted per layer, and the share that a token has in common with the one before.
struct routing {
    uint64_t uses[LAYERS][EXPERTS];
    int32_t last[LAYERS][USED];
    uint64_t common, compared;
};

static bool on_node(struct ggml_tensor *tensor, bool ask, void *context) {
    static const char name[] = "ffn_moe_topk-";
    bool wanted = strncmp(tensor->name, name, sizeof name - 1) == 0;
    if (ask || !wanted) {
        return ask ? wanted : true;
    }
    struct routing *routing = context;
    int layer = atoi(tensor->name + sizeof name - 1);
    int32_t now[USED];
    ggml_backend_tensor_get(tensor, now, 0, sizeof now); // one token at a time
    for (int i = 0; i < USED; i++) {
        routing->uses[layer][now[i]]++;
        for (int j = 0; j < USED; j++) {
            routing->common += now[i] == routing->last[layer][j];
        }
    }
    routing->compared += USED;
    memcpy(routing->last[layer], now, sizeof now);
    return true;
}

struct session {
    struct llama_model *model;
    struct llama_context *context;
};

static struct session open_model(const char *name, struct routing *routing) {
    struct session session;
    struct llama_model_params model_params = llama_model_default_params();
    model_params.n_gpu_layers = 0;
    session.model = llama_model_load_from_file(path_of(name), model_params);
    assert_non_null(session.model);
    struct llama_context_params context_params = llama_context_default_params();
    context_params.n_ctx = 512;
    context_params.n_threads = context_params.n_threads_batch = 1;
    if (routing) {
        context_params.cb_eval = on_node;
        context_params.cb_eval_user_data = routing;
    }
    session.context = llama_init_from_model(session.model, context_params);
    assert_non_null(session.context);
    return session;
}

static void close_model(struct session session) {
    llama_free(session.context);
    llama_model_free(session.model);
}

static const float *decode(struct session session, llama_token token) {
    assert_int_equal(llama_decode(session.context, llama_batch_get_one(&token, 1)), 0);
    return llama_get_logits_ith(session.context, -1);
}

// Returns the likeliest token.
static int check_logits(const float *logits) {
    double sum = 0, squares = 0;
    int best = 0;
    for (int i = 0; i < VOCAB; i++) {
        assert_true(isfinite(logits[i]));
        sum += logits[i];
        squares += (double)logits[i] * logits[i];
        best = logits[i] > logits[best] ? i : best;
    }
    double deviation = sqrt(squares / VOCAB - sum / VOCAB * sum / VOCAB);
    assert_true(deviation > 0.5 && deviation < 20);
    return best;
}

static void check_text(struct session session) {
    static const char text[] = "Hello, the World! \xc3\xa4";
    const struct llama_vocab *vocab = llama_model_get_vocab(session.model);
    llama_token tokens[64];
    char back[128] = "";
    int count = llama_tokenize(vocab, text, (int)strlen(text), tokens, 64, true, true);
    assert_true(count > 4 && count < (int)strlen(text)); // pieces of more than one letter are found
    int length = llama_detokenize(vocab, tokens, count, back, (int)sizeof back - 1, true, false);
    assert_true(length > 0);
    back[length] = '\0';
    assert_string_equal(back[0] == ' ' ? back + 1 : back, text);
}

static void check_runs(const char *name) {
    struct session session = open_model(name, NULL);
    check_text(session);
    llama_token token = 300;
    int changes = 0;
    for (int i = 0; i < 24; i++) {
        int next = check_logits(decode(session, token));
        changes += next != token;
        token = next;
    }
    assert_true(changes > 12); // not one token for ever
    close_model(session);
}

// Bytes that belong to an expert must differ from those of every other.
static void check_distinct(const char *name) {
    struct ggml_context *ggml = NULL;
    struct gguf_init_params params = {.no_alloc = false, .ctx = &ggml};
    struct gguf_context *gguf = gguf_init_from_file(path_of(name), params);
    assert_non_null(gguf);
    const char *slices[LAYERS * EXPERTS * 3];
    size_t sizes[LAYERS * EXPERTS * 3], count = 0;
    for (struct ggml_tensor *t = ggml_get_first_tensor(ggml); t; t = ggml_get_next_tensor(ggml, t)) {
        for (int i = 0; strstr(t->name, "_exps.") && i < EXPERTS; i++, count++) {
            slices[count] = (const char *)t->data + (size_t)i * t->nb[2];
            sizes[count] = t->nb[2];
        }
    }
    assert_int_equal(count, LAYERS * EXPERTS * 3);
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < i; j++) {
            assert_false(sizes[i] == sizes[j] && memcmp(slices[i], slices[j], sizes[i]) == 0);
        }
    }
    gguf_free(gguf);
    ggml_free(ggml);
}

static long long said_bytes(const char *text) {
    const char *colon = strstr(text, ".gguf: ");
    assert_non_null(colon);
    return atoll(colon + strlen(".gguf: "));
}

static void test_types(void **state) {
    (void)state;
    static const char *const types[] = {"Q4_K", "Q4_0", "Q8_0", "Q5_K", "Q6_K", "IQ4_XS", "MXFP4", "F16", "mixed"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char arguments[256], text[1024];
        snprintf(arguments, sizeof arguments, "%s.gguf " SHAPE " --type %s --dry-run", types[i], types[i]);
        make_model(arguments, text, sizeof text);
        long long bytes = said_bytes(text);
        snprintf(arguments, sizeof arguments, "%s.gguf " SHAPE " --type %s", types[i], types[i]);
        make_model(arguments, text, sizeof text);
        assert_int_equal(said_bytes(text), bytes);
        snprintf(arguments, sizeof arguments, "%s.gguf", types[i]);
        struct stat status;
        assert_int_equal(stat(path_of(arguments), &status), 0);
        assert_int_equal(status.st_size, bytes);
        check_runs(arguments);
        check_distinct(arguments);
        remove_model(arguments);
    }
}

static void test_shards(void **state) {
    (void)state;
    char text[1024];
    make_model("one.gguf " SHAPE, text, sizeof text);
    make_model("many.gguf " SHAPE " --shards 3", text, sizeof text);
    struct session one = open_model("one.gguf", NULL);
    struct session many = open_model("many-00001-of-00003.gguf", NULL);
    for (int i = 0; i < 8; i++) {
        const float *logits = decode(one, 300 + i);
        assert_memory_equal(decode(many, 300 + i), logits, VOCAB * sizeof(float));
    }
    close_model(one);
    close_model(many);
    make_model("other.gguf " SHAPE " --seed 2", text, sizeof text);
    assert_int_not_equal(run("cmp -s one.gguf other.gguf", text, sizeof text), 0);
    remove_model("one.gguf");
    remove_model("other.gguf");
    remove_model("many-00001-of-00003.gguf");
    remove_model("many-00002-of-00003.gguf");
    remove_model("many-00003-of-00003.gguf");
}

static void test_size(void **state) {
    (void)state;
    char text[1024];
    make_model("big.gguf --size 20GiB --type mixed --dry-run", text, sizeof text);
    double gib = (double)said_bytes(text) / (1 << 30);
    assert_true(gib > 19.7 && gib < 20.3);
}

struct measured {
    double busiest_fifth, common;
};

static int descending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

// Feeds tokens of random clusters, or `stay` in a row of one cluster.
static struct measured measure(const char *options, int stay) {
    char arguments[256], text[1024];
    snprintf(arguments, sizeof arguments, "routing.gguf " SHAPE " %s", options);
    make_model(arguments, text, sizeof text);
    struct routing *routing = calloc(1, sizeof *routing);
    struct session session = open_model("routing.gguf", routing);
    srand(1);
    for (int i = 0, cluster = 0; i < STEPS; i++) {
        cluster = i % stay == 0 ? rand() % (VOCAB / CLUSTER) : cluster;
        check_logits(decode(session, cluster * CLUSTER + rand() % CLUSTER));
    }
    close_model(session);
    remove_model("routing.gguf");
    struct measured measured = {0, (double)routing->common / (double)routing->compared};
    for (int layer = 0; layer < LAYERS; layer++) {
        qsort(routing->uses[layer], EXPERTS, sizeof(uint64_t), descending);
        for (int i = 0; i < EXPERTS / 5; i++) {
            measured.busiest_fifth += (double)routing->uses[layer][i] / (STEPS * USED * LAYERS);
        }
    }
    free(routing);
    print_message("%-28s runs of %2d: busiest fifth %.0f %%, common to neighbours %.0f %%\n", options, stay,
                  100 * measured.busiest_fifth, 100 * measured.common);
    return measured;
}

static void test_routing(void **state) {
    (void)state;
    struct measured even = measure("", 1), skewed = measure("--skew 1", 1), more = measure("--skew 1.5", 1);
    assert_true(even.busiest_fifth < 0.32);
    assert_true(skewed.busiest_fifth > even.busiest_fifth + 0.08);
    assert_true(more.busiest_fifth > skewed.busiest_fifth + 0.05);
    struct measured apart = measure("--locality 0.7", 1), together = measure("--locality 0.7", 32);
    assert_true(together.common > 1.8 * apart.common);
}

static void check_refused(const char *arguments, const char *word) {
    char command[512], text[4096];
    snprintf(command, sizeof command, "%s %s", synth, arguments);
    int code = run(command, text, sizeof text);
    char *newline = strchr(text, '\n');
    if (code != 2 || !newline || newline[1] || !strstr(text, word)) {
        fail_msg("'%s': exit code %d: %s", arguments, code, text);
    }
}

static void test_options(void **state) {
    (void)state;
    check_refused("", "no file");
    check_refused("x.gguf --layers 0", "--layers 0");
    check_refused("x.gguf --layers 4x", "--layers 4x");
    check_refused("x.gguf --layers", "--layers");
    check_refused("x.gguf --layers 4 --size 1GiB", "exclude");
    check_refused("x.gguf --size 5", "--size 5");
    check_refused("x.gguf --size 1MB", "--size");
    check_refused("x.gguf --embd 300", "256");
    check_refused("x.gguf --ff 300", "multiple of 256");
    check_refused("x.gguf --ff 300 --type Q8_0", "multiple of 32");
    check_refused("x.gguf --experts 4 --used 5", "only 4 experts");
    check_refused("x.gguf --type Q9", "mixed");
    check_refused("x.gguf --dense-type mixed", "mixed");
    check_refused("x.gguf --skew 2", "1.5");
    check_refused("x.gguf --skew nan", "1.5");
    check_refused("x.gguf --locality -0.1", "0 to 1");
    check_refused("x.gguf --unknown 1", "--unknown");
    check_refused("x.gguf y.gguf", "two files");
    check_refused("x.gguf --layers 1 --shards 99", "--shards");
    char command[512], text[8192];
    snprintf(command, sizeof command, "%s missing/x.gguf " SHAPE, synth);
    assert_int_equal(run(command, text, sizeof text), 1);
    assert_non_null(strstr(text, "missing/x.gguf"));
    // a full disk: one line, nothing left behind
    snprintf(command, sizeof command, "sh -c 'ulimit -f 1000; trap \"\" XFSZ; exec %s x.gguf " SHAPE "'", synth);
    assert_int_equal(run(command, text, sizeof text), 1);
    assert_non_null(strstr(text, "cannot write x.gguf"));
    assert_int_equal(access(path_of("x.gguf"), F_OK), -1);
    snprintf(command, sizeof command, "%s --help", synth);
    assert_int_equal(run(command, text, sizeof text), 0);
    assert_non_null(strstr(text, "--locality"));
}

// The loader, in a child process that has the preload, must map a model through it.
static void test_preload(void **state) {
    (void)state;
    char command[1024], text[1024];
    make_model("one.gguf " SHAPE, text, sizeof text);
    make_model("two.gguf " SHAPE " --shards 2", text, sizeof text);
    static const struct {
        const char *environment, *model, *expected;
    } cases[] = {
        {"GUANACO_STREAMING=on", "one.gguf", "1 mappings"},
        {"GUANACO_STREAMING=on", "two-00001-of-00002.gguf", "2 mappings"},
        {"GUANACO_STREAMING=off", "one.gguf", "0 mappings"},
    };
    for (size_t i = 0; i < 3; i++) {
        snprintf(command, sizeof command, "%s LD_PRELOAD=%s %s --load %s", cases[i].environment, preload, self,
                 cases[i].model);
        if (run(command, text, sizeof text) != 0 || !strstr(text, cases[i].expected)) {
            fail_msg("%s: %s", command, text);
        }
    }
    remove_model("one.gguf");
    remove_model("two-00001-of-00002.gguf");
    remove_model("two-00002-of-00002.gguf");
}

static int load_only(const char *path) {
    size_t (*mappings)(void) = NULL;
    *(void **)&mappings = dlsym(RTLD_DEFAULT, "guanaco_preload_mappings");
    struct llama_model *model = llama_model_load_from_file(path, llama_model_default_params());
    printf("%d mappings\n", mappings ? (int)mappings() : -1);
    return model ? 0 : 1;
}

static void on_log(enum ggml_log_level level, const char *text, void *context) {
    (void)context;
    if (level == GGML_LOG_LEVEL_ERROR) {
        fputs(text, stderr);
    }
}

int main(int argc, char **argv) {
    static char program[4096];
    if (argc != 3 || readlink("/proc/self/exe", program, sizeof program - 1) < 0) {
        fprintf(stderr, "usage: test_synth GUANACO_SYNTH LIBGUANACO_PRELOAD (full paths)\n");
        return 2;
    }
    llama_log_set(on_log, NULL);
    if (!load_backends()) {
        fprintf(stderr, "there is no CPU backend beside libllama\n");
        return 1;
    }
    if (strcmp(argv[1], "--load") == 0) {
        return load_only(argv[2]);
    }
    self = program;
    synth = argv[1];
    preload = argv[2];
    if (!mkdtemp(folder)) {
        perror(folder);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),   cmocka_unit_test(test_shards),  cmocka_unit_test(test_size),
        cmocka_unit_test(test_routing), cmocka_unit_test(test_options), cmocka_unit_test(test_preload),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char text[256];
    run("rm -f *.gguf", text, sizeof text);
    rmdir(folder);
    return failed;
}
