/* Pools and regions: zeroes, limits, statistics, files, and what a forked child has of them. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { MIB = 1 << 20 };

static int is_zero(const unsigned char *bytes, size_t len)
{
    for (size_t at = 0; at < len; at++)
        if (bytes[at] != 0)
            return 0;
    return 1;
}

static hugekit_pool *base_pages(size_t capacity)
{
    hugekit_pool_options options = {.size = sizeof options, .backing = HUGEKIT_BACKING_BASE};
    hugekit_pool *pool = NULL;
    CHECK(hugekit_pool_new(capacity, &options, &pool) == HUGEKIT_STATUS_OK);
    return pool;
}

static hugekit_stats stats_of(const hugekit_pool *pool)
{
    hugekit_stats stats = {.size = sizeof stats};
    CHECK(hugekit_pool_stats(pool, &stats) == HUGEKIT_STATUS_OK);
    CHECK(stats.page_size * (stats.holes + stats.clean + stats.in_use + stats.dirty) == hugekit_pool_capacity(pool));
    return stats;
}

static void hands_out_zeroes_again_and_again(void)
{
    hugekit_pool *pool = base_pages(8 * MIB);
    CHECK(hugekit_pool_backing(pool) == HUGEKIT_BACKING_BASE && hugekit_pool_fallbacks(pool)[0] == 0);
    for (int round = 0; round < 5; round++) {
        hugekit_region *region = NULL;
        CHECK(hugekit_region_new(pool, 5 * MIB + 1, NULL, &region) == HUGEKIT_STATUS_OK);
        unsigned char *bytes = hugekit_region_address(region);
        size_t mapped = hugekit_region_mapped_len(region);
        CHECK(hugekit_region_len(region) == 5 * MIB + 1 && mapped >= 5 * MIB + 1 && mapped % 4096 == 0);
        CHECK(hugekit_region_serving(region) == 0);
        CHECK(is_zero(bytes, mapped));
        memset(bytes, 0xff, mapped);
        hugekit_region_free(region);
    }
    CHECK(stats_of(pool).allocations == 5);
    CHECK(hugekit_pool_pause_scrubbing(pool) == HUGEKIT_STATUS_OK);
    uint64_t scrubbed = 0;
    CHECK(hugekit_pool_scrub(pool, &scrubbed) == HUGEKIT_STATUS_OK);
    CHECK(stats_of(pool).dirty == 0 && stats_of(pool).scrubbed_on_request == scrubbed);
    CHECK(hugekit_pool_scrub(pool, NULL) == HUGEKIT_STATUS_OK);
    CHECK(hugekit_pool_resume_scrubbing(pool) == HUGEKIT_STATUS_OK);
    hugekit_pool_free(pool);
}

static void populates_all_of_it_or_each_region(void)
{
    hugekit_pool_options options = {.size = sizeof options, .backing = HUGEKIT_BACKING_BASE};
    hugekit_pool *pool = NULL;
    CHECK(hugekit_pool_new(4 * MIB, &options, &pool) == HUGEKIT_STATUS_OK);
    CHECK(stats_of(pool).holes == 0 && stats_of(pool).populated == 4 * MIB);
    hugekit_pool_free(pool);
    options.flags = HUGEKIT_POOL_POPULATE_ON_ALLOCATION;
    CHECK(hugekit_pool_new(4 * MIB, &options, &pool) == HUGEKIT_STATUS_OK);
    CHECK(stats_of(pool).clean == 0 && stats_of(pool).populated == 0);
    hugekit_region *region = NULL;
    CHECK(hugekit_region_new(pool, MIB, NULL, &region) == HUGEKIT_STATUS_OK);
    CHECK(stats_of(pool).populated == MIB && is_zero(hugekit_region_address(region), MIB));
    hugekit_region_free(region);
    hugekit_pool_free(pool);
}

static void a_shortage_is_an_error_and_takes_nothing(void)
{
    hugekit_pool *pool = base_pages(2 * MIB);
    hugekit_region *region = NULL;
    CHECK_REFUSED(HUGEKIT_STATUS_NO_MEMORY, hugekit_region_new(pool, 3 * MIB, NULL, &region), "3 MiB");
    CHECK(hugekit_last_remedy()[0] != 0 && region == NULL);
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_region_new(pool, 0, NULL, &region), "0 bytes requested");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_region_new(pool, SIZE_MAX, NULL, &region), "addresses");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_region_new(pool, 1, NULL, NULL), "region");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_region_new(NULL, 1, NULL, &region), "pool");
    CHECK(stats_of(pool).in_use == 0 && region == NULL);
    hugekit_pool_free(pool);

    hugekit_pool_options options = {.size = sizeof options};
    options.backing = HUGEKIT_BACKING_HUGETLB2M;
    options.flags = HUGEKIT_POOL_STRICT;
    pool = NULL;
    hugekit_status status = hugekit_pool_new((size_t)1 << 46, &options, &pool);
    CHECK(status == HUGEKIT_STATUS_NO_MEMORY || status == HUGEKIT_STATUS_UNSUPPORTED);
    CHECK(pool == NULL);
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_pool_new(0, NULL, &pool), "0 bytes requested");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_pool_new(1, NULL, NULL), "pool");
    options.backing = 9;
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_pool_new(1, &options, &pool), "backing");
    options.backing = 0;
    options.flags = 1u << 20;
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_pool_new(1, &options, &pool), "flags");
    options.flags = 0;
    options.nodes = HUGEKIT_NODES_BIND;
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_pool_new(1, &options, &pool), "nodes");
    options.nodes = 0;
    options.scrub_below = 2;
    options.scrub_up_to = 1;
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_pool_new(1, &options, &pool), "watermark");
}

static void without_huge_pages_it_says_what_it_took_and_why(void)
{
    hugekit_pool *pool = NULL;
    CHECK(hugekit_pool_new(4 * MIB, NULL, &pool) == HUGEKIT_STATUS_OK);
    int fell = hugekit_pool_backing(pool) != HUGEKIT_BACKING_HUGETLB2M;
    CHECK(fell == (hugekit_pool_fallbacks(pool)[0] != 0));
    CHECK(hugekit_pool_page_size(pool) >= 4096 && hugekit_pool_capacity(pool) >= 4 * MIB);
    hugekit_pool_free(pool);
    CHECK(hugekit_pool_backing(NULL) == 0 && hugekit_pool_capacity(NULL) == 0 && hugekit_pool_fallbacks(NULL)[0] == 0);
}

static void ranges_are_populated_released_and_checked(void)
{
    hugekit_pool *pool = base_pages(4 * MIB);
    hugekit_region *region = NULL;
    CHECK(hugekit_region_new(pool, 4 * MIB, NULL, &region) == HUGEKIT_STATUS_OK);
    unsigned char *bytes = hugekit_region_address(region);
    hugekit_options options = {.size = sizeof options, .threads = 2};
    hugekit_report report = {.size = sizeof report};
    CHECK(hugekit_region_populate(region, 0, 4 * MIB, &options, &report) == HUGEKIT_STATUS_OK);
    CHECK(report.bytes == 4 * MIB);
    memset(bytes, 1, 4 * MIB);
    CHECK(hugekit_region_prepare_write(region, 0, 4 * MIB) == HUGEKIT_STATUS_OK);
    CHECK(hugekit_region_release(region, MIB, MIB) == HUGEKIT_STATUS_OK);
    CHECK(bytes[MIB - 1] == 1 && is_zero(bytes + MIB, MIB) && bytes[2 * MIB] == 1);
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_region_release(region, 1, 4096), "whole pages");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_region_release(region, MIB, SIZE_MAX), "outside");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_region_populate(region, 4 * MIB, 1, NULL, NULL), "outside");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_region_prepare_write(NULL, 0, 1), "region");
    CHECK(bytes[1] == 1);

    int descriptor = -1;
    uint64_t offset = 1;
    CHECK(hugekit_region_file(region, &descriptor, &offset) == HUGEKIT_STATUS_OK);
    unsigned char *device = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, (off_t)offset);
    CHECK(device != MAP_FAILED && device[0] == 1);
    device[0] = 5;
    CHECK(bytes[0] == 5);
    munmap(device, 4096);
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_region_file(region, NULL, &offset), "NULL");
    CHECK(hugekit_region_retire(region) == HUGEKIT_STATUS_OK);
    CHECK(stats_of(pool).holes * 4096 == 4 * MIB);
    CHECK(hugekit_region_retire(NULL) == HUGEKIT_STATUS_OK);
    hugekit_region_free(NULL);
    hugekit_pool_free(pool);
}

static void the_region_outlives_the_handle_of_its_pool(void)
{
    hugekit_pool *pool = base_pages(MIB);
    hugekit_region *region = NULL;
    CHECK(hugekit_region_new(pool, MIB, NULL, &region) == HUGEKIT_STATUS_OK);
    hugekit_pool_free(pool);
    hugekit_pool_free(NULL);
    memset(hugekit_region_address(region), 3, MIB);
    hugekit_region_free(region);
}

static void a_forked_child_has_nothing_of_it_and_harms_nothing(void)
{
    hugekit_pool *pool = base_pages(MIB);
    hugekit_region *region = NULL;
    CHECK(hugekit_region_new(pool, MIB / 2, NULL, &region) == HUGEKIT_STATUS_OK);
    unsigned char *bytes = hugekit_region_address(region);
    bytes[0] = 9;
    pid_t child = fork();
    if (child == 0) {
        hugekit_region *another = NULL;
        CHECK_REFUSED(HUGEKIT_STATUS_FORKED, hugekit_region_new(pool, 1, NULL, &another), "forked");
        CHECK(hugekit_region_release(region, 0, 4096) == HUGEKIT_STATUS_FORKED);
        hugekit_region_free(region);
        hugekit_pool_free(pool);
        pool = base_pages(MIB);
        CHECK(hugekit_region_new(pool, 1, NULL, &another) == HUGEKIT_STATUS_OK);
        hugekit_region_free(another);
        hugekit_pool_free(pool);
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(bytes[0] == 9);
    hugekit_region_free(region);
    hugekit_pool_free(pool);
}

static int memory_of_one_length(size_t len)
{
    int file = memfd_create("adopted", MFD_ALLOW_SEALING | MFD_CLOEXEC);
    CHECK(file >= 0 && ftruncate(file, (off_t)len) == 0);
    CHECK(fcntl(file, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK) == 0);
    return file;
}

static void adopts_a_file_and_asks_a_broker(void)
{
    hugekit_pool_options options = {
        .size = sizeof options, .flags = HUGEKIT_POOL_ADOPT, .file = memory_of_one_length(4 * MIB)};
    hugekit_pool *pool = NULL;
    hugekit_region *region = NULL;
    CHECK(hugekit_pool_new(4 * MIB, &options, &pool) == HUGEKIT_STATUS_OK);
    CHECK(hugekit_pool_capacity(pool) == 4 * MIB);
    CHECK(hugekit_region_new(pool, 4 * MIB, NULL, &region) == HUGEKIT_STATUS_OK);
    CHECK(is_zero(hugekit_region_address(region), 4 * MIB));
    hugekit_region_free(region);
    hugekit_pool_free(pool);
    options.file = memory_of_one_length(4 * MIB);
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_pool_new(2 * MIB, &options, &pool), "2 MiB were asked for");
    CHECK(fcntl(options.file, F_GETFD) < 0);
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_pool_new(2 * MIB, &options, &pool), "no descriptor");
    hugekit_pool_options leased = {.size = sizeof leased, .broker = "/nonexistent/broker.sock"};
    CHECK_REFUSED(HUGEKIT_STATUS_UNSUPPORTED, hugekit_pool_new(4 * MIB, &leased, &pool), "no broker listens");
    CHECK(strstr(hugekit_last_remedy(), "hugekit broker") != NULL);
    leased.file = memory_of_one_length(4 * MIB);
    leased.flags = HUGEKIT_POOL_ADOPT;
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_pool_new(4 * MIB, &leased, &pool), "a broker and a file");
}

int main(void)
{
    hands_out_zeroes_again_and_again();
    populates_all_of_it_or_each_region();
    a_shortage_is_an_error_and_takes_nothing();
    without_huge_pages_it_says_what_it_took_and_why();
    ranges_are_populated_released_and_checked();
    the_region_outlives_the_handle_of_its_pool();
    adopts_a_file_and_asks_a_broker();
    /* Memory of the parent's threads counts as lost in a child. */
    if (!getenv("UNDER_VALGRIND"))
        a_forked_child_has_nothing_of_it_and_harms_nothing();
    return 0;
}
