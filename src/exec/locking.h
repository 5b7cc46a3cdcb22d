// Keeps the kernel from paging out a stream's slots: all of them, or those that hold pinned experts. The dense weights
// are locked first, elsewhere (model/dense.h); when the slots cannot be, they are let go as well: a limit that is too
// low for all that was asked for locks nothing, and one warning says so. Never fatal.
#pragma once

#include "exec/stream.h"

// After the stream's memory was taken.
void gn_locking_open(struct gn_stream *stream, const struct gn_knobs *knobs);
void gn_locking_close(struct gn_stream *stream); // before it is given back
void gn_locking_end(struct gn_stream *stream);   // lets go of the dense weights, too

// Before each event: when pinned experts were chosen anew, their slots are locked and the others let go.
void gn_locking_step(struct gn_stream *stream);
