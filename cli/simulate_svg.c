#include "simulate_svg.h"

#include "report_file.h"
#include "simulate.h"

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

static void draw_axes(FILE *to, const char *upwards, const char *across) {
    for (int percent = 0; percent <= 100; percent += 20) {
        fprintf(to,
                "<path d=\"M%d %.1fH%d\" stroke=\"#ddd\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%d</text>\n"
                "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%d</text>\n",
                LEFT, y_of(percent), RIGHT, LEFT - 6, y_of(percent) + 4, percent, x_of(percent), BOTTOM + 18, percent);
    }
    fprintf(to, "<text x=\"%d\" y=\"%d\">", LEFT, TOP - 14);
    write_text(to, upwards);
    fprintf(to, "</text>\n<text x=\"%d\" y=\"%d\" text-anchor=\"end\">", RIGHT, BOTTOM + 38);
    write_text(to, across);
    fprintf(to, "</text>\n");
}

static void draw_curve(FILE *to, const struct svg_curve *curve, const char *colour, int line) {
    fprintf(to, "<g stroke=\"%s\" fill=\"%s\"><polyline fill=\"none\" stroke-width=\"2\"%s points=\"", colour, colour,
            curve->dashed ? " stroke-dasharray=\"5 4\"" : "");
    for (int i = 0; i < curve->n; i++) {
        fprintf(to, " %.1f,%.1f", x_of(curve->points[i].x), y_of(curve->points[i].y));
    }
    fprintf(to, "\"/>\n");
    for (int i = 0; i < curve->n; i++) {
        fprintf(to, "<circle r=\"3\" cx=\"%.1f\" cy=\"%.1f\"/>", x_of(curve->points[i].x), y_of(curve->points[i].y));
    }
    fprintf(to, "\n<text stroke=\"none\" x=\"%d\" y=\"%d\">", RIGHT + 16, TOP + LINE_HEIGHT * line + 4);
    write_text(to, curve->name);
    fprintf(to, "</text></g>\n");
}

void svg_add(struct svg_curve *curve, double x, double y) {
    int i = curve->n;
    if (i == (int)(sizeof curve->points / sizeof *curve->points)) {
        return;
    }
    for (; i > 0 && curve->points[i - 1].x > x; i--) {
        curve->points[i] = curve->points[i - 1];
    }
    curve->points[i] = (struct svg_point){x, y};
    curve->n++;
}

bool svg_draw(const char *path, const char *upwards, const char *across, const struct svg_curve *curves, int n) {
    struct report_file report = {.option = "--svg", .path = path};
    if (!report_file_begin(&report)) {
        return report_file_end(&report);
    }
    fprintf(report.to,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
            "font-size=\"13\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
            WIDTH, HEIGHT);
    draw_axes(report.to, upwards, across);
    for (int c = 0; c < n; c++) {
        const char *colour = colours[(size_t)c % (sizeof colours / sizeof *colours)];
        draw_curve(report.to, &curves[c], curves[c].dashed ? "#000" : colour, c);
    }
    fprintf(report.to, "</svg>\n");
    return report_file_end(&report);
}

static double room(const struct simulation *simulation, int b) {
    double percent = 100 * (double)simulation->result[0][b].slots / simulation->events.n_entries;
    return percent < 100 ? percent : 100;
}

bool simulation_draw(const struct simulation *simulation, const char *path) {
    static struct svg_curve curves[MAX_POLICIES + 1];
    memset(curves, 0, sizeof curves);
    for (int p = 0; p <= simulation->n_policies; p++) {
        curves[p].dashed = p == simulation->n_policies;
        snprintf(curves[p].name, sizeof curves[p].name, "%s", simulation_row(simulation, p));
        for (int b = 0; b < simulation->n_budgets; b++) {
            svg_add(&curves[p], room(simulation, b), simulation_figure(simulation, p, b, HIT_PERCENT));
        }
    }
    return svg_draw(path, "hit rate of decode, %", "room for experts, % of all", curves, simulation->n_policies + 1);
}
