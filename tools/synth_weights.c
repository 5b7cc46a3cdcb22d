// Where the weights come from.
//
// Most of a model is random matrices. They are put together from pools of blocks that were quantized once, in pieces
// that start anywhere in the pool: fast as a disk is, and no two experts alike.
//
// --skew: the first dimensions of every embedding (SYNTH_BIAS of them) hold a constant, which all layers keep nearly as
// it is. A router row with a component along them gives its expert a mean; means that fall with the logarithm of an
// expert's rank make its use fall like a power of it. MEANS was chosen so that with --skew 1 the busiest fifth of 128
// experts, 8 used, has about half of the use. Each layer has its own ranking. The norms before attention and output
// hide these dimensions.
//
// --locality: tokens come in clusters of SYNTH_CLUSTER neighbouring ids, whose embeddings share this part of their
// variance, so that they are routed alike. The output matrix favours the cluster of the last token, so that generated
// text tends to stay in it.
#include "synth_weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double BIAS_SHARE = 0.25;   // of an embedding's energy, with --skew
static const double LOGIT_STD = 2.0;     // of router logits, without means
static const double MEANS = 0.39;        // of the noise's deviation, for --skew 1: measured
static const double OUTPUT_STD = 3.0;    // of logits
static const double CLUSTER_LOGIT = 8.0; // how far the last token's cluster is above other tokens

enum { POOLS = 16, PIECE_MOST = 64 << 10, PIECES_LEAST = 8, POOL_ELEMENTS = 1 << 20, SMALL_POOL_ELEMENTS = 1 << 17 };

struct random {
    uint64_t state;
};

// splitmix64
static uint64_t random_next(struct random *random) {
    uint64_t z = random->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static struct random random_seeded(uint64_t seed, uint64_t purpose, uint64_t number) {
    struct random random = {seed};
    random.state = random_next(&random) ^ purpose;
    random.state = random_next(&random) ^ number;
    random_next(&random);
    return random;
}

static uint64_t random_below(struct random *random, uint64_t bound) {
    return (uint64_t)(((unsigned __int128)random_next(random) * bound) >> 64);
}

// Near enough to a normal distribution: the sum of four uniform ones.
static float random_normal(struct random *random) {
    uint64_t bits = random_next(random);
    int sum = (int)(bits & 0xffff) + (int)(bits >> 16 & 0xffff) + (int)(bits >> 32 & 0xffff) + (int)(bits >> 48);
    return ((float)sum - 2 * 65535.0f) * (1.7320508f / 65536.0f);
}

enum purpose { FOR_POOL = 1, FOR_PIECES, FOR_TOKEN, FOR_OUTPUT, FOR_CLUSTER, FOR_ROUTER, FOR_RANKS };

struct pool {
    enum ggml_type type;
    float std;
    uint8_t *blocks;
    uint64_t count;
};

struct synth_weights {
    const struct synth_model *model;
    struct pool pools[POOLS];
    int pool_count;
    float *floats; // max(a row, a pool)
    uint8_t *row;
    float *center;
    int64_t center_of; // the cluster that center is of, -1: none
};

static int64_t pool_elements(const struct synth_model *model) {
    return model->bytes < (256u << 20) ? SMALL_POOL_ELEMENTS : POOL_ELEMENTS;
}

struct synth_weights *synth_weights_new(const struct synth_model *model) {
    struct synth_weights *weights = calloc(1, sizeof *weights);
    if (!weights) {
        return NULL;
    }
    size_t embd = (size_t)model->options.embd, elements = (size_t)pool_elements(model);
    weights->model = model;
    weights->center_of = -1;
    weights->floats = malloc((elements > embd ? elements : embd) * sizeof(float));
    weights->row = malloc(embd * sizeof(float));
    weights->center = malloc(embd * sizeof(float));
    if (!weights->floats || !weights->row || !weights->center) {
        synth_weights_free(weights);
        return NULL;
    }
    return weights;
}

void synth_weights_free(struct synth_weights *weights) {
    for (int i = 0; i < weights->pool_count; i++) {
        free(weights->pools[i].blocks);
    }
    free(weights->floats);
    free(weights->row);
    free(weights->center);
    free(weights);
}

static const struct pool *find_pool(struct synth_weights *weights, enum ggml_type type, float std) {
    for (int i = 0; i < weights->pool_count; i++) {
        if (weights->pools[i].type == type && weights->pools[i].std == std) {
            return &weights->pools[i];
        }
    }
    int64_t elements = pool_elements(weights->model);
    GGML_ASSERT(weights->pool_count < POOLS); // a model has some six of them
    struct random random = random_seeded(weights->model->options.seed, FOR_POOL, (uint64_t)weights->pool_count);
    struct pool *pool = &weights->pools[weights->pool_count];
    *pool = (struct pool){.type = type, .std = std, .count = (uint64_t)(elements / ggml_blck_size(type))};
    pool->blocks = malloc(ggml_row_size(type, elements));
    GGML_ASSERT(pool->blocks);
    weights->pool_count++;
    for (int64_t i = 0; i < elements; i++) {
        weights->floats[i] = random_normal(&random) * std;
    }
    ggml_quantize_chunk(type, weights->floats, pool->blocks, 0, 1, elements, NULL);
    return pool;
}

typedef int (*sink_function)(void *context, const void *data, size_t size);

// A matrix, or one expert's, from pieces of the pool.
static int make_slice(const struct pool *pool, struct random *random, uint64_t bytes, sink_function sink,
                      void *context) {
    uint64_t block = ggml_type_size(pool->type), blocks = bytes / block;
    uint64_t piece = blocks / PIECES_LEAST;
    piece = piece > PIECE_MOST / block ? PIECE_MOST / block : piece < 1 ? 1 : piece;
    piece = piece > pool->count / 2 ? pool->count / 2 : piece;
    while (blocks > 0) {
        uint64_t now = blocks < piece ? blocks : piece;
        uint64_t from = random_below(random, pool->count - now + 1);
        int failed = sink(context, pool->blocks + from * block, now * block);
        if (failed) {
            return failed;
        }
        blocks -= now;
    }
    return 0;
}

static int make_random(struct synth_weights *weights, const struct synth_tensor *tensor, sink_function sink,
                       void *context) {
    const struct pool *pool = find_pool(weights, tensor->type, tensor->std);
    uint64_t number = (uint64_t)(tensor - weights->model->tensors);
    struct random random = random_seeded(weights->model->options.seed, FOR_PIECES, number);
    uint64_t slice = synth_tensor_bytes(tensor) / (uint64_t)tensor->ne[2];
    int failed = 0;
    for (int64_t i = 0; i < tensor->ne[2] && !failed; i++) {
        failed = make_slice(pool, &random, slice, sink, context);
    }
    return failed;
}

static void make_norm(struct synth_weights *weights, const struct synth_tensor *tensor) {
    bool hide = tensor->content == SYNTH_SAME_BUT_BIAS && weights->model->options.skew > 0;
    for (int64_t i = 0; i < tensor->ne[0]; i++) {
        weights->floats[i] = hide && i < SYNTH_BIAS ? 0.0f : tensor->std;
    }
}

// A row of unit deviation in which tokens of one cluster share the given part of their variance.
static void make_clustered(struct synth_weights *weights, int64_t token, enum purpose purpose, double shared) {
    const struct synth_options *o = &weights->model->options;
    int64_t cluster = token / SYNTH_CLUSTER;
    if (weights->center_of != cluster) {
        struct random random = random_seeded(o->seed, FOR_CLUSTER, (uint64_t)cluster);
        for (int64_t i = 0; i < o->embd; i++) {
            weights->center[i] = random_normal(&random);
        }
        weights->center_of = cluster;
    }
    struct random random = random_seeded(o->seed, purpose, (uint64_t)token);
    float common = (float)sqrt(shared), own = (float)sqrt(1 - shared);
    for (int64_t i = 0; i < o->embd; i++) {
        weights->floats[i] = common * weights->center[i] + own * random_normal(&random);
    }
}

static void make_embedding(struct synth_weights *weights, int64_t token) {
    const struct synth_options *o = &weights->model->options;
    make_clustered(weights, token, FOR_TOKEN, o->locality);
    if (o->skew <= 0) {
        return;
    }
    float rest = (float)sqrt(1 - BIAS_SHARE);
    float bias = (float)sqrt(BIAS_SHARE * (double)o->embd / SYNTH_BIAS);
    for (int64_t i = 0; i < o->embd; i++) {
        weights->floats[i] = i < SYNTH_BIAS ? bias : weights->floats[i] * rest;
    }
}

// The hidden state holds about half of the embedding at the end, and as much of the cluster's centre as the embedding
// had.
static void make_output(struct synth_weights *weights, int64_t token) {
    const struct synth_options *o = &weights->model->options;
    double aligned = OUTPUT_STD * sqrt((double)o->embd) * 0.6 * sqrt(o->locality);
    double part = aligned > 0 ? CLUSTER_LOGIT * sqrt(o->locality) / aligned : 0;
    make_clustered(weights, token, FOR_OUTPUT, part > 0.9 ? 0.81 : part * part);
    float scale = (float)(OUTPUT_STD / sqrt((double)o->embd));
    for (int64_t i = 0; i < o->embd; i++) {
        weights->floats[i] *= scale;
    }
}

// An expert's place in the layer's ranking by use.
static int64_t rank_of(const struct synth_options *o, int64_t layer, int64_t expert) {
    int32_t order[1024] = {0};
    struct random random = random_seeded(o->seed, FOR_RANKS, (uint64_t)layer);
    for (int64_t i = 0; i < o->experts; i++) {
        int64_t other = (int64_t)random_below(&random, (uint64_t)i + 1);
        order[i] = order[other];
        order[other] = (int32_t)i;
    }
    return order[expert];
}

static void make_router(struct synth_weights *weights, int64_t layer, int64_t expert) {
    const struct synth_options *o = &weights->model->options;
    uint64_t number = (uint64_t)(layer * o->experts + expert);
    struct random random = random_seeded(o->seed, FOR_ROUTER, number);
    double energy = 1 + (double)layer / (double)o->layers; // of the hidden state, before the norm
    double bias_share = o->skew > 0 ? BIAS_SHARE / energy : 0;
    float std = (float)(LOGIT_STD / sqrt((double)o->embd * (1 - bias_share)));
    for (int64_t i = 0; i < o->embd; i++) {
        weights->floats[i] = random_normal(&random) * std;
    }
    if (o->skew > 0) {
        double mean = -o->skew * log((double)rank_of(o, layer, expert) + 1) * LOGIT_STD * MEANS;
        float component = (float)(mean / sqrt((double)o->embd * SYNTH_BIAS * bias_share));
        for (int64_t i = 0; i < SYNTH_BIAS; i++) {
            weights->floats[i] = component;
        }
    }
}

static int make_rows(struct synth_weights *weights, const struct synth_tensor *tensor, sink_function sink,
                     void *context) {
    size_t size = ggml_row_size(tensor->type, tensor->ne[0]);
    int failed = 0;
    for (int64_t i = 0; i < tensor->ne[1] && !failed; i++) {
        switch (tensor->content) {
        case SYNTH_EMBEDDING:
            make_embedding(weights, i);
            break;
        case SYNTH_OUTPUT:
            make_output(weights, i);
            break;
        case SYNTH_ROUTER:
            make_router(weights, tensor->layer, i);
            break;
        default:
            make_norm(weights, tensor);
        }
        ggml_quantize_chunk(tensor->type, weights->floats, weights->row, 0, 1, tensor->ne[0], NULL);
        failed = sink(context, weights->row, size);
    }
    return failed;
}

int synth_weights_make(struct synth_weights *weights, const struct synth_tensor *tensor, sink_function sink,
                       void *context) {
    return tensor->content == SYNTH_RANDOM ? make_random(weights, tensor, sink, context)
                                           : make_rows(weights, tensor, sink, context);
}
