// The benchmark's parts that only compute, read or write: options, summary, logits, report, read-ahead, and what must
// be put back. The measuring itself is tested from outside (system/test_bench.sh).
#include "bench/child.h"
#include "bench/logits.h"
#include "bench/options.h"
#include "bench/read_ahead.h"
#include "bench/report.h"
#include "bench/summary.h"
#include "bench/undo.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))
#define MIB ((uint64_t)1 << 20)

// ------------------------------------------------------------------------------------------------ options

static bool parse(struct bench_options *options, char *why, int argc, char **argv) {
    return bench_options_parse(options, argc, argv, why, 512);
}

static void options_defaults(void **state) {
    (void)state;
    static struct bench_options options;
    char why[512], *argv[] = {"bench"};
    assert_true(parse(&options, why, 1, argv));
    assert_int_equal(options.n_budgets, 4);
    const double shares[] = {0.10, 0.25, 0.50, 1};
    for (int b = 0; b < 4; b++) {
        assert_int_equal(options.budgets[b].knob, GN_EXPERT_CACHE);
        assert_float_equal(gn_knob_share(options.budgets[b].value), shares[b], 1e-6);
    }
    assert_false(options.no_resident || options.no_busy || options.no_mmap);
    assert_int_equal(options.limit_bytes, 0);
}

static void options_budgets(void **state) {
    (void)state;
    static struct bench_options options;
    char why[512], *argv[] = {"bench",
                              "m.gguf",
                              "--ram=1GiB,2.5GiB",
                              "--expert-cache",
                              "64MiB,min",
                              "--no-stock",
                              "--limit",
                              "3GiB",
                              "--policy",
                              "lru",
                              "-n",
                              "7"};
    assert_true(parse(&options, why, COUNT(argv), argv));
    assert_string_equal(options.model, "m.gguf");
    assert_int_equal(options.n_budgets, 4);
    assert_int_equal(options.budgets[0].value, 64 * MIB);
    assert_int_equal(options.budgets[2].knob, GN_RAM);
    assert_int_equal(options.budgets[3].value, 2560 * MIB);
    assert_true(options.no_resident && options.no_busy && options.no_mmap && options.knobs.given[GN_POLICY]);
    assert_int_equal(options.limit_bytes, 3072 * MIB);
    assert_int_equal(options.predict, 7);
}

static void options_baselines(void **state) {
    (void)state;
    static struct bench_options options;
    char why[512], *without_busy[] = {"bench", "--no-busy"}, *without_resident[] = {"bench", "--no-resident"};
    assert_true(parse(&options, why, 2, without_busy));
    assert_true(options.no_busy && !options.no_resident && !options.no_mmap);
    assert_true(parse(&options, why, 2, without_resident));
    assert_true(options.no_busy && options.no_resident && !options.no_mmap);
}

static void options_of_environment(void **state) {
    (void)state;
    static struct bench_options options;
    char why[512], *argv[] = {"bench"};
    setenv("GUANACO_RAM", "5GiB", 1);
    assert_true(parse(&options, why, 1, argv));
    unsetenv("GUANACO_RAM");
    assert_int_equal(options.n_budgets, 1);
    assert_int_equal(options.budgets[0].value, 5 * 1024 * MIB);
    assert_false(options.knobs.given[GN_RAM]); // each cell sets its own
}

static void options_refused(void **state) {
    (void)state;
    static struct bench_options options;
    static char many[400];
    for (int b = 0; b < 33; b++) {
        strcat(many, b ? ",1GiB" : "1GiB");
    }
    struct {
        char *words[4];
        const char *says;
    } const cases[] = {
        {{"--ram", "1GiB,,2GiB"}, "--ram"},
        {{"--ram", "auto"}, "--ram"},
        {{"--ram", "10%"}, "--ram"},
        {{"--expert-cache", "110%"}, "--expert-cache"},
        {{"--ram", many}, "32 budgets at most"},
        {{"--limit", "none"}, "--limit"},
        {{"--limit", "0"}, "--limit"},
        {{"--io", "null"}, "--io null"},
        {{"--repeat", "0"}, "--repeat"},
        {{"-n"}, "a value is missing"},
        {{"--no-mmap=1"}, "takes no value"},
        {{"--fast"}, "there is no option '--fast'; guanaco bench --help"},
        {{"a.gguf", "b.gguf"}, "one model at a time"},
    };
    for (int c = 0; c < COUNT(cases); c++) {
        char why[512] = "", *argv[5] = {"bench"};
        int argc = 1;
        for (; argc < 5 && cases[c].words[argc - 1]; argc++) {
            argv[argc] = cases[c].words[argc - 1];
        }
        assert_false(parse(&options, why, argc, argv));
        if (!strstr(why, cases[c].says)) {
            fail_msg("'%s' does not say '%s'", why, cases[c].says);
        }
        assert_null(strchr(why, '\n'));
    }
}

// ------------------------------------------------------------------------------------------------ summary

// Stock takes 10 ms a token. Streamed reads 4 MiB a token in decode, from a drive of 200 MiB/s: 20 ms at least. Beside
// each other stock takes 16 ms and the drive gives 125 MiB/s: 32 ms at least.
static struct bench *make_bench(void) {
    static struct bench bench;
    bench = (struct bench){.model = "/models/a<b&c.gguf",
                           .architecture = "arch",
                           .rounds = 3,
                           .n_cells = 4,
                           .expert_bytes = 100 * MIB,
                           .all_experts = 100};
    bench.drive = (struct bench_drive){.measured = true, .n_depths = 2, .n_rounds = 3, .depths = {1, 8}};
    struct bench_cell *stock = &bench.cells[0], *ours = &bench.cells[1], *out = &bench.cells[2],
                      *busy = &bench.cells[3];
    *stock = (struct bench_cell){.engine = BENCH_RESIDENT, .label = "resident", .n_samples = 3};
    *busy = (struct bench_cell){.engine = BENCH_BUSY, .label = "resident+reads", .n_samples = 3};
    *ours = (struct bench_cell){.engine = BENCH_OURS, .label = "25 %", .n_samples = 3, .budget_bytes = 3072 * MIB};
    *out = (struct bench_cell){.engine = BENCH_MMAP, .label = "mmap", .left_out = "no group", .limit_bytes = MIB};
    for (int r = 0; r < 3; r++) {
        bench.drive.mib_per_second[0][r] = 100;
        bench.drive.mib_per_second[1][r] = 200;
        stock->samples[r].decode = (struct bench_phase){.tokens = 10, .ns = 100000000};
        stock->samples[r].prefill = (struct bench_phase){.tokens = 100, .ns = 500000000};
        busy->samples[r].decode = (struct bench_phase){.tokens = 10, .ns = 160000000, .kernel_read_bytes = 20 * MIB};
        busy->samples[r].prefill = (struct bench_phase){.tokens = 100, .ns = 800000000};
        // 25, 40 and 50 ms a token
        uint64_t ns = 10 * (uint64_t)(r == 0 ? 25000000 : r == 1 ? 40000000 : 50000000);
        ours->samples[r].decode = (struct bench_phase){.tokens = 10,
                                                       .ns = ns,
                                                       .hits = 75,
                                                       .misses = 25,
                                                       .read_bytes = 40 * MIB,
                                                       .kernel_read_bytes = 99 * MIB,
                                                       .stall_ns = 50000000,
                                                       .compute_ns = 70000000,
                                                       .total_ns = 150000000,
                                                       .major_faults = 20};
        ours->samples[r].prefill = (struct bench_phase){.tokens = 100, .ns = 1000000000, .hits = 1, .misses = 1};
        ours->samples[r].peak_bytes = (uint64_t)(r + 1) * MIB;
    }
    return &bench;
}

static void summary_medians(void **state) {
    (void)state;
    const double odd[] = {5, 1, 3}, even[] = {4, 1, 2, 9};
    assert_float_equal(bench_median(odd, 3), 3, 0);
    assert_float_equal(bench_median(even, 4), 3, 0);
    assert_float_equal(bench_median(even, 0), 0, 0);
    const struct bench *bench = make_bench();
    struct bench_figures figures = bench_summarise(bench, &bench->cells[1]);
    assert_float_equal(figures.decode.tokens_per_second.median, 25, 1e-9);
    assert_float_equal(figures.decode.tokens_per_second.least, 20, 1e-9);
    assert_float_equal(figures.decode.tokens_per_second.most, 40, 1e-9);
    assert_float_equal(figures.decode.hit_rate, 0.75, 1e-9);
    assert_float_equal(figures.decode.mib_per_token, 4, 1e-9); // ours counts its own reads
    assert_float_equal(figures.decode.stall_ms, 5, 1e-9);
    assert_float_equal(figures.decode.compute_ms, 7, 1e-9);
    assert_float_equal(figures.decode.manage_ms, 3, 1e-9);
    assert_float_equal(figures.decode.rest_ms, 25, 1e-9);
    assert_float_equal(figures.decode.faults_per_token, 2, 1e-9);
    assert_int_equal(figures.peak_bytes, 3 * MIB);
    assert_true(bench_summarise(bench, &bench->cells[0]).decode.hit_rate < 0);
}

static void summary_roof(void **state) {
    (void)state;
    struct bench *bench = make_bench();
    struct bench_cell *ours = &bench->cells[1];
    assert_int_equal(bench_best_depth(&bench->drive), 1);
    struct bench_figures figures = bench_summarise(bench, ours);
    assert_true(figures.decode.roof.known && figures.decode.roof.by_drive);
    assert_float_equal(figures.decode.roof.tokens_per_second, 50, 1e-9);
    assert_float_equal(figures.decode.roof.reached, 0.5, 1e-9); // of 0.8, 0.5 and 0.4
    // Nothing read in prefill: the cores bound, at stock's 200 tokens/s.
    assert_true(figures.prefill.roof.known && !figures.prefill.roof.by_drive);
    assert_float_equal(figures.prefill.roof.tokens_per_second, 200, 1e-9);
    assert_float_equal(figures.prefill.roof.reached, 0.5, 1e-9);
    assert_false(bench_summarise(bench, &bench->cells[0]).decode.roof.known);
    // Of the 4 experts a token that were read, 3 in vain: 1 MiB is needed, and the cores bound.
    for (int r = 0; r < 3; r++) {
        ours->samples[r].decode.wasted = 30;
    }
    assert_float_equal(bench_summarise(bench, ours).decode.roof.tokens_per_second, 100, 1e-9);
}

static void summary_roof_of_both(void **state) {
    (void)state;
    struct bench *bench = make_bench();
    struct bench_cell *ours = &bench->cells[1], *busy = &bench->cells[3];
    struct bench_figures figures = bench_summarise(bench, ours);
    assert_true(figures.decode.both.known && figures.decode.both.by_drive);
    assert_float_equal(figures.decode.both.tokens_per_second, 31.25, 1e-9);
    assert_float_equal(figures.decode.both.reached, 0.8, 1e-9); // of 1.28, 0.8 and 0.64
    // Nothing read in prefill: nothing disturbs computing, and what the drive gave need not be known.
    assert_true(figures.prefill.both.known && !figures.prefill.both.by_drive);
    assert_float_equal(figures.prefill.both.tokens_per_second, 200, 1e-9);
    assert_false(bench_summarise(bench, busy).decode.both.known);
    // 1 MiB a token takes 8 ms, in which half a token is computed; the other half takes 5.
    for (int r = 0; r < 3; r++) {
        ours->samples[r].decode.wasted = 30;
    }
    figures = bench_summarise(bench, ours);
    assert_false(figures.decode.both.by_drive);
    assert_float_equal(figures.decode.both.tokens_per_second, 1000 / 13.0, 1e-9);
    // Beside reads stock was faster than alone, 8 ms: it counts as 10.
    for (int r = 0; r < 3; r++) {
        busy->samples[r].decode = (struct bench_phase){.tokens = 10, .ns = 80000000, .kernel_read_bytes = 10 * MIB};
    }
    assert_float_equal(bench_summarise(bench, ours).decode.both.tokens_per_second, 100, 1e-9);
    // One round, and then none, in which the drive gave anything.
    busy->n_samples = 2;
    busy->samples[0].decode.kernel_read_bytes = 0;
    busy->samples[1].decode.ns = 160000000; // 62.5 MiB/s: 16 ms
    assert_float_equal(bench_summarise(bench, ours).decode.both.tokens_per_second, 62.5, 1e-9);
    busy->samples[1].decode.kernel_read_bytes = 0;
    assert_false(bench_summarise(bench, ours).decode.both.known);
    assert_true(bench_summarise(bench, ours).decode.roof.known);
}

static void summary_roof_of_one_alone(void **state) {
    (void)state;
    struct bench *bench = make_bench();
    bench->cells[0].n_samples = 0; // stock did not fit
    struct bench_figures figures = bench_summarise(bench, &bench->cells[1]);
    assert_true(figures.decode.roof.known && figures.decode.roof.by_drive);
    assert_false(figures.decode.both.known);
    assert_false(figures.prefill.roof.known); // reads nothing, and computing was not measured
    bench = make_bench();
    bench->drive = (struct bench_drive){0};
    figures = bench_summarise(bench, &bench->cells[1]);
    assert_false(figures.decode.roof.known); // reads, and the drive is not known
    assert_int_equal(bench_best_depth(&bench->drive), -1);
}

// ------------------------------------------------------------------------------------------------ logits

static void logits_compared(void **state) {
    (void)state;
    struct bench_reference reference;
    struct bench_logits logits = {0};
    const uint64_t sums[] = {1, 2, 3, 4, 5}, other[] = {1, 2, 3, 9, 5};
    assert_int_equal(bench_reference_open(&reference, 5), 0);
    bench_logits_compare(&reference, &logits, "short", 7, sums, 3);
    bench_logits_compare(&reference, &logits, "long", 7, sums, 5);
    bench_logits_compare(&reference, &logits, "prefix", 7, other, 3);
    assert_string_equal(logits.differ, "");
    assert_int_equal(logits.runs, 2);
    assert_int_equal(logits.steps, 5);
    bench_logits_compare(&reference, &logits, "wrong", 7, other, 5);
    assert_non_null(strstr(logits.differ, "'long' and 'wrong' differ in step 4"));
    logits.differ[0] = '\0';
    bench_logits_compare(&reference, &logits, "tokens", 8, sums, 5);
    assert_non_null(strstr(logits.differ, "other tokens"));
    bench_reference_close(&reference);
}

// ------------------------------------------------------------------------------------------------ report

static char *written(void (*write)(const struct bench *bench, FILE *to), const struct bench *bench) {
    char *text;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    write(bench, file);
    fclose(file);
    return text;
}

static void assert_holds(const char *text, const char *part) {
    if (!strstr(text, part)) {
        fail_msg("'%s' is not in:\n%s", part, text);
    }
}

static void report_table(void **state) {
    (void)state;
    struct bench *bench = make_bench();
    char *text = written(bench_print_table, bench);
    assert_holds(text, "streamed 25 %");
    assert_holds(text, "50.00 drive   50.0   31.25   80.0\n");
    assert_holds(text, "stock resident+reads ");
    assert_holds(text, "stock mmap left out: no group");
    assert_holds(text, "200 MiB/s");
    free(text);
    snprintf(bench->logits.differ, sizeof bench->logits.differ, "'a' and 'b'");
    text = written(bench_print_table, bench);
    assert_holds(text, "LOGITS DIFFER: 'a' and 'b'");
    assert_null(strstr(text, "same logits"));
    free(text);
}

static int count(const char *text, char what) {
    int n = 0;
    for (; *text; text++) {
        n += *text == what;
    }
    return n;
}

static void report_csv(void **state) {
    (void)state;
    char *text = written(bench_write_csv, make_bench()), *rest = text;
    int commas = -1, lines = 0;
    for (char *line; (line = strsep(&rest, "\n")) && *line; lines++) {
        assert_true(commas < 0 || count(line, ',') == commas);
        commas = count(line, ',');
    }
    assert_int_equal(lines, 4); // a header, and the three cells with figures
    free(text);
}

static void report_json(void **state) {
    (void)state;
    char *text = written(bench_write_json, make_bench());
    assert_int_equal(count(text, '{'), count(text, '}'));
    assert_int_equal(count(text, '['), count(text, ']'));
    assert_holds(text, "\"roof_reached\": 0.5000");
    assert_holds(text, "\"both_tokens_per_second\": 31.2500");
    assert_holds(text, "\"engine\": \"resident_busy\"");
    assert_holds(text, "\"left_out\": \"no group\"");
    assert_holds(text, "\"same\": true");
    free(text);
}

static void report_svg(void **state) {
    (void)state;
    char *text = written(bench_write_svg, make_bench());
    assert_holds(text, "a&lt;b&amp;c.gguf");
    assert_holds(text, "stock, resident: 100<");
    assert_holds(text, "stock beside reads: 62.5<");
    assert_holds(text, "roof, both busy<");
    assert_holds(text, "memory budget of the whole process, GiB");
    // Decode: an axis to 120 tokens/s (a roof of 50, a baseline of 100) over 238 points: 25 tokens/s lie at
    // 284 - 238 * 25 / 120. The budget, 3 GiB, is on an axis to 3.5.
    assert_holds(text, "cx=\"494.0\" cy=\"234.4\"");
    assert_holds(text, "</svg>");
    free(text);
    struct bench empty = {.model = "m"};
    text = written(bench_write_svg, &empty); // nothing measured: no points, and no division by nothing
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf"));
    free(text);
}

// ------------------------------------------------------------------------------------------------ read-ahead

static void write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void read_file(const char *path, char *text, size_t size) {
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, size - 1, file)] = '\0';
    fclose(file);
}

static int make_root(void **state) {
    static char root[] = "/tmp/guanaco-bench-XXXXXX";
    strcpy(root, "/tmp/guanaco-bench-XXXXXX");
    *state = mkdtemp(root);
    return *state ? 0 : -1;
}

static int remove_root(void **state) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", (const char *)*state);
    return system(command);
}

static void read_ahead_found(void **state) {
    const char *root = *state;
    char command[512], text[32];
    struct bench_read_ahead setting;
    assert_false(bench_read_ahead_find(root, makedev(8, 1), &setting));
    assert_string_equal(setting.path, "");
    // A partition is a directory in its disk's, and the disk has the queue.
    snprintf(command, sizeof command,
             "cd '%s' && mkdir -p sys/dev/block sys/devices/sda/sda1 sys/devices/sda/queue sys/class/bdi/0:44 && "
             "ln -s ../../devices/sda sys/dev/block/8:0 && ln -s ../../devices/sda/sda1 sys/dev/block/8:1 && "
             "echo 512 >sys/devices/sda/queue/read_ahead_kb && echo 64 >sys/class/bdi/0:44/read_ahead_kb",
             root);
    assert_int_equal(system(command), 0);
    for (unsigned part = 0; part < 2; part++) {
        assert_true(bench_read_ahead_find(root, makedev(8, part), &setting));
        assert_int_equal(setting.kib, 512);
        assert_int_equal(setting.used_kib, 512);
    }
    assert_int_equal(bench_read_ahead_set(&setting, 128), 0);
    snprintf(command, sizeof command, "%s/sys/devices/sda/queue/read_ahead_kb", root);
    read_file(command, text, sizeof text);
    assert_string_equal(text, "128\n");
    assert_true(bench_read_ahead_find(root, makedev(0, 44), &setting));
    assert_int_equal(setting.kib, 64);
}

// ------------------------------------------------------------------------------------------------ undo and child

// Says what to put back, then waits to be killed.
static void change_and_wait(const char *value, const char *directory) {
    struct bench_undo undo;
    char why[256];
    bool good = bench_undo_start(&undo, why, sizeof why) && bench_undo_value(&undo, value, "8192") &&
                bench_undo_directory(&undo, directory) && mkdir(directory, 0755) == 0;
    write_file(value, "128");
    raise(good ? SIGKILL : SIGTERM);
}

static void undo_after_sigkill(void **state) {
    char value[128], directory[128], text[32] = "";
    snprintf(value, sizeof value, "%s/value", (const char *)*state);
    snprintf(directory, sizeof directory, "%s/group", (const char *)*state);
    write_file(value, "8192");
    pid_t pid = fork();
    if (pid == 0) {
        change_and_wait(value, directory);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(WTERMSIG(status), SIGKILL);
    for (int tries = 0; tries < 500 && (access(directory, F_OK) == 0 || strcmp(text, "8192") != 0); tries++) {
        usleep(10000);
        read_file(value, text, sizeof text);
    }
    assert_string_equal(text, "8192");
    assert_int_not_equal(access(directory, F_OK), 0);
}

static bool child_body(void *shared, void *context) {
    const char *what = context;
    strcpy(shared, "was here");
    fprintf(stderr, "a word");
    if (!strcmp(what, "killed")) {
        raise(SIGKILL);
    }
    if (!strcmp(what, "hangs")) {
        pause();
    }
    return strcmp(what, "fails") != 0;
}

static void child_ends(void **state) {
    (void)state;
    static const struct {
        const char *what;
        enum bench_end end;
    } cases[] = {{"works", BENCH_DONE}, {"fails", BENCH_FAILED}, {"killed", BENCH_KILLED}, {"hangs", BENCH_TIMED_OUT}};
    char *shared = bench_child_share(100);
    assert_non_null(shared);
    for (int c = 0; c < COUNT(cases); c++) {
        struct bench_child child = {
            .body = child_body, .shared = shared, .context = (void *)(uintptr_t)cases[c].what, .timeout = 1};
        int signal_number;
        char *said;
        shared[0] = '\0';
        assert_int_equal(bench_child_run(&child, &signal_number, &said), cases[c].end);
        assert_string_equal(shared, "was here");
        assert_string_equal(said, "a word");
        assert_int_equal(signal_number, cases[c].end == BENCH_KILLED ? SIGKILL : 0);
        free(said);
    }
    bench_child_unshare(shared, 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_defaults),
        cmocka_unit_test(options_budgets),
        cmocka_unit_test(options_baselines),
        cmocka_unit_test(options_of_environment),
        cmocka_unit_test(options_refused),
        cmocka_unit_test(summary_medians),
        cmocka_unit_test(summary_roof),
        cmocka_unit_test(summary_roof_of_both),
        cmocka_unit_test(summary_roof_of_one_alone),
        cmocka_unit_test(logits_compared),
        cmocka_unit_test(report_table),
        cmocka_unit_test(report_csv),
        cmocka_unit_test(report_json),
        cmocka_unit_test(report_svg),
        cmocka_unit_test_setup_teardown(read_ahead_found, make_root, remove_root),
        cmocka_unit_test_setup_teardown(undo_after_sigkill, make_root, remove_root),
        cmocka_unit_test(child_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
