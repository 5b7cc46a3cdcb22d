// Preloaded, it does to a program what many with windows do: it takes the user's language, before main(). Ends the
// program with 77 where that does not bring decimal commas.
#include <locale.h>
#include <string.h>
#include <unistd.h>

__attribute__((constructor)) static void take_language(void) {
    if (!setlocale(LC_ALL, "") || strcmp(localeconv()->decimal_point, ",") != 0) {
        _exit(77);
    }
}
