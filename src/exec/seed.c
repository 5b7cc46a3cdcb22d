#include "exec/seed.h"

#include "config/knob_files.h"
#include "config/log.h"
#include "exec/growth.h"
#include "model/hot_set.h"
#include "model/imatrix.h"
#include "model/shard_name.h"
#include "stats/stats.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define IMATRIX_TOKENS 64.0f  // an imatrix counts as much as so many tokens of earlier runs
#define MOST_PAST 2048.0f     // tokens of earlier runs that are remembered when this one is added
#define STEP_BYTES (4u << 20) // read ahead in one event
#define STEP_EXPERTS 64u      // the same, in experts

struct load {
    const struct gn_layer *layer;
    uint32_t expert, entry, slot;
};

struct gn_seed {
    char hot_set_path[PATH_MAX]; // "": not to be saved
    struct gn_hot_set past;
    bool from_imatrix, from_hot_set;
    uint32_t n_entries;
    float *chance; // [n_entries] of each expert to be used by a token; 0: not known
    bool *wanted;  // [n_entries] the likeliest, as many as there are slots
    uint32_t next; // entry to look at
    bool filled;   // nothing more is read ahead
    struct gn_reader *reader;
    struct load loads[STEP_EXPERTS];
    uint32_t n_loads;
    struct gn_read reads[STEP_EXPERTS * GN_MAX_SLICES];
};

// ------------------------------------------------------------------------------------------------ finding

static bool ends_with(const char *text, size_t length, const char *end) {
    return length >= strlen(end) && !memcmp(text + length - strlen(end), end, strlen(end));
}

// How much of a path is left without ".gguf", and without "-00001-of-00004" if `shard`.
static int stem_length(const char *path, bool shard) {
    size_t length = strlen(path);
    struct gn_shard_name name;
    if (shard && gn_shard_name_read(path, &name)) {
        length = name.prefix;
    } else if (ends_with(path, length, ".gguf")) {
        length -= strlen(".gguf");
    }
    return length < INT_MAX ? (int)length : INT_MAX;
}

// Writes the path of a file that lies beside the model's. False: it is too long.
static bool beside(const struct gn_file *model, bool shard, const char *suffix, char path[static PATH_MAX]) {
    const char *name = gn_file_path(model);
    return snprintf(path, PATH_MAX, "%.*s%s", stem_length(name, shard), name, suffix) < PATH_MAX;
}

static bool find_imatrix(const struct gn_stream *stream, char path[static PATH_MAX]) {
    for (int without_shard = 0; without_shard < 2; without_shard++) {
        for (uint32_t f = 0; f < stream->map.n_files; f++) {
            if (beside(stream->map.files[f], without_shard, ".imatrix.gguf", path) && access(path, F_OK) == 0) {
                return true;
            }
        }
    }
    return false;
}

// ------------------------------------------------------------------------------------------------ reading what is
// known

// Fills chance[] from the imatrix that the knob asks for.
static void read_imatrix(struct gn_stream *stream, const char *wish, float *chance) {
    char path[PATH_MAX], why[PATH_MAX + 200];
    if (!strcmp(wish, "off")) {
        return;
    }
    if (!strcmp(wish, "auto")) {
        if (!find_imatrix(stream, path)) {
            return;
        }
        wish = path;
    }
    if (gn_imatrix_read(wish, &stream->map, chance, why, sizeof why)) {
        gn_warn("no expert counts are taken from the imatrix %s (--imatrix, GUANACO_IMATRIX)", why);
        return;
    }
    stream->seed->from_imatrix = true;
    gn_info("expert counts from the imatrix %s", wish);
}

// Whether the hot set may be written in the end. The trace is open by now, and so exists.
static bool hot_set_is_free(const struct gn_stream *stream, const struct gn_knobs *knobs, char *why, size_t why_size) {
    struct gn_outputs outputs = {0};
    bool is_free = gn_outputs_add(&outputs, GN_OUTPUT_HOT_SET, "--hot-set (GUANACO_HOT_SET)",
                                  stream->seed->hot_set_path, why, why_size) &&
                   gn_outputs_spare(&outputs, "the trace", gn_knob_path(knobs, GN_TRACE), why, why_size);
    for (uint32_t f = 0; is_free && f < stream->map.n_files; f++) {
        is_free = gn_outputs_spare(&outputs, "the model", gn_file_path(stream->map.files[f]), why, why_size);
    }
    return is_free;
}

static void read_hot_set(struct gn_stream *stream, const struct gn_knobs *knobs) {
    struct gn_seed *seed = stream->seed;
    const char *wish = knobs->text[GN_HOT_SET];
    char why[PATH_MAX + 200];
    if (!strcmp(wish, "off")) {
        return;
    }
    if (!strcmp(wish, "auto") && access(gn_file_path(stream->map.files[0]), F_OK)) {
        gn_warn("--hot-set auto (GUANACO_HOT_SET): the model is in no file that a hot set could lie beside; name one");
        return;
    }
    bool fits = strcmp(wish, "auto") != 0 ? snprintf(seed->hot_set_path, PATH_MAX, "%s", wish) < PATH_MAX
                                          : beside(stream->map.files[0], true, ".guanaco-hot", seed->hot_set_path);
    if (!fits) {
        seed->hot_set_path[0] = '\0';
        gn_warn("the path of the hot set (--hot-set, GUANACO_HOT_SET) is too long; there will be none");
        return;
    }
    if (!hot_set_is_free(stream, knobs, why, sizeof why)) {
        seed->hot_set_path[0] = '\0';
        gn_warn("there will be no hot set: %s", why);
        return;
    }
    int failed = gn_hot_set_read(&seed->past, seed->hot_set_path, why, sizeof why);
    if (failed == -ENOENT) {
        return; // the first run
    }
    if (failed) {
        gn_warn("the hot set is not used and will be written anew: %s", why);
        return;
    }
    seed->from_hot_set = true;
    gn_info("expert counts from the hot set %s, of %.0f tokens", seed->hot_set_path, (double)seed->past.tokens[0]);
}

// Mixes the two, by how many tokens each speaks for, into chance[].
static void mix(const struct gn_stream *stream, float *chance) {
    const struct gn_seed *seed = stream->seed;
    float weight = seed->from_imatrix ? IMATRIX_TOKENS : 0;
    for (uint32_t l = 0, entry = 0; l < stream->map.n_layers; l++) {
        float tokens = seed->past.tokens[l] + weight;
        for (uint32_t e = 0; e < stream->map.layers[l]->n_experts; e++, entry++) {
            chance[entry] = tokens > 0 ? (seed->past.uses[entry] + weight * chance[entry]) / tokens : 0;
        }
    }
}

// ------------------------------------------------------------------------------------------------ applying it

struct ranked {
    float chance;
    uint32_t entry;
};

static int likelier_first(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    if (x->chance != y->chance) {
        return x->chance > y->chance ? -1 : 1;
    }
    return x->entry < y->entry ? -1 : 1;
}

// Marks the likeliest experts, as many of each size class as it has slots.
static bool choose_wanted(struct gn_stream *stream, struct ranked *ranked, const uint32_t *class_of) {
    struct gn_seed *seed = stream->seed;
    const struct gn_layout *layout = gn_cache_layout(stream->cache);
    uint32_t *taken = calloc(layout->n_classes, sizeof *taken);
    qsort(ranked, seed->n_entries, sizeof *ranked, likelier_first);
    for (uint32_t i = 0; taken && i < seed->n_entries && ranked[i].chance > 0; i++) {
        uint32_t size_class = class_of[ranked[i].entry];
        if (taken[size_class] < layout->classes[size_class].n_slots) {
            taken[size_class]++;
            seed->wanted[ranked[i].entry] = true;
        }
    }
    free(taken);
    return taken != NULL;
}

static void apply(struct gn_stream *stream, const float *chance) {
    struct gn_seed *seed = stream->seed;
    bool done = false;
    struct ranked *ranked = calloc(seed->n_entries, sizeof *ranked);
    uint32_t *class_of = calloc(seed->n_entries, sizeof *class_of);
    if (ranked && class_of) {
        for (uint32_t l = 0, entry = 0; l < stream->map.n_layers; l++) {
            for (uint32_t e = 0; e < stream->map.layers[l]->n_experts; e++, entry++) {
                ranked[entry] = (struct ranked){chance[entry], entry};
                class_of[entry] = gn_cache_layout(stream->cache)->class_of_layer[l];
                if (chance[entry] > 0) {
                    gn_cache_prior(stream->cache, entry, chance[entry]);
                }
            }
        }
        done = choose_wanted(stream, ranked, class_of);
    }
    if (!done) {
        gn_warn("no memory to rank the experts: none is read before it is used");
    }
    free(ranked);
    free(class_of);
}

static bool open_reader(struct gn_seed *seed, const struct gn_knobs *knobs) {
    struct gn_reader_options options = {.kind = (enum gn_reader_kind)knobs->value[GN_IO]};
    int failed = gn_reader_open(&options, &seed->reader);
    if (failed) {
        gn_warn("no experts are read ahead of use: %s", strerror(-failed));
    }
    return !failed;
}

static void say_no_memory(void) {
    gn_warn("no memory to count how much each expert is used: no imatrix and no hot set is read, and none is written");
}

void gn_seed_open(struct gn_stream *stream, const struct gn_knobs *knobs) {
    struct gn_seed *seed = calloc(1, sizeof *seed);
    if (!seed) {
        say_no_memory();
        return;
    }
    stream->seed = seed;
    for (uint32_t l = 0; l < stream->map.n_layers; l++) {
        seed->n_entries += stream->map.layers[l]->n_experts;
    }
    seed->chance = calloc(seed->n_entries + 1, sizeof *seed->chance);
    seed->wanted = calloc(seed->n_entries + 1, sizeof *seed->wanted);
    seed->filled = true;
    if (!seed->chance || !seed->wanted || gn_hot_set_open(&seed->past, &stream->map)) {
        say_no_memory();
    } else {
        read_imatrix(stream, knobs->text[GN_IMATRIX], seed->chance);
        read_hot_set(stream, knobs);
        if (seed->from_imatrix || seed->from_hot_set) {
            mix(stream, seed->chance);
            apply(stream, seed->chance);
            seed->filled = !open_reader(seed, knobs);
        }
    }
}

float gn_seed_chance(const struct gn_stream *stream, uint32_t entry) {
    bool known = stream->seed && stream->seed->chance;
    return known ? stream->seed->chance[entry] : 0;
}

const char *gn_seed_source(const struct gn_stream *stream) {
    static const char *const names[] = {"none", "imatrix", "hot set", "imatrix and hot set"};
    return stream->seed ? names[stream->seed->from_imatrix + 2 * stream->seed->from_hot_set] : names[0];
}

bool gn_seed_admits(const struct gn_stream *stream, uint32_t entry) {
    return !stream->seed || stream->seed->filled || stream->seed->wanted[entry];
}

// ------------------------------------------------------------------------------------------------ filling slots

static void stop_filling(struct gn_seed *seed) {
    gn_reader_close(seed->reader);
    seed->reader = NULL;
    seed->filled = true;
}

// Waits for what the last step began.
static bool finish_loads(struct gn_stream *stream) {
    struct gn_seed *seed = stream->seed;
    uint64_t start = gn_now_ns();
    struct gn_read *read;
    bool good = true;
    while ((read = gn_reader_reap(seed->reader, true))) {
        good = good && read->result >= 0;
        gn_count(reads, read->result >= 0);
        gn_count(read_bytes, read->result >= 0 ? read->length : 0);
    }
    gn_count_of(stream, io_wait_ns, gn_now_ns() - start);
    for (uint32_t i = 0; i < seed->n_loads && good; i++) {
        const struct gn_layer *layer = seed->loads[i].layer;
        for (uint32_t s = 0; s < layer->n_slices && good; s++) {
            good = gn_file_unchanged(layer->slices[s].file) == 0;
        }
    }
    for (uint32_t i = 0; i < seed->n_loads; i++) {
        const struct load *load = &seed->loads[i];
        if (good && gn_cache_fill(stream->cache, load->entry, load->slot)) {
            gn_stream_hold(stream, load->slot, load->layer, load->expert);
            gn_count(seeded, 1);
        } else if (!good) {
            gn_cache_unreserve(stream->cache, load->entry, load->slot);
        }
    }
    seed->n_loads = 0;
    return good;
}

// Begins to read one expert. False: there is no slot for it, or it is there.
static bool begin_load(struct gn_stream *stream, const struct gn_layer *layer, uint32_t expert, uint32_t *n_reads) {
    struct gn_seed *seed = stream->seed;
    uint32_t entry = gn_cache_entry(stream->cache, layer->index, expert);
    uint32_t slot = gn_cache_reserve(stream->cache, entry);
    if (slot == GN_NONE) {
        return false;
    }
    seed->loads[seed->n_loads++] = (struct load){layer, expert, entry, slot};
    uint8_t *to = stream->slot_memory[slot];
    gn_growth_touch(stream, &stream->slot_touched[slot], gn_layout_slot_bytes(gn_cache_layout(stream->cache), slot));
    for (uint32_t s = 0; s < layer->n_slices; s++) {
        seed->reads[(*n_reads)++] = gn_slice_read(&layer->slices[s], expert, to);
    }
    return true;
}

static void begin_loads(struct gn_stream *stream) {
    struct gn_seed *seed = stream->seed;
    uint32_t n_reads = 0, first = 0;
    uint64_t bytes = 0;
    for (uint32_t l = 0; l < stream->map.n_layers; l++) {
        const struct gn_layer *layer = stream->map.layers[l];
        uint32_t end = first + layer->n_experts;
        for (; seed->next < end && seed->n_loads < STEP_EXPERTS && bytes < STEP_BYTES; seed->next++) {
            if (seed->wanted[seed->next] && begin_load(stream, layer, seed->next - first, &n_reads)) {
                bytes += layer->slot_bytes;
            }
        }
        first = end;
    }
    gn_reader_submit(seed->reader, seed->reads, n_reads);
}

void gn_seed_step(struct gn_stream *stream, bool prefill) {
    struct gn_seed *seed = stream->seed;
    if (!seed || seed->filled || prefill) {
        return;
    }
    if (!finish_loads(stream)) { // whoever needs these experts meets the same error, and says so
        stop_filling(seed);
        return;
    }
    begin_loads(stream);
    if (seed->n_loads == 0) {
        stop_filling(seed);
    }
}

// ------------------------------------------------------------------------------------------------ saving

static void save(struct gn_stream *stream) {
    struct gn_seed *seed = stream->seed;
    uint64_t events = 0;
    gn_hot_set_fade(&seed->past, MOST_PAST);
    for (uint32_t l = 0, entry = 0; l < stream->map.n_layers; l++) {
        uint64_t here = gn_cache_layer_totals(stream->cache, l).events;
        events += here;
        seed->past.tokens[l] += (float)here;
        for (uint32_t e = 0; e < stream->map.layers[l]->n_experts; e++, entry++) {
            float uses = seed->past.uses[entry] + (float)gn_cache_uses(stream->cache, entry);
            seed->past.uses[entry] = uses < seed->past.tokens[l] ? uses : seed->past.tokens[l]; // but for rounding
        }
    }
    char why[PATH_MAX + 200];
    if (events > 0 && gn_hot_set_write(&seed->past, seed->hot_set_path, why, sizeof why)) {
        gn_warn("the hot set cannot be saved (--hot-set, GUANACO_HOT_SET): %s", why);
    } else if (events > 0) {
        gn_debug("hot set saved to %s", seed->hot_set_path);
    }
}

void gn_seed_forked(struct gn_stream *stream) {
    if (stream->seed) {
        gn_reader_forked(stream->seed->reader);
        stream->seed = NULL;
    }
}

void gn_seed_close(struct gn_stream *stream) {
    struct gn_seed *seed = stream->seed;
    if (!seed) {
        return;
    }
    gn_reader_close(seed->reader);
    if (seed->hot_set_path[0] && stream->cache && seed->past.uses) {
        save(stream);
    }
    gn_hot_set_close(&seed->past);
    free(seed->chance);
    free(seed->wanted);
    free(seed);
    stream->seed = NULL;
}
