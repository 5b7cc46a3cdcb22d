#include "report_file.h"

#include "config/log.h"
#include "config/output_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

bool report_file_begin(struct report_file *report) {
    report->to = open_memstream(&report->text, &report->size);
    return report->to != NULL;
}

// The mode of a file that any program makes.
static mode_t usual_mode(void) {
    mode_t mask = umask(0);
    umask(mask);
    return 0666 & ~mask;
}

bool report_file_end(struct report_file *report) {
    bool bad = !report->to || ferror(report->to);
    bad = (report->to && fclose(report->to)) || bad;
    int failed = bad ? -ENOMEM : gn_replace_file(report->path, report->text, report->size, usual_mode());
    if (failed) {
        gn_error("%s: cannot write %s: %s", report->option, report->path, strerror(-failed));
    }
    free(report->text);
    *report = (struct report_file){0};
    return !failed;
}
