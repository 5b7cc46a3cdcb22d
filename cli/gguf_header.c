#include "gguf_header.h"

#include "log_filter.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// More than any model has; the parser's work grows with the square of these.
#define MOST_ENTRIES 100000

static bool refuse(char *why, size_t why_size, const char *path, const char *what) {
    snprintf(why, why_size, "%s %s", path, what);
    return false;
}

static FILE *open_regular(const char *path, uint64_t *bytes, char *why, size_t why_size) {
    struct stat status;
    if (stat(path, &status) == 0 && S_ISDIR(status.st_mode)) {
        refuse(why, why_size, path, "is a directory; give the .gguf file in it");
        return NULL;
    }
    if (stat(path, &status) == 0 && !S_ISREG(status.st_mode) && !S_ISBLK(status.st_mode)) {
        refuse(why, why_size, path, "is not a regular file; give a .gguf file on disk");
        return NULL;
    }
    FILE *file = fopen(path, "rbe");
    if (!file || fstat(fileno(file), &status)) {
        const char *advice = errno == ENOENT   ? "check the path"
                             : errno == EACCES ? "check who may read it"
                                               : "check the file system";
        snprintf(why, why_size, "cannot open %s: %s; %s", path, strerror(errno), advice);
        if (file) {
            fclose(file);
        }
        return NULL;
    }
    off_t size = S_ISBLK(status.st_mode) ? lseek(fileno(file), 0, SEEK_END) : status.st_size;
    *bytes = size > 0 ? (uint64_t)size : 0;
    rewind(file);
    return file;
}

// The first 24 bytes: what the parser would report less plainly.
static bool check_start(FILE *file, const char *path, char *why, size_t why_size) {
    unsigned char start[24];
    size_t got = fread(start, 1, sizeof start, file);
    if (got < 4 || memcmp(start, "GGUF", 4) != 0) {
        return refuse(why, why_size, path,
                      got == 0 ? "is empty; get it again" : "is not a GGUF file; give a .gguf model");
    }
    if (got < sizeof start) {
        return refuse(why, why_size, path, "is cut short within its header; get it again");
    }
    uint64_t tensors, keys;
    memcpy(&tensors, start + 8, 8);
    memcpy(&keys, start + 16, 8);
    if (tensors > MOST_ENTRIES || keys > MOST_ENTRIES) {
        return refuse(why, why_size, path, "has a damaged header: its counts are absurd; get it again");
    }
    rewind(file);
    return true;
}

// Bytes of a tensor from its shape, no product taken on trust.
static bool tensor_bytes(const struct gguf_context *gguf, int64_t tensor, uint64_t *bytes) {
    const int64_t *ne = gguf_get_tensor_ne(gguf, tensor);
    enum ggml_type type = gguf_get_tensor_type(gguf, tensor);
    if (ggml_blck_size(type) <= 0 || ne[0] % ggml_blck_size(type) != 0) {
        return false;
    }
    uint64_t size = ggml_type_size(type);
    if (__builtin_mul_overflow(size, (uint64_t)(ne[0] / ggml_blck_size(type)), &size)) {
        return false;
    }
    for (int d = 1; d < GGML_MAX_DIMS; d++) {
        if (__builtin_mul_overflow(size, (uint64_t)ne[d], &size)) {
            return false;
        }
    }
    *bytes = size;
    return size <= INT64_MAX && size == gguf_get_tensor_size(gguf, tensor);
}

static bool check_tensors(const struct gguf_header *header, const char *path, char *why, size_t why_size) {
    uint64_t data = gguf_get_data_offset(header->gguf), end = data;
    for (int64_t t = 0; t < gguf_get_n_tensors(header->gguf); t++) {
        uint64_t bytes, tensor_end;
        if (!tensor_bytes(header->gguf, t, &bytes) ||
            __builtin_add_overflow(data + bytes, (uint64_t)gguf_get_tensor_offset(header->gguf, t), &tensor_end)) {
            snprintf(why, why_size, "%s has a damaged header: tensor %.64s has an impossible size; get it again", path,
                     gguf_get_tensor_name(header->gguf, t));
            return false;
        }
        end = tensor_end > end ? tensor_end : end;
    }
    if (end > header->file_bytes) {
        snprintf(why, why_size,
                 "%s is cut short: it has %" PRIu64 " bytes, its header promises %" PRIu64 "; get it again", path,
                 header->file_bytes, end);
        return false;
    }
    return true;
}

bool gguf_header_read(const char *path, struct gguf_header *header, char *why, size_t why_size) {
    *header = (struct gguf_header){0};
    FILE *file = open_regular(path, &header->file_bytes, why, why_size);
    if (!file) {
        return false;
    }
    bool good = check_start(file, path, why, why_size);
    if (good) {
        log_filter_forget();
        header->gguf = gguf_init_from_file_ptr(file, (struct gguf_init_params){.no_alloc = true});
        good = header->gguf != NULL;
        if (!good) {
            snprintf(why, why_size, "%s has a header that is damaged or cut short (%s); get it again", path,
                     log_filter_last_error());
        }
    }
    fclose(file);
    good = good && check_tensors(header, path, why, why_size);
    if (!good) {
        gguf_header_free(header);
    }
    return good;
}

void gguf_header_free(struct gguf_header *header) {
    if (header->gguf) {
        gguf_free(header->gguf);
    }
    header->gguf = NULL;
}

static bool number_at(enum gguf_type type, const void *data, size_t i, uint64_t *number) {
    switch (type) {
    case GGUF_TYPE_UINT8:
        *number = ((const uint8_t *)data)[i];
        return true;
    case GGUF_TYPE_UINT16:
        *number = ((const uint16_t *)data)[i];
        return true;
    case GGUF_TYPE_UINT32:
        *number = ((const uint32_t *)data)[i];
        return true;
    case GGUF_TYPE_INT32:
        *number = (uint64_t)((const int32_t *)data)[i];
        return ((const int32_t *)data)[i] >= 0;
    case GGUF_TYPE_UINT64:
        *number = ((const uint64_t *)data)[i];
        return true;
    default:
        return false;
    }
}

uint64_t gguf_header_number(const struct gguf_header *header, const char *key, uint64_t fallback) {
    int64_t id = gguf_find_key(header->gguf, key);
    if (id < 0) {
        return fallback;
    }
    uint64_t number = fallback, greatest = 0;
    if (gguf_get_kv_type(header->gguf, id) != GGUF_TYPE_ARRAY) {
        enum gguf_type type = gguf_get_kv_type(header->gguf, id);
        if (type == GGUF_TYPE_STRING) {
            return fallback;
        }
        return number_at(type, gguf_get_val_data(header->gguf, id), 0, &number) ? number : fallback;
    }
    enum gguf_type type = gguf_get_arr_type(header->gguf, id);
    if (type == GGUF_TYPE_STRING) {
        return fallback;
    }
    bool any = false;
    for (size_t i = 0; i < gguf_get_arr_n(header->gguf, id); i++) {
        if (number_at(type, gguf_get_arr_data(header->gguf, id), i, &number)) {
            greatest = number > greatest ? number : greatest;
            any = true;
        }
    }
    return any ? greatest : fallback;
}

const char *gguf_header_string(const struct gguf_header *header, const char *key) {
    int64_t id = gguf_find_key(header->gguf, key);
    bool string = id >= 0 && gguf_get_kv_type(header->gguf, id) == GGUF_TYPE_STRING;
    return string ? gguf_get_val_str(header->gguf, id) : "";
}
