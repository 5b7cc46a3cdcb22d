#include "stand_in.h"

#include "ggml-backend-impl.h"

static stand_in_computes *can_compute;
static int n_open;
static void (*cpu_backend_free)(ggml_backend_t backend);
static struct ggml_backend_device devices[STAND_INS];

static ggml_backend_dev_t cpu(void) {
    return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
}

static const char *device_name(ggml_backend_dev_t device) {
    static const char *const names[STAND_INS] = {"TEST0", "TEST1"};
    return names[device - devices];
}

static void device_memory(ggml_backend_dev_t device, size_t *free_bytes, size_t *total_bytes) {
    (void)device;
    *free_bytes = *total_bytes = (size_t)4 << 30;
}

static enum ggml_backend_dev_type device_type(ggml_backend_dev_t device) {
    (void)device;
    return GGML_BACKEND_DEVICE_TYPE_GPU;
}

static void device_props(ggml_backend_dev_t device, struct ggml_backend_dev_props *props) {
    *props = (struct ggml_backend_dev_props){
        .name = device_name(device), .description = device_name(device), .type = GGML_BACKEND_DEVICE_TYPE_GPU};
    device_memory(device, &props->memory_free, &props->memory_total);
}

static void backend_free(ggml_backend_t backend) {
    n_open--;
    cpu_backend_free(backend);
}

static ggml_backend_t device_init(ggml_backend_dev_t device, const char *parameters) {
    (void)device;
    ggml_backend_t backend = ggml_backend_dev_init(cpu(), parameters);
    if (backend) {
        n_open++;
        cpu_backend_free = backend->iface.free;
        backend->iface.free = backend_free;
    }
    return backend;
}

int stand_in_open(void) {
    return n_open;
}

static ggml_backend_buffer_type_t device_buffer_type(ggml_backend_dev_t device) {
    (void)device;
    return ggml_backend_dev_buffer_type(cpu());
}

static bool device_supports(ggml_backend_dev_t device, const struct ggml_tensor *operation) {
    (void)device;
    return can_compute(operation);
}

static bool device_takes(ggml_backend_dev_t device, ggml_backend_buffer_type_t type) {
    return type == device_buffer_type(device);
}

static const char *registry_name(ggml_backend_reg_t registry) {
    (void)registry;
    return "TEST";
}

static size_t registry_count(ggml_backend_reg_t registry) {
    (void)registry;
    return STAND_INS;
}

static ggml_backend_dev_t registry_device(ggml_backend_reg_t registry, size_t index) {
    (void)registry;
    return &devices[index];
}

void stand_in_register(stand_in_computes *computes) {
    static struct ggml_backend_reg registry = {
        .api_version = GGML_BACKEND_API_VERSION,
        .iface = {.get_name = registry_name, .get_device_count = registry_count, .get_device = registry_device},
    };
    can_compute = computes;
    for (int i = 0; i < STAND_INS; i++) {
        devices[i] = (struct ggml_backend_device){
            .iface = {.get_name = device_name,
                      .get_description = device_name,
                      .get_memory = device_memory,
                      .get_type = device_type,
                      .get_props = device_props,
                      .init_backend = device_init,
                      .get_buffer_type = device_buffer_type,
                      .supports_op = device_supports,
                      .supports_buft = device_takes},
            .reg = &registry,
        };
    }
    ggml_backend_register(&registry);
}
