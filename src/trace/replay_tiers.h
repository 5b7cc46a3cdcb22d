// Replays a trace through tiers: RAM, and above it devices that hold and compute the experts that are used most.
//
// The engine's rules, beyond those of replay.h:
//
// - A layer is served by one device at most. Devices take the layers in turn, as many as their share of all devices'
//   bytes; a layer that would have fewer slots than twice what a token uses of it is left to the RAM.
// - Devices are opened when every layer has been seen: at the first event whose layer does not follow the layer of the
//   event before. Until then all goes to the RAM.
// - Decode: the device is asked for every expert, the RAM for those that missed; then some of these come up
//   (gn_tier_promote()).
// - A prefill uses what devices hold, and changes nothing there.
//
// So a run is replayed to the last hit that knows nothing beforehand (no seed) and does not measure what pays
// (--gpu-inserts is given), if it has as many slots.
#pragma once

#include "cache/tier.h"
#include "trace/replay.h"

#define GN_REPLAY_DEVICES 8

struct gn_replay_device {
    uint64_t budget; // bytes for slots; 0: as if it were not there
    const struct guanaco_policy *policy;
    struct gn_admission_options admission;
    uint32_t inserts; // for each token
    float margin;     // of uses: as in cache/tier.h
};

// What became of one event.
struct gn_replay_use {
    uint32_t layer;
    uint32_t device; // that serves the layer, GN_NONE: none, or not yet
    bool decode;
    bool first;            // of a token
    uint32_t held, hits;   // found in the device's slots, in the RAM's
    uint32_t misses;       // read from disk
    uint32_t inserts;      // of these, or of the hits: copied to the device
    uint64_t expert_bytes; // of each
};

struct gn_replay_tiers_options {
    uint32_t n_devices;
    struct gn_replay_device device[GN_REPLAY_DEVICES];
    struct gn_cache_options ram; // layers and n_layers are the trace's
    uint32_t top_k;              // experts that a token uses of a layer
    // Told of every event, in order; NULL: nobody is.
    void (*each)(void *context, const struct gn_replay_use *use);
    void *context;
};

struct gn_replay_tier {
    uint64_t slots, slot_bytes;
    uint32_t layers;             // that it serves
    uint64_t hits, misses;       // of decode; what missed a device is then asked of the RAM
    uint64_t inserts, evictions; // of decode and prompts
    uint64_t bytes;              // that came into it in decode: over the link, or from disk
    uint64_t prefill_hits, prefill_misses, prefill_bytes;
};

struct gn_replay_tiers_result {
    uint64_t uses, prefill_uses; // what was asked for, of all tiers together
    struct gn_replay_tier ram;   // its misses are read from disk
    struct gn_replay_tier device[GN_REPLAY_DEVICES];
};

// Returns 0, -ENOMEM, or -EBADMSG when a policy named a victim that is none.
int gn_replay_tiers(const struct gn_replay_events *events, const struct gn_replay_tiers_options *options,
                    struct gn_replay_tiers_result *result);
