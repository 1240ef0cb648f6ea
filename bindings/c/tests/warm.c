/* A file whose page cache is put on huge pages. */
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

enum { UNITS = 4 };
static const size_t UNIT = (size_t)2 << 20;

/* A file on small pages, which ends with this process. */
static const char *small_file(void)
{
    static char path[64];
    static char page[4096];
    FILE *file = tmpfile();
    CHECK(file != NULL);
    for (size_t at = 0; at < UNITS * UNIT; at += sizeof page) {
        memset(page, 1 + (int)(at / sizeof page % 250), sizeof page);
        CHECK(pwrite(fileno(file), page, sizeof page, (off_t)at) == (ssize_t)sizeof page);
    }
    CHECK(fsync(fileno(file)) == 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fileno(file));
    return path;
}

static void arguments_are_looked_at(const char *path)
{
    hugekit_warm_report report = {.size = sizeof report};
    hugekit_warm_options options = {.size = sizeof options, .reserved = 1};
    CHECK_REFUSED(HUGEKIT_STATUS_UNSUPPORTED, hugekit_warm(path, &options, &report), "reserved");
    options.reserved = 0;
    options.flags = 4;
    CHECK_REFUSED(HUGEKIT_STATUS_UNSUPPORTED, hugekit_warm(path, &options, &report), "0x4");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_warm(NULL, NULL, &report), "NULL");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_warm("/dev/zero", NULL, &report), "/dev/zero");
    CHECK_REFUSED(HUGEKIT_STATUS_SYSTEM, hugekit_warm("/nonexistent/file", NULL, NULL), "No such");
    CHECK(report.units == 0);
}

static void is_told(size_t done, size_t total, void *context)
{
    CHECK(done == total && total == UNITS * UNIT);
    *(size_t *)context = done;
}

static void file_is_counted_and_made_huge(const char *path)
{
    hugekit_warm_report report = {.size = sizeof report};
    hugekit_warm_options check = {.size = sizeof check, .flags = HUGEKIT_WARM_CHECK};
    CHECK(hugekit_warm(path, &check, &report) == HUGEKIT_STATUS_OK);
    CHECK(report.units == UNITS && report.huge == 0 && report.holes == 0);
    CHECK(report.reason == HUGEKIT_WARM_REASON_NOT_MADE);
    size_t told = 0;
    hugekit_warm_options options = {.size = sizeof options, .progress = is_told, .context = &told};
    CHECK(hugekit_warm(path, &options, &report) == HUGEKIT_STATUS_OK);
    CHECK(told == UNITS * UNIT && report.units == UNITS && report.already_huge == 0);
    CHECK((report.huge == UNITS) == (report.reason == HUGEKIT_WARM_REASON_NONE));
    /* Whether there are huge pages is a matter of the machine and the file system. */
    CHECK(report.huge == UNITS || report.reason == HUGEKIT_WARM_REASON_FRAGMENTED
          || report.reason == HUGEKIT_WARM_REASON_FILE_SYSTEM);
    CHECK(hugekit_warm(path, NULL, NULL) == HUGEKIT_STATUS_OK);
}

static void call_that_is_cancelled_says_so(const char *path)
{
    hugekit_cancel *cancel = hugekit_cancel_new();
    hugekit_cancel_set(cancel);
    hugekit_warm_options options = {.size = sizeof options, .cancel = cancel};
    CHECK_REFUSED(HUGEKIT_STATUS_CANCELLED, hugekit_warm(path, &options, NULL), "of 4 units");
    hugekit_cancel_free(cancel);
}

int main(void)
{
    const char *path = small_file();
    arguments_are_looked_at(path);
    file_is_counted_and_made_huge(path);
    call_that_is_cancelled_says_so(path);
    return 0;
}
