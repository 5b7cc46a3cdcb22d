#pragma once

// Loads the CPU backends, which lie beside libllama, and nothing that the environment names: GGML_BACKEND_PATH would
// bring the plugin into a stock run. Ends the process when libllama cannot be found.
void load_backends(void);
