// The plugin in a ggml that is not the one it was compiled for: it is refused with one line, and the program says what
// it says without it; or it fits, and the words are the same, streamed. The versions of llama.cpp are
//
//     test_hosts MODEL PLUGIN FOLDER LIBRARIES…
//
// each a folder with libllama, libggml, libggml-base and libggml-cpu, loaded at run time, through functions that take
// the same arguments in all of them. In each, this program also stands in for another ggml: it answers the plugin's
// questions about version, sizes and names as one would that has them otherwise.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROMPT = 12, STEPS = 10, SECONDS = 100 };

// Parameters of whatever version: they come from its own defaults, and only their first bytes are its.
struct parameters {
    unsigned char bytes[2048];
};
struct batch { // as it has been in all versions
    int32_t n_tokens;
    int32_t *token;
    void *rest[5];
};

static const char *model, *plugin, *folder;
static char errors[PATH_MAX];
static int32_t *words; // [STEPS] shared with the children
static int failures;

// ------------------------------------------------------------------------------------------------ standing in

enum lie { NO_LIE, OLDER, NEWER, NO_VERSION, LARGER_TENSORS, NO_SUCH_OPERATION, OTHER_TYPES };

static enum lie lie;
static void *ggml_base;
static uintptr_t plugin_begin, plugin_end;

static int find_plugin(struct dl_phdr_info *info, size_t size, void *context) {
    (void)size;
    (void)context;
    if (info->dlpi_name && !strcmp(info->dlpi_name, plugin)) {
        plugin_begin = info->dlpi_addr;
        for (int i = 0; i < info->dlpi_phnum; i++) {
            uintptr_t end = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;
            plugin_end = info->dlpi_phdr[i].p_type == PT_LOAD && end > plugin_end ? end : plugin_end;
        }
    }
    return 0;
}

// Whether the plugin asks: ggml itself gets true answers.
static bool is_plugin(const void *caller) {
    dl_iterate_phdr(find_plugin, NULL);
    return (uintptr_t)caller >= plugin_begin && (uintptr_t)caller < plugin_end;
}

static void *real(const char *name) {
    return dlsym(ggml_base, name);
}

#define FOR_ALL __attribute__((visibility("default")))

FOR_ALL const char *ggml_version(void);
FOR_ALL size_t ggml_tensor_overhead(void);
FOR_ALL const char *ggml_op_name(int op);
FOR_ALL const char *ggml_type_name(int type);

const char *ggml_version(void) {
    static const char *const versions[] = {[OLDER] = "0.9.7", [NEWER] = "0.999.0"};
    const char *(*version)(void);
    *(void **)&version = real("ggml_version");
    bool lies = is_plugin(__builtin_return_address(0)) && (lie == OLDER || lie == NEWER || lie == NO_VERSION);
    return lies ? (lie == NO_VERSION ? "unknown" : versions[lie]) : version();
}

size_t ggml_tensor_overhead(void) {
    size_t (*overhead)(void);
    *(void **)&overhead = real("ggml_tensor_overhead");
    return overhead() + (is_plugin(__builtin_return_address(0)) && lie == LARGER_TENSORS ? 8 : 0);
}

const char *ggml_op_name(int op) {
    const char *(*name)(int);
    *(void **)&name = real("ggml_op_name");
    bool asks = is_plugin(__builtin_return_address(0));
    return asks && lie == NO_SUCH_OPERATION && !strcmp(name(op), "MUL_MAT_ID") ? "OTHER" : name(op);
}

const char *ggml_type_name(int type) {
    const char *(*name)(int);
    *(void **)&name = real("ggml_type_name");
    return is_plugin(__builtin_return_address(0)) && lie == OTHER_TYPES ? name(type + 1) : name(type);
}

// ------------------------------------------------------------------------------------------------ a program

// Loads a library of the folder by the beginning of its name, versions between it and ".so" allowed.
static void *load(const char *name) {
    DIR *entries = opendir(folder);
    char path[PATH_MAX] = "";
    size_t length = strlen(name);
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        const char *rest = entry->d_name + length, *end = strstr(entry->d_name, ".so");
        bool is_it = !strncmp(entry->d_name, name, length) && end && !end[3] && *rest == '.';
        if (is_it && snprintf(path, sizeof path, "%s/%s", folder, entry->d_name) >= (int)sizeof path) {
            path[0] = '\0';
        }
    }
    if (entries) {
        closedir(entries);
    }
    void *library = path[0] ? dlopen(path, RTLD_NOW | RTLD_GLOBAL) : NULL;
    if (!library) {
        fprintf(stderr, "cannot load %s of %s: %s\n", name, folder, path[0] ? dlerror() : "it is not there");
        _exit(3);
    }
    return library;
}

static void *function(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "there is no %s\n", name);
        _exit(3);
    }
    return found;
}

static void be_silent(int level, const char *text, void *context) {
    (void)context;
    if (level == 4) { // an error
        fputs(text, stderr);
    }
}

// The words of a greedy run. Returns 0, or what failed.
static int run(const char *with_plugin) {
    ggml_base = load("libggml-base");
    void *ggml = load("libggml"), *llama = load("libllama");
    void *(*load_backend)(const char *), *(*load_model)(const char *, struct parameters);
    void *(*new_context)(void *, struct parameters), (*set_log)(void (*)(int, const char *, void *), void *);
    struct parameters (*model_defaults)(void), (*context_defaults)(void);
    struct batch (*get_batch)(int32_t *, int32_t);
    int32_t (*decode)(void *, struct batch), (*n_tokens)(const void *);
    float *(*logits)(void *, int32_t);
    const void *(*get_vocab)(const void *);
    void (*free_context)(void *), (*free_model)(void *), (*set_threads)(void *, int32_t, int32_t);
    *(void **)&set_threads = function(llama, "llama_set_n_threads");
    *(void **)&load_backend = function(ggml, "ggml_backend_load");
    *(void **)&set_log = function(llama, "llama_log_set");
    *(void **)&model_defaults = function(llama, "llama_model_default_params");
    *(void **)&context_defaults = function(llama, "llama_context_default_params");
    *(void **)&load_model = function(llama, "llama_model_load_from_file");
    *(void **)&new_context = function(llama, "llama_init_from_model");
    *(void **)&get_batch = function(llama, "llama_batch_get_one");
    *(void **)&decode = function(llama, "llama_decode");
    *(void **)&logits = function(llama, "llama_get_logits_ith");
    *(void **)&get_vocab = function(llama, "llama_model_get_vocab");
    *(void **)&n_tokens = function(llama, "llama_vocab_n_tokens");
    *(void **)&free_context = function(llama, "llama_free");
    *(void **)&free_model = function(llama, "llama_model_free");
    set_log(be_silent, NULL);
    char cpu[PATH_MAX];
    if (snprintf(cpu, sizeof cpu, "%s/libggml-cpu-x64.so", folder) >= (int)sizeof cpu || !load_backend(cpu)) {
        return 77; // its CPU backend is built in some other way, or for another machine
    }
    if (with_plugin) {
        load_backend(with_plugin); // a program goes on when that fails
    }
    void *loaded = load_model(model, model_defaults());
    void *context = loaded ? new_context(loaded, context_defaults()) : NULL;
    if (!context) {
        return 4;
    }
    set_threads(context, 1, 1); // more would spin against each other
    int32_t tokens[PROMPT], vocabulary = n_tokens(get_vocab(loaded));
    for (int i = 0; i < PROMPT; i++) {
        tokens[i] = (i * 131 + 17) % vocabulary;
    }
    struct batch batch = get_batch(tokens, PROMPT);
    for (int step = 0; step < STEPS; step++) {
        if (decode(context, batch)) {
            return 5;
        }
        const float *scores = logits(context, -1);
        int32_t best = 0;
        for (int32_t i = 1; i < vocabulary; i++) {
            best = scores[i] > scores[best] ? i : best;
        }
        words[step] = tokens[0] = best;
        batch = get_batch(tokens, 1);
    }
    free_context(context);
    free_model(loaded);
    return 0;
}

static int in_child(const char *with_plugin) {
    memset(words, 0, STEPS * sizeof *words);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        int fd = open(errors, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
        dup2(fd, STDERR_FILENO);
        alarm(SECONDS);
        exit(run(with_plugin));
    }
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid) {
        return -1;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

// ------------------------------------------------------------------------------------------------ the cases

// How many of the run's lines have the text in them; shows all when wanted.
static int count_lines(const char *text, bool show) {
    FILE *file = fopen(errors, "re");
    char line[4096];
    int n = 0;
    while (file && fgets(line, sizeof line, file)) {
        n += strstr(line, text) != NULL;
        if (show) {
            printf("    %s", line);
        }
    }
    if (file) {
        fclose(file);
    }
    return n;
}

static void check(bool good, const char *of, const char *what) {
    printf("%s: %s: %s\n", good ? "ok" : "FAILED", of, what);
    failures += !good;
}

// refused: it must be, with that in the line; NULL: it may be, or fits.
static void try(enum lie which, const char *name, const char *refused, const int32_t *stock) {
    int before = failures;
    char of[128];
    lie = which;
    int code = in_child(plugin);
    int refusals = count_lines("guanaco: error: nothing is streamed: ", false);
    int streams = count_lines("guanaco: mode: streaming ", false);
    snprintf(of, sizeof of, "%s, %s", name,
             streams    ? "streamed"
             : refusals ? "refused"
                        : "neither streamed nor refused");
    check(code == 0, of, "it runs");
    check(!memcmp(words, stock, STEPS * sizeof *words), of, "the words are stock's");
    check(streams + refusals == 1, of, "one line says what is done");
    check(!refused || (refusals == 1 && count_lines(refused, false) == 1), of, "refused if it must be");
    if (failures > before) {
        printf("    exit code %d\n", code);
        count_lines("", true);
    }
}

static int try_folder(void) {
    int32_t stock[STEPS];
    lie = NO_LIE;
    int code = in_child(NULL);
    if (code == 77) {
        return 77;
    }
    check(code == 0, folder, "stock runs");
    memcpy(stock, words, sizeof stock);
    try(NO_LIE, folder, NULL, stock);
    if (count_lines("guanaco: mode: streaming ", false) == 0) {
        return 0;
    }
    try(OLDER, "an older ggml", "this program has ggml 0.9.7, ", stock);
    try(NEWER, "a newer ggml", "this program has ggml 0.999.0, ", stock);
    try(NO_VERSION, "a ggml without a version", "this program has ggml unknown, ", stock);
    try(LARGER_TENSORS, "larger tensors", "a tensor of this program's ggml ", stock);
    try(NO_SUCH_OPERATION, "one operation less", "has no MUL_MAT_ID, ", stock);
    try(OTHER_TYPES, "other types", "has no f32 and i32 where they were, ", stock);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 5) {
        fprintf(stderr, "usage: test_hosts MODEL PLUGIN FOLDER LIBRARIES...\n");
        return 2;
    }
    model = argv[1];
    plugin = argv[2];
    snprintf(errors, sizeof errors, "%s/hosts-%d.txt", argv[3], getpid());
    setenv("GUANACO_EXPERT_CACHE", "20%", 1);
    words = mmap(NULL, STEPS * sizeof *words, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int skipped = 0;
    for (int i = 4; i < argc; i++) {
        folder = argv[i];
        skipped += try_folder() == 77;
    }
    unlink(errors);
    return failures ? 1 : skipped == argc - 4 ? 77 : 0;
}
