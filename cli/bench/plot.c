// The figures as a picture: speed against budget, decode above and prefill below. Streamed budgets are points with the
// range of their rounds, joined; their roof is a dashed line above, that of both busy a dotted one; the baselines are
// horizontal lines.
#include "bench/report.h"
#include "bench/summary.h"

#include "config/printable.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 760, PANEL = 340, LEFT = 74, RIGHT = 196, TOP = 46, BOTTOM = 56, MOST_TICKS = 8 };

#define OURS "#0b62a8"
#define ROOF "#888888"
#define RESIDENT "#2a7d2a"
#define BUSY "#8a9a1c"
#define HALO "stroke=\"white\" stroke-width=\"3\" paint-order=\"stroke\"" // readable across lines
#define MAPPED "#b5441f"

struct axis {
    double most, step; // from 0
};

struct panel {
    FILE *to;
    int top;
    struct axis x, y;
    double unit; // of x, bytes
};

// From 0 to `most` and a little more, in steps of 1, 2 or 5 times a power of ten.
static struct axis make_axis(double most) {
    if (most <= 0) {
        return (struct axis){1, 0.5};
    }
    double rough = most / (MOST_TICKS - 2), power = pow(10, floor(log10(rough)));
    double step = power * (rough <= power ? 1 : rough <= 2 * power ? 2 : rough <= 5 * power ? 5 : 10);
    return (struct axis){step * ceil(most * 1.04 / step), step};
}

static double at_x(const struct panel *panel, double bytes) {
    return LEFT + (WIDTH - LEFT - RIGHT) * (bytes / panel->unit) / panel->x.most;
}

static double at_y(const struct panel *panel, double speed) {
    return panel->top + PANEL - BOTTOM - (PANEL - TOP - BOTTOM) * speed / panel->y.most;
}

static void line(const struct panel *panel, double x1, double y1, double x2, double y2, const char *style) {
    fprintf(panel->to, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x1, y1, x2, y2, style);
}

static void text(const struct panel *panel, double x, double y, const char *style, const char *words) {
    fprintf(panel->to, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, style);
    for (; *words; words++) {
        switch (*words) {
        case '<':
            fputs("&lt;", panel->to);
            break;
        case '&':
            fputs("&amp;", panel->to);
            break;
        default:
            fputc(*words, panel->to);
        }
    }
    fputs("</text>\n", panel->to);
}

// ------------------------------------------------------------------------------------------------ frame

static void draw_frame(const struct panel *panel, bool decode) {
    char label[64];
    double bottom = at_y(panel, 0), top = at_y(panel, panel->y.most), right = WIDTH - RIGHT;
    for (int t = 0; t <= lround(panel->y.most / panel->y.step); t++) {
        double y = t * panel->y.step;
        line(panel, LEFT, at_y(panel, y), right, at_y(panel, y), "stroke=\"#e4e4e4\"");
        snprintf(label, sizeof label, "%.6g", y);
        text(panel, LEFT - 8, at_y(panel, y) + 4, "text-anchor=\"end\"", label);
    }
    for (int t = 0; t <= lround(panel->x.most / panel->x.step); t++) {
        double x = t * panel->x.step, across = at_x(panel, x * panel->unit);
        line(panel, across, bottom, across, bottom + 5, "stroke=\"#222\"");
        snprintf(label, sizeof label, "%.6g", x);
        text(panel, across, bottom + 19, "text-anchor=\"middle\"", label);
    }
    line(panel, LEFT, bottom, right, bottom, "stroke=\"#222\"");
    line(panel, LEFT, bottom, LEFT, top, "stroke=\"#222\"");
    snprintf(label, sizeof label, "memory budget of the whole process, %s", panel->unit > 1e9 ? "GiB" : "MiB");
    text(panel, (LEFT + right) / 2, bottom + 40, "text-anchor=\"middle\"", label);
    double middle = (top + bottom) / 2;
    fprintf(panel->to,
            "<text x=\"20\" y=\"%.1f\" text-anchor=\"middle\" transform=\"rotate(-90 20 %.1f)\">%s, tokens/s</text>\n",
            middle, middle, decode ? "decode" : "prefill");
}

// ------------------------------------------------------------------------------------------------ data

struct point {
    double budget;
    struct bench_phase_figures figures;
    const char *label;
};

static int by_budget(const void *a, const void *b) {
    const struct point *x = a, *y = b;
    return (x->budget > y->budget) - (x->budget < y->budget);
}

static int find_points(const struct bench *bench, bool decode, struct point *points) {
    int n = 0;
    for (int c = 0; c < bench->n_cells; c++) {
        const struct bench_cell *cell = &bench->cells[c];
        if (cell->engine == BENCH_OURS && cell->n_samples > 0) {
            struct bench_figures figures = bench_summarise(bench, cell);
            points[n++] =
                (struct point){(double)cell->budget_bytes, decode ? figures.decode : figures.prefill, cell->label};
        }
    }
    qsort(points, (size_t)n, sizeof *points, by_budget);
    return n;
}

static double baseline(const struct bench *bench, enum bench_engine engine, bool decode) {
    const struct bench_cell *cell = bench_find(bench, engine);
    if (!cell) {
        return 0;
    }
    struct bench_figures figures = bench_summarise(bench, cell);
    return (decode ? figures.decode : figures.prefill).tokens_per_second.median;
}

static double measured(const struct bench_phase_figures *figures) {
    return figures->tokens_per_second.median;
}

// 0: not known
static double roof(const struct bench_phase_figures *figures) {
    return figures->roof.known ? figures->roof.tokens_per_second : 0;
}

static double roof_of_both(const struct bench_phase_figures *figures) {
    return figures->both.known ? figures->both.tokens_per_second : 0;
}

static bool all_known(const struct point *points, int n, double (*speed)(const struct bench_phase_figures *figures)) {
    bool known = n > 0;
    for (int p = 0; p < n; p++) {
        known = known && speed(&points[p].figures) > 0;
    }
    return known;
}

static void draw_lines(const struct panel *panel, const struct point *points, int n,
                       double (*speed)(const struct bench_phase_figures *figures), const char *style) {
    fprintf(panel->to, "<polyline fill=\"none\" %s points=\"", style);
    for (int p = 0; p < n; p++) {
        fprintf(panel->to, "%.1f,%.1f ", at_x(panel, points[p].budget), at_y(panel, speed(&points[p].figures)));
    }
    fputs("\"/>\n", panel->to);
}

static void draw_points(const struct panel *panel, const struct point *points, int n) {
    bool roofs = all_known(points, n, roof);
    if (roofs) {
        draw_lines(panel, points, n, roof, "stroke=\"" ROOF "\" stroke-width=\"2\" stroke-dasharray=\"6 4\"");
    }
    if (all_known(points, n, roof_of_both)) {
        draw_lines(panel, points, n, roof_of_both, "stroke=\"" ROOF "\" stroke-width=\"2\" stroke-dasharray=\"2 4\"");
    }
    draw_lines(panel, points, n, measured, "stroke=\"" OURS "\" stroke-width=\"2\"");
    for (int p = 0; p < n; p++) {
        double x = at_x(panel, points[p].budget);
        const struct bench_spread *speed = &points[p].figures.tokens_per_second;
        line(panel, x, at_y(panel, speed->least), x, at_y(panel, speed->most),
             "stroke=\"" OURS "\" stroke-width=\"1\"");
        fprintf(panel->to, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"" OURS "\"/>\n", x,
                at_y(panel, speed->median));
        if (roofs) {
            fprintf(panel->to, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"white\" stroke=\"" ROOF "\"/>\n", x,
                    at_y(panel, roof(&points[p].figures)));
        }
        text(panel, x, at_y(panel, speed->median) + 18,
             "text-anchor=\"middle\" fill=\"" OURS "\" font-size=\"11\" " HALO, points[p].label);
    }
}

// One entry of the legend, at the right. Returns where the next goes.
static int explain(const struct panel *panel, int y, const char *color, const char *dash, const char *words,
                   double speed) {
    char style[96], label[96];
    snprintf(style, sizeof style, "stroke=\"%s\" stroke-width=\"2\" stroke-dasharray=\"%s\"", color, dash);
    line(panel, WIDTH - RIGHT + 16, y - 4, WIDTH - RIGHT + 40, y - 4, style);
    snprintf(label, sizeof label, speed > 0 ? "%s: %.4g" : "%s", words, speed);
    text(panel, WIDTH - RIGHT + 46, y, "font-size=\"12\"", label);
    return y + 20;
}

static int draw_baseline(const struct panel *panel, double speed, const char *color, const char *words, int y) {
    char style[64];
    if (speed <= 0) {
        return y;
    }
    snprintf(style, sizeof style, "stroke=\"%s\" stroke-width=\"2\" stroke-dasharray=\"2 3\"", color);
    line(panel, LEFT, at_y(panel, speed), WIDTH - RIGHT, at_y(panel, speed), style);
    return explain(panel, y, color, "2 3", words, speed);
}

static void draw_panel(const struct bench *bench, bool decode, int top, FILE *to) {
    struct point points[BENCH_CELLS];
    int n = find_points(bench, decode, points);
    double resident = baseline(bench, BENCH_RESIDENT, decode), mapped = baseline(bench, BENCH_MMAP, decode);
    double busy = baseline(bench, BENCH_BUSY, decode);
    double fastest = fmax(resident, fmax(busy, mapped)), widest = 0;
    for (int p = 0; p < n; p++) {
        const struct bench_phase_figures *figures = &points[p].figures;
        fastest = fmax(fastest, fmax(fmax(roof(figures), roof_of_both(figures)), figures->tokens_per_second.most));
        widest = fmax(widest, points[p].budget);
    }
    struct panel panel = {.to = to, .top = top, .unit = widest < 2048 * BENCH_MIB ? BENCH_MIB : 1024 * BENCH_MIB};
    panel.x = make_axis(widest / panel.unit);
    panel.y = make_axis(fastest);
    draw_frame(&panel, decode);
    int y = top + TOP + 6;
    y = draw_baseline(&panel, resident, RESIDENT, "stock, resident", y);
    y = draw_baseline(&panel, busy, BUSY, "stock beside reads", y);
    y = draw_baseline(&panel, mapped, MAPPED, "stock, mmap", y);
    const struct bench_cell *cell = bench_find(bench, BENCH_MMAP);
    if (cell) {
        char within[64], bytes[32];
        snprintf(within, sizeof within, "in %s", gn_format_bytes(cell->limit_bytes, bytes));
        text(&panel, WIDTH - RIGHT + 46, y - 4, "font-size=\"11\" fill=\"#555\"", within);
        y += 16;
    }
    if (n > 0) {
        y = explain(&panel, y, ROOF, "6 4", "roof", 0);
        y = all_known(points, n, roof_of_both) ? explain(&panel, y, ROOF, "2 4", "roof, both busy", 0) : y;
        explain(&panel, y, OURS, "none", "streamed", 0);
        draw_points(&panel, points, n);
    }
}

void bench_write_svg(const struct bench *bench, FILE *to) {
    struct panel title = {.to = to};
    const char *name = strrchr(bench->model, '/');
    char words[256], model[101];
    fprintf(to,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
            "font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n"
            "<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n",
            WIDTH, 2 * PANEL + 20, WIDTH, 2 * PANEL + 20, WIDTH, 2 * PANEL + 20);
    int best = bench_best_depth(&bench->drive);
    gn_printable(name ? name + 1 : bench->model, model, sizeof model);
    snprintf(words, sizeof words, "%s, %d %s%s", model, bench->threads, bench->threads == 1 ? "thread" : "threads",
             best < 0 ? "" : ", drive ");
    if (best >= 0) {
        size_t used = strlen(words);
        snprintf(words + used, sizeof words - used, "%.0f MiB/s",
                 bench_median(bench->drive.mib_per_second[best], bench->drive.n_rounds));
    }
    text(&title, LEFT, 26, "font-weight=\"bold\"", words);
    draw_panel(bench, true, 0, to);
    draw_panel(bench, false, PANEL, to);
    fputs("</svg>\n", to);
}
