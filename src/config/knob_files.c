#include "config/knob_files.h"

#include <string.h>

const char *gn_knob_path(const struct gn_knobs *knobs, enum gn_knob knob) {
    const char *text = knobs->text[knob];
    if (!text) {
        return NULL;
    }
    if (knob == GN_POLICY) {
        return strchr(text, '/') ? text : NULL;
    }
    bool may_be_word = knob == GN_IMATRIX || knob == GN_HOT_SET;
    return may_be_word && (!strcmp(text, "auto") || !strcmp(text, "off")) ? NULL : text;
}

bool gn_knobs_outputs(const struct gn_knobs *knobs, struct gn_outputs *outputs, char *why, size_t why_size) {
    return gn_outputs_add(outputs, GN_OUTPUT_STREAM, "--trace (GUANACO_TRACE)", gn_knob_path(knobs, GN_TRACE), why,
                          why_size) &&
           gn_outputs_add(outputs, GN_OUTPUT_HOT_SET, "--hot-set (GUANACO_HOT_SET)", gn_knob_path(knobs, GN_HOT_SET),
                          why, why_size) &&
           gn_outputs_spare(outputs, "the imatrix", gn_knob_path(knobs, GN_IMATRIX), why, why_size) &&
           gn_outputs_spare(outputs, "the policy", gn_knob_path(knobs, GN_POLICY), why, why_size);
}
