#include "predict/payoff.h"

#include <math.h>

#define MEMORY 256        // events, or copies, that count
#define ENOUGH_EVENTS 128 // for an answer
#define ENOUGH_COPIES 4

static void fade(float *average, float value, uint32_t *seen) {
    *seen += *seen < MEMORY;
    *average += (value - *average) / (float)*seen;
}

void gn_payoff_event(struct gn_payoff *payoff, uint64_t cpu_ns, uint32_t cpu_units, uint64_t device_ns,
                     uint32_t device_units) {
    if (cpu_units > 0) {
        fade(&payoff->cpu_ns, (float)cpu_ns / (float)cpu_units, &payoff->cpu_events);
    }
    if (device_units == 0 || payoff->cpu_events == 0) {
        return; // there is nothing to compare
    }
    uint32_t events = payoff->events;
    float alone = payoff->cpu_ns * (float)(cpu_units + device_units);
    float together = (float)(device_ns > cpu_ns ? device_ns : cpu_ns);
    fade(&payoff->saved_ns, (alone - together) / (float)device_units, &events);
    fade(&payoff->device_ns, (float)device_ns / (float)device_units, &payoff->events);
}

void gn_payoff_copy(struct gn_payoff *payoff, uint64_t ns) {
    fade(&payoff->copy_ns, (float)ns, &payoff->copies);
}

bool gn_payoff_known(const struct gn_payoff *payoff) {
    return payoff->events >= ENOUGH_EVENTS && payoff->copies >= ENOUGH_COPIES;
}

float gn_payoff_margin(const struct gn_payoff *payoff, float otherwise) {
    if (!gn_payoff_known(payoff)) {
        return otherwise;
    }
    return payoff->saved_ns > 0 ? payoff->copy_ns / payoff->saved_ns : INFINITY;
}

float gn_payoff_share(const struct gn_payoff *payoff) {
    float both = payoff->cpu_ns + payoff->device_ns;
    return payoff->events > 0 && both > 0 ? payoff->cpu_ns / both : 1;
}
