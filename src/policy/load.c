// Policies by name, and policies of others: from shared objects, or registered by the program.
#include "policy/policy.h"

#include "config/log.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

static _Atomic(const struct guanaco_policy *) registered;

static const struct guanaco_policy *by_name(const char *name) {
    for (size_t p = 0; gn_policies[p]; p++) {
        if (!strcasecmp(name, gn_policies[p]->name)) {
            return gn_policies[p];
        }
    }
    return NULL;
}

bool gn_policy_is_named(const char *text) {
    return strchr(text, '/') || by_name(text);
}

// What is wrong with a policy of somebody else's; NULL: nothing that shows.
static const char *defect(const struct guanaco_policy *policy) {
    if (policy->version != GUANACO_POLICY_VERSION) {
        return "is of another version of guanaco.h: build it again";
    }
    if (!policy->name || !*policy->name) {
        return "has no name";
    }
    if (!policy->open || !policy->close || !policy->hit || !policy->insert || !policy->evict || !policy->victim) {
        return "lacks a function that must be there: open, close, hit, insert, evict and victim";
    }
    for (size_t i = 0; policy->parameters && policy->parameters[i].key; i++) {
        const struct guanaco_policy_parameter *parameter = &policy->parameters[i];
        if (i == GUANACO_MOST_PARAMETERS) {
            return "has too many parameters";
        }
        if (!(parameter->least <= parameter->fallback && parameter->fallback <= parameter->most)) {
            return "has a parameter whose default is out of its range";
        }
    }
    return NULL;
}

static int load(const char *path, const struct guanaco_policy **policy, char *why, size_t why_size) {
    struct stat status;
    if (!stat(path, &status) && !S_ISREG(status.st_mode)) { // opening a FIFO would wait
        snprintf(why, why_size, "cannot load it: %s is no regular file", path);
        return -ENOEXEC;
    }
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!object) {
        snprintf(why, why_size, "cannot load it: %s", dlerror());
        return -ENOEXEC;
    }
    const struct guanaco_policy *found = dlsym(object, GUANACO_POLICY_SYMBOL);
    const char *wrong = found ? defect(found) : "does not export " GUANACO_POLICY_SYMBOL;
    if (wrong) {
        snprintf(why, why_size, "%s %s", path, wrong);
        dlclose(object);
        return -EINVAL;
    }
    *policy = found;
    return 0;
}

int gn_policy_find(const char *text, const struct guanaco_policy **policy, char *why, size_t why_size) {
    if (strchr(text, '/')) {
        return load(text, policy, why, why_size);
    }
    *policy = by_name(text);
    if (*policy) {
        return 0;
    }
    size_t used = (size_t)snprintf(why, why_size, "there is no policy '%.40s'; give the path of one, or", text);
    for (size_t p = 0; gn_policies[p] && used < why_size; p++) {
        used += (size_t)snprintf(why + used, why_size - used, "%s %s", p ? "," : "", gn_policies[p]->name);
    }
    return -EINVAL;
}

int gn_policy_register(const struct guanaco_policy *policy) {
    const char *wrong = policy ? defect(policy) : NULL;
    if (wrong) {
        gn_error("guanaco_register_policy: the policy %s", wrong);
        return -1;
    }
    atomic_store(&registered, policy);
    return 0;
}

const struct guanaco_policy *gn_policy_registered(void) {
    return atomic_load(&registered);
}
