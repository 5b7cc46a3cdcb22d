#include "simulate_tiers.h"

#include "json.h"
#include "simulate_svg.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MIB 1048576.0

static const struct gn_replay_tier *tier_of(const struct tiers_simulation *tiers, const struct tiers_run *run,
                                            uint32_t t) {
    return t == tiers->list.n - 1 ? &run->result.ram : &run->result.device[t];
}

static uint64_t copies(const struct tiers_simulation *tiers, const struct tiers_run *run, uint64_t *bytes) {
    uint64_t inserts = 0;
    *bytes = 0;
    for (uint32_t t = 0; t + 1 < tiers->list.n; t++) {
        inserts += run->result.device[t].inserts;
        *bytes += run->result.device[t].bytes;
    }
    return inserts;
}

// ------------------------------------------------------------------------------------------------ text

static void print_prompts(const struct tiers_run *run, uint64_t part) {
    uint64_t uses = run->result.prefill_uses;
    uses ? printf(" %8.2f", 100 * (double)part / (double)uses) : printf(" %8s", "-");
}

// What came into a tier for each token: what was copied to a device, or read from disk.
static void print_tier(const struct tiers_simulation *tiers, uint32_t t) {
    const struct tiers_run *run = &tiers->runs[0];
    const struct gn_replay_tier *tier = tier_of(tiers, run, t);
    double tokens = tiers->of->events.n_tokens;
    uint64_t in = t == tiers->list.n - 1 ? tier->misses : tier->inserts;
    printf("  %-14.14s %-14s %8" PRIu64 " %7u %8.2f %8.2f", tiers->list.tier[t].name, tiers->policies[t]->name,
           tier->slots, tier->layers, tiers_percent(run, tiers->list.n, t, false),
           tiers_percent(run, tiers->list.n, t, true));
    print_prompts(run, tier->prefill_hits);
    printf(" %10.2f", (double)in / tokens);
    tiers->of->bytes_known ? printf(" %10.2f\n", (double)tier->bytes / MIB / tokens) : printf(" %10s\n", "-");
}

static void print_time(const struct tiers_simulation *tiers) {
    const struct gn_time *time = &tiers->runs[0].time, *late = &tiers->runs[0].late_time;
    const struct gn_time_model *machine = &tiers->machine;
    if (!tiers->of->bytes_known) {
        puts("\nhow long tokens take is not known: the trace does not tell the size of experts; give --expert-bytes");
        return;
    }
    printf("\nexpected: %.2f tokens/s, %.2f in the second half; of a token's %.2f ms there, %.2f wait for the disk, "
           "%.2f for "
           "the link, %.2f are not the experts'\n",
           tiers_per_second(time), tiers_per_second(late), 1000 * late->seconds / late->tokens,
           1000 * late->disk / late->tokens, 1000 * late->link / late->tokens, 1000 * machine->rest);
    printf("on a machine of GB/s: devices %g, CPU %g, disk %g, link %g\n", machine->device_rate / 1e9,
           machine->ram_rate / 1e9, machine->disk_rate / 1e9, machine->link_rate / 1e9);
    if (machine->rest <= 0) {
        puts("the trace does not tell the dense weights: all but the experts takes no time here; give --dense-ms");
    }
}

static void print_sizes(const struct tiers_simulation *tiers) {
    printf("\nother sizes of %s; hits, %% of all uses, and tokens/s are of the second half\n%-16s %8s",
           tiers->list.tier[0].name, "size", "slots");
    for (uint32_t t = 0; t < tiers->list.n; t++) {
        printf(" %10.10s", tiers->list.tier[t].name);
    }
    printf(" %8s %10s %10s %10s\n", "disk", "copied", "read, MiB", "tokens/s");
    for (int r = 1; r < tiers->n_runs; r++) {
        const struct tiers_run *run = &tiers->runs[r];
        uint32_t tokens = tiers->of->events.n_tokens - tiers->of->events.n_tokens / 2;
        printf("  %-14s %8" PRIu64, run->size, tier_of(tiers, run, 0)->slots);
        for (uint32_t t = 0; t <= tiers->list.n; t++) {
            printf(" %*.2f", t < tiers->list.n ? 10 : 8, tiers_percent(run, tiers->list.n, t, true));
        }
        printf(" %10.2f", (double)run->late.inserts / tokens);
        if (tiers->of->bytes_known) {
            printf(" %10.2f %10.2f\n", (double)run->late.missed_bytes / MIB / tokens,
                   tiers_per_second(&run->late_time));
        } else {
            printf(" %10s %10s\n", "-", "-");
        }
    }
}

void tiers_print_text(const struct tiers_simulation *tiers) {
    printf("\n%-16s %-14s %8s %7s %8s %8s %8s %10s %10s\n", "tiers", "policy", "slots", "layers", "hits, %", "later",
           "prompts", "in a token", "MiB of it");
    for (uint32_t t = 0; t < tiers->list.n; t++) {
        print_tier(tiers, t);
    }
    const struct tiers_run *run = &tiers->runs[0];
    uint32_t n = tiers->list.n;
    printf("  %-14s %-14s %8s %7s %8.2f %8.2f", "disk", "", "", "", tiers_percent(run, n, n, false),
           tiers_percent(run, n, n, true));
    print_prompts(run, run->result.ram.prefill_misses);
    putchar('\n');
    print_time(tiers);
    print_sizes(tiers);
}

// ------------------------------------------------------------------------------------------------ CSV, JSON

void tiers_print_csv(const struct tiers_simulation *tiers) {
    uint32_t n = tiers->list.n;
    printf("run,size,tier,policy,slots,slot_bytes,layers,hits,misses,inserts,evictions,prefill_hits,prefill_misses,"
           "bytes_in,hit_percent,late_hit_percent,tokens_per_second,late_tokens_per_second\n");
    for (int r = 0; r < tiers->n_runs; r++) {
        const struct tiers_run *run = &tiers->runs[r];
        for (uint32_t t = 0; t < n; t++) {
            const struct gn_replay_tier *tier = tier_of(tiers, run, t);
            printf("%d,%s,%s,%s,%" PRIu64 ",%" PRIu64 ",%u,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64
                   ",%" PRIu64 ",",
                   r, t == 0 ? run->size : tiers->list.tier[t].size_text, tiers->list.tier[t].name,
                   tiers->policies[t]->name, tier->slots, tier->slot_bytes, tier->layers, tier->hits, tier->misses,
                   tier->inserts, tier->evictions, tier->prefill_hits, tier->prefill_misses);
            if (tiers->of->bytes_known) {
                printf("%" PRIu64, tier->bytes);
            }
            printf(",%.3f,%.3f", tiers_percent(run, n, t, false), tiers_percent(run, n, t, true));
            if (tiers->of->bytes_known) {
                printf(",%.3f,%.3f\n", tiers_per_second(&run->time), tiers_per_second(&run->late_time));
            } else {
                printf(",,\n");
            }
        }
    }
}

static void write_tier(struct json *json, const struct tiers_simulation *tiers, const struct tiers_run *run,
                       uint32_t t) {
    const struct gn_replay_tier *tier = tier_of(tiers, run, t);
    json_open(json, NULL, '{');
    json_string(json, "tier", tiers->list.tier[t].name);
    json_string(json, "policy", tiers->policies[t]->name);
    json_integer(json, "slots", tier->slots);
    json_integer(json, "slot_bytes", tier->slot_bytes);
    json_integer(json, "layers", tier->layers);
    json_integer(json, "hits", tier->hits);
    json_integer(json, "misses", tier->misses);
    json_integer(json, "inserts", tier->inserts);
    json_integer(json, "evictions", tier->evictions);
    json_integer(json, "prefill_hits", tier->prefill_hits);
    json_integer(json, "prefill_misses", tier->prefill_misses);
    if (tiers->of->bytes_known) {
        json_integer(json, "bytes_in", tier->bytes);
    }
    json_number(json, "hit_percent", tiers_percent(run, tiers->list.n, t, false));
    json_number(json, "late_hit_percent", tiers_percent(run, tiers->list.n, t, true));
    json_close(json, '}');
}

static void write_run(struct json *json, const struct tiers_simulation *tiers, const struct tiers_run *run) {
    uint64_t bytes, inserts = copies(tiers, run, &bytes);
    double tokens = tiers->of->events.n_tokens;
    json_open(json, NULL, '{');
    json_string(json, "size", run->size);
    json_integer(json, "size_bytes", run->bytes);
    json_integer(json, "uses", run->result.uses);
    json_number(json, "copies_per_token", (double)inserts / tokens);
    json_number(json, "reads_per_token", (double)run->result.ram.misses / tokens);
    if (tiers->of->bytes_known) {
        json_integer(json, "bytes_copied", bytes);
        json_integer(json, "bytes_read", run->result.ram.bytes);
        json_number(json, "tokens_per_second", tiers_per_second(&run->time));
        json_number(json, "late_tokens_per_second", tiers_per_second(&run->late_time));
    }
    json_open(json, "tiers", '[');
    for (uint32_t t = 0; t < tiers->list.n; t++) {
        write_tier(json, tiers, run, t);
    }
    json_close(json, ']');
    json_close(json, '}');
}

void tiers_print_json(const struct tiers_simulation *tiers, const char *path) {
    struct json json = {.to = stdout};
    json_open(&json, NULL, '{');
    json_string(&json, "trace", path);
    json_integer(&json, "tokens", tiers->of->events.n_tokens);
    json_open(&json, "machine", '{');
    json_number(&json, "device_bytes_per_second", tiers->machine.device_rate);
    json_number(&json, "ram_bytes_per_second", tiers->machine.ram_rate);
    json_number(&json, "disk_bytes_per_second", tiers->machine.disk_rate);
    json_number(&json, "link_bytes_per_second", tiers->machine.link_rate);
    json_number(&json, "rest_ms_per_token", 1000 * tiers->machine.rest);
    json_close(&json, '}');
    json_open(&json, "results", '[');
    for (int r = 0; r < tiers->n_runs; r++) {
        write_run(&json, tiers, &tiers->runs[r]);
    }
    json_close(&json, ']');
    json_close(&json, '}');
}

// ------------------------------------------------------------------------------------------------ SVG

static double room(const struct tiers_simulation *tiers, const struct tiers_run *run) {
    double percent = 100 * (double)tier_of(tiers, run, 0)->slots / tiers->of->events.n_entries;
    return percent < 100 ? percent : 100;
}

// A tier's hits, or, after the last tier, tokens a second as a share of the most.
static void make_curve(const struct tiers_simulation *tiers, uint32_t t, struct svg_curve *curve) {
    double most = 0;
    curve->dashed = t == tiers->list.n;
    for (int r = 0; r < tiers->n_runs; r++) {
        double speed = tiers_per_second(&tiers->runs[r].late_time);
        most = speed > most ? speed : most;
    }
    if (curve->dashed) {
        snprintf(curve->name, sizeof curve->name, "tokens/s, of %.1f", most);
    } else {
        snprintf(curve->name, sizeof curve->name, "%s", tiers->list.tier[t].name);
    }
    for (int r = 0; r < tiers->n_runs; r++) {
        const struct tiers_run *run = &tiers->runs[r];
        double speed = most > 0 ? 100 * tiers_per_second(&run->late_time) / most : 0;
        svg_add(curve, room(tiers, run), curve->dashed ? speed : tiers_percent(run, tiers->list.n, t, true));
    }
}

bool tiers_draw(const struct tiers_simulation *tiers, const char *path) {
    static struct svg_curve curves[GN_MOST_TIERS + 1];
    char across[80];
    int n = 0;
    memset(curves, 0, sizeof curves);
    for (uint32_t t = 0; t < tiers->list.n + tiers->of->bytes_known; t++) {
        make_curve(tiers, t, &curves[n++]);
    }
    snprintf(across, sizeof across, "room in %s, %% of all experts", tiers->list.tier[0].name);
    return svg_draw(path, "hits of each tier in decode, second half, % of all uses", across, curves, n);
}
