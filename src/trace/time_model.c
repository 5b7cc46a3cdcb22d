#include "trace/time_model.h"

#include <math.h>

static void end_token(struct gn_time *time) {
    if (time->n > time->skip) {
        double computing = time->model.rest + time->token.events, total = fmax(computing, time->token.link);
        time->tokens++;
        time->seconds += total;
        time->link += total - computing;
        time->disk += time->token.disk;
    }
    time->token = (struct gn_time_token){0};
}

void gn_time_add(struct gn_time *time, const struct gn_replay_use *use) {
    if (!use->decode) {
        return;
    }
    if (use->first) {
        end_token(time);
        time->n++;
    }
    const struct gn_time_model *model = &time->model;
    double bytes = (double)use->expert_bytes;
    double device = use->held * bytes / model->device_rate;
    double cpu = (use->hits + use->misses) * bytes / model->ram_rate;
    double arrived = use->misses ? use->misses * bytes / model->disk_rate + bytes / model->ram_rate : 0;
    double computing = fmax(device, cpu), event = fmax(computing, arrived);
    time->token.events += event;
    time->token.disk += event - computing;
    time->token.link += use->inserts * bytes / model->link_rate;
}

void gn_time_end(struct gn_time *time) {
    end_token(time);
}
