// Whether it pays to have experts computed by another device beside the CPU, as measured while the run goes. Both work
// at the same time: an event takes as long as the slower of them. What it saves is the time that the CPU would have
// taken for all of it, less that. Knows nothing of ggml; not thread-safe.
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct gn_payoff {
    float cpu_ns, device_ns;             // of one unit (an expert in decode, a row in prefill), faded
    float saved_ns;                      // by one of the device's units, faded; negative: lost
    float copy_ns;                       // of an expert to the device, faded
    uint32_t cpu_events, events, copies; // measured: with work for the CPU, with work for the device
};

// One event. cpu_ns: what the CPU's part took, with waiting for bytes; device_ns: from the device's start to its end,
// or, when it had ended before the CPU, to the CPU's end.
void gn_payoff_event(struct gn_payoff *payoff, uint64_t cpu_ns, uint32_t cpu_units, uint64_t device_ns,
                     uint32_t device_units);
void gn_payoff_copy(struct gn_payoff *payoff, uint64_t ns);

// Whether enough has been measured for the next answer.
bool gn_payoff_known(const struct gn_payoff *payoff);
// Uses after which a copy has brought what it cost; INFINITY when the device costs more than it brings. `otherwise`
// while not known.
float gn_payoff_margin(const struct gn_payoff *payoff, float otherwise);
// The share (0 … 1) of an event's units that the device should have for both to end at the same time; 1 while nothing
// has been measured.
float gn_payoff_share(const struct gn_payoff *payoff);
