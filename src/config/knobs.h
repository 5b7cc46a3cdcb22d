// Every setting of Guanaco, in one table: name, environment variable, flag, unit, default, range and a line of help.
// Parsing, --help, the README's table of options and the mode line are all made from it.
//
// A setting comes from the command line (guanaco run, exec) or from the environment (any program that loads the
// plugin); `guanaco` itself hands its flags to the plugin through gn_knobs_export(), so that there is one mechanism.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum gn_knob {
    GN_RAM,              // bytes for the whole process; 0: automatic
    GN_EXPERT_CACHE,     // bytes for expert slots alone, staging included; negative: a share of all experts,
                         // gn_knob_share()
    GN_RESERVE,          // bytes of GN_RAM that the program will still take (KV, compute buffers); set by guanaco run
    GN_PROGRAM_CACHE,    // bytes that caches of the program may come to take; set by guanaco exec
    GN_IO,               // enum gn_reader_kind
    GN_IO_DEPTH,         // reads in flight; 0: the engine's default
    GN_DIRECT,           // bool: O_DIRECT where the file system has it
    GN_SPOOL_DIR,        // text: where experts that come without a file are written; none: a directory of the system's
    GN_DENSE,            // enum gn_dense_mode
    GN_POLICY,           // text: eviction policy, by name or path
    GN_POLICY_OPTIONS,   // text: its parameters, "key=value,…"; none: their defaults
    GN_ADMISSION,        // enum gn_admission_mode
    GN_ADMISSION_WINDOW, // tokens
    GN_MAX_EXPERTS,      // experts in memory of each layer, on average; 0: as the budget allows
    GN_LAYER_SHARES,     // enum gn_shares_kind
    GN_PIN_HOT,          // experts held because they are hot; 0: none, or as many as GN_PIN_HOT_BUDGET allows
    GN_PIN_HOT_BUDGET,   // bytes that they may take; 0: as many as GN_PIN_HOT says
    GN_PIN_DECAY,        // per cent of a use that is left from one choice of hot experts to the next
    GN_PIN_WARM_UP,      // events before the first choice
    GN_LOCK,             // enum gn_lock
    GN_IMATRIX,          // text: a file with counts of experts, "auto" or "off"
    GN_HOT_SET,          // text: the file that keeps counts between runs, "auto" or "off"
    GN_TIERS,            // text: all tiers, see tiers.h; none: as the next three say
    GN_GPU_CACHE,        // text: size of a tier on the first GPU, see tier_knobs.h
    GN_GPU_SLOTS,        // the same, in experts of each layer; 0: as GN_GPU_CACHE says
    GN_GPU_INSERTS,      // experts that come up for each token, at most; 0: as many as pay
    GN_STAGING,          // staging slots for experts that are not cached
    GN_PREFETCH,         // enum gn_prefetch; see gn_knobs_prefetch()
    GN_PILOT,            // bool: an earlier tool's way to say GN_PREFETCH
    GN_PILOT_MASS,       // of probability, gn_knob_fraction()
    GN_PREFILL_TOKENS,   // a batch with at least this many tokens is a prefill
    GN_TRACE,            // text: the file that takes the routing; none: no trace
    GN_STATS_INTERVAL,   // tokens from one line about the cache to the next; 0: none
    GN_LOG,              // enum gn_log_level
    GN_FAULT_AT,         // tests: fail the N-th read
    GN_FAULT_GPU,        // tests: fail the N-th call to a device
    GN_FAULT_RESULT,     // tests: with this result (see struct gn_reader_options)
    GN_KNOB_COUNT
};

enum gn_prefetch {
    GN_PREFETCH_OFF,
    GN_PREFETCH_ROUTER, // guess by running the next layer's router early
    GN_PREFETCH_PILOT,  // guess by what was learnt to go with this layer's experts
    GN_PREFETCH_AUTO,   // whichever brings more, layer by layer, and neither where tokens are no faster with it
};

enum gn_dense_mode {
    GN_DENSE_AUTO,   // copy when it fits, else mapped
    GN_DENSE_COPY,   // dense weights are copied to anonymous memory by direct reads
    GN_DENSE_LOCK,   // mlock()ed where they are mapped
    GN_DENSE_MAPPED, // left in the page cache, with a read-ahead of their own
};

// What is locked into memory (mlock). Each includes those before it.
enum gn_lock { GN_LOCK_NONE, GN_LOCK_DENSE, GN_LOCK_HOT, GN_LOCK_ALL };

enum gn_admission_mode { GN_ADMISSION_OFF, GN_ADMISSION_SECOND_MISS };

enum gn_knob_kind {
    GN_KIND_SIZE,
    GN_KIND_SHARE,
    GN_KIND_COUNT,
    GN_KIND_FRACTION, // a number from 0 to 1, in ten-thousandths
    GN_KIND_BOOL,
    GN_KIND_CHOICE,
    GN_KIND_SIGNED,
    GN_KIND_TEXT, // any text of one line, such as a path; in gn_knobs.text
};

struct gn_knob_info {
    const char *flag;        // "--ram"; NULL: environment only
    const char *environment; // "GUANACO_RAM"
    const char *value_name;  // "SIZE", for --help
    enum gn_knob_kind kind;
    bool environment_first; // the environment has its way over the flag; elsewhere the flag has
    int64_t fallback, least, most;
    const char *const *choices;         // NULL-terminated names for GN_KIND_CHOICE: the value is the index
    const char *wanted, *fallback_text; // GN_KIND_TEXT: what to give ("a file"), and the default; NULL: none
    bool (*fits)(const char *text);     // GN_KIND_TEXT: whether it will do; NULL: any does
    const char *help;
};

extern const struct gn_knob_info gn_knob_table[GN_KNOB_COUNT];

// Values of all settings and where each came from.
struct gn_knobs {
    int64_t value[GN_KNOB_COUNT];
    const char *text[GN_KNOB_COUNT]; // GN_KIND_TEXT: as in argv or the environment, not copied; NULL: none
    bool given[GN_KNOB_COUNT];       // false: the default
};

void gn_knobs_default(struct gn_knobs *knobs);

// Sets one knob from text ("2GiB", "512M", "on", "lru", …). Sizes: a number (decimals allowed) and B, K, KB, KiB, M,
// MB, MiB, G, GB, GiB, T, TB, TiB in any case; KiB, K, M and G are powers of 1024, KB, MB, GB powers of 1000; a bare
// number is MiB. A size also takes "auto": back to the default, as if it had not been given. GN_EXPERT_CACHE also takes
// "min", the least that can work, and "N%", a share of all expert bytes. Text is taken whole or not at all. A knob
// of GN_KIND_TEXT keeps the pointer: text must outlive the knobs. Returns 0, or -EINVAL / -ERANGE with one plain line
// (what, where, what to do) in why[why_size].
int gn_knob_parse(struct gn_knobs *knobs, enum gn_knob knob, const char *text, const char *where, char *why,
                  size_t why_size);

// The share (0 … 1) of all expert bytes that a negative value of GN_EXPERT_CACHE stands for; 0 is "min".
double gn_knob_share(int64_t value);

// The number from 0 to 1 that a value of GN_KIND_FRACTION stands for.
double gn_knob_fraction(int64_t value);

// How experts are guessed: GN_PREFETCH, or, where that is not given, what GN_PILOT says.
enum gn_prefetch gn_knobs_prefetch(const struct gn_knobs *knobs);

// Writes the value as text that gn_knob_parse() reads back to the same value. Returns buffer, of at least 32 bytes. Not
// for GN_KIND_TEXT, which is its own text.
char *gn_knob_format(enum gn_knob knob, int64_t value, char *buffer);

// Reads every GUANACO_… variable of the environment over what is in *knobs. An unknown variable that starts with
// GUANACO_ is only a warning. Returns as gn_knob_parse().
int gn_knobs_from_environment(struct gn_knobs *knobs, char *why, size_t why_size);

// For a knob of `environment_first` the flag is read and checked, and left out, with a line, where the environment sets
// it. If argv[*i] is one of our flags ("--ram 2GiB" or "--ram=2GiB"): sets it, moves *i to its last word, returns 1.
// Returns 0 when it is not ours, or a negative errno with a line in why.
int gn_knobs_from_argument(struct gn_knobs *knobs, int argc, char *const *argv, int *i, char *why, size_t why_size);

// Sets one knob to a value of ours and marks it given.
void gn_knob_set(struct gn_knobs *knobs, enum gn_knob knob, int64_t value);

// Writes given knobs to the environment, for a plugin loaded by this process or by a child, and takes the others out of
// it.
void gn_knobs_export(const struct gn_knobs *knobs);

void gn_knobs_print_help(FILE *to);     // "  --ram SIZE   …   [default …; GUANACO_RAM]" lines
void gn_knobs_print_markdown(FILE *to); // the README's table

// Prints words from column `from` on, in lines of at most 100 columns. The cursor is at `column`.
void gn_print_wrapped(FILE *to, int column, int from, const char *text);

// Formats bytes as "1.50 GiB". Returns buffer, of at least 32 bytes.
char *gn_format_bytes(uint64_t bytes, char *buffer);
