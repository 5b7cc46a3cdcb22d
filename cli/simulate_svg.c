#include "simulate.h"

#include "config/log.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 760, HEIGHT = 440, LEFT = 56, RIGHT = 590, TOP = 40, BOTTOM = 390, LINE_HEIGHT = 20 };

static const char *const colours[] = {"#c2185b", "#1565c0", "#2e7d32", "#ef6c00", "#6a1b9a",
                                      "#00838f", "#795548", "#37474f", "#9e9d24"};

static double x_of(double percent) {
    return LEFT + (RIGHT - LEFT) * percent / 100;
}

static double y_of(double percent) {
    return BOTTOM - (BOTTOM - TOP) * percent / 100;
}

// Of XML.
static void write_text(FILE *to, const char *text) {
    for (; *text; text++) {
        const char *name = *text == '<' ? "&lt;" : *text == '&' ? "&amp;" : *text == '"' ? "&quot;" : NULL;
        name ? fputs(name, to) : fputc((unsigned char)*text < ' ' ? '?' : *text, to);
    }
}

static void draw_axes(FILE *to) {
    for (int percent = 0; percent <= 100; percent += 20) {
        fprintf(to,
                "<path d=\"M%d %.1fH%d\" stroke=\"#ddd\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%d</text>\n"
                "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%d</text>\n",
                LEFT, y_of(percent), RIGHT, LEFT - 6, y_of(percent) + 4, percent, x_of(percent), BOTTOM + 18, percent);
    }
    fprintf(to,
            "<text x=\"%d\" y=\"%d\">hit rate of decode, %%</text>\n"
            "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">room for experts, %% of all</text>\n",
            LEFT, TOP - 14, RIGHT, BOTTOM + 38);
}

// The budget, after `from`, that is next in size; -1: there is none.
static int next_budget(const struct simulation *simulation, int from) {
    int next = -1;
    for (int b = 0; b < simulation->n_budgets; b++) {
        uint64_t bytes = simulation->budgets[b].bytes;
        if ((from < 0 || bytes > simulation->budgets[from].bytes) &&
            (next < 0 || bytes < simulation->budgets[next].bytes)) {
            next = b;
        }
    }
    return next;
}

static double room(const struct simulation *simulation, int b) {
    double percent = 100 * (double)simulation->result[0][b].slots / simulation->events.n_entries;
    return percent < 100 ? percent : 100;
}

static void draw_curve(FILE *to, const struct simulation *simulation, int p) {
    const char *colour = p < simulation->n_policies ? colours[(size_t)p % (sizeof colours / sizeof *colours)] : "#000";
    fprintf(to, "<g stroke=\"%s\" fill=\"%s\"><polyline fill=\"none\" stroke-width=\"2\"%s points=\"", colour, colour,
            p < simulation->n_policies ? "" : " stroke-dasharray=\"5 4\"");
    for (int b = next_budget(simulation, -1); b >= 0; b = next_budget(simulation, b)) {
        fprintf(to, " %.1f,%.1f", x_of(room(simulation, b)), y_of(simulation_figure(simulation, p, b, HIT_PERCENT)));
    }
    fprintf(to, "\"/>\n");
    for (int b = next_budget(simulation, -1); b >= 0; b = next_budget(simulation, b)) {
        fprintf(to, "<circle r=\"3\" cx=\"%.1f\" cy=\"%.1f\"/>", x_of(room(simulation, b)),
                y_of(simulation_figure(simulation, p, b, HIT_PERCENT)));
    }
    fprintf(to, "\n<text stroke=\"none\" x=\"%d\" y=\"%d\">", RIGHT + 16, TOP + LINE_HEIGHT * p + 4);
    write_text(to, simulation_row(simulation, p));
    fprintf(to, "</text></g>\n");
}

bool simulation_draw(const struct simulation *simulation, const char *path) {
    FILE *to = fopen(path, "we");
    if (!to) {
        gn_error("--svg: cannot write %s: %s", path, strerror(errno));
        return false;
    }
    fprintf(to,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
            "font-size=\"13\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
            WIDTH, HEIGHT);
    draw_axes(to);
    for (int p = 0; p <= simulation->n_policies; p++) {
        draw_curve(to, simulation, p);
    }
    fprintf(to, "</svg>\n");
    bool bad = ferror(to);
    errno = 0;
    if (fclose(to) != 0 || bad) {
        gn_error("--svg: cannot write %s: %s", path, strerror(errno ? errno : EIO));
        return false;
    }
    return true;
}
