// GUANACO_STREAMING, as the plugin and the interposer both read it. A header alone: the interposer needs libc and no
// more.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <strings.h>

// Whether the environment switches streaming off.
static inline bool gn_streaming_off(void) {
    static const char *const words[] = {"off", "0", "no", "false"};
    const char *value = getenv("GUANACO_STREAMING");
    for (size_t i = 0; value && i < sizeof words / sizeof *words; i++) {
        if (strcasecmp(value, words[i]) == 0) {
            return true;
        }
    }
    return false;
}
