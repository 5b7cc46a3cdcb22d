// Seeds pay: with a hot set of earlier runs on texts of the kind, the first 32 tokens after a prompt hit at least ten
// points more of the experts they use; with an imatrix, which is about texts of every kind, they hit more as well. And
// what is wrong with a seed changes no result. All counts are of fixed tokens and none depends on time.
//
//     test_seed MODEL PLUGIN DIRECTORY
//
// MODEL has an imatrix beside it. The texts are the demo model's own.
#include "session.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PROMPT = 64, FIRST = 32, MOST = 480 };

static const char *const earlier[] = {
    "after him, as he was in the camp, that he had seen them, and gave him the land of the people of "
    "Israel, and they did eat, and went out unto them. 3 And the LORD said unto Moses, Behold, I pray "
    "thee, and say unto the LORD, If a man of man, and go up unto the LORD: and they shall be called to "
    "the house of the LORD. 4 And he said unto them, Thy sons and his father, and the prophets of Israel, "
    "which the LORD commanded Moses, and the children of Israel, and the children of Israel, and that the "
    "LORD commanded Moses, and say unto the LORD, Ye have done to the Levites. 5 And the LORD said unto "
    "Moses, Give us, that ye may answer this God, and they will make the land of Egypt, that they may "
    "give them to the land of Egypt, which I have made unto thee. 6 And Moses said, Go, and hast brought "
    "them into the hand of the LORD, and thou shalt be full of the land of Israel. 7 And the LORD spake "
    "unto Moses, saying, 7 And the children of Israel shall be unto the LORD, and to morrow the LORD, and "
    "the LORD thy God, and be over Israel, and to the LORD. 8 And the LORD said unto Moses, Hast the son "
    "of Amor, and the children of Israel, and all the people that is upon the house of Israel; and I will "
    "bring forth the land of Egypt, and I will bring them unto the city, and to bring them to Zion. 9 And "
    "the LORD said unto Moses, Speak unto them, that they should be a son of Heban, and shall be anointed "
    "against the land of Judah, that they may reign, and they shall offer the LORD, and they shall have a "
    "place for ever. 10 And they shall cast them in the hand of the LOR",
    ", that the LORD said unto Moses, What sayest thou? And the LORD said to the LORD, Who hath he given "
    "thee the king of Egypt? And he said, We will not see him. 3 And the LORD said unto Moses, Behold, I "
    "will make thee a sword, and thou shalt go to the land of Egypt, and the LORD. 5 And he shall come, "
    "and the LORD shall make the LORD; and shalt thou not bring me down from thence. 6 And they shall go, "
    "and shall be, and let them not be aside, and the LORD your God, shall be upon the land of Egypt: "
    "therefore have I will cause the hand of the LORD thy God. 7 And Moses said unto him, If I will know "
    "that thou shalt be, I will deliver thee with thee: I will bring thee up, and I will bring thee, to "
    "be with thee. 8 And thou shalt bring forth the token, and the LORD thy God, the LORD, to bring them "
    "out of the hand of the LORD, and it shall be asleeping the LORD: 8 And the LORD said, I will bring "
    "it unto the LORD thy God, that I may deliver thee out of the altar of thy God. 9 And shalt thou take "
    "the people to the children of Israel, and upon the Levites, and in the land of Egypt, which ye shall "
    "see thee, that ye shall know it. 10 But I will put them into the land of Egypt, to the number of "
    "hosts, and shall offer their enemies and of the house of Israel, and they shall make them a great "
    "house of the LORD: 11 And if thou, and shalt be a man's name in the land of the house of the LORD, "
    "and the LORD for a people, and a prince, and the LORD, and the border of the house of Israel, the "
    "LORD shall be upon the land of Egypt, that they shall make the land of",
};

static const char now[] =
    ", that they came to pass, when they were taken in the midst of the land, and his servants was come "
    "to pass, and put the house of the LORD's house in the land, and the fowls of the land, and all that "
    "they had done unto the house of the LORD, and set the cattle round about, and brought them to their "
    "hand, and they made for the children of Israel, and for the children of Israel: and they bought to "
    "the service of the LOR";

struct run {
    const char *model, *plugin, *text;
    int n; // tokens of the text; 0: all
    // Shared with the child.
    struct guanaco_stats *stats; // of the tokens after the prompt
    float *logits;               // of the last token
};

static bool take(const struct run *run, struct session *session, const llama_token *tokens, int n) {
    if (session_decode(session, tokens, PROMPT, 0)) {
        return false;
    }
    struct guanaco_stats before = session_stats(session);
    for (int i = PROMPT; i < n; i++) {
        if (session_decode(session, tokens + i, 1, i)) {
            return false;
        }
    }
    *run->stats = session_stats(session);
    run->stats->hits -= before.hits;
    run->stats->misses -= before.misses;
    memcpy(run->logits, session_logits(session, 0), (size_t)session->n_vocab * sizeof *run->logits);
    return true;
}

static int feed(void *context) {
    const struct run *run = context;
    struct session session;
    struct session_options options = {.model = run->model, .plugin = run->plugin};
    if (session_open(&session, &options)) {
        return 1;
    }
    llama_token tokens[MOST];
    const struct llama_vocab *vocab = llama_model_get_vocab(session.model);
    int n = llama_tokenize(vocab, run->text, (int)strlen(run->text), tokens, MOST, true, false);
    if (n <= PROMPT || n < run->n) {
        fprintf(stderr, "the text has %d tokens\n", n);
        return 1;
    }
    bool good = take(run, &session, tokens, run->n ? run->n : n);
    session_close(&session);
    return !good;
}

// The hit rate of the first tokens, in per cent; below 0: failed.
static double hit_rate(struct run *run, const char *imatrix, const char *hot_set) {
    setenv("GUANACO_IMATRIX", imatrix, 1);
    setenv("GUANACO_HOT_SET", hot_set, 1);
    run->text = now;
    run->n = PROMPT + FIRST;
    if (in_child(feed, run)) {
        return -1;
    }
    return 100.0 * (double)run->stats->hits / (double)(run->stats->hits + run->stats->misses);
}

static bool run_earlier(struct run *run, const char *hot_set) {
    unlink(hot_set);
    setenv("GUANACO_IMATRIX", "off", 1);
    setenv("GUANACO_HOT_SET", hot_set, 1);
    for (size_t i = 0; i < sizeof earlier / sizeof *earlier; i++) {
        run->text = earlier[i];
        run->n = 0;
        if (in_child(feed, run)) {
            return false;
        }
    }
    return access(hot_set, R_OK) == 0;
}

static bool spoil(const char *path) {
    FILE *file = fopen(path, "r+");
    bool good = file && fseek(file, 100, SEEK_SET) == 0 && fputs("spoilt", file) >= 0;
    return file && fclose(file) == 0 && good;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: test_seed MODEL PLUGIN DIRECTORY\n");
        return 2;
    }
    struct run run = {.model = argv[1], .plugin = argv[2]};
    size_t bytes = sizeof(float) * 65536;
    run.logits = mmap(NULL, bytes + 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    run.stats = (struct guanaco_stats *)((char *)run.logits + bytes);
    setenv("GUANACO_EXPERT_CACHE", "25%", 1);
    setenv("GUANACO_LOG", "warn", 1);
    char hot_set[4096];
    snprintf(hot_set, sizeof hot_set, "%s/seed-test.guanaco-hot", argv[3]);

    double none = hit_rate(&run, "off", "off");
    float *stock = malloc(bytes);
    memcpy(stock, run.logits, bytes);
    double imatrix = hit_rate(&run, "auto", "off");
    bool same = !memcmp(stock, run.logits, bytes);
    if (none < 0 || imatrix < 0 || !run_earlier(&run, hot_set)) {
        return 1;
    }
    double hot = hit_rate(&run, "off", hot_set);
    same = same && !memcmp(stock, run.logits, bytes);
    uint64_t seeded = run.stats->seeded;
    double both = hit_rate(&run, "auto", hot_set);
    printf("hit rate of the first %d tokens: %.1f %% unseeded, %.1f %% imatrix, %.1f %% hot set (%" PRIu64
           " read ahead), %.1f %% both\n",
           FIRST, none, imatrix, hot, seeded, both);
    if (hot < none + 10 || imatrix < none + 1 || both < none + 10) {
        fprintf(stderr, "that is too little\n");
        return 1;
    }
    // What is no seed for this model is left out, and the run is one without.
    double foreign = hit_rate(&run, argv[1], "off");
    double spoilt = spoil(hot_set) ? hit_rate(&run, "/dev/null", hot_set) : -1;
    free(stock);
    if (!same || foreign != none || spoilt != none) {
        fprintf(stderr, "%s: %.1f %% with a foreign imatrix, %.1f %% with a spoilt hot set\n",
                same ? "a bad seed was used" : "seeds change the logits", foreign, spoilt);
        return 1;
    }
    return unlink(hot_set);
}
