#include "bench/facts.h"

#include "bench/read_ahead.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

static void find_machine(struct bench *bench) {
    struct utsname name;
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "re");
    while (file && fgets(line, sizeof line, file)) {
        const char *colon = strstr(line, ": ");
        if (!strncmp(line, "model name", 10) && colon) {
            snprintf(bench->cpu, sizeof bench->cpu, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
            break;
        }
    }
    if (file) {
        fclose(file);
    }
    if (uname(&name) == 0) {
        snprintf(bench->kernel, sizeof bench->kernel, "%s", name.release);
    }
    bench->memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

void bench_find_facts(struct bench *bench, const struct bench_options *options, const struct model_file *file,
                      const struct llama_context_params *context_params) {
    struct stat status;
    snprintf(bench->model, sizeof bench->model, "%s", file->shards[0]);
    snprintf(bench->architecture, sizeof bench->architecture, "%s", file->architecture);
    bench->file_bytes = file->file_bytes;
    bench->expert_bytes = file->expert_bytes;
    bench->dense_bytes = file->dense_bytes;
    bench->n_layers = file->n_layers;
    bench->n_experts = file->layers[0].n_experts;
    for (uint32_t l = 0; l < file->n_layers; l++) {
        bench->all_experts += file->layers[l].n_experts;
    }
    bench->top_k = (uint32_t)file->top_k;
    bench->threads = context_params->n_threads;
    bench->rounds = (int)options->rounds;
    bench->prompt = (uint32_t)options->prompt;
    bench->warm_up = (uint32_t)options->warm_up;
    bench->predict = (uint32_t)options->predict;
    bench->ubatch = context_params->n_ubatch;
    find_machine(bench);
    if (stat(file->shards[0], &status) == 0) {
        bench_read_ahead_find("", status.st_dev, &bench->read_ahead);
    }
}
