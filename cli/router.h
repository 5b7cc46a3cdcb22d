// llama-server without a model is a router: it starts a server of its own for each model that is asked for.
#pragma once

#include "config/knobs.h"
#include "translate.h"

// Divides the budget by the number of models that a router keeps at once (--models-max), and says so: the processes
// know nothing of one another. Does nothing if the arguments name a model.
void router_divide_budget(const struct arguments *arguments, struct gn_knobs *knobs);
