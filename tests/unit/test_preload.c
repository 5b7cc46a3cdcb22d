// The interposer: which mappings it treats, and that it leaves everything else alone. This program contains it, so its
// own calls of mmap resolve to it.
#include "preload/gguf_scan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "skip.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

int guanaco_preload_active(void);
size_t guanaco_preload_mappings(void);

enum { DATA = 1 << 20, PAGE = 4096 };

struct bytes {
    unsigned char *data;
    size_t size, room;
};

static void put(struct bytes *bytes, const void *data, size_t size) {
    if (bytes->size + size > bytes->room) {
        bytes->room = (bytes->size + size) * 2;
        bytes->data = realloc(bytes->data, bytes->room);
        assert_non_null(bytes->data);
    }
    memcpy(bytes->data + bytes->size, data, size);
    bytes->size += size;
}

static void put_u32(struct bytes *bytes, uint32_t value) {
    put(bytes, &value, sizeof value);
}
static void put_u64(struct bytes *bytes, uint64_t value) {
    put(bytes, &value, sizeof value);
}

static void put_string(struct bytes *bytes, const char *text) {
    put_u64(bytes, strlen(text));
    put(bytes, text, strlen(text));
}

static void put_start(struct bytes *bytes, uint64_t tensors, uint64_t pairs) {
    *bytes = (struct bytes){0};
    put(bytes, "GGUF", 4);
    put_u32(bytes, 3);
    put_u64(bytes, tensors);
    put_u64(bytes, pairs);
}

static void put_array(struct bytes *bytes, uint32_t type, uint64_t count) {
    put_u32(bytes, 9);
    put_u32(bytes, type);
    put_u64(bytes, count);
}

static void put_tensor(struct bytes *bytes, const char *name) {
    put_string(bytes, name);
    put_u32(bytes, 2);
    put_u64(bytes, 64);
    put_u64(bytes, 64);
    put_u32(bytes, 0);
    put_u64(bytes, 0);
}

// A header with a value of every kind, tokens, and three tensors of which the last is named last.
static void put_model(struct bytes *bytes, const char *last, size_t tokens) {
    static const unsigned char sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    put_start(bytes, 3, 14);
    for (uint32_t type = 0; type < 13; type++) {
        if (sizes[type] == 0) {
            continue;
        }
        put_string(bytes, "some.number");
        put_u32(bytes, type);
        put(bytes, "12345678", sizes[type]);
    }
    put_string(bytes, "general.architecture");
    put_u32(bytes, 8);
    put_string(bytes, "blk.0.ffn_up_exps.weight"); // not where it counts
    put_string(bytes, "tokenizer.ggml.tokens");
    put_array(bytes, 8, tokens);
    for (size_t i = 0; i < tokens; i++) {
        put_string(bytes, &"token"[i % 5]);
    }
    put_string(bytes, "nested");
    put_array(bytes, 9, 2);
    for (int i = 0; i < 2; i++) {
        put_u32(bytes, 5);
        put_u64(bytes, 1);
        put_u32(bytes, 7);
    }
    put_tensor(bytes, "token_embd.weight");
    put_tensor(bytes, "blk.0.ffn_up.weight");
    put_tensor(bytes, last);
}

// The file of a test, of the bytes and then zeros, on disk and not in the page cache.
static int make_file(const struct bytes *bytes, size_t zeros) {
    char name[] = "test_preload.XXXXXX";
    int fd = mkstemp(name);
    assert_true(fd >= 0);
    unlink(name);
    assert_int_equal(pwrite(fd, bytes->data, bytes->size, 0), (ssize_t)bytes->size);
    char *filler = calloc(1, zeros + 1);
    assert_int_equal(pwrite(fd, filler, zeros, (off_t)bytes->size), (ssize_t)zeros);
    free(filler);
    assert_int_equal(fsync(fd), 0);
    assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM), 0); // only what is read becomes resident
    return fd;
}

static size_t resident_pages(void *address, size_t length) {
    static unsigned char pages[2 * DATA / PAGE];
    size_t count = (length + PAGE - 1) / PAGE, resident = 0;
    assert_true(count <= sizeof pages);
    assert_int_equal(mincore(address, length, pages), 0);
    for (size_t i = 0; i < count; i++) {
        resident += pages[i] & 1;
    }
    return resident;
}

// Read-ahead is asked for and not waited for.
static bool becomes_resident(void *address, size_t length) {
    for (int i = 0; i < 500; i++) {
        if (resident_pages(address, length) == (length + PAGE - 1) / PAGE) {
            return true;
        }
        usleep(10000);
    }
    return false;
}

// Some file systems keep everything in memory (tmpfs): there residency tells nothing.
static bool cache_drops(void) {
    struct bytes bytes = {0};
    put(&bytes, "text", 4);
    int fd = make_file(&bytes, DATA);
    void *address = mmap(NULL, DATA, PROT_READ, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(address, MAP_FAILED);
    bool drops = resident_pages(address, DATA) <= 4; // looking for the magic reads the first ones
    munmap(address, DATA);
    close(fd);
    free(bytes.data);
    return drops;
}

static void check_residency(char *address, size_t length, bool treated) {
    if (!treated) {
        assert_true(becomes_resident(address, length));
        return;
    }
    if (!cache_drops()) {
        left_out("page-cache", "this file system keeps files in memory");
        return;
    }
    size_t header = resident_pages(address, length);
    assert_true(header <= 4);
    assert_int_equal(posix_madvise(address, length, POSIX_MADV_WILLNEED), 0);
    usleep(20000);
    assert_int_equal(resident_pages(address, length), header);
}

// Maps the file as the loader does.
static char *map_model(int fd, size_t length) {
    char *address = mmap(NULL, length, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
    assert_ptr_not_equal(address, MAP_FAILED);
    return address;
}

static void check_mapping(const struct bytes *bytes, bool treated) {
    size_t length = bytes->size + DATA;
    int fd = make_file(bytes, DATA);
    assert_int_equal(lseek(fd, 17, SEEK_SET), 17);
    size_t before = guanaco_preload_mappings();
    errno = EDOM;
    char *address = map_model(fd, length);
    assert_int_equal(errno, EDOM);
    assert_int_equal(lseek(fd, 0, SEEK_CUR), 17);
    assert_int_equal(guanaco_preload_mappings() - before, treated ? 1 : 0);
    check_residency(address, length, treated);
    assert_int_equal(memcmp(address, bytes->data, bytes->size), 0);
    assert_int_equal(posix_madvise(address, length, POSIX_MADV_RANDOM), 0);
    assert_int_equal(munmap(address, length), 0);
    close(fd);
}

static void check_name(const char *name, bool treated) {
    struct bytes bytes;
    put_model(&bytes, name, 100);
    check_mapping(&bytes, treated);
    free(bytes.data);
}

static void test_models(void **state) {
    (void)state;
    assert_int_equal(guanaco_preload_active(), 1);
    check_name("blk.0.ffn_up_exps.weight", true);
    check_name("blk.0.ffn_gate_chexps.weight", true);
    check_name("blk.0.ffn_up_shexp.weight", false);
    check_name("blk.0.exp_probs_b.bias", false);
    check_name("blk.0.ffn_up_exps_weight", false);
}

static void test_shard(void **state) {
    (void)state;
    struct bytes bytes;
    put_start(&bytes, 2, 1);
    put_string(&bytes, "split.no");
    put_u32(&bytes, 2);
    put(&bytes, "\1", 2);
    put_tensor(&bytes, "blk.7.attn_q.weight");
    put_tensor(&bytes, "blk.7.ffn_down_exps.weight");
    check_mapping(&bytes, true);
    free(bytes.data);
}

static void test_not_gguf(void **state) {
    (void)state;
    struct bytes bytes = {0};
    put(&bytes, "blk.0.ffn_up_exps.weight", 24);
    check_mapping(&bytes, false);
    free(bytes.data);
}

static void test_direct(void **state) {
    (void)state;
    struct bytes bytes;
    put_model(&bytes, "blk.0.ffn_up_exps.weight", 5000);
    int fd = make_file(&bytes, DATA);
    if (fcntl(fd, F_SETFL, O_DIRECT) == 0) {
        assert_true(gn_gguf_has_experts(fd));
    } else {
        print_message("no O_DIRECT here\n");
    }
    close(fd);
    free(bytes.data);
}

static void test_disabled(void **state) {
    (void)state;
    static const char *const words[] = {"off", "0", "no", "False"};
    for (size_t i = 0; i < 4; i++) {
        setenv("GUANACO_STREAMING", words[i], 1);
        check_name("blk.0.ffn_up_exps.weight", false);
    }
    setenv("GUANACO_STREAMING", "on", 1);
    check_name("blk.0.ffn_up_exps.weight", true);
    unsetenv("GUANACO_STREAMING");
}

// Writable and anonymous mappings are not the loader's.
static void test_other_mappings(void **state) {
    (void)state;
    struct bytes bytes;
    put_model(&bytes, "blk.0.ffn_up_exps.weight", 10);
    int fd = make_file(&bytes, DATA);
    size_t before = guanaco_preload_mappings();
    void *writable = mmap(NULL, DATA, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    void *anonymous = mmap(NULL, DATA, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(writable, MAP_FAILED);
    assert_ptr_not_equal(anonymous, MAP_FAILED);
    assert_int_equal(*(char *)anonymous, 0);
    assert_int_equal(guanaco_preload_mappings(), before);
    munmap(writable, DATA);
    munmap(anonymous, DATA);
    close(fd);
    free(bytes.data);
}

static void test_errors(void **state) {
    (void)state;
    int fd = open("/proc/self/exe", O_RDONLY);
    assert_ptr_equal(mmap(NULL, DATA, PROT_READ, MAP_SHARED, 9999, 0), MAP_FAILED);
    assert_int_equal(errno, EBADF);
    assert_ptr_equal(mmap(NULL, 0, PROT_READ, MAP_SHARED, fd, 0), MAP_FAILED);
    assert_int_equal(errno, EINVAL);
    assert_ptr_equal(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 1), MAP_FAILED);
    assert_int_equal(errno, EINVAL);
    char *page = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(page, MAP_FAILED);
    errno = EDOM;
    assert_int_equal(posix_madvise(page + 1, PAGE, POSIX_MADV_WILLNEED), EINVAL);
    assert_int_equal(posix_madvise(page, PAGE, 12345), EINVAL);
    assert_int_equal(posix_madvise(page + 1, PAGE, POSIX_MADV_DONTNEED), 0);
    assert_int_equal(errno, EDOM);
    assert_int_equal(munmap(page + 1, PAGE), -1);
    assert_int_equal(errno, EINVAL);
    assert_int_equal(munmap(page, PAGE), 0);
    close(fd);
}

// A dense file put where a model was: advice must reach it.
static void check_reused(char *address) {
    struct bytes bytes;
    put_model(&bytes, "output.weight", 10);
    int fd = make_file(&bytes, DATA);
    void *again = mmap(address, PAGE * 32, PROT_READ, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
    assert_ptr_equal(again, address);
    assert_int_equal(posix_madvise(address, PAGE * 32, POSIX_MADV_WILLNEED), 0);
    assert_true(becomes_resident(address, PAGE * 32));
    munmap(address, PAGE * 32);
    close(fd);
    free(bytes.data);
}

// The loader unmaps what it does not use of a mapping.
static void test_unmapped_parts(void **state) {
    (void)state;
    struct bytes bytes;
    put_model(&bytes, "blk.0.ffn_up_exps.weight", 10);
    int fd = make_file(&bytes, DATA);
    char *address = map_model(fd, DATA);
    static const size_t pages_unmapped[] = {0, 256 - 32, 100};
    for (size_t i = 0; i < 3; i++) {
        char *part = address + pages_unmapped[i] * PAGE;
        assert_int_equal(munmap(part, PAGE * 32), 0);
        check_reused(part);
    }
    // what is left on both sides of the hole is still the model's
    size_t left[][2] = {{32, 68}, {132, 92}};
    for (size_t i = 0; i < 2 && cache_drops(); i++) {
        char *part = address + left[i][0] * PAGE;
        size_t before = resident_pages(part, left[i][1] * PAGE);
        assert_int_equal(posix_madvise(part, left[i][1] * PAGE, POSIX_MADV_WILLNEED), 0);
        usleep(20000);
        assert_int_equal(resident_pages(part, left[i][1] * PAGE), before);
    }
    munmap(address, DATA);
    check_reused(address);
    close(fd);
    free(bytes.data);
}

static bool scan_bytes(const void *data, size_t size, off_t file_size) {
    int fd = memfd_create("header", 0);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, size), (ssize_t)size);
    assert_int_equal(ftruncate(fd, file_size), 0);
    bool found = gn_gguf_has_experts(fd);
    close(fd);
    return found;
}

static void test_truncated(void **state) {
    (void)state;
    struct bytes bytes;
    put_model(&bytes, "blk.0.ffn_up_exps.weight", 1000); // more than one window
    size_t last_dimension = bytes.size - 28;
    for (size_t size = 0; size < bytes.size; size++) {
        bool found = scan_bytes(bytes.data, size, (off_t)size);
        assert_true(found ? size >= last_dimension : size <= bytes.size);
    }
    assert_true(scan_bytes(bytes.data, bytes.size, (off_t)bytes.size));
    free(bytes.data);
}

// Every eight bytes of a header replaced by a value that is much too large, alone or at the front of a huge file of
// zeros.
static void test_hostile(void **state) {
    (void)state;
    static const uint64_t values[] = {UINT64_MAX, INT64_MAX, 1ull << 40, UINT32_MAX, UINT64_MAX - 7};
    struct bytes bytes;
    put_model(&bytes, "output.weight", 3);
    for (size_t at = 4; at + 8 <= bytes.size; at++) {
        unsigned char kept[8];
        memcpy(kept, bytes.data + at, 8);
        for (size_t i = 0; i < 5; i++) {
            memcpy(bytes.data + at, &values[i], 8);
            assert_false(scan_bytes(bytes.data, bytes.size, (off_t)bytes.size));
        }
        memcpy(bytes.data + at, kept, 8);
    }
    free(bytes.data);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void check_endless(const struct bytes *bytes) {
    double start = seconds();
    assert_false(scan_bytes(bytes->data, bytes->size, (off_t)1 << 42));
    print_message("endless header left after %.2f s\n", seconds() - start);
    assert_true(seconds() - start < 10); // a sanitizer takes some 30 times as long
    free(bytes->data);
}

static void test_endless(void **state) {
    (void)state;
    struct bytes bytes;
    put_start(&bytes, 1ull << 62, 0);
    check_endless(&bytes);
    put_start(&bytes, 0, UINT64_MAX);
    check_endless(&bytes);
    put_start(&bytes, 1, 1);
    put_string(&bytes, "tokens");
    put_array(&bytes, 8, 1ull << 60);
    check_endless(&bytes);
    put_start(&bytes, 1, 1);
    put_string(&bytes, "deep");
    for (int i = 0; i < 100000; i++) {
        put_array(&bytes, 9, 1);
    }
    check_endless(&bytes);
}

static void test_random_headers(void **state) {
    (void)state;
    struct bytes bytes;
    put_model(&bytes, "blk.0.ffn_up_exps.weight", 20);
    unsigned char *broken = malloc(bytes.size);
    uint64_t random = 88172645463325252ull;
    for (int i = 0; i < 20000; i++) {
        memcpy(broken, bytes.data, bytes.size);
        for (int j = 0; j <= i % 3; j++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            broken[random % bytes.size] = (unsigned char)(random >> 40);
        }
        scan_bytes(broken, bytes.size, (off_t)bytes.size);
    }
    free(broken);
    free(bytes.data);
}

// As large as the largest tokenizers: 200,000 tokens and as many merges.
static void test_large_tokenizer(void **state) {
    (void)state;
    struct bytes bytes;
    put_model(&bytes, "blk.0.ffn_up_exps.weight", 400000);
    double start = seconds();
    assert_true(scan_bytes(bytes.data, bytes.size, (off_t)bytes.size));
    print_message("%.1f MB of header scanned in %.1f ms\n", (double)bytes.size / 1e6, (seconds() - start) * 1e3);
    free(bytes.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models),          cmocka_unit_test(test_shard),     cmocka_unit_test(test_not_gguf),
        cmocka_unit_test(test_direct),          cmocka_unit_test(test_disabled),  cmocka_unit_test(test_other_mappings),
        cmocka_unit_test(test_errors),          cmocka_unit_test(test_truncated), cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_unmapped_parts),  cmocka_unit_test(test_endless),   cmocka_unit_test(test_random_headers),
        cmocka_unit_test(test_large_tokenizer),
    };
    return test_result(cmocka_run_group_tests(tests, NULL, NULL));
}
