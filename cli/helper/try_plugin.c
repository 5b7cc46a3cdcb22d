// guanaco-try-plugin PLUGIN LIBRARY…: loads ggml's libraries of some program, then the plugin into them, as that
// program would. Ends with 0 when ggml took it; else prints why. A process of its own, so that two ggml never meet.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static int fail(const char *what, const char *detail) {
    printf("%s%s%s", what, detail ? ": " : "", detail ? detail : "");
    fflush(stdout);
    _Exit(1);
}

int main(int argc, char **argv) {
    void *ggml = NULL;
    if (argc < 3) {
        return fail("usage: guanaco-try-plugin PLUGIN LIBRARY...", NULL);
    }
    for (int i = 2; i < argc; i++) {
        ggml = dlopen(argv[i], RTLD_NOW | RTLD_GLOBAL);
        if (!ggml) {
            return fail("its ggml cannot be loaded", dlerror());
        }
    }
    void *(*load)(const char *);
    const char *(*version)(void);
    *(void **)&load = dlsym(ggml, "ggml_backend_load");
    *(void **)&version = dlsym(ggml, "ggml_version");
    if (!load) {
        return fail("its ggml is from before plugins (it has no ggml_backend_load)", NULL);
    }
    void *plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!plugin) {
        return fail("its ggml lacks what the plugin needs", dlerror());
    }
    const char *(*unfit)(void);
    *(void **)&unfit = dlsym(plugin, "guanaco_unfit");
    const char *why = unfit ? unfit() : "the plugin is damaged; build it again";
    if (why) {
        return fail(why, NULL);
    }
    int *(*init)(void); // the registration, which begins with the version of the plugin interface it was built for
    *(void **)&init = dlsym(plugin, "ggml_backend_init");
    int *registration = init ? init() : NULL;
    if (!registration) {
        return fail("the plugin is damaged; build it again", NULL);
    }
    if (!load(argv[1])) {
        char text[160];
        snprintf(
            text, sizeof text,
            "its ggml (version %.40s) has another plugin interface than version %d, for which this plugin was built",
            version ? version() : "unknown", *registration);
        return fail(text, NULL);
    }
    _Exit(0); // without the libraries' own ends, which are not ours to test
}
