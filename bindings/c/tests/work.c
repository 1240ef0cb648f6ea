/* Clearing, copying and populating: bytes, bounds, options, progress, cancellation. */
#include <pthread.h>
#include <stdint.h>

#include "check.h"

enum { MIB = 1 << 20 };

static int all(const unsigned char *bytes, size_t len, unsigned char value)
{
    for (size_t at = 0; at < len; at++)
        if (bytes[at] != value)
            return 0;
    return 1;
}

static void clears_what_it_is_given_and_nothing_else(void)
{
    static const size_t lengths[] = {0, 1, 63, 64, 4095, 4096, 4097, 100000, 3 * MIB + 5};
    unsigned char *bytes = malloc(4 * MIB);
    CHECK(bytes);
    for (size_t at = 0; at < sizeof lengths / sizeof *lengths; at++) {
        size_t len = lengths[at];
        memset(bytes, 0xa5, 4 * MIB);
        CHECK(hugekit_clear(bytes + 17, len) == HUGEKIT_STATUS_OK);
        CHECK(all(bytes, 17, 0xa5) && all(bytes + 17, len, 0) && all(bytes + 17 + len, 64, 0xa5));
    }
    free(bytes);
}

static void copies_what_it_is_given_and_nothing_else(void)
{
    unsigned char *from = malloc(3 * MIB), *to = malloc(3 * MIB);
    CHECK(from && to);
    for (size_t at = 0; at < 3 * MIB; at++)
        from[at] = (unsigned char)(at * 7 + at / 4096);
    for (size_t len = 0; len <= 2 * MIB; len = len * 3 + 1) {
        memset(to, 0xa5, 3 * MIB);
        CHECK(hugekit_copy(to + 5, from + 9, len) == HUGEKIT_STATUS_OK);
        CHECK(all(to, 5, 0xa5) && memcmp(to + 5, from + 9, len) == 0 && all(to + 5 + len, 64, 0xa5));
    }
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_copy(to, to + 10, 11), "overlap");
    CHECK(hugekit_copy(to, to + 10, 10) == HUGEKIT_STATUS_OK);
    free(from);
    free(to);
}

static void refuses_what_is_no_memory(void)
{
    char byte = 1;
    CHECK(hugekit_clear(NULL, 0) == HUGEKIT_STATUS_OK);
    CHECK(hugekit_copy(NULL, NULL, 0) == HUGEKIT_STATUS_OK);
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_clear(NULL, 1), "memory");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_clear(&byte, SIZE_MAX), "memory");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_copy(&byte, NULL, 1), "from");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_copy(NULL, &byte, 1), "to");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_clear_with(&byte, (size_t)1 << 63, NULL, NULL), "memory");
    hugekit_options options = {.size = sizeof options, .reserved = 1};
    hugekit_status unsupported = HUGEKIT_STATUS_UNSUPPORTED;
    CHECK_REFUSED(unsupported, hugekit_clear_with(&byte, 1, &options, NULL), "hugekit_options.reserved is 0x1");
    CHECK_REFUSED(unsupported, hugekit_populate(&byte, 1, &options, NULL), "hugekit_options.reserved");
    CHECK(byte == 1);
}

static void understands_wishes_and_refuses_what_makes_no_sense(void)
{
    unsigned char *bytes = malloc(2 * MIB);
    CHECK(bytes);
    memset(bytes, 1, 2 * MIB);
    hugekit_options options = {.size = sizeof options, .threads = 1};
    options.reuse = HUGEKIT_REUSE_TARGET;
    options.flags = HUGEKIT_HAS_TARGET;
    options.target = 2 * MIB;
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_clear_with(bytes, 2 * MIB, &options, NULL), "target");
    options.target = 2 * MIB - 1;
    options.reuse = 4;
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_clear_with(bytes, 2 * MIB, &options, NULL), "reuse");
    options.reuse = 0;
    options.flags |= 1u << 31;
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_clear_with(bytes, 2 * MIB, &options, NULL), "flags");
    options.flags = HUGEKIT_HAS_TARGET;
    options.size = 0;
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_clear_with(bytes, 2 * MIB, &options, NULL), "size");
    hugekit_report report = {.size = 1};
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_clear_with(bytes, 2 * MIB, NULL, &report), "hugekit_report");
    CHECK(all(bytes, 2 * MIB, 1));
    options.size = sizeof options;
    report.size = sizeof report;
    CHECK(hugekit_clear_with(bytes, 2 * MIB, &options, &report) == HUGEKIT_STATUS_OK);
    CHECK(all(bytes, 2 * MIB, 0) && report.bytes == 2 * MIB && report.threads == 1);
    free(bytes);
}

/* A program that was compiled with a later header, which has one more field. */
static void understands_a_newer_program(void)
{
    struct {
        hugekit_options known;
        size_t unknown;
    } options = {{.size = sizeof options}, 0};
    char byte = 1;
    CHECK(hugekit_clear_with(&byte, 1, &options.known, NULL) == HUGEKIT_STATUS_OK && byte == 0);
    options.unknown = 1;
    byte = 1;
    CHECK_REFUSED(HUGEKIT_STATUS_UNSUPPORTED, hugekit_clear_with(&byte, 1, &options.known, NULL), "version");
    CHECK(byte == 1);
}

struct watcher {
    size_t last, calls, cancel_at;
    const hugekit_cancel *cancel;
};

static void watch(size_t done, size_t total, void *context)
{
    struct watcher *watcher = context;
    CHECK(done > watcher->last && done <= total);
    watcher->last = done;
    watcher->calls++;
    if (watcher->cancel && done >= watcher->cancel_at)
        hugekit_cancel_set(watcher->cancel);
}

static void says_what_was_done(const unsigned char *bytes, size_t done)
{
    hugekit_part parts[8];
    size_t count = hugekit_last_done(NULL, 0), sum = 0;
    CHECK(count >= 1 && count <= 8 && hugekit_last_done(parts, 0) == count);
    CHECK(hugekit_last_done(parts, 8) == count);
    for (size_t part = 0; part < count; part++) {
        CHECK(all(bytes + parts[part].offset, parts[part].len, 0));
        sum += parts[part].len;
    }
    CHECK(sum == done);
}

static void tells_progress_and_stops_when_cancelled(void)
{
    const size_t len = 64 * MIB;
    unsigned char *bytes = malloc(len), *copy = malloc(len);
    CHECK(bytes && copy);
    struct watcher watcher = {0};
    hugekit_options options = {.size = sizeof options, .threads = 2, .progress = watch, .context = &watcher};
    hugekit_report report = {.size = sizeof report};
    CHECK(hugekit_populate(bytes, len, &options, NULL) == HUGEKIT_STATUS_OK);
    CHECK(watcher.last == len);
    memset(bytes, 7, len);
    watcher = (struct watcher){0};
    CHECK(hugekit_copy_with(copy, bytes, len, &options, &report) == HUGEKIT_STATUS_OK);
    CHECK(watcher.last == len && watcher.calls > 1 && report.bytes == len);
    CHECK(report.threads <= 2 && report.took_part >= 1 && all(copy, len, 7));

    hugekit_cancel *cancel = hugekit_cancel_new();
    watcher = (struct watcher){.cancel = cancel, .cancel_at = 1};
    options.cancel = cancel;
    CHECK_REFUSED(HUGEKIT_STATUS_CANCELLED, hugekit_clear_with(bytes, len, &options, NULL), "cancelled after");
    CHECK(watcher.last > 0 && watcher.last < len);
    CHECK(hugekit_last_errno() == 0 && hugekit_last_remedy()[0] == 0);
    says_what_was_done(bytes, watcher.last);
    hugekit_cancel_free(cancel);
    hugekit_cancel_set(NULL);
    hugekit_cancel_free(NULL);
    free(bytes);
    free(copy);
}

static void refuses_to_populate_what_is_not_mapped(void)
{
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_populate((void *)4096, 4096, NULL, NULL), "not mapped");
}

static void *fails_elsewhere(void *argument)
{
    CHECK(hugekit_last_error()[0] == 0);
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_clear(NULL, 2), "2 bytes");
    return argument;
}

static void errors_are_a_threads_own(void)
{
    CHECK(hugekit_clear(NULL, 1) == HUGEKIT_STATUS_INVALID);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, fails_elsewhere, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(strstr(hugekit_last_error(), "1 bytes"));
    CHECK(hugekit_clear(NULL, 0) == HUGEKIT_STATUS_OK);
    CHECK(strstr(hugekit_last_error(), "1 bytes"));
    CHECK(strcmp(hugekit_status_name(HUGEKIT_STATUS_NO_MEMORY), "no memory") == 0);
    CHECK(strcmp(hugekit_status_name(-1), "unknown status") == 0);
    CHECK(strcmp(hugekit_version(), HUGEKIT_VERSION) == 0);
}

int main(void)
{
    clears_what_it_is_given_and_nothing_else();
    copies_what_it_is_given_and_nothing_else();
    refuses_what_is_no_memory();
    understands_wishes_and_refuses_what_makes_no_sense();
    understands_a_newer_program();
    tells_progress_and_stops_when_cancelled();
    /* Asking the kernel about memory that is not there is an error to valgrind. */
    if (!getenv("UNDER_VALGRIND"))
        refuses_to_populate_what_is_not_mapped();
    errors_are_a_threads_own();
    return 0;
}
