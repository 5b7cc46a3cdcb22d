// How long tokens would take on a machine that is known by a few figures: what its tiers compute and move in a second.
//
// An event of decode with `held` experts on a device, `hits` in RAM and `misses` on disk, of B bytes each, takes
//
//     device = held B / device_rate
//     cpu    = (hits + misses) B / ram_rate           the CPU computes what is not on a device
//     disk   = misses B / disk_rate
//     event  = max(device, cpu, disk + B / ram_rate)  the last only with misses: experts are computed as they come,
//                                                     and one is left when all have come
//     token  = max(rest + sum of its events, inserts B / link_rate)
//
// Copies to a device run beside everything else: they cost nothing until the link is what a token waits for. Computing
// in decode is bound by memory, so that a tier is known by the bytes of weights that it gets through in a second,
// whatever their type. What the formula leaves out: reading ahead (the engine is faster, where the drive is the limit),
// the copying of experts into page-locked memory before an upload (slower, while a tier fills), prompts.
#pragma once

#include "trace/replay_tiers.h"

struct gn_time_model {
    double device_rate, ram_rate; // bytes of weights computed through in a second
    double disk_rate, link_rate;  // bytes moved in a second
    double rest;                  // seconds of a token that experts have no part in
};

// A sum over tokens. Zero it, set the model, add every event in order, and end it.
struct gn_time {
    struct gn_time_model model;
    uint32_t skip; // tokens that are not counted, at the beginning

    uint32_t tokens;   // counted
    double seconds;    // of all of these
    double link, disk; // of these, waiting for the link, and for the disk
    uint32_t n;        // tokens begun
    struct gn_time_token {
        double events, disk, link;
    } token; // the running one
};

void gn_time_add(struct gn_time *time, const struct gn_replay_use *use); // prompts are passed over
void gn_time_end(struct gn_time *time);
