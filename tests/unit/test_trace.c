// Routing traces: what is written is read again, and what is no trace is refused with the line where it goes wrong.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "trace/trace.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[] = "/tmp/guanaco-trace-XXXXXX";

static int make_file(void **state) {
    (void)state;
    int file = mkstemp(path);
    return file < 0 ? -1 : close(file);
}

static int remove_file(void **state) {
    (void)state;
    return unlink(path);
}

static void put(const char *text, size_t length) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

static int read_text(const char *text, struct gn_trace *trace, char *why, size_t why_size) {
    put(text, strlen(text));
    return gn_trace_read(path, trace, why, why_size);
}

static void accept(const char *text, struct gn_trace *trace) {
    char why[512] = "";
    int failed = read_text(text, trace, why, sizeof why);
    if (failed) {
        fail_msg("%s", why);
    }
}

static void refuse(const char *text, const char *line, const char *reason) {
    struct gn_trace trace;
    char why[512] = "";
    assert_int_equal(read_text(text, &trace, why, sizeof why), -EINVAL);
    assert_null(strchr(why, '\n'));
    if (!strstr(why, line) || !strstr(why, reason)) {
        fail_msg("'%s' does not say '%s' and '%s'", why, line, reason);
    }
}

// ------------------------------------------------------------------------------------------------ CSV

#define HEAD                                                                                                           \
    "# route_trace v1\n# model=/a b/m.gguf arch=qwen3moe n_layer=4 n_expert=8 n_expert_used=2\n"                       \
    "# layer=1 expert_bytes=100 dense_bytes=7\n# layer=3 expert_bytes=200 dense_bytes=8\n"
#define COLUMNS "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes"
#define CSV(rows) HEAD COLUMNS "\n" rows

static void reads_csv(void **state) {
    (void)state;
    struct gn_trace trace;
    accept(CSV("0,0,5,1,0,7,0.75,0,100\n2,1,6,3,1,0,2.5e-05,2,0\n"), &trace);
    assert_string_equal(trace.model, "/a b/m.gguf");
    assert_string_equal(trace.architecture, "qwen3moe");
    assert_int_equal(trace.model_layers, 4);
    assert_int_equal(trace.n_experts, 8);
    assert_int_equal(trace.top_k, 2);
    assert_int_equal(trace.n_layers, 2);
    assert_int_equal(trace.layers[1].number, 3);
    assert_int_equal(trace.layers[1].expert_bytes, 200);
    assert_int_equal(trace.layers[1].dense_bytes, 8);
    assert_int_equal(trace.n_rows, 2);
    struct gn_trace_row first = trace.rows[0], second = trace.rows[1];
    assert_false(first.decode);
    assert_int_equal(first.expert, 7);
    assert_int_equal(first.layer, 0); // the index, not the number
    assert_true(fabsf(first.weight - 0.75f) < 1e-9f);
    assert_true(second.decode);
    assert_int_equal(second.turn, 2);
    assert_int_equal(second.step, 6);
    assert_int_equal(second.layer, 1);
    assert_int_equal(second.slot, 1);
    assert_true(fabsf(second.weight - 2.5e-5f) < 1e-9f);
    assert_int_equal(second.residency, 2);
    gn_trace_close(&trace);
    // Newer engines have one column more; files from elsewhere have other line ends.
    accept(HEAD COLUMNS ",dropped\n0,1,5,1,0,7,0.75,0,100,1\n", &trace);
    gn_trace_close(&trace);
    accept("# route_trace v1\r\n# model=m arch=a n_layer=1 n_expert=2 n_expert_used=1\r\n# a remark\r\n"
           "# layer=0 expert_bytes=1 dense_bytes=0\r\n" COLUMNS "\r\n0,1,0,0,0,1,-1,0,0\r\n",
           &trace);
    gn_trace_close(&trace);
}

static void refuses_malformed_csv(void **state) {
    (void)state;
    refuse("", "line 0", "before the first row");
    refuse("# route_trace v2\n", "line 1", "neither");
    refuse("\n", "line 1", "neither");
    refuse("# route_trace v1\n", "line 1", "before the first row");
    refuse("# route_trace v1\n# model=m arch=a n_layer=1 n_expert=2\n", "line 2", "n_expert_used");
    refuse("# route_trace v1\n# model=m arch=a n_layer=1 n_expert=0 n_expert_used=0\n", "line 2", "n_expert_used");
    refuse("# route_trace v1\n# layer=0 expert_bytes=1 dense_bytes=0\n", "line 2", "before the model");
    refuse("# route_trace v1\n" COLUMNS "\n", "line 2", "no layer");
    refuse(HEAD "# layer=3 expert_bytes=1 dense_bytes=0\n", "line 5", "out of order");
    refuse(HEAD "# layer=4 expert_bytes=0 dense_bytes=0\n", "line 5", "some bytes");
    refuse(HEAD "# layer=4 expert_bytes=99999999999999999999 dense_bytes=0\n", "line 5", "expert_bytes");
    refuse(HEAD "# layer=4 expert_bytes=9 dense_bytes=0 slot_bytes=8\n", "line 5", "slot_bytes");
    refuse(HEAD "# layer=4 expert_bytes=9 dense_bytes=0 n_expert=9\n", "line 5", "n_expert");
    refuse(HEAD "turn,phase\n", "line 5", "columns");
    refuse(HEAD COLUMNS "\n", "line 5", "before the first row");
    refuse(CSV("0,1,5,2,0,7,0.75,0,100\n"), "line 6", "layer 2 was not announced");
    refuse(CSV("0,1,5,1,0,8,0.75,0,100\n"), "line 6", "expert 8 of 8");
    refuse(CSV("0,2,5,1,0,7,0.75,0,100\n"), "line 6", "phase");
    refuse(CSV("0,1,5,1,0,7,0.75,3,100\n"), "line 6", "residency");
    refuse(CSV("0,1,5,1,0,7,nan,0,100\n"), "line 6", "weight");
    refuse(CSV("0,1,5,1,0,7,1e999,0,100\n"), "line 6", "weight");
    refuse(CSV("0,1,5,1,0,7,0.75,0\n"), "line 6", "residency");
    refuse(CSV("0,1,5,1,0,7,0.75,0,100,1\n"), "line 6", "expert_bytes");
    refuse(CSV("0,1,5,1,0,7,0.75,0,100\n0,1, 5,1,0,7,0.75,0,100\n"), "line 7", "step");
    refuse(CSV("0,1,-5,1,0,7,0.75,0,100\n"), "line 6", "step");
    refuse(CSV("0,1,4294967296,1,0,7,0.75,0,100\n"), "line 6", "step");
    refuse(CSV("\n"), "line 6", "turn");
    refuse(CSV("0,1,5,1,0,7,0.75,0,100"), "line 6", "cut off");
}

static void a_zero_byte_is_no_text(void **state) {
    (void)state;
    struct gn_trace trace;
    char why[512];
    put("# route_trace v1\0\n", 18);
    assert_int_equal(gn_trace_read(path, &trace, why, sizeof why), -EINVAL);
    assert_non_null(strstr(why, "zero byte"));
    assert_int_equal(gn_trace_read("/nowhere/trace.csv", &trace, why, sizeof why), -ENOENT);
    assert_non_null(strstr(why, "/nowhere/trace.csv"));
}

// Every text that a good one can be cut down to is refused or read, never worse.
static void any_cut_is_survived(void **state) {
    (void)state;
    static const char *const good[] = {CSV("0,0,5,1,0,7,0.75,0,100\n2,1,6,3,1,0,2.5e-05,2,0\n"),
                                       "{\"tok\": 1, \"layers\": [[1, 2], [0, 3]]}\n"};
    for (int g = 0; g < 2; g++) {
        for (size_t length = 0; length < strlen(good[g]); length++) {
            for (int mended = 0; mended < 2; mended++) { // with a line end behind it, too
                char text[1024], why[64];
                struct gn_trace trace;
                memcpy(text, good[g], length);
                text[length] = '\n';
                put(text, length + (size_t)mended);
                if (gn_trace_read(path, &trace, why, sizeof why) == 0) {
                    gn_trace_close(&trace);
                }
            }
        }
    }
}

// ------------------------------------------------------------------------------------------------ JSON lines

static void reads_jsonl(void **state) {
    (void)state;
    struct gn_trace trace;
    accept("{\"tok\": 1, \"layers\": [[6, 8], [7, 16]]}\n{\"tok\":2,\"layers\":[[1],[63,2,3]]}\n", &trace);
    assert_int_equal(trace.n_layers, 2);
    assert_int_equal(trace.n_experts, 64); // the highest seen, and one
    assert_int_equal(trace.layers[0].n_experts, 64);
    assert_int_equal(trace.layers[0].expert_bytes, 1);
    assert_int_equal(trace.top_k, 3);
    assert_int_equal(trace.n_rows, 8);
    assert_int_equal(trace.rows[3].expert, 16);
    assert_int_equal(trace.rows[3].layer, 1);
    assert_int_equal(trace.rows[3].slot, 1);
    assert_int_equal(trace.rows[7].step, 2);
    assert_true(trace.rows[7].decode);
    gn_trace_close(&trace);
}

static void refuses_malformed_jsonl(void **state) {
    (void)state;
    refuse("{\"tok\": 1}\n", "line 1", "expected");
    refuse("{\"tok\": 1, \"layers\": []}\n", "line 1", "expected");
    refuse("{\"tok\": 1, \"layers\": [[]]}\n", "line 1", "expected");
    refuse("{\"tok\": 1, \"layers\": [[1, -2]]}\n", "line 1", "expected");
    refuse("{\"tok\": 1, \"layers\": [[1, 2.5]]}\n", "line 1", "expected");
    refuse("{\"tok\": 1, \"layers\": [[65536]]}\n", "line 1", "expected");
    refuse("{\"tok\": 1, \"layers\": [[1, 2]]} {\n", "line 1", "expected");
    refuse("{\"tok\": 1, \"layers\": [[1, 2]\n", "line 1", "expected");
    refuse("{\"tok\": 1, \"layers\": [[1], [2]]}\n{\"tok\": 2, \"layers\": [[1]]}\n", "line 2", "1 layers");
    refuse("{\"tok\": 1, \"layers\": [[1]]}\n{\"tok\": 2, \"layers\": [[1], [2]]}\n", "line 2", "more layers");
    refuse("{\"tok\": 1, \"layers\": [[1]]}\n\n", "line 2", "expected");
}

// As of a device that gives bytes for ever: a line is not kept until it ends.
static void a_line_without_end_is_refused(void **state) {
    (void)state;
    size_t n = (size_t)3 << 20;
    char *text = malloc(n + 1);
    assert_non_null(text);
    memset(text, '#', n);
    text[n] = '\0';
    refuse(text, "line 1", "longer than any");
    free(text);
}

// ------------------------------------------------------------------------------------------------ round trip

static void what_is_written_is_read_again(void **state) {
    (void)state;
    struct gn_trace_layer layers[3] = {
        {.number = 1, .n_experts = 64, .expert_bytes = 3059712, .dense_bytes = 11, .slot_bytes = 3063808},
        {.number = 2, .n_experts = 64, .expert_bytes = 2654208, .dense_bytes = 12},
        {.number = 5, .n_experts = 60, .expert_bytes = 1}};
    struct gn_trace header = {.model = "some/model.gguf",
                              .architecture = "olmoe",
                              .model_layers = 6,
                              .n_experts = 64,
                              .top_k = 4,
                              .n_layers = 3,
                              .layers = layers};
    enum { ROWS = 20000 }; // more than one buffer
    struct gn_trace_row *rows = calloc(ROWS, sizeof *rows);
    struct gn_trace_writer *writer;
    assert_non_null(rows);
    assert_int_equal(gn_trace_writer_open(path, &header, &writer), 0);
    for (uint32_t r = 0; r < ROWS; r++) {
        rows[r] = (struct gn_trace_row){.turn = r / 10000,
                                        .step = r / 12,
                                        .layer = r / 4 % 3,
                                        .slot = r % 4,
                                        .expert = r * 7 % 60,
                                        .weight = (float)(r % 1001) / 1000 - 0.25f,
                                        .decode = r > 99,
                                        .residency = (uint8_t)(r % 3),
                                        .bytes = r % 3 ? 0 : 3059712};
        gn_trace_writer_add(writer, &rows[r]);
    }
    assert_int_equal(gn_trace_writer_close(writer), 0);
    struct gn_trace trace;
    char why[512];
    if (gn_trace_read(path, &trace, why, sizeof why)) {
        fail_msg("%s", why);
    }
    assert_string_equal(trace.model, header.model);
    assert_string_equal(trace.architecture, header.architecture);
    assert_memory_equal(trace.layers, layers, sizeof layers);
    assert_int_equal(trace.n_rows, ROWS);
    for (uint32_t r = 0; r < ROWS; r++) {
        const struct gn_trace_row *row = &trace.rows[r];
        assert_true(fabsf(row->weight - rows[r].weight) < 1e-6f);
        assert_true(row->turn == rows[r].turn && row->step == rows[r].step && row->layer == rows[r].layer &&
                    row->slot == rows[r].slot && row->expert == rows[r].expert && row->decode == rows[r].decode &&
                    row->residency == rows[r].residency && row->bytes == rows[r].bytes);
    }
    gn_trace_close(&trace);
    free(rows);
}

static void odd_weights_stay_readable(void **state) {
    (void)state;
    struct gn_trace_layer layer = {.n_experts = 2, .expert_bytes = 1};
    struct gn_trace header = {.n_experts = 2, .top_k = 1, .model_layers = 1, .n_layers = 1, .layers = &layer};
    static const float weights[] = {NAN, INFINITY, -INFINITY, 1e30f, -1e-30f, -2.5f};
    struct gn_trace_writer *writer;
    assert_int_equal(gn_trace_writer_open(path, &header, &writer), 0);
    for (size_t w = 0; w < sizeof weights / sizeof *weights; w++) {
        struct gn_trace_row row = {.weight = weights[w], .decode = true};
        gn_trace_writer_add(writer, &row);
    }
    assert_int_equal(gn_trace_writer_close(writer), 0);
    struct gn_trace trace;
    char why[512];
    assert_int_equal(gn_trace_read(path, &trace, why, sizeof why), 0);
    assert_true(fabsf(trace.rows[5].weight + 2.5f) < 1e-6f);
    gn_trace_close(&trace);
}

static void a_full_disk_is_told(void **state) {
    (void)state;
    struct gn_trace_layer layer = {.n_experts = 2, .expert_bytes = 1};
    struct gn_trace header = {.n_experts = 2, .n_layers = 1, .layers = &layer};
    struct gn_trace_writer *writer;
    assert_true(gn_trace_writer_open("/nowhere/trace.csv", &header, &writer) == -ENOENT);
    if (access("/dev/full", W_OK) == 0) {
        struct gn_trace_row row = {.decode = true};
        int failed = 0;
        assert_int_equal(gn_trace_writer_open("/dev/full", &header, &writer), 0);
        assert_true(gn_trace_writer_close(writer) == -ENOSPC);
        assert_int_equal(gn_trace_writer_open("/dev/full", &header, &writer), 0);
        for (int r = 0; r < 100000 && !failed; r++) {
            failed = gn_trace_writer_add(writer, &row);
        }
        assert_true(failed == -ENOSPC);
        gn_trace_writer_close(writer);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_csv),
        cmocka_unit_test(refuses_malformed_csv),
        cmocka_unit_test(a_zero_byte_is_no_text),
        cmocka_unit_test(any_cut_is_survived),
        cmocka_unit_test(reads_jsonl),
        cmocka_unit_test(refuses_malformed_jsonl),
        cmocka_unit_test(a_line_without_end_is_refused),
        cmocka_unit_test(what_is_written_is_read_again),
        cmocka_unit_test(odd_weights_stay_readable),
        cmocka_unit_test(a_full_disk_is_told),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
