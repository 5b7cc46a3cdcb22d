// Finds out whether something pays by trying: short stretches of steps with it and without it, by turns, and in between
// the steps go the way that was faster. How long a step took is told from outside; nothing here looks at a clock.
//
// What that costs: a stretch of the slower way in each round. While it pays, rounds are 64 steps apart, else 16, since
// a wrong verdict against it is not seen otherwise; as long as their verdict is clear they move apart, up to 1024
// steps, where what the slower way loses counts for less than a hundredth.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define GN_TRIAL_STRETCH 8 // steps; the first is not counted: it still has to do with what was before

struct gn_trial {
    uint32_t step;     // of the stretch, or of the rest after a round
    uint32_t stretch;  // 0 and 1: of the round; 2: the rest
    bool with_first;   // the order of the round's stretches: it alternates
    bool pays;         // the verdict
    uint32_t rest;     // steps between rounds
    double sum, worst; // of the stretch's times
    double mean[2];    // of the round's stretches
    uint32_t rounds;   // up to the number over which is averaged
    double gain;       // ln(time without / time with), mean
    double spread;     // mean square of the deviation from it
    uint64_t steps, steps_with;
};

// Begins with the thing on trial thought to pay.
void gn_trial_begin(struct gn_trial *trial);

// Whether the step to come is to be made with it.
bool gn_trial_with(const struct gn_trial *trial);

// Takes in how long that step took, in any unit, and goes on to the next. 0: not known.
void gn_trial_step(struct gn_trial *trial, double time);

// The steps to come are not to be compared with those before: begins the stretch's round anew.
void gn_trial_disturb(struct gn_trial *trial);

// How much faster steps are with it, lately: 0.1 is a tenth of the time, negative is slower. 0 before the first round.
double gn_trial_gain(const struct gn_trial *trial);
