#include "predict/trial.h"

#include <math.h>

#define FIRST_REST 8 // nothing is known yet, and all is new to the caches
#define REST_WITHOUT 16
#define REST_WITH 64
#define LONGEST_REST 1024
#define ROUNDS 16u      // over which the gain is averaged
#define CLEAR_ROUNDS 3u // fewer are no clear verdict
#define CLEAR 2.0       // standard errors that the gain must be from 0
#define RESTING 2       // as a stretch

void gn_trial_begin(struct gn_trial *trial) {
    *trial = (struct gn_trial){.pays = true, .with_first = true, .stretch = RESTING, .rest = FIRST_REST};
}

bool gn_trial_with(const struct gn_trial *trial) {
    if (trial->stretch == RESTING) {
        return trial->pays;
    }
    return (trial->stretch == 0) == trial->with_first;
}

static void begin_round(struct gn_trial *trial) {
    trial->with_first = !trial->with_first;
    trial->stretch = trial->step = 0;
}

// The verdict of all rounds, and how soon the next one is.
static void judge(struct gn_trial *trial) {
    double with = trial->mean[trial->with_first ? 0 : 1], without = trial->mean[trial->with_first ? 1 : 0];
    double gain = log(without / with), off = gain - trial->gain;
    trial->rounds += trial->rounds < ROUNDS;
    trial->gain += off / trial->rounds;
    trial->spread += (off * (gain - trial->gain) - trial->spread) / trial->rounds;
    trial->pays = trial->gain > 0;
    double error = sqrt(trial->spread / trial->rounds);
    bool clear = trial->rounds >= CLEAR_ROUNDS && fabs(trial->gain) > CLEAR * error;
    uint32_t rest = clear ? 2 * trial->rest : trial->rest / 2, least = trial->pays ? REST_WITH : REST_WITHOUT;
    trial->rest = rest < least ? least : rest > LONGEST_REST ? LONGEST_REST : rest;
}

// Ends a stretch; the slowest step is left out, as it may have had to do with anything.
static void end_stretch(struct gn_trial *trial) {
    trial->mean[trial->stretch] = (trial->sum - trial->worst) / (GN_TRIAL_STRETCH - 2);
    trial->sum = trial->worst = 0;
    trial->step = 0;
    if (++trial->stretch == RESTING && trial->mean[0] > 0 && trial->mean[1] > 0) {
        judge(trial);
    }
}

void gn_trial_step(struct gn_trial *trial, double time) {
    trial->steps++;
    trial->steps_with += gn_trial_with(trial);
    trial->step++;
    if (trial->stretch == RESTING) {
        if (trial->step >= trial->rest) {
            begin_round(trial);
        }
        return;
    }
    if (!(time > 0)) {
        gn_trial_disturb(trial);
        return;
    }
    if (trial->step > 1) {
        trial->sum += time;
        trial->worst = fmax(trial->worst, time);
    }
    if (trial->step == GN_TRIAL_STRETCH) {
        end_stretch(trial);
    }
}

void gn_trial_disturb(struct gn_trial *trial) {
    if (trial->stretch != RESTING) {
        trial->stretch = trial->step = 0;
        trial->sum = trial->worst = 0;
    }
}

double gn_trial_gain(const struct gn_trial *trial) {
    return 1 - exp(-trial->gain);
}
