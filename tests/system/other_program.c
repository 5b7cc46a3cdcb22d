// A program on libllama that knows nothing of Guanaco's command line: what the plugin does in it is up to the
// environment.
//
//     other_program MODEL PLUGIN TOKENS [wait]
//
// Decodes TOKENS tokens, one by one, and ends with 0. With "wait" it then says "decoded" on standard output and waits
// for a signal, with the model still open.
#include "session.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: other_program MODEL PLUGIN TOKENS [wait]\n");
        return 2;
    }
    struct session session;
    struct session_options options = {.model = argv[1], .plugin = argv[2], .n_context = 512};
    if (session_open(&session, &options)) {
        return 1;
    }
    long n = strtol(argv[3], NULL, 10);
    for (int i = 0; i < n; i++) {
        llama_token token = (i * 37 + 11) % session.n_vocab;
        if (session_decode(&session, &token, 1, i)) {
            return 1;
        }
    }
    if (argc > 4) {
        puts("decoded");
        fflush(stdout);
        pause();
    }
    session_close(&session);
    return 0;
}
