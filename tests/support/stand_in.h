// Devices that are called GPUs and are the CPU, so that tiers can be tested where there is no GPU. llama.cpp itself is
// not to use them.
#pragma once

#include "ggml-backend.h"

#include <stdbool.h>

enum { STAND_INS = 2 };

// What the devices can compute; may be called at any time.
typedef bool stand_in_computes(const struct ggml_tensor *operation);

// Registers them as TEST0 and TEST1, once the CPU's backend is loaded.
void stand_in_register(stand_in_computes *computes);
// How many of their backends are open.
int stand_in_open(void);
