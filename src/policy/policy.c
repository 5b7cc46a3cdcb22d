#include "policy/policy.h"

#include "config/numbers.h"
#include "config/parse.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

const struct guanaco_policy *const gn_policies[] = {
    &gn_policy_wait,      &gn_policy_lru,  &gn_policy_slru,   &gn_policy_lfu,
    &gn_policy_lfu_plain, &gn_policy_fifo, &gn_policy_random, NULL,
};

static bool is_parameter(const struct guanaco_policy *policy, size_t i) {
    return policy->parameters && i < GUANACO_MOST_PARAMETERS && policy->parameters[i].key;
}

void gn_parameters_default(const struct guanaco_policy *policy, struct gn_parameters *parameters) {
    memset(parameters, 0, sizeof *parameters);
    for (size_t i = 0; is_parameter(policy, i); i++) {
        parameters->value[i] = policy->parameters[i].fallback;
    }
}

// "protected (1 to 99, default 80), …"
static void list_parameters(const struct guanaco_policy *policy, char *text, size_t size) {
    size_t used = (size_t)snprintf(text, size, "%s", is_parameter(policy, 0) ? "" : "none");
    for (size_t i = 0; is_parameter(policy, i) && used < size; i++) {
        const struct guanaco_policy_parameter *parameter = &policy->parameters[i];
        used += (size_t)gn_format(text + used, size - used, "%s%s (%g to %g, default %g)", i ? ", " : "",
                                  parameter->key, parameter->least, parameter->most, parameter->fallback);
    }
}

static int parse_one(const struct guanaco_policy *policy, const char *text, struct gn_parameters *parameters) {
    size_t length = strcspn(text, "=");
    for (size_t i = 0; text[length] && is_parameter(policy, i); i++) {
        const struct guanaco_policy_parameter *parameter = &policy->parameters[i];
        if (strlen(parameter->key) != length || strncmp(text, parameter->key, length) != 0) {
            continue;
        }
        double value;
        if (gn_parse_decimal(text + length + 1, &value)) {
            return -EINVAL;
        }
        parameters->value[i] = value;
        return value >= parameter->least && value <= parameter->most ? 0 : -ERANGE;
    }
    return -EINVAL;
}

int gn_parameters_parse(const struct guanaco_policy *policy, const char *text, struct gn_parameters *parameters,
                        char *why, size_t why_size) {
    gn_parameters_default(policy, parameters);
    while (text && *text) {
        char one[64] = "";
        size_t length = strcspn(text, ",");
        if (length < sizeof one) {
            memcpy(one, text, length);
        }
        int failed = parse_one(policy, one, parameters);
        if (failed) {
            char parameters_text[800];
            list_parameters(policy, parameters_text, sizeof parameters_text);
            snprintf(why, why_size, "'%.*s' %s; %s takes key=value, separated by commas: %s",
                     (int)(length < 40 ? length : 40), text, failed == -ERANGE ? "is out of range" : "will not do",
                     policy->name, parameters_text);
            return failed;
        }
        text += length + (text[length] == ',');
    }
    return 0;
}
