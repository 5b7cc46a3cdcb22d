// A program that takes memory of its own while it runs: slots are given back for it, and taken again when it is free.
// The logits stay stock's, bit for bit.
//
//     test_growth MODEL PLUGIN
#include "../support/session.h"

#include "llama.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { MIB = 1 << 20, RAM_MIB = 400, PROMPT = 40, TOKENS = 30, PHASES = 3 };

// Shared with the children.
struct outcome {
    uint64_t bits; // of all logits
    uint64_t slots[PHASES];
    double anonymous[PHASES]; // MiB that the process has of its own
};

struct run {
    const char *model, *plugin; // NULL: stock
    struct outcome *outcome;
};

static uint64_t mix(uint64_t hash, const float *logits, int n) {
    for (int i = 0; i < n; i++) {
        uint32_t word;
        memcpy(&word, &logits[i], sizeof word);
        hash = (hash ^ word) * 1099511628211u;
    }
    return hash;
}

static double anonymous_mib(void) {
    unsigned long resident = 0, shared = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%*u %lu %lu", &resident, &shared) != 2) {
        exit(1);
    }
    fclose(file);
    return (double)(resident - shared) * (double)sysconf(_SC_PAGESIZE) / MIB;
}

static llama_token token_at(const struct session *session, int i) {
    return (i * 131 + 17) % session->n_vocab;
}

// A prompt, and some tokens after it.
static int decode_some(struct session *session, int from, uint64_t *bits) {
    llama_token prompt[PROMPT];
    for (int i = 0; i < PROMPT; i++) {
        prompt[i] = token_at(session, from + i);
    }
    if (session_decode(session, prompt, PROMPT, from)) {
        return 1;
    }
    *bits = mix(*bits, session_logits(session, PROMPT - 1), session->n_vocab);
    for (int i = from + PROMPT; i < from + PROMPT + TOKENS; i++) {
        llama_token token = token_at(session, i);
        if (session_decode(session, &token, 1, i)) {
            return 1;
        }
        *bits = mix(*bits, session_logits(session, 0), session->n_vocab);
    }
    return 0;
}

static int decode_all(void *context) {
    const struct run *run = context;
    struct outcome *outcome = run->outcome;
    struct session session;
    struct session_options options = {.model = run->model, .plugin = run->plugin, .n_ubatch = 64};
    if (session_open(&session, &options)) {
        return 1;
    }
    outcome->bits = 14695981039346656037u;
    void *ballast = NULL;
    for (int phase = 0; phase < PHASES; phase++) {
        if (phase == 1) { // as much as there is
            ballast = mmap(NULL, (size_t)RAM_MIB * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (ballast == MAP_FAILED) {
                return 1;
            }
            memset(ballast, 1, (size_t)RAM_MIB * MIB);
        } else if (phase == 2) {
            munmap(ballast, (size_t)RAM_MIB * MIB);
        }
        // Longer than from one look at the process to the next, and than slots that were given back are waited for.
        nanosleep(&(struct timespec){.tv_sec = 1, .tv_nsec = 200000000}, NULL);
        if (decode_some(&session, phase * (PROMPT + TOKENS), &outcome->bits)) {
            return 1;
        }
        outcome->slots[phase] = run->plugin ? session_stats(&session).slots : 0;
        outcome->anonymous[phase] = anonymous_mib();
    }
    session_close(&session);
    return 0;
}

static int try_setting(const struct run *stock, struct run *run, const char *name, const char *value) {
    struct outcome *outcome = run->outcome;
    memset(outcome, 0, sizeof *outcome);
    setenv(name, value, 1);
    int failed = in_child(decode_all, run);
    unsetenv(name);
    printf("%s=%s: %llu, %llu, %llu slots; %.0f, %.0f, %.0f MiB\n", name, value, (unsigned long long)outcome->slots[0],
           (unsigned long long)outcome->slots[1], (unsigned long long)outcome->slots[2], outcome->anonymous[0],
           outcome->anonymous[1] - RAM_MIB, outcome->anonymous[2]);
    if (failed) {
        printf("%s=%s: ended with %d\n", name, value, failed);
        return 1;
    }
    bool gave = outcome->slots[0] > 0 && outcome->slots[1] == 0 && outcome->slots[2] == outcome->slots[0];
    if (!gave) {
        printf("%s=%s: slots were not given back, or not taken again\n", name, value);
    }
    bool mapped = !strcmp(value, "mapped"); // nothing of theirs is anonymous memory
    bool freed = mapped || outcome->anonymous[1] - RAM_MIB < outcome->anonymous[0] - 10;
    if (!freed) {
        printf("%s=%s: their memory is still there\n", name, value);
    }
    bool same = outcome->bits == stock->outcome->bits;
    if (!same) {
        printf("%s=%s: other logits than stock's\n", name, value);
    }
    return !gave || !freed || !same;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fputs("usage: test_growth MODEL PLUGIN\n", stderr);
        return 2;
    }
    struct outcome *outcomes =
        mmap(NULL, 2 * sizeof *outcomes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (outcomes == MAP_FAILED) {
        return 2;
    }
    setenv("GUANACO_LOG", "warn", 1);
    setenv("GUANACO_RAM", "400MiB", 1);
    struct run stock = {argv[1], NULL, &outcomes[0]}, run = {argv[1], argv[2], &outcomes[1]};
    if (in_child(decode_all, &stock)) {
        return 2;
    }
    static const char *const settings[][2] = {
        {"GUANACO_IMATRIX", "off"}, {"GUANACO_IMATRIX", "auto"},
        {"GUANACO_POLICY", "lru"},  {"GUANACO_LAYER_SHARES", "demand"},
        {"GUANACO_IO", "mapped"},   {"GUANACO_PIN_HOT_EXPERTS", "60"},
        {"GUANACO_LOCK", "all"},
    };
    int wrong = 0;
    for (size_t s = 0; s < sizeof settings / sizeof *settings; s++) {
        wrong += try_setting(&stock, &run, settings[s][0], settings[s][1]);
    }
    return wrong != 0;
}
