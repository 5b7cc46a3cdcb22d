// Routing traces: which experts a router chose, token after token. Two formats are read, one is written.
//
// `route_trace v1`, CSV, of BigMoeOnEdge (github.com/Helldez/BigMoeOnEdge): a line that names the format, one with the
// model, one for each layer with experts, one with the columns, then a row for every expert that a token was sent to.
// Two values of ours may follow on a layer's line: slot_bytes, and n_expert where it is not the model's.
// JSONL of WARP (github.com/sqliteai/warp): for every token of decode {"tok": n, "layers": [[experts of the first
// layer with experts], …]}.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gn_trace_layer {
    uint32_t number; // as in the model: layers without experts are not listed
    uint32_t n_experts;
    uint64_t expert_bytes; // one expert; JSONL does not know it: 1
    uint64_t dense_bytes;
    uint64_t slot_bytes; // memory for one expert, with room to read whole blocks; 0: not known, as expert_bytes
};

// Memory that one expert of the layer takes in a cache.
static inline uint64_t gn_trace_slot_bytes(const struct gn_trace_layer *layer) {
    return layer->slot_bytes ? layer->slot_bytes : layer->expert_bytes;
}

struct gn_trace_row {
    uint32_t turn, step; // step: the token's place in the turn
    uint32_t layer;      // index in layers[]
    uint32_t slot;       // rank in the router's choice
    uint32_t expert;
    float weight;      // of the gate; JSONL does not know it: 0
    bool decode;       // else prefill
    uint8_t residency; // 0 miss, 1 hit, 2 read ahead, as the engine that traced saw it
    uint64_t bytes;    // that it read for this row
};

struct gn_trace {
    char model[256], architecture[64];
    uint32_t model_layers, n_experts, top_k; // of the model; 0: not known
    uint32_t n_layers;
    struct gn_trace_layer *layers;
    size_t n_rows;
    struct gn_trace_row *rows;
};

// Reads a file of either format whole. Returns 0, or -errno with one plain line (file, line, what) in why[why_size];
// *trace needs no closing then.
int gn_trace_read(const char *path, struct gn_trace *trace, char *why, size_t why_size);
void gn_trace_close(struct gn_trace *trace);

// Writes `route_trace v1`, buffered. The header is written at opening, over what was there (see gn_output_open());
// rows[] of `header` are not looked at.
struct gn_trace_writer;
int gn_trace_writer_open(const char *path, const struct gn_trace *header, struct gn_trace_writer **out);
// Returns 0, or -errno when rows could not be written, this one or earlier ones. Calls the kernel once for some
// thousand rows.
int gn_trace_writer_add(struct gn_trace_writer *writer, const struct gn_trace_row *row);
// Hands what is buffered to the kernel, so that it stays when the process is killed. At any time the file ends with a
// whole line. Returns 0 or -errno.
int gn_trace_writer_flush(struct gn_trace_writer *writer);
// In a child process after fork(), instead of closing: what is buffered is the parent's to write, and exit() in the
// child writes nothing of it into the parent's file. Safe in a handler of pthread_atfork().
void gn_trace_writer_forked(struct gn_trace_writer *writer);
int gn_trace_writer_close(struct gn_trace_writer *writer); // 0, or -errno if anything did not reach the file
