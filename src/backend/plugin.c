// What ggml calls first: the registration, the one device, and a backend for each context.
//
// The device is of type ACCEL, so that every context takes it in by itself, and the loader offers it the weights that
// would otherwise go to the CPU.
#include "backend/backend.h"
#include "backend/start.h"
#include "config/knob_files.h"
#include "config/log.h"
#include "config/memory.h"
#include "config/tier_knobs.h"
#include "exec/models.h"
#include "guanaco.h"
#include "io/guard.h"
#include "preload/switch.h"
#include "stats/stats.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static struct gn_knobs knobs;
static char bad_setting[1024]; // why the environment cannot be used; "" when it can

const struct gn_knobs *gn_settings(void) {
    return &knobs;
}

static const char *backend_name(ggml_backend_t backend) {
    (void)backend;
    return GN_NAME;
}

static void backend_free(ggml_backend_t backend) {
    gn_compute_close(backend->context);
    free(backend);
}

static enum ggml_status backend_compute(ggml_backend_t backend, struct ggml_cgraph *graph) {
    return gn_compute_graph(backend->context, graph);
}

static const char *device_name(ggml_backend_dev_t device) {
    (void)device;
    return GN_NAME;
}

static const char *device_description(ggml_backend_dev_t device) {
    (void)device;
    return "MoE expert streaming";
}

static void device_memory(ggml_backend_dev_t device, size_t *free_bytes, size_t *total_bytes) {
    (void)device;
    *free_bytes = *total_bytes = gn_memory_available(); // an RPC client shares layers out by this
}

static enum ggml_backend_dev_type device_type(ggml_backend_dev_t device) {
    (void)device;
    return GGML_BACKEND_DEVICE_TYPE_ACCEL;
}

static void device_props(ggml_backend_dev_t device, struct ggml_backend_dev_props *props) {
    *props = (struct ggml_backend_dev_props){
        .name = device_name(device),
        .description = device_description(device),
        .type = device_type(device),
    };
    device_memory(device, &props->memory_free, &props->memory_total);
}

static ggml_backend_t device_init(ggml_backend_dev_t device, const char *params) {
    (void)params;
    static uint8_t guid[16] = {'g', 'u', 'a', 'n', 'a', 'c', 'o', '-', 's', 't', 'r', 'e', 'a', 'm', '-', '1'};
    if (bad_setting[0]) {
        gn_fail("%s", bad_setting);
        return NULL;
    }
    if (gn_start_streams(&knobs)) {
        return NULL;
    }
    ggml_backend_t backend = calloc(1, sizeof *backend);
    struct gn_compute *compute = backend ? gn_compute_open(&knobs) : NULL;
    if (!compute) {
        gn_fail("cannot set up a backend: no CPU backend is loaded, or memory is short");
        free(backend);
        return NULL;
    }
    *backend = (struct ggml_backend){
        .guid = &guid,
        .iface = {.get_name = backend_name, .free = backend_free, .graph_compute = backend_compute},
        .device = device,
        .context = compute,
    };
    return backend;
}

static ggml_backend_buffer_type_t device_buffer_type(ggml_backend_dev_t device) {
    (void)device;
    return gn_buffer_type();
}

static atomic_uint asked;

unsigned gn_weights_asked(void) {
    return atomic_load(&asked);
}

static bool device_supports_op(ggml_backend_dev_t device, const struct ggml_tensor *op) {
    (void)device;
    const struct ggml_tensor *weight = op->src[0];
    if (weight && weight->buffer && weight->buffer->size == 0) { // as a loader asks
        atomic_fetch_add(&asked, 1);
    }
    return gn_claims(op);
}

static bool device_supports_buffer(ggml_backend_dev_t device, ggml_backend_buffer_type_t type) {
    (void)device;
    return type == gn_buffer_type() || ggml_backend_buft_is_host(type);
}

static struct ggml_backend_device the_device = {
    .iface =
        {
            .get_name = device_name,
            .get_description = device_description,
            .get_memory = device_memory,
            .get_type = device_type,
            .get_props = device_props,
            .init_backend = device_init,
            .get_buffer_type = device_buffer_type,
            .supports_op = device_supports_op,
            .supports_buft = device_supports_buffer,
        },
};

static const char *registry_name(ggml_backend_reg_t registry) {
    (void)registry;
    return GN_NAME;
}

// Without a device nothing is offered to us.
static size_t registry_devices(ggml_backend_reg_t registry) {
    (void)registry;
    return gn_streaming_off() ? 0 : 1;
}

static ggml_backend_dev_t registry_device(ggml_backend_reg_t registry, size_t index) {
    (void)registry;
    (void)index;
    return &the_device;
}

static void set_n_threads(ggml_backend_t backend, int n_threads) {
    gn_compute_set_threads(backend->context, n_threads);
}

static void set_abort_callback(ggml_backend_t backend, ggml_abort_callback callback, void *context) {
    gn_compute_set_abort(backend->context, callback, context);
}

static const char *describe_mode(void) {
    static _Thread_local char text[2048];
    if (bad_setting[0]) {
        return bad_setting;
    }
    gn_describe_streams(&knobs, text, sizeof text);
    return text;
}

// The functions that a program finds by name: ggml's own, and those of guanaco.h.
static void *registry_function(ggml_backend_reg_t registry, const char *name) {
    (void)registry;
    union {
        void (*threads)(ggml_backend_t, int);
        void (*abort)(ggml_backend_t, ggml_abort_callback, void *);
        guanaco_stats_fn stats;
        guanaco_layer_stats_fn layer_stats;
        guanaco_mode_fn mode;
        guanaco_threadpool_fn pool;
        guanaco_last_error_fn error;
        guanaco_register_policy_fn policy;
        void *address;
    } function = {.address = NULL};
    if (!strcmp(name, "ggml_backend_set_n_threads")) {
        function.threads = set_n_threads;
    } else if (!strcmp(name, "ggml_backend_set_abort_callback")) {
        function.abort = set_abort_callback;
    } else if (!strcmp(name, "guanaco_stats")) {
        function.stats = gn_stats_snapshot;
    } else if (!strcmp(name, "guanaco_layer_stats")) {
        function.layer_stats = gn_layer_stats;
    } else if (!strcmp(name, "guanaco_mode")) {
        function.mode = describe_mode;
    } else if (!strcmp(name, "guanaco_threadpool")) {
        function.pool = gn_compute_share_pool;
    } else if (!strcmp(name, "guanaco_last_error")) {
        function.error = gn_last_failure;
    } else if (!strcmp(name, "guanaco_register_policy")) {
        function.policy = gn_policy_register;
    }
    return function.address;
}

static struct ggml_backend_reg the_registry = {
    .api_version = GGML_BACKEND_API_VERSION,
    .iface =
        {
            .get_name = registry_name,
            .get_device_count = registry_devices,
            .get_device = registry_device,
            .get_proc_address = registry_function,
        },
};

// In a child process: threads, locks that they hold and reads in flight are the parent's.
static void after_fork(void) {
    gn_models_forked();
    gn_loaded_forked();
    gn_compute_forked();
    gn_failure_forked();
    gn_guards_forked();
}

// Once: what is set up here is read by any thread afterwards, without a lock.
static void set_up(void) {
    the_device.reg = &the_registry;
    gn_buffer_type_of(&the_device);
    struct gn_outputs outputs = {0};
    gn_knobs_default(&knobs);
    if (gn_knobs_from_environment(&knobs, bad_setting, sizeof bad_setting) == 0 &&
        gn_tiers_apply(&knobs, bad_setting, sizeof bad_setting) == 0 &&
        gn_knobs_outputs(&knobs, &outputs, bad_setting, sizeof bad_setting)) {
        bad_setting[0] = '\0';
        gn_log_set_level((enum gn_log_level)knobs.value[GN_LOG]);
    }
    if (pthread_atfork(NULL, NULL, after_fork)) {
        gn_warn("memory is short: processes that are forked from this one cannot use its models");
    }
    if (gn_streaming_off()) {
        gn_info("mode: nothing is streamed: GUANACO_STREAMING switches it off");
    }
}

// For who wants to know before ggml loads us: gn_host_unfit().
__attribute__((visibility("default"))) const char *guanaco_unfit(void);

const char *guanaco_unfit(void) {
    return gn_host_unfit();
}

__attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init(void);

ggml_backend_reg_t ggml_backend_init(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const char *unfit = gn_host_unfit();
    if (unfit) { // the program runs without us
        gn_error("%s", unfit);
        return NULL;
    }
    pthread_once(&once, set_up);
    return &the_registry;
}
