// The files that settings name.
#pragma once

#include "config/knobs.h"
#include "config/output_file.h"

// Adds what the settings write, the trace and the hot set, to a command's outputs, and checks them against what the
// settings read, the imatrix and a policy of somebody else's. Files that are found beside the model ("auto") are not
// known here. Returns as gn_outputs_add().
bool gn_knobs_outputs(const struct gn_knobs *knobs, struct gn_outputs *outputs, char *why, size_t why_size);

// The path that a text setting names; NULL: none, "auto", "off", or a policy's name.
const char *gn_knob_path(const struct gn_knobs *knobs, enum gn_knob knob);
