/* Forks of regions, and memory that is cleared at its first touch: each side has its own bytes. */
#include "check.h"

enum { MIB = 1 << 20, LEN = 2 * MIB };

static hugekit_region *region_of(const hugekit_pool *pool, const hugekit_region_options *options)
{
    hugekit_region *region = NULL;
    CHECK(hugekit_region_new(pool, LEN, options, &region) == HUGEKIT_STATUS_OK);
    return region;
}

static void each_side_has_its_own_bytes(const hugekit_pool *pool)
{
    hugekit_region *parent = region_of(pool, NULL), *fork = NULL, *grandchild = NULL;
    unsigned char *bytes = hugekit_region_address(parent);
    memset(bytes, 1, LEN);
    CHECK(hugekit_region_fork(parent, NULL, &fork) == HUGEKIT_STATUS_OK);
    size_t shared = 0;
    CHECK(hugekit_region_shared_bytes(parent, &shared) == HUGEKIT_STATUS_OK && shared == LEN);
    unsigned char *theirs = hugekit_region_address(fork);
    CHECK(theirs != bytes && memcmp(theirs, bytes, LEN) == 0);
    bytes[5] = 2;
    theirs[6] = 3;
    CHECK(bytes[6] == 1 && theirs[5] == 1);
    CHECK(hugekit_region_shared_bytes(parent, &shared) == HUGEKIT_STATUS_OK && shared < LEN);
    CHECK(hugekit_region_fork(fork, NULL, &grandchild) == HUGEKIT_STATUS_OK);
    hugekit_region_free(parent);
    hugekit_region_free(fork);
    unsigned char *last = hugekit_region_address(grandchild);
    CHECK(last[5] == 1 && last[6] == 3 && last[LEN - 1] == 1);
    hugekit_region_free(grandchild);
}

/* A device goes on writing the pages that it holds: only where the range is pinned do they stay the region's. */
static void a_pinned_range_is_copied_at_once(const hugekit_pool *pool)
{
    hugekit_region *parent = region_of(pool, NULL), *fork = NULL;
    unsigned char *bytes = hugekit_region_address(parent);
    memset(bytes, 1, LEN);
    hugekit_pin *pin = NULL, *other = NULL;
    CHECK(hugekit_region_pin(parent, MIB, 4096, &pin) == HUGEKIT_STATUS_OK && pin);
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_region_pin(parent, LEN, 1, &other), "outside");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_region_pin(parent, 0, 1, NULL), "pin");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_region_pin(NULL, 0, 1, &other), "region");
    CHECK(other == NULL);
    hugekit_fork_options options = {.size = sizeof options, .granule = 4096};
    CHECK(hugekit_region_fork(parent, &options, &fork) == HUGEKIT_STATUS_OK);
    size_t shared = 0;
    CHECK(hugekit_region_shared_bytes(parent, &shared) == HUGEKIT_STATUS_OK && shared == LEN - 4096);
    unsigned char *theirs = hugekit_region_address(fork);
    bytes[MIB] = 2;
    CHECK(theirs[MIB] == 1);
    hugekit_region_free(fork);

    hugekit_snapshot *snapshot = NULL;
    hugekit_snapshot_stats stats = {.size = sizeof stats};
    CHECK(hugekit_region_snapshot(parent, NULL, &snapshot) == HUGEKIT_STATUS_OK);
    CHECK(hugekit_snapshot_statistics(snapshot, &stats) == HUGEKIT_STATUS_OK && stats.copied_by_others == 1);
    hugekit_snapshot_free(snapshot);
    hugekit_pin_free(pin);
    hugekit_pin_free(NULL);
    CHECK(hugekit_region_snapshot(parent, NULL, &snapshot) == HUGEKIT_STATUS_OK);
    CHECK(hugekit_snapshot_statistics(snapshot, &stats) == HUGEKIT_STATUS_OK && stats.copied_by_others == 0);
    hugekit_snapshot_free(snapshot);
    hugekit_region_free(parent);
}

/* The memory is a pin's, too: it goes back when both are freed, and cannot be retired before. */
static void a_pin_keeps_the_memory(const hugekit_pool *pool)
{
    hugekit_stats before = {.size = sizeof before}, stats = {.size = sizeof stats};
    CHECK(hugekit_pool_stats(pool, &before) == HUGEKIT_STATUS_OK);
    hugekit_region *region = region_of(pool, NULL);
    unsigned char *bytes = hugekit_region_address(region);
    hugekit_pin *pin = NULL;
    CHECK(hugekit_region_pin(region, 0, 1, &pin) == HUGEKIT_STATUS_OK);
    CHECK_REFUSED(HUGEKIT_STATUS_CONFLICT, hugekit_region_retire(region), "pinned");
    CHECK(hugekit_region_len(region) == LEN);
    hugekit_region_free(region);
    bytes[0] = 1;
    CHECK(hugekit_pool_stats(pool, &stats) == HUGEKIT_STATUS_OK && stats.in_use > before.in_use);
    hugekit_pin_free(pin);
    CHECK(hugekit_pool_stats(pool, &stats) == HUGEKIT_STATUS_OK && stats.in_use == before.in_use);
}

static void wishes_are_checked(const hugekit_pool *pool)
{
    hugekit_region *parent = region_of(pool, NULL), *fork = NULL;
    hugekit_fork_options options = {.size = sizeof options, .granule = 3};
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_region_fork(parent, &options, &fork), "granules");
    options.granule = 4096;
    options.fault_mode = 7;
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_region_fork(parent, &options, &fork), "fault_mode");
    hugekit_fork_options reserved = {.size = sizeof reserved, .reserved = 7};
    hugekit_snapshot *snapshot = NULL;
    const char *named = "hugekit_fork_options.reserved is 0x7";
    CHECK_REFUSED(HUGEKIT_STATUS_UNSUPPORTED, hugekit_region_fork(parent, &reserved, &fork), named);
    CHECK_REFUSED(HUGEKIT_STATUS_UNSUPPORTED, hugekit_region_snapshot(parent, &reserved, &snapshot), named);
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_region_fork(parent, NULL, NULL), "fork");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_region_shared_bytes(parent, NULL), "NULL");
    CHECK(fork == NULL);
    hugekit_region_free(parent);
}

static void what_is_dirty_is_cleared_at_its_first_touch(const hugekit_pool *pool)
{
    CHECK(hugekit_pool_pause_scrubbing(pool) == HUGEKIT_STATUS_OK);
    CHECK(hugekit_pool_scrub(pool, NULL) == HUGEKIT_STATUS_OK);
    hugekit_region *all = NULL;
    CHECK(hugekit_region_new(pool, hugekit_pool_capacity(pool), NULL, &all) == HUGEKIT_STATUS_OK);
    memset(hugekit_region_address(all), 1, hugekit_pool_capacity(pool));
    hugekit_region_free(all);
    hugekit_region_options options = {.size = sizeof options, .clearing = HUGEKIT_CLEARING_ON_FAULT};
    hugekit_region *region = region_of(pool, &options);
    CHECK(hugekit_region_serving(region) != 0);
    unsigned char *bytes = hugekit_region_address(region);
    for (size_t at = 0; at < LEN; at += 1000)
        CHECK(bytes[at] == 0);
    hugekit_stats stats = {.size = sizeof stats};
    CHECK(hugekit_pool_stats(pool, &stats) == HUGEKIT_STATUS_OK && stats.scrubbed_at_fault >= LEN);
    hugekit_region_free(region);
}

int main(void)
{
    hugekit_machine machine = {.size = sizeof machine};
    CHECK(hugekit_machine_query(&machine) == HUGEKIT_STATUS_OK);
    if (machine.userfaultfd == HUGEKIT_USERFAULTFD_NONE)
        SKIP("this process may not use userfaultfd");
    hugekit_pool_options options = {.size = sizeof options, .backing = HUGEKIT_BACKING_BASE};
    options.name = "forks";
    hugekit_pool *pool = NULL;
    CHECK(hugekit_pool_new(4 * LEN, &options, &pool) == HUGEKIT_STATUS_OK);
    each_side_has_its_own_bytes(pool);
    a_pinned_range_is_copied_at_once(pool);
    a_pin_keeps_the_memory(pool);
    wishes_are_checked(pool);
    what_is_dirty_is_cleared_at_its_first_touch(pool);
    hugekit_pool_free(pool);
    return 0;
}
