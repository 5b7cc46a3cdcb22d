#pragma once

// Loads the backends that lie beside libllama, the CPU's among them; if there is none, those of ggml's usual places.
// Nothing that the environment names comes: GGML_BACKEND_PATH would bring the plugin into a stock run, or bring it
// twice. Whether there is a CPU backend now is the caller's to ask.
void load_backends(void);
