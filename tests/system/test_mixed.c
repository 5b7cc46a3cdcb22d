// Mixed traffic: a long prompt, text, another long prompt, text. The second prompt must not cost the text its hits: the
// decode hit rate after it is within two points of that before it. The text is the same few sentences over and over, so
// that the two rates can be compared. Where prompts are treated as decode, it must show: else this would test nothing.
//
//     test_mixed MODEL PLUGIN
#include "session.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char first_prompt[] =
    "The carriage stood before the door, and nobody came. It had rained since the morning, and the road to the village "
    "was deep in mud; the horses were tired, and so was the old man who held them. He had waited for an hour when a "
    "window was opened, and a voice asked what he wanted there at such a time of the night. ";
static const char second_prompt[] =
    "A ship is a small town of its own. There are those who give orders and those who obey, there are friends and "
    "enemies, there is a kitchen, a doctor, a store of rope and tar and biscuit, and a captain, who sees all and says "
    "little. On the third day the wind fell, the sails hung from the yards, and the sea lay like oil around us. ";
static const char text[] = "She looked at him for a while, and said that it was a pity; then she took her hat and went "
                           "out into the garden, where the children were at play.";

enum { MOST = 512, WARM = 150, REPEATS = 3 };

struct run {
    const char *model, *plugin, *policy;
    const char *prefill_tokens; // NULL: as it is
    int counted;                // tokens of text before and after
    double least, most;         // points that the second prompt may cost
};

static int tokenize(const struct session *session, const char *words, llama_token *tokens) {
    const struct llama_vocab *vocab = llama_model_get_vocab(session->model);
    int n = llama_tokenize(vocab, words, (int)strlen(words), tokens, MOST, false, false);
    return n > 0 ? n : -1;
}

// A prompt several times over: some hundred tokens.
static bool feed(struct session *session, const char *words, int *position) {
    llama_token tokens[MOST];
    int n = tokenize(session, words, tokens);
    for (int r = 0; r < REPEATS && n > 0; r++) {
        if (session_decode(session, tokens, n, *position)) {
            return false;
        }
        *position += n;
    }
    return n > 0;
}

// Decodes n tokens of the text, going around. Returns their hit rate in per cent, or -1.
static double decode(struct session *session, int n, int *place, int *position) {
    llama_token tokens[MOST];
    int all = tokenize(session, text, tokens);
    struct guanaco_stats before = session_stats(session);
    for (int i = 0; i < n; i++) {
        if (all < 0 || session_decode(session, &tokens[(*place)++ % all], 1, (*position)++)) {
            return -1;
        }
    }
    struct guanaco_stats after = session_stats(session);
    double hits = (double)(after.hits - before.hits), misses = (double)(after.misses - before.misses);
    return 100 * hits / (hits + misses);
}

static int body(void *context) {
    const struct run *run = context;
    setenv("GUANACO_POLICY", run->policy, 1);
    if (run->prefill_tokens) {
        setenv("GUANACO_PREFILL_TOKENS", run->prefill_tokens, 1);
    }
    struct session session;
    struct session_options options = {.model = run->model, .plugin = run->plugin, .n_context = 1536};
    if (session_open(&session, &options)) {
        return 1;
    }
    int position = 0, place = 0;
    bool good = feed(&session, first_prompt, &position) && decode(&session, WARM, &place, &position) >= 0;
    double before = decode(&session, run->counted, &place, &position);
    good = good && feed(&session, second_prompt, &position);
    double after = decode(&session, run->counted, &place, &position);
    fprintf(stderr, "%s, prompts %s: %.1f %% before the second prompt, %.1f %% after it\n", run->policy,
            run->prefill_tokens ? "as decode" : "as prompts", before, after);
    session_close(&session);
    double lost = before - after;
    return !(good && before > 40 && lost >= run->least && lost <= run->most);
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: test_mixed MODEL PLUGIN\n");
        return 2;
    }
    setenv("GUANACO_LOG", "error", 1);
    setenv("GUANACO_EXPERT_CACHE", "50%", 1);
    const struct run runs[] = {
        {argv[1], argv[2], "expected-wait", NULL, 72, -100, 2},
        {argv[1], argv[2], "lru", NULL, 72, -100, 2},
        {argv[1], argv[2], "lru", "100000", 12, 5, 100},
    };
    int failed = 0;
    for (size_t r = 0; r < sizeof runs / sizeof *runs; r++) {
        failed += in_child(body, (void *)&runs[r]) != 0;
    }
    return failed != 0;
}
