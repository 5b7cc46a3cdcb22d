#pragma once

#include <stdbool.h>

// Loads the backends that lie beside libllama. Returns whether the CPU's is among them: one from elsewhere may be of
// another build, and is not looked for. Nothing that the environment names comes: GGML_BACKEND_PATH would bring the
// plugin into a stock run, or bring it twice.
bool load_backends(void);
