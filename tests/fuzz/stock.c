// Mutants of a whole model, run by stock llama.cpp and by the plugin: what stock computes must come out bit for bit, or
// end in an error with a line; what stock refuses must not harm us.
//
//     fuzz-stock PLUGIN MODEL [--seed S] [--cases N | --seconds N] [--case N] [--save DIR]
//     fuzz-stock PLUGIN --replay FILE...
//
// Each run has a process of its own, forked from this one, which has llama.cpp's libraries but never the plugin.
#include "backends.h"
#include "fuzz.h"
#include "gguf_file.h"
#include "llama.h"
#include "model_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TOKENS = 10, STEPS = 4, LIMIT_SECONDS = 120, ROOM = 1 << 20 };
#define MEMORY ((uint64_t)6 << 30) // of address space, for one run

enum outcome { COMPUTED, REFUSED, FAILED, DIED, HUNG, OUTCOMES };
static const char *const outcomes[] = {"computed", "refused", "failed", "died", "hung"};

struct result {
    enum outcome outcome;
    int signal;
    uint64_t bits;   // of all logits
    bool said;       // a line of an error
    bool ours_reads; // guanaco's own reader takes the file
};

// In memory that is shared with the runs.
struct shared {
    _Atomic enum outcome outcome;
    _Atomic uint64_t bits;
    _Atomic bool said, ours_reads;
};

// How a mutant is run: drawn with it.
struct way {
    const char *cache, *io, *prefetch;
    enum llama_load_mode load;
};

struct options {
    const char *plugin, *model, *save;
    uint64_t seed, cases, one, seconds;
    bool has_one;
    char **files;
    int n_files;
};

static struct shared *shared;

// ------------------------------------------------------------------------------------------------ one run

static void note_line(enum ggml_log_level level, const char *text, void *unused) {
    (void)unused;
    if (level == GGML_LOG_LEVEL_ERROR) {
        shared->said = true;
    }
    fputs(text, stderr);
}

static uint64_t add_bits(uint64_t sum, const void *bytes, size_t n) {
    const uint8_t *byte = bytes;
    for (size_t i = 0; i < n; i++) {
        sum = (sum ^ byte[i]) * UINT64_C(0x100000001b3);
    }
    return sum;
}

// Which of the numbers that are none it is depends on the order of operands: all are one.
static void add_logits(const float *logits, int n) {
    static const float none = NAN;
    uint64_t sum = shared->bits;
    for (int i = 0; i < n; i++) {
        sum = add_bits(sum, isnan(logits[i]) ? &none : &logits[i], sizeof none);
    }
    shared->bits = sum;
}

static bool decode(struct llama_context *context, int n_vocab, const llama_token *tokens, int n, int from) {
    struct llama_batch batch = llama_batch_init(n, 0, 1);
    for (int i = 0; i < n; i++) {
        batch.token[i] = tokens[i];
        batch.pos[i] = from + i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    batch.n_tokens = n;
    bool good = llama_decode(context, batch) == 0;
    llama_batch_free(batch);
    for (int i = 0; good && i < n; i++) {
        const float *logits = llama_get_logits_ith(context, i);
        good = logits != NULL;
        if (good) {
            add_logits(logits, n_vocab);
        }
    }
    return good;
}

static enum outcome compute(struct llama_context *context, int n_vocab) {
    llama_token tokens[TOKENS];
    for (int i = 0; i < TOKENS; i++) {
        tokens[i] = (i * 131 + 17) % n_vocab;
    }
    bool good = decode(context, n_vocab, tokens, TOKENS, 0);
    for (int s = 0; good && s < STEPS; s++) {
        good = decode(context, n_vocab, &(llama_token){(s * 37 + 5) % n_vocab}, 1, TOKENS + s);
    }
    return good ? COMPUTED : FAILED;
}

static enum outcome load_and_compute(const char *path, const struct way *way) {
    static ggml_backend_dev_t none[] = {NULL};
    struct llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 0;
    params.devices = none;
    params.load_mode = way->load;
    params.use_extra_bufts = false; // repacking changes the last bits
    struct llama_model *model = llama_model_load_from_file(path, params);
    struct llama_context_params wanted = llama_context_default_params();
    wanted.n_ctx = 64;
    wanted.n_batch = 64;
    wanted.n_ubatch = 16;
    wanted.n_threads = wanted.n_threads_batch = 1;
    struct llama_context *context = model ? llama_init_from_model(model, wanted) : NULL;
    int n_vocab = context ? llama_vocab_n_tokens(llama_model_get_vocab(model)) : 0;
    enum outcome outcome = n_vocab > 0 ? compute(context, n_vocab) : REFUSED;
    llama_free(context);
    llama_model_free(model);
    return outcome;
}

static _Noreturn void run(const char *path, const char *plugin, const struct way *way) {
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
#if !defined(__SANITIZE_ADDRESS__)
    setrlimit(RLIMIT_AS, &(struct rlimit){MEMORY, MEMORY});
#endif
    llama_log_set(note_line, NULL);
    if (plugin) {
        struct model_file file;
        char why[1024];
        shared->ours_reads = model_file_open(path, &file, why, sizeof why);
        model_file_close(&file);
        shared->said = false;
        setenv("GUANACO_EXPERT_CACHE", way->cache, 1);
        setenv("GUANACO_IO", way->io, 1);
        setenv("GUANACO_PREFETCH", way->prefetch, 1);
        if (!ggml_backend_load(plugin)) {
            fprintf(stderr, "fuzz-stock: cannot load %s\n", plugin);
            _exit(2);
        }
    }
    shared->outcome = load_and_compute(path, way);
    _exit(0);
}

// The plugin's own lines go to standard error: whether there was any shows in how long the file is.
static void hide_output(int to) {
    dup2(to, STDOUT_FILENO);
    dup2(to, STDERR_FILENO);
}

static bool has_line(int file) {
    static char text[65536];
    ssize_t n = pread(file, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    return strstr(text, "guanaco: error") != NULL || strstr(text, "error") != NULL;
}

static struct result run_apart(const char *path, const char *plugin, const struct way *way, bool loud) {
    static int output = -1;
    output = output < 0 ? memfd_create("output", MFD_CLOEXEC) : output;
    struct result result = {.outcome = DIED};
    shared->outcome = DIED;
    shared->bits = 1;
    shared->said = shared->ours_reads = false;
    if (ftruncate(output, 0) || lseek(output, 0, SEEK_SET) != 0) {
        fuzz_fail("no memory for what a run prints");
    }
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        if (!loud) {
            hide_output(output);
        }
        run(path, plugin, way);
    }
    int status = 0;
    struct timespec began, now;
    clock_gettime(CLOCK_MONOTONIC, &began);
    while (waitpid(pid, &status, WNOHANG) == 0) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec - began.tv_sec > LIMIT_SECONDS) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            result.outcome = HUNG;
            return result;
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        result.outcome = shared->outcome;
    }
    result.signal = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
    result.bits = shared->bits;
    result.said = shared->said || has_line(output);
    result.ours_reads = shared->ours_reads;
    return result;
}

// ------------------------------------------------------------------------------------------------ the comparison

struct tally {
    uint64_t n, same, told, refused, both_fail, stock_died, varies, unread, reports;
};

// What is wrong with ours; NULL: nothing.
static const char *judge(const struct result *stock, const struct result *ours, struct tally *tally) {
    if (ours->outcome == HUNG) {
        return stock->outcome == HUNG ? NULL : "it does not end";
    }
    if (ours->outcome == DIED) {
        tally->stock_died += stock->outcome == DIED;
        return stock->outcome == DIED ? NULL : "it dies";
    }
    if (stock->outcome == DIED || stock->outcome == HUNG) {
        tally->stock_died++;
        return NULL;
    }
    if (stock->outcome != COMPUTED) {
        tally->refused += stock->outcome == REFUSED;
        tally->both_fail += stock->outcome == FAILED;
        return ours->outcome == COMPUTED ? "it computes what stock does not" : NULL;
    }
    tally->unread += !ours->ours_reads;
    if (ours->outcome != COMPUTED) {
        tally->told += ours->said;
        return ours->said ? NULL : "it fails without a line where stock computes";
    }
    tally->same += ours->bits == stock->bits;
    return ours->bits == stock->bits ? NULL : "other logits than stock's";
}

static struct way draw_way(struct random *random) {
    static const char *const caches[] = {"min", "30%", "100%"}, *const ios[] = {"threads", "uring", "mapped"},
                             *const prefetches[] = {"off", "auto", "pilot"};
    return (struct way){.cache = caches[random_below(random, 3)],
                        .io = ios[random_below(random, 3)],
                        .prefetch = prefetches[random_below(random, 3)],
                        .load = random_percent(random, 75) ? LLAMA_LOAD_MODE_MMAP : LLAMA_LOAD_MODE_NONE};
}

// Returns whether all is well.
static bool compare(const char *path, const char *plugin, const struct way *way, struct tally *tally,
                    const char *name) {
    struct result stock = run_apart(path, NULL, way, false), ours = run_apart(path, plugin, way, false);
    tally->n++;
    const char *wrong = judge(&stock, &ours, tally);
    if (wrong && stock.outcome == COMPUTED && ours.outcome == COMPUTED) {
        struct result again = run_apart(path, NULL, way, false);
        if (again.outcome != COMPUTED || again.bits != stock.bits) {
            tally->varies++; // memory that stock has not written, or the like
            return true;
        }
    }
    if (!wrong) {
        return true;
    }
    tally->reports++;
    fprintf(stderr,
            "fuzz-stock: REPORT: %s: %s; stock %s (%d), ours %s (%d); --expert-cache %s --io %s --prefetch %s, %s\n",
            name, wrong, outcomes[stock.outcome], stock.signal, outcomes[ours.outcome], ours.signal, way->cache,
            way->io, way->prefetch, way->load == LLAMA_LOAD_MODE_MMAP ? "mapped" : "spooled");
    if (ours.outcome != HUNG) {
        run_apart(path, plugin, way, true);
    }
    return false;
}

// ------------------------------------------------------------------------------------------------ mutants

static uint8_t *base;
static size_t base_n;

static void read_base(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file || fseeko(file, 0, SEEK_END)) {
        fuzz_fail("cannot open %s", path);
    }
    base_n = (size_t)ftello(file);
    rewind(file);
    base = malloc(base_n);
    if (!base || fread(base, 1, base_n, file) != base_n) {
        fuzz_fail("cannot read %s", path);
    }
    fclose(file);
}

// Weights of any tensor: a bit, a byte, or a few that are alike.
static void change_weights(struct random *random, struct bytes *file, const struct gguf_pieces *pieces) {
    size_t data = file->n - pieces->data_length;
    for (size_t times = 1 + random_below(random, 8); times > 0 && pieces->data_length > 64; times--) {
        size_t at = data + random_below(random, pieces->data_length - 64);
        static const uint8_t same[] = {0x00, 0xff, 0x7f, 0x80, 0x7c};
        if (random_percent(random, 50)) {
            file->data[at] ^= (uint8_t)(1 << random_below(random, 8));
        } else {
            memset(file->data + at, same[random_below(random, sizeof same)], 1 + random_below(random, 64));
        }
    }
}

// The mutant, and how it is to be run.
static struct way make_mutant(uint64_t seed, uint64_t number, struct bytes *out) {
    static struct gguf_pieces pieces;
    static uint8_t space[ROOM];
    struct bytes room = {.data = space, .capacity = sizeof space};
    struct random random = random_for(seed, number);
    struct way way = draw_way(&random);
    unsigned kind = (unsigned)random_below(&random, 4);
    gguf_take_apart(base, base_n, &pieces);
    gguf_mutate(&random, &pieces, &room, kind == 0 ? 0 : 1 + (unsigned)random_below(&random, 2), kind == 1);
    out->n = 0;
    gguf_put_together(&pieces, out);
    if (kind == 0 || random_percent(&random, 20)) {
        change_weights(&random, out, &pieces);
    }
    return way;
}

static void write_file(const char *path, const struct bytes *bytes) {
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes->data, 1, bytes->n, file) != bytes->n || fclose(file)) {
        fuzz_fail("cannot write %s: %s", path, strerror(errno));
    }
}

static void run_mutants(const struct options *options, const char *directory, struct tally *tally) {
    struct bytes mutant = {.capacity = base_n + ROOM};
    mutant.data = malloc(mutant.capacity);
    char path[PATH_MAX + 32], name[64], kept[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/mutant.gguf", directory);
    struct timespec began, now;
    clock_gettime(CLOCK_MONOTONIC, &began);
    uint64_t from = options->has_one ? options->one : 0, to = options->has_one ? options->one + 1 : options->cases;
    for (uint64_t number = from; mutant.data && number < to; number++) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (options->seconds && (uint64_t)(now.tv_sec - began.tv_sec) >= options->seconds) {
            break;
        }
        struct way way = make_mutant(options->seed, number, &mutant);
        unlink(path);
        write_file(path, &mutant);
        snprintf(name, sizeof name, "--seed %" PRIu64 " --case %" PRIu64, options->seed, number);
        if (!compare(path, options->plugin, &way, tally, name)) {
            snprintf(kept, sizeof kept, "%s/stock-%" PRIu64 "-%" PRIu64 ".gguf", options->save, options->seed, number);
            write_file(kept, &mutant);
        }
    }
    unlink(path);
    free(mutant.data);
}

static void replay(const struct options *options, struct tally *tally) {
    for (int f = 0; f < options->n_files; f++) {
        for (uint64_t number = 0; number < 4; number++) {
            struct random random = random_for(1, number);
            struct way way = draw_way(&random);
            compare(options->files[f], options->plugin, &way, tally, options->files[f]);
        }
    }
}

// ------------------------------------------------------------------------------------------------ options

static _Noreturn void usage(void) {
    fputs("usage: fuzz-stock PLUGIN MODEL [--seed S] [--cases N | --seconds N] [--case N] [--save DIR]\n"
          "       fuzz-stock PLUGIN --replay FILE...\n",
          stderr);
    exit(2);
}

static uint64_t number_of(const char *text) {
    char *end;
    uint64_t value = strtoull(text, &end, 10);
    if (*end || end == text) {
        usage();
    }
    return value;
}

static struct options parse(int argc, char **argv) {
    struct options options = {.seed = 1, .cases = 100, .save = "."};
    if (argc < 3) {
        usage();
    }
    options.plugin = argv[1];
    options.model = argv[2];
    if (!strcmp(argv[2], "--replay")) {
        options.files = argv + 3;
        options.n_files = argc - 3;
        return options;
    }
    for (int i = 3; i < argc; i += 2) {
        if (i + 1 == argc) {
            usage();
        }
        if (!strcmp(argv[i], "--save")) {
            options.save = argv[i + 1];
        } else if (!strcmp(argv[i], "--seed")) {
            options.seed = number_of(argv[i + 1]);
        } else if (!strcmp(argv[i], "--cases")) {
            options.cases = number_of(argv[i + 1]);
        } else if (!strcmp(argv[i], "--seconds")) {
            options.seconds = number_of(argv[i + 1]);
            options.cases = UINT64_MAX;
        } else if (!strcmp(argv[i], "--case")) {
            options.one = number_of(argv[i + 1]);
            options.has_one = true;
        } else {
            usage();
        }
    }
    return options;
}

int main(int argc, char **argv) {
    struct options options = parse(argc, argv);
    const char *temporary = getenv("TMPDIR");
    char directory[PATH_MAX];
    snprintf(directory, sizeof directory, "%s/guanaco-fuzz-XXXXXX", temporary && *temporary ? temporary : "/tmp");
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    setenv("GGML_NO_BACKTRACE", "1", 1); // a crash must not wait for a debugger
    setenv("GUANACO_LOG", "error", 1);
    llama_log_set(NULL, NULL);
    if (shared == MAP_FAILED || !load_backends() || !mkdtemp(directory)) {
        fprintf(stderr, "fuzz-stock: no memory, no CPU backend beside libllama, or no directory for its files\n");
        return 2;
    }
    struct tally tally = {0};
    if (options.files) {
        replay(&options, &tally);
    } else {
        read_base(options.model);
        run_mutants(&options, directory, &tally);
    }
    rmdir(directory);
    free(base);
    printf("fuzz-stock: seed %" PRIu64 ": %" PRIu64 " mutants: %" PRIu64 " with stock's bits, %" PRIu64
           " refused by both, "
           "%" PRIu64 " fail in both, %" PRIu64 " with an error of ours, %" PRIu64 " kill stock, %" PRIu64
           " vary in stock, %" PRIu64 " reports; guanaco's own reader refuses %" PRIu64 " that stock runs\n",
           options.seed, tally.n, tally.same, tally.refused, tally.both_fail, tally.told, tally.stock_died,
           tally.varies, tally.reports, tally.unread);
    return tally.reports > 0;
}
