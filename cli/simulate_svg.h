// Curves of per cents against per cents, drawn.
#pragma once

#include <stdbool.h>

struct svg_curve {
    char name[64];
    bool dashed;
    int n;
    struct svg_point {
        double x, y; // 0 … 100
    } points[40];
};

// Adds a point where it belongs, by x. One too many is left out.
void svg_add(struct svg_curve *curve, double x, double y);
// upwards, across: what the axes show. False after an error line.
bool svg_draw(const char *path, const char *upwards, const char *across, const struct svg_curve *curves, int n);
