// Programs that guanaco exec must see through, one by each definition:
//     nothing            the program itself, linked statically or to one of the libraries below
//     GGML_INSIDE        a program that has ggml in it, as it seems from outside
//     OLDER, OTHER       a libggml.so without what the plugin needs; with a plugin interface of its own
#include <stddef.h>
#include <stdio.h>

#if defined(OLDER) || defined(OTHER)

void *ggml_backend_load(const char *path);
const char *ggml_version(void);

void *ggml_backend_load(const char *path) {
    (void)path;
    return NULL;
}

const char *ggml_version(void) {
    return "9.8.7";
}

#else

#ifdef GGML_INSIDE
const char *const variable = "GGML_BACKEND_PATH";
#endif
#ifdef LINKED
const char *ggml_version(void);
#endif

int main(void) {
#ifdef LINKED
    return puts(ggml_version() ? "ran" : "") < 0;
#else
    return puts("ran") < 0;
#endif
}

#endif
