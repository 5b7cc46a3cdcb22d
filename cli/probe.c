#include "probe.h"

#include "cli.h"
#include "ending.h"

#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define INSTEAD "use a llama.cpp built with shared libraries ('make llama-programs' builds one)"

// ---- finding the program

static bool is_program(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 && S_ISREG(status.st_mode) && access(path, X_OK) == 0;
}

bool probe_find(const char *name, char path[PATH_MAX], char *why, size_t why_size) {
    if (strchr(name, '/')) {
        snprintf(path, PATH_MAX, "%s", name);
        if (!is_program(path)) {
            snprintf(why, why_size, "%s %s", name, access(path, F_OK) ? "does not exist" : "is not a program");
            return false;
        }
        return true;
    }
    const char *at = getenv("PATH");
    while (at && *at) {
        int length = (int)strcspn(at, ":");
        snprintf(path, PATH_MAX, "%.*s%s%s", length, at, length ? "/" : "", name);
        if (is_program(path)) {
            return true;
        }
        at += length + (at[length] == ':');
    }
    snprintf(why, why_size,
             "%s is not on PATH; give its path, or build llama.cpp's own programs with 'make llama-programs'", name);
    return false;
}

// ---- a file's bytes

struct bytes {
    const uint8_t *data;
    size_t size;
};

static struct bytes map_file(const char *path) {
    struct bytes bytes = {NULL, 0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (fd >= 0 && fstat(fd, &status) == 0 && status.st_size > 0) {
        void *data = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data != MAP_FAILED) {
            bytes = (struct bytes){data, (size_t)status.st_size};
        }
    }
    if (fd >= 0) {
        close(fd);
    }
    return bytes;
}

static void unmap_file(struct bytes bytes) {
    if (bytes.data) {
        munmap((void *)bytes.data, bytes.size);
    }
}

// Whether a file holds the text with its end, as string constants and symbol names are held.
static bool file_contains(const char *path, const char *text) {
    struct bytes bytes = map_file(path);
    bool found = bytes.data && memmem(bytes.data, bytes.size, text, strlen(text) + 1);
    unmap_file(bytes);
    return found;
}

bool probe_contains(const struct probe *probe, const char *text) {
    for (size_t i = 0; i < probe->n_files; i++) {
        if (file_contains(probe->files[i], text)) {
            return true;
        }
    }
    return false;
}

// ---- the program's file

enum file_kind { FILE_SCRIPT, FILE_STATIC, FILE_DYNAMIC };

// Tells what kind of program it is; of a dynamic one also its loader.
static enum file_kind read_elf(struct bytes file, char loader[PATH_MAX]) {
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)file.data;
    if (!file.data || file.size < sizeof *header || memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 ||
        header->e_ident[EI_CLASS] != ELFCLASS64) {
        return FILE_SCRIPT;
    }
    for (unsigned i = 0; i < header->e_phnum; i++) {
        uint64_t at = header->e_phoff + (uint64_t)i * header->e_phentsize;
        Elf64_Phdr segment;
        if (at > file.size || file.size - at < sizeof segment) {
            break;
        }
        memcpy(&segment, file.data + at, sizeof segment);
        if (segment.p_type == PT_INTERP && segment.p_offset < file.size && segment.p_filesz > 0 &&
            segment.p_filesz <= file.size - segment.p_offset && segment.p_filesz < PATH_MAX) {
            snprintf(loader, PATH_MAX, "%.*s", (int)segment.p_filesz, (const char *)file.data + segment.p_offset);
            return FILE_DYNAMIC;
        }
    }
    return FILE_STATIC;
}

// Runs a program with its standard output in *text (to be freed); what it says on standard error is dropped. Returns
// how it ended, as waitpid() does, or -1 when it could not be started.
static int run_quietly(char *const argv[], char **text) {
    int ends[2];
    *text = NULL;
    if (pipe2(ends, O_CLOEXEC)) {
        return -1;
    }
    pid_t child = fork();
    if (child == 0) {
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        dup2(null, STDIN_FILENO);
        dup2(ends[1], STDOUT_FILENO);
        dup2(null, STDERR_FILENO);
        execv(argv[0], argv);
        _exit(127);
    }
    close(ends[1]);
    FILE *from = child > 0 ? fdopen(ends[0], "r") : NULL;
    size_t size = 0;
    if (from && getdelim(text, &size, '\0', from) < 0) {
        free(*text);
        *text = NULL;
    }
    if (from) {
        fclose(from);
    } else {
        close(ends[0]);
    }
    int status = -1;
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
}

static bool add_file(struct probe *probe, const char *path) {
    char **grown = realloc(probe->files, (probe->n_files + 1) * sizeof *grown);
    char *copy = strdup(path);
    if (grown) {
        probe->files = grown;
    }
    if (!grown || !copy) {
        free(copy);
        return false;
    }
    probe->files[probe->n_files++] = copy;
    return true;
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool is_library(const char *path, const char *stem) {
    size_t length = strlen(stem);
    return !strncmp(base_name(path), stem, length) && base_name(path)[length] == '.';
}

// Keeps llama.cpp's libraries of what the dynamic loader says it would load: lines of "name => path (address)".
static void keep_libraries(struct probe *probe, char *text) {
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        char *arrow = strstr(line, " => "), *end = arrow ? strrchr(arrow, '(') : NULL;
        if (!end || end - arrow < 6) {
            continue;
        }
        end[-1] = '\0';
        const char *path = arrow + 4, *name = base_name(path);
        if (!strncmp(name, "libggml", 7) || !strncmp(name, "libllama", 8)) {
            add_file(probe, path);
        }
    }
}

static const char *library(const struct probe *probe, const char *stem) {
    for (size_t i = 1; i < probe->n_files; i++) {
        if (is_library(probe->files[i], stem)) {
            return probe->files[i];
        }
    }
    return NULL;
}

// ---- what it would do with the plugin

// Whether a GPU backend lies where ggml looks for backends: beside its libraries.
static bool has_gpu_backend(const char *ggml) {
    static const char *const names[] = {"cuda", "hip", "vulkan", "sycl", "opencl", "musa", "cann", "openvino"};
    char directory[PATH_MAX];
    snprintf(directory, sizeof directory, "%.*s", (int)(base_name(ggml) - ggml), ggml);
    DIR *entries = opendir(directory);
    bool found = false;
    for (struct dirent *entry; entries && !found && (entry = readdir(entries));) {
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            char stem[32];
            snprintf(stem, sizeof stem, "libggml-%s", names[i]);
            found = found || is_library(entry->d_name, stem);
        }
    }
    if (entries) {
        closedir(entries);
    }
    return found;
}

// Loads the plugin into the program's own ggml, in another process.
static bool try_plugin(const char *path, const char *plugin, const struct probe *probe, char *why, size_t why_size) {
    char helper[PATH_MAX];
    if (!beside_program("../lib/guanaco-try-plugin", helper, sizeof helper) || access(helper, X_OK)) {
        return true; // an installation without it: the program itself will tell
    }
    const char *base = library(probe, "libggml-base"), *ggml = library(probe, "libggml");
    char *argv[] = {helper, (char *)plugin, (char *)(base ? base : ggml), (char *)ggml, NULL};
    char *text;
    int status = run_quietly(argv, &text);
    if (status == -1) {
        snprintf(why, why_size, "cannot try the plugin in %s: %s; free some memory", base_name(path), strerror(errno));
    } else if (WIFSIGNALED(status)) {
        char ending[128];
        snprintf(why, why_size,
                 "%s cannot stream: the process that tried the plugin in its ggml %s; " INSTEAD
                 ", or leave streaming out with -ngs",
                 base_name(path), describe_ending(status, ending, sizeof ending));
    } else if (status != 0) {
        snprintf(why, why_size, "%s cannot stream: %.200s; " INSTEAD ", or leave streaming out with -ngs",
                 base_name(path), text ? text : "its ggml does not take the plugin");
    }
    free(text);
    return status == 0;
}

static bool look_at(const char *path, const char *plugin, struct probe *probe, char *why, size_t why_size) {
    char loader[PATH_MAX] = "";
    struct bytes file = map_file(path);
    enum file_kind kind = read_elf(file, loader);
    unmap_file(file);
    probe->kind = PROBE_LATER;
    if (kind == FILE_STATIC) {
        snprintf(why, why_size, "%s is linked statically and can load no plugin; " INSTEAD, base_name(path));
        return false;
    }
    // Only glibc's loader lists libraries without running the program.
    if (kind == FILE_SCRIPT || strncmp(base_name(loader), "ld-linux", 8) != 0) {
        return true;
    }
    char *argv[] = {loader, "--list", (char *)path, NULL};
    char *text;
    if (run_quietly(argv, &text) == 0 && text) {
        keep_libraries(probe, text);
    }
    free(text);
    const char *ggml = library(probe, "libggml");
    if (!ggml) {
        // Programs with ggml inside look for plugins too, but have no symbols to give them.
        if (probe_contains(probe, "GGML_BACKEND_PATH")) {
            snprintf(why, why_size,
                     "%s has ggml linked into it statically and can load no plugin; " INSTEAD
                     ", or leave streaming out with -ngs",
                     base_name(path));
            return false;
        }
        return true;
    }
    probe->kind = PROBE_LINKED;
    probe->gpu = has_gpu_backend(ggml);
    return try_plugin(path, plugin, probe, why, why_size);
}

bool probe_program(const char *path, const char *plugin, struct probe *probe, char *why, size_t why_size) {
    *probe = (struct probe){0};
    if (!add_file(probe, path)) {
        snprintf(why, why_size, "memory is short");
        return false;
    }
    return look_at(path, plugin, probe, why, why_size);
}

void probe_free(struct probe *probe) {
    for (size_t i = 0; i < probe->n_files; i++) {
        free(probe->files[i]);
    }
    free(probe->files);
    *probe = (struct probe){0};
}
