#include "session.h"

#include "log_filter.h"
#include "text_out.h"

#include "config/log.h"
#include "config/memory.h"
#include "stats/stats.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

volatile sig_atomic_t session_interrupted;

static void on_interrupt(int signal_number) {
    session_interrupted = signal_number;
}

void session_catch_interrupts(void) {
    static const int caught[] = {SIGINT, SIGTERM, SIGHUP};
    // The handler goes away with the first signal: the second one kills. No restart: a prompt stops waiting.
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND}, before;
    for (size_t s = 0; s < sizeof caught / sizeof *caught; s++) {
        bool ignored = sigaction(caught[s], NULL, &before) == 0 && before.sa_handler == SIG_IGN;
        if (!ignored || caught[s] != SIGHUP) { // nohup
            sigaction(caught[s], &action, NULL);
        }
    }
}

static bool should_abort(void *unused) {
    (void)unused;
    return session_interrupted;
}

// ------------------------------------------------------------------------------------------------ opening

struct progress {
    uint64_t start;
    int percent; // last shown
};

// A load of less than a second shows nothing.
static bool show_progress(float progress, void *context) {
    struct progress *shown = context;
    int percent = (int)(100 * progress);
    if (progress >= 1 && shown->percent > 0) {
        fputs("\r\033[K", stderr);
    } else if (progress < 1 && percent > shown->percent && gn_now_ns() - shown->start > 1000000000 &&
               isatty(STDERR_FILENO)) {
        fprintf(stderr, "\rguanaco: loading %d %%", percent);
        shown->percent = percent;
    }
    return !session_interrupted;
}

static struct llama_sampler *make_sampler(const struct options *options, const struct llama_vocab *vocab) {
    struct llama_sampler *chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    if (options->repeat_penalty != 1) {
        llama_sampler_chain_add(chain,
                                llama_sampler_init_penalties(llama_vocab_n_tokens(vocab), (int32_t)options->repeat_last,
                                                             (float)options->repeat_penalty, 0, 0));
    }
    if (options->temperature <= 0) {
        llama_sampler_chain_add(chain, llama_sampler_init_greedy());
        return chain;
    }
    llama_sampler_chain_add(chain, llama_sampler_init_top_k((int32_t)options->top_k));
    llama_sampler_chain_add(chain, llama_sampler_init_top_p((float)options->top_p, 1));
    llama_sampler_chain_add(chain, llama_sampler_init_min_p((float)options->min_p, 1));
    llama_sampler_chain_add(chain, llama_sampler_init_temp((float)options->temperature));
    uint32_t seed = options->seed < 0 ? LLAMA_DEFAULT_SEED : (uint32_t)options->seed;
    llama_sampler_chain_add(chain, llama_sampler_init_dist(seed));
    return chain;
}

// One pool for llama.cpp's work and the plugin's: they take turns, and two would spin against each other. Without the
// plugin a pool still saves starting threads for every graph.
static void share_threads(struct session *session, int n) {
    if (!session->engine.threadpool_new || !session->engine.threadpool_free) {
        return;
    }
    struct ggml_threadpool_params params = ggml_threadpool_params_default(n);
    session->pool = session->engine.threadpool_new(&params);
    if (session->pool) {
        llama_attach_threadpool(session->context, session->pool, session->pool);
        if (session->engine.share_threadpool) {
            session->engine.share_threadpool(session->pool);
        }
    }
}

// The plugin says by itself, in its own line, why it failed.
static bool plugin_said_why(const struct session *session) {
    const char *text = session->engine.last_error ? session->engine.last_error() : "";
    return text && *text;
}

static void explain(const struct session *session, const char *what, const char *path, char *why, size_t why_size) {
    why[0] = '\0';
    if (!plugin_said_why(session)) {
        snprintf(why, why_size, "%s %s: %s", what, path, log_filter_last_error());
    }
}

bool session_open(struct session *session, const char *path, struct llama_model_params model_params,
                  struct llama_context_params context_params, char *why, size_t why_size) {
    log_filter_forget();
    struct progress progress = {.start = gn_now_ns()};
    if (!session->quiet) {
        model_params.progress_callback = show_progress;
        model_params.progress_callback_user_data = &progress;
    }
    context_params.abort_callback = should_abort;
    session->model = llama_model_load_from_file(path, model_params);
    if (!session->model) {
        explain(session, "llama.cpp cannot load", path, why, why_size);
        return false;
    }
    session->context = llama_init_from_model(session->model, context_params);
    if (!session->context) {
        explain(session, "cannot start", path, why, why_size);
        return false;
    }
    session->vocab = llama_model_get_vocab(session->model);
    if (llama_vocab_type(session->vocab) == LLAMA_VOCAB_TYPE_NONE) {
        snprintf(why, why_size, "%s has no tokenizer, so it can take no text; get a complete model file", path);
        return false;
    }
    session->sampler = make_sampler(session->options, session->vocab);
    share_threads(session, context_params.n_threads);
    return true;
}

void session_close(struct session *session) {
    if (session->pool) {
        if (session->engine.share_threadpool) {
            session->engine.share_threadpool(NULL);
        }
        llama_detach_threadpool(session->context);
    }
    if (session->sampler) {
        llama_sampler_free(session->sampler);
    }
    if (session->context) {
        llama_free(session->context);
    }
    if (session->model) {
        llama_model_free(session->model);
    }
    if (session->pool) {
        session->engine.threadpool_free(session->pool);
    }
}

// ------------------------------------------------------------------------------------------------ generating

static enum outcome fail(const struct session *session, int code) {
    if (session_interrupted) {
        return OUTCOME_INTERRUPTED;
    }
    if (code == 1) {
        gn_error("the context is full; give a larger one with -c");
    } else if (!plugin_said_why(session)) {
        gn_error("generating stopped: %s", log_filter_last_error());
    }
    return OUTCOME_FAILED;
}

static llama_token *tokenize(const struct session *session, const char *text, bool first, int32_t *n) {
    int32_t length = (int32_t)strlen(text), most = length + 16;
    llama_token *tokens = malloc((size_t)most * sizeof *tokens);
    // Marks such as <|im_start|> are tokens in a chat template, and letters in a plain prompt.
    *n = tokens ? llama_tokenize(session->vocab, text, length, tokens, most, first, session->options->chat) : -1;
    if (tokens && *n < 0) {
        most = -*n;
        llama_token *more = realloc(tokens, (size_t)most * sizeof *tokens);
        tokens = more ? more : tokens;
        *n = more ? llama_tokenize(session->vocab, text, length, tokens, most, first, session->options->chat) : -1;
    }
    return tokens;
}

static enum outcome prefill_steps(struct session *session, llama_token *tokens, int32_t n) {
    int32_t step = (int32_t)llama_n_ubatch(session->context);
    bool show = n > step && isatty(STDERR_FILENO);
    for (int32_t done = 0; done < n;) {
        int32_t now = n - done < step ? n - done : step;
        int code = llama_decode(session->context, llama_batch_get_one(tokens + done, now));
        if (code || session_interrupted) {
            return fail(session, code);
        }
        done += now;
        session->used += now;
        session->prefill_tokens += (uint64_t)now;
        if (show) {
            fprintf(stderr, done < n ? "\rguanaco: reading the prompt, %d of %d tokens" : "\r\033[K", done, n);
        }
    }
    return OUTCOME_END;
}

static enum outcome prefill(struct session *session, llama_token *tokens, int32_t n) {
    uint64_t start = gn_now_ns();
    enum outcome outcome = prefill_steps(session, tokens, n);
    session->prefill_ns += gn_now_ns() - start;
    return outcome;
}

static void take_stats(const struct session *session, struct guanaco_stats *stats) {
    *stats = (struct guanaco_stats){.size = sizeof *stats};
    if (session->engine.stats) {
        session->engine.stats(stats);
    }
}

static void add_decoding(struct session *session, const struct guanaco_stats *before) {
    struct guanaco_stats after;
    take_stats(session, &after);
    session->decoding.hits += after.hits - before->hits;
    session->decoding.misses += after.misses - before->misses;
    session->decoding.gpu_hits += after.gpu_hits - before->gpu_hits;
    session->decoding.read_bytes += after.read_bytes - before->read_bytes;
}

static enum outcome decode_loop(struct session *session, struct text_out *out) {
    const struct options *options = session->options;
    int64_t capacity = llama_n_ctx(session->context);
    for (int64_t n = 0;; n++) {
        if (options->predict >= 0 && n >= options->predict) {
            return OUTCOME_LIMIT;
        }
        llama_token token = llama_sampler_sample(session->sampler, session->context, -1);
        if (llama_vocab_is_eog(session->vocab, token)) {
            return OUTCOME_END;
        }
        char piece[512];
        int32_t length = llama_token_to_piece(session->vocab, token, piece, sizeof piece, 0, false);
        text_out_add(out, piece, length > 0 ? (size_t)length : 0);
        if (session_interrupted) {
            return OUTCOME_INTERRUPTED;
        }
        if (out->error) {
            gn_error("cannot write to standard output: %s; generating stopped", strerror(out->error));
            return OUTCOME_FAILED;
        }
        if (session->used >= capacity) {
            return OUTCOME_FULL;
        }
        int code = llama_decode(session->context, llama_batch_get_one(&token, 1));
        if (code || session_interrupted) {
            return fail(session, code);
        }
        session->used++;
        session->decode_tokens++;
    }
}

enum outcome session_generate(struct session *session, const char *text, bool first, char **reply) {
    int32_t n;
    log_filter_forget();
    llama_token *tokens = tokenize(session, text, first, &n);
    if (!tokens || n < 0) {
        gn_error("the prompt cannot be turned into tokens; is it text?");
        free(tokens);
        return OUTCOME_FAILED;
    }
    int64_t capacity = llama_n_ctx(session->context);
    if (n == 0 || session->used + n > capacity) {
        if (n == 0) {
            gn_error("the prompt is empty; give some text");
        } else {
            gn_error("the prompt has %d tokens, and of the context's %" PRId64 " are %" PRId64 " left; raise -c", n,
                     capacity, capacity - session->used);
        }
        free(tokens);
        return n == 0 ? OUTCOME_FAILED : OUTCOME_FULL;
    }
    enum outcome outcome = prefill(session, tokens, n);
    free(tokens);
    if (outcome != OUTCOME_END) {
        return outcome;
    }
    struct text_out out = {.keep = reply != NULL};
    struct guanaco_stats before;
    take_stats(session, &before);
    uint64_t start = gn_now_ns();
    outcome = decode_loop(session, &out);
    session->decode_ns += gn_now_ns() - start;
    add_decoding(session, &before);
    text_out_end(&out, reply);
    if (outcome == OUTCOME_FULL) {
        gn_warn("the context of %" PRId64 " tokens is full: stopped here; a larger one comes with -c", capacity);
    }
    return outcome;
}

// ------------------------------------------------------------------------------------------------ closing line

static double per_second(uint64_t tokens, uint64_t ns) {
    return ns > 0 ? (double)tokens * 1e9 / (double)ns : 0;
}

void session_print_closing_line(const struct session *session) {
    if (session->prefill_ns == 0) {
        return; // nothing was computed
    }
    char text[512], peak[32];
    size_t used = (size_t)snprintf(text, sizeof text,
                                   "prefill %" PRIu64 " tokens at %.1f tok/s, decode %" PRIu64 " tokens at %.1f tok/s",
                                   session->prefill_tokens, per_second(session->prefill_tokens, session->prefill_ns),
                                   session->decode_tokens, per_second(session->decode_tokens, session->decode_ns));
    uint64_t on_gpu = session->decoding.gpu_hits, hits = session->decoding.hits + on_gpu;
    uint64_t looked_up = hits + session->decoding.misses;
    if (looked_up > 0 && session->decode_tokens > 0) {
        used += (size_t)snprintf(text + used, sizeof text - used, ", hit rate %.1f %%",
                                 100 * (double)hits / (double)looked_up);
        if (on_gpu > 0) {
            used += (size_t)snprintf(text + used, sizeof text - used, " (%.1f %% on the GPU)",
                                     100 * (double)on_gpu / (double)looked_up);
        }
        used += (size_t)snprintf(text + used, sizeof text - used, ", %.2f MiB read per token",
                                 (double)session->decoding.read_bytes / (double)session->decode_tokens / (1 << 20));
    }
    snprintf(text + used, sizeof text - used, ", peak memory %s", gn_format_bytes(gn_memory_peak(), peak));
    gn_info("%s", text);
}
