#include "program_cache.h"

#include "plan.h"

#include "config/log.h"

#include <stdio.h>
#include <stdlib.h>

#define MIB ((uint64_t)1 << 20)
#define USUAL_MIB 8192u // the program's own default
#define PART 8          // of the memory, when nobody says
#define MOST_PART 4     // that is kept free for it, when somebody does

static const char variable[] = "LLAMA_ARG_CACHE_RAM";

// What the user says: MiB, negative for no limit. NULL: nothing.
static const char *wish(const struct arguments *arguments) {
    char **value = arguments_value(arguments, "--cache-ram");
    value = value ? value : arguments_value(arguments, "-cram");
    const char *text = value ? *value : getenv(variable);
    return text && *text ? text : NULL;
}

void program_cache_limit(const struct arguments *arguments, struct gn_knobs *knobs) {
    uint64_t ram = plan_ram(knobs), most = ram / MOST_PART;
    const char *text = wish(arguments);
    if (text) {
        long mib = strtol(text, NULL, 10);
        uint64_t bytes = mib < 0 || (uint64_t)mib > most / MIB ? most : (uint64_t)mib * MIB;
        gn_knob_set(knobs, GN_PROGRAM_CACHE, (int64_t)bytes);
        return;
    }
    uint64_t mib = ram / PART / MIB < USUAL_MIB ? ram / PART / MIB : USUAL_MIB;
    char number[32], bytes[32], whole[32];
    snprintf(number, sizeof number, "%llu", (unsigned long long)mib);
    setenv(variable, number, 1);
    gn_knob_set(knobs, GN_PROGRAM_CACHE, (int64_t)(mib * MIB));
    gn_info("prompt cache: at most %s of the %s of memory; --cache-ram sets another size (MiB)",
            gn_format_bytes(mib * MIB, bytes), gn_format_bytes(ram, whole));
}
