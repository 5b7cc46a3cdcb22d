// What a run needs of memory, found out before anything is loaded.
#pragma once

#include "config/knobs.h"
#include "model_file.h"

#include "llama.h"

// What llama.cpp will take for one model and context.
struct measured {
    uint64_t kv;       // KV cache and recurrent state
    uint64_t compute;  // compute and output buffers
    uint64_t overhead; // libraries, vocabulary, graphs, work buffers: all that is no tensor of the model
};

// Builds the model and the context without any weights or buffers, in a child process that is then gone: neither its
// memory nor its crash is ours. plugin: path, or NULL. Returns true, or false with one plain line in why.
bool plan_measure(const struct model_file *model, const struct llama_model_params *model_params,
                  const struct llama_context_params *context_params, const char *plugin, bool verbose,
                  struct measured *measured, char *why, size_t why_size);

// Settles the budget of a Mixture-of-Experts model: sets GN_RAM and GN_RESERVE for the plugin. Returns true, or false
// with one plain line: each part of what is needed, what there is, what to do.
bool plan_budget(const struct model_file *model, const struct measured *measured, struct gn_knobs *knobs, char *why,
                 size_t why_size);

// What the process may take in all: --ram, as far as the control groups allow it; without it, three quarters of what
// the machine can spare.
uint64_t plan_ram(const struct gn_knobs *knobs);

// Says, in a warning, when the control groups allow less than --ram: the kernel kills a process that takes more. Before
// anything is loaded.
void plan_warn_of_group(const struct gn_knobs *knobs);
// Whether they allow what this model cannot do without. Returns true, or false with one plain line.
bool plan_fits_group(const struct model_file *model, char *why, size_t why_size);

// The least --ram that can work.
uint64_t plan_least(const struct model_file *model, const struct measured *measured);
