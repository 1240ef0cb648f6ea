/* A tender of this very process. Where memory cannot be collapsed, there is nothing to see but that this is said. */
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static const size_t HUGE_PAGE = (size_t)2 << 20;

/* So many huge pages' worth of small pages, every byte of them written. */
static unsigned char *small_pages(size_t count)
{
    size_t len = (count + 1) * HUGE_PAGE;
    unsigned char *memory =
        mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    memory += (HUGE_PAGE - (uintptr_t)memory % HUGE_PAGE) % HUGE_PAGE;
    madvise(memory, count * HUGE_PAGE, MADV_NOHUGEPAGE);
    memset(memory, 7, count * HUGE_PAGE);
    madvise(memory, count * HUGE_PAGE, MADV_HUGEPAGE);
    return memory;
}

static void arguments_are_looked_at(void)
{
    hugekit_tender *tender = NULL;
    hugekit_tend_options options = {.size = sizeof options, .density_percent = 101};
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_tender_new(&options, &tender), "density_percent");
    options.density_percent = 0;
    options.reserved = 1;
    CHECK_REFUSED(HUGEKIT_STATUS_UNSUPPORTED, hugekit_tender_new(&options, &tender), "reserved");
    options.reserved = 0;
    options.pid = INT32_MAX;
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_tender_new(&options, &tender), "gone");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_tender_new(NULL, NULL), "NULL");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_tender_pass(NULL, NULL), "NULL");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_tender_start(NULL), "NULL");
    CHECK(!tender);
    hugekit_tender_free(NULL);
}

static void a_pass_puts_small_pages_on_huge_ones(hugekit_tender *tender)
{
    size_t len = 8 * HUGE_PAGE;
    unsigned char *memory = small_pages(8);
    hugekit_tend_report report = {.size = sizeof report};
    CHECK(hugekit_tender_pass(tender, &report) == HUGEKIT_STATUS_OK);
    CHECK(report.resident_bytes >= len && report.huge_bytes <= report.resident_bytes);
    CHECK(report.hindrance != HUGEKIT_TEND_HINDRANCE_NONE || report.collapsed_bytes <= report.resident_bytes);
    if (report.hindrance == HUGEKIT_TEND_HINDRANCE_NONE && report.collapsed_bytes > 0)
        CHECK(report.huge_bytes > 0 && report.longest_ns > 0 && report.cpu_ns > 0);
    for (size_t i = 0; i < len; i += 1024)
        CHECK(memory[i] == 7);
    CHECK(hugekit_tender_pass(tender, NULL) == HUGEKIT_STATUS_OK);
}

static void one_that_was_started_tells_of_its_passes(hugekit_tender *tender)
{
    hugekit_tend_report report = {.size = sizeof report};
    CHECK(hugekit_tender_query(tender, &report) == HUGEKIT_STATUS_OK && report.passes == 0);
    CHECK(hugekit_tender_start(tender) == HUGEKIT_STATUS_OK);
    CHECK_REFUSED(HUGEKIT_STATUS_CONFLICT, hugekit_tender_start(tender), "already");
    CHECK_REFUSED(HUGEKIT_STATUS_CONFLICT, hugekit_tender_pass(tender, NULL), "already");
    for (int waited = 0; report.passes == 0; waited++) {
        CHECK(waited < 6000);
        usleep(10000);
        CHECK(hugekit_tender_query(tender, &report) == HUGEKIT_STATUS_OK);
    }
    CHECK(report.resident_bytes > 0);
    /* The child has no such thread, and does not wait for it. */
    pid_t child = fork();
    if (child == 0) {
        hugekit_tender_free(tender);
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
    arguments_are_looked_at();
    hugekit_tender *tender = NULL;
    hugekit_tend_options options = {
        .size = sizeof options, .cpu_percent = 100, .bytes_per_second = UINT64_MAX, .keep_free = 1};
    hugekit_status made = hugekit_tender_new(&options, &tender);
    if (made != HUGEKIT_STATUS_OK) {
        CHECK(made == HUGEKIT_STATUS_NOT_PERMITTED || made == HUGEKIT_STATUS_UNSUPPORTED);
        CHECK(hugekit_last_error()[0] != 0);
        return 0;
    }
    hugekit_tender *other = NULL;
    CHECK_REFUSED(HUGEKIT_STATUS_CONFLICT, hugekit_tender_new(&options, &other), "another tender");
    a_pass_puts_small_pages_on_huge_ones(tender);
    one_that_was_started_tells_of_its_passes(tender);
    hugekit_tender_free(tender);
    CHECK(hugekit_tender_new(&options, &other) == HUGEKIT_STATUS_OK);
    hugekit_tender_free(other);
    return 0;
}
