// Streams a tiny model of every Mixture-of-Experts architecture and compares every logit's bits with stock llama.cpp's.
//
//     conformance TINY LOGITS PLUGIN FOLDER [CASE...]
//
// GUANACO_TEST_WAYS=all in the environment: each case in every way, not in one of the others in turn.
// TINY makes the models, LOGITS runs the scenario (tiny.c, logits.c), FOLDER takes the files. Per case: stock once,
// streamed with room for all experts, for some and for the fewest possible, streamed in one of the other ways to get at
// the bytes (through the page cache, from a spool file), and stock again with one expert zeroed, whose bits must
// differ: else the comparison would show nothing.
#include "harness.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool have_uring, all_ways;

// One thread unless a case says otherwise: bits may depend on the number of threads, in stock too (attention over 512
// cells and more is summed up per thread).
static const struct variant variants[] = {
    {"type-F32", "qwen3moe", "--type F32", ""},
    {"mixed-deepseek2", "deepseek2", "--type mixed", ""},
    {"F32-deepseek4", "deepseek4", "--type F32", ""},
    {"fused-cohere2moe", "cohere2moe", "--fused", ""},
    {"fused-deepseek2", "deepseek2", "--fused", ""},
    {"fused-deepseek2-ocr", "deepseek2-ocr", "--fused", ""},
    {"fused-gemma4", "gemma4", "--fused", ""},
    {"fused-granite_swa", "granite_swa", "--fused", ""},
    {"fused-hy_v3", "hy_v3", "--fused", ""},
    {"fused-qwen35moe", "qwen35moe", "--fused", ""},
    {"fused-qwen3next", "qwen3next", "--fused --type mixed", ""},
    {"fused-qwen4exp", "qwen4exp", "--fused", ""},
    {"shards", "qwen3moe", "--shards 3", ""},
    {"aligned-4096", "qwen3moe", "--alignment 4096", ""},
    {"one-used", "qwen3moe", "--used 1", ""},
    {"all-used", "qwen3moe", "--used 8", ""},
    {"64-experts", "qwen3moe", "--experts 64 --used 8", ""},
    {"ubatch-3", "qwen3moe", "", "--ubatch 3"},
    {"ubatch-128-IQ4_XS", "qwen3moe", "--type IQ4_XS", "--ubatch 128 --prompt 128"},
    {"256-tokens", "qwen3moe", "", "--decode 256"},
    {"256-tokens-gpt-oss", "gpt-oss", "", "--decode 256"},
    {"256-tokens-deepseek2", "deepseek2", "", "--decode 256"},
    {"two-threads", "qwen3moe", "", "--threads 2 --prompt 20 --decode 6"},
    {"two-threads-deepseek4", "deepseek4", "", "--threads 2 --prompt 20 --decode 6"},
    {"two-threads-gpt-oss", "gpt-oss", "", "--threads 2 --prompt 20 --decode 6"},
    {NULL, NULL, NULL, NULL},
};

// How the bytes of experts are got at, each with another room for them.
static const struct way {
    const char *name, *cache;
    const char *direct, *load; // GUANACO_DIRECT, and the loader's mode
    const char *io;            // NULL: in turn
} ways[] = {
    {"directly", "100%", "on", "mmap", NULL},
    {"directly", "30%", "on", "mmap", NULL},
    {"directly", "min", "on", "mmap", NULL},
    {"through the page cache", "30%", "off", "mmap", NULL},
    {"in the page cache", "30%", "on", "mmap", "mapped"},
    {"from a spool file", "min", "on", "none", NULL},
    {"from a spool file, buffered, the loader reading directly,", "30%", "off", "dio", NULL},
};
enum { WAYS = sizeof ways / sizeof *ways, ALWAYS = 3 };

static bool same(const char *a, const char *b) {
    FILE *files[2] = {fopen(a, "rb"), fopen(b, "rb")};
    bool equal = files[0] && files[1];
    for (size_t n = 1; equal && n;) {
        char blocks[2][65536];
        n = fread(blocks[0], 1, sizeof blocks[0], files[0]);
        equal = fread(blocks[1], 1, sizeof blocks[1], files[1]) == n && memcmp(blocks[0], blocks[1], n) == 0;
    }
    for (int i = 0; i < 2; i++) {
        if (files[i]) {
            fclose(files[i]);
        }
    }
    return equal;
}

static int stream(const struct harness *harness, const struct test_case *c, const struct way *way, const char *io,
                  char *why, size_t size) {
    char what[200], options[PATH_MAX + 64], stock[PATH_MAX], streamed[PATH_MAX];
    harness_file(harness, c, "stock", stock);
    harness_file(harness, c, "streamed", streamed);
    snprintf(options, sizeof options, "--plugin %s --load %s", harness->plugin, way->load);
    setenv("GUANACO_EXPERT_CACHE", way->cache, 1);
    setenv("GUANACO_DIRECT", way->direct, 1);
    setenv("GUANACO_IO", io, 1);
    snprintf(what, sizeof what, "streamed %s with %s of the experts in memory, read by %s,", way->name, way->cache, io);
    int code = harness_logits(harness, c, streamed, options);
    if (code) {
        return harness_complain(why, size, what, code);
    }
    if (!same(stock, streamed)) {
        strncat(what, " not stock's bits", sizeof what - strlen(what) - 1);
        return harness_complain(why, size, what, 0);
    }
    return 0;
}

static int check_case(const struct harness *harness, const struct test_case *c, int index, char *why, size_t size) {
    char stock[PATH_MAX], zeroed[PATH_MAX];
    harness_file(harness, c, "stock", stock);
    harness_file(harness, c, "zeroed", zeroed);
    int code = harness_make(harness, c, "");
    if (code == SKIPPED) {
        snprintf(why, size, "this llama.cpp does not know it");
        return SKIPPED;
    }
    if (code || (code = harness_logits(harness, c, stock, ""))) {
        return harness_complain(why, size, "making the model or running stock", code);
    }
    for (int i = 0; i < WAYS; i++) {
        if (i >= ALWAYS && !all_ways && (i - ALWAYS) != index % (WAYS - ALWAYS)) {
            continue;
        }
        const char *io = ways[i].io ? ways[i].io : have_uring && (index + i) % 2 == 0 ? "uring" : "threads";
        if (stream(harness, c, &ways[i], io, why, size)) {
            return 1;
        }
    }
    if ((code = harness_make(harness, c, "--zero-expert last:0")) || (code = harness_logits(harness, c, zeroed, ""))) {
        return harness_complain(why, size, "the model with a zeroed expert", code);
    }
    return same(stock, zeroed) ? harness_complain(why, size, "a zeroed expert changes nothing", 0) : 0;
}

// Containers often forbid io_uring; an invalid call tells without setting anything up.
static bool uring_allowed(void) {
    return syscall(SYS_io_uring_setup, 0, NULL) < 0 && errno != ENOSYS && errno != EPERM;
}

int main(int argc, char **argv) {
    if (argc < 5) {
        fputs("usage: conformance TINY LOGITS PLUGIN FOLDER [CASE...]\n", stderr);
        return 2;
    }
    const char *wanted = getenv("GUANACO_TEST_WAYS");
    all_ways = wanted && strcmp(wanted, "all") == 0;
    unsetenv("GUANACO_TEST_WAYS");
    setenv("GUANACO_SPOOL_DIR", argv[4], 1);
    have_uring = uring_allowed();
    if (!have_uring) {
        puts("io_uring is forbidden here: reading by threads alone");
    }
    struct harness harness = {
        .tiny = argv[1],
        .logits = argv[2],
        .plugin = argv[3],
        .folder = argv[4],
        .model_options = "",
        .variants = variants,
        .at_once = 2,
        .check = check_case,
    };
    return harness_run(&harness, argv + 5);
}
