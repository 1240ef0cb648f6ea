/* Snapshots: what was there when they were taken, whatever writers do, from malloc and from pools. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

enum { MIB = 1 << 20, LEN = 8 * MIB };

static int all(const unsigned char *bytes, size_t len, unsigned char value)
{
    for (size_t at = 0; at < len; at++)
        if (bytes[at] != value)
            return 0;
    return 1;
}

static void skip_unless_possible(hugekit_status status)
{
    if (status == HUGEKIT_STATUS_NOT_PERMITTED || status == HUGEKIT_STATUS_UNSUPPORTED)
        SKIP(hugekit_last_error());
}

static void reads_what_was_there(void)
{
    unsigned char *bytes = malloc(LEN), *copy = malloc(LEN);
    CHECK(bytes && copy);
    memset(bytes, 1, LEN);
    hugekit_snapshot *snapshot = NULL;
    hugekit_status status = hugekit_snapshot_new(bytes, LEN, NULL, &snapshot);
    skip_unless_possible(status);
    CHECK(status == HUGEKIT_STATUS_OK && hugekit_snapshot_len(snapshot) == LEN);
    CHECK(hugekit_snapshot_serving(snapshot) != 0);
    memset(bytes + MIB, 2, LEN - MIB);
    CHECK(hugekit_snapshot_read(snapshot, 5, copy, LEN - 5) == HUGEKIT_STATUS_OK);
    CHECK(all(copy, LEN - 5, 1) && bytes[LEN - 1] == 2);
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_snapshot_read(snapshot, LEN, copy, 1), "8388609");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_snapshot_read(snapshot, 0, NULL, 1), "to");
    CHECK(hugekit_snapshot_prepare_write(snapshot, 0, MIB) == HUGEKIT_STATUS_OK);
    hugekit_snapshot_stats stats = {.size = sizeof stats};
    CHECK(hugekit_snapshot_statistics(snapshot, &stats) == HUGEKIT_STATUS_OK);
    CHECK(stats.granules > 0 && stats.copied_by_writers > 0 && stats.retained <= stats.cap);
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_snapshot_copy(snapshot, copy, 5, NULL), "not 5");
    CHECK(hugekit_snapshot_copy(snapshot, copy, LEN, NULL) == HUGEKIT_STATUS_OK);
    CHECK(all(copy, LEN, 1));
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_snapshot_copy(snapshot, copy, LEN, NULL), "ended");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_snapshot_read(snapshot, 0, copy, 1), "ended");
    CHECK(hugekit_snapshot_len(snapshot) == 0 && hugekit_snapshot_serving(snapshot) == 0);
    CHECK(hugekit_snapshot_statistics(snapshot, &stats) == HUGEKIT_STATUS_OK && stats.granules > 0);
    hugekit_snapshot_free(snapshot);
    free(bytes);
    free(copy);
}

static unsigned char *written;
static atomic_int stop;

static void *write_on(void *argument)
{
    for (unsigned char value = 2; !atomic_load(&stop); value = (unsigned char)(value == 255 ? 2 : value + 1))
        for (size_t at = 0; at < LEN; at += 64)
            written[at] = value;
    return argument;
}

/* What a file has is one moment, although a thread writes all the time; told in pieces. */
static void tell(size_t done, size_t total, void *context)
{
    CHECK(done <= total);
    *(size_t *)context = done;
}

static void a_file_has_one_moment(void)
{
    written = malloc(LEN);
    unsigned char *read = malloc(LEN);
    CHECK(written && read);
    memset(written, 1, LEN);
    hugekit_snapshot_options options = {.size = sizeof options, .max_cow_bytes = LEN, .populate_copies = LEN};
    hugekit_snapshot *snapshot = NULL;
    CHECK(hugekit_snapshot_new(written, LEN, &options, &snapshot) == HUGEKIT_STATUS_OK);
    pthread_t writer;
    CHECK(pthread_create(&writer, NULL, write_on, NULL) == 0);
    FILE *file = tmpfile();
    CHECK(file);
    size_t done = 0;
    hugekit_options told = {.size = sizeof told, .progress = tell, .context = &done};
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_snapshot_write(snapshot, -1, &told), "descriptor");
    CHECK(hugekit_snapshot_write(snapshot, fileno(file), &told) == HUGEKIT_STATUS_OK);
    CHECK(done == LEN && pread(fileno(file), read, LEN, 0) == LEN && all(read, LEN, 1));
    atomic_store(&stop, 1);
    CHECK(pthread_join(writer, NULL) == 0);
    fclose(file);
    hugekit_snapshot_free(snapshot);
    free(read);
    free(written);
}

struct node {
    struct node *next;
    size_t number;
};

/* A list is walked by its own pointers as it was, although its owner has cut it since. */
static void pointers_are_followed_in_a_view(void)
{
    enum { NODES = 1000 };
    struct node *nodes = malloc(LEN);
    CHECK(nodes);
    size_t places = LEN / sizeof *nodes;
    for (size_t at = 0; at < NODES; at++) {
        struct node *node = &nodes[at * 7919 % places];
        node->number = at;
        node->next = at + 1 < NODES ? &nodes[(at + 1) * 7919 % places] : NULL;
    }
    hugekit_snapshot *snapshot = NULL;
    hugekit_view *view = NULL;
    CHECK(hugekit_snapshot_new(nodes, LEN, NULL, &snapshot) == HUGEKIT_STATUS_OK);
    memset(nodes, 0xff, LEN);
    CHECK(hugekit_snapshot_view(snapshot, &view) == HUGEKIT_STATUS_OK && hugekit_view_len(view) == LEN);
    const void *there = NULL;
    size_t count = 0;
    for (const struct node *next = nodes; next; count++) {
        CHECK(hugekit_view_rebase(view, next, sizeof *next, &there) == HUGEKIT_STATUS_OK);
        const struct node *node = there;
        CHECK((uintptr_t)node % sizeof(void *) == 0 && node->number == count);
        next = node->next;
    }
    CHECK(count == NODES);
    CHECK(hugekit_view_bytes(view, 0, sizeof *nodes, &there) == HUGEKIT_STATUS_OK);
    CHECK(((const struct node *)there)->next == &nodes[7919 % places]);
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_view_rebase(view, nodes - 1, 1, &there), "snapshot has");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_view_bytes(view, LEN, 1, &there), "8388609");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_view_bytes(view, 0, SIZE_MAX, &there), "requested");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_view_bytes(view, 0, 1, NULL), "NULL");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_view_bytes(NULL, 0, 1, &there), "view");
    /* What it shows stays: the snapshot cannot be read away beneath it, nor freed. */
    unsigned char *copy = malloc(LEN);
    CHECK(copy);
    CHECK_REFUSED(HUGEKIT_STATUS_CONFLICT, hugekit_snapshot_copy(snapshot, copy, LEN, NULL), "view");
    hugekit_snapshot_free(snapshot);
    CHECK(hugekit_view_bytes(view, LEN / 2, LEN / 2, &there) == HUGEKIT_STATUS_OK);
    hugekit_view_free(view);
    hugekit_view_free(NULL);
    CHECK(hugekit_view_len(NULL) == 0);

    CHECK(hugekit_snapshot_new(nodes, LEN, NULL, &snapshot) == HUGEKIT_STATUS_OK);
    CHECK(hugekit_snapshot_view(snapshot, &view) == HUGEKIT_STATUS_OK);
    hugekit_view_free(view);
    CHECK(hugekit_snapshot_copy(snapshot, copy, LEN, NULL) == HUGEKIT_STATUS_OK && all(copy, LEN, 0xff));
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_snapshot_view(snapshot, &view), "ended");
    hugekit_snapshot_free(snapshot);
    free(copy);
    free(nodes);
}

/* Two that touch are one snapshot, of which each is read and freed for itself; the third lies elsewhere. */
static void several_are_taken_together(void)
{
    enum { COUNT = 3 };
    unsigned char *bytes = malloc(3 * LEN), *copy = malloc(LEN);
    CHECK(bytes && copy);
    hugekit_range ranges[COUNT] = {{bytes + LEN, LEN}, {bytes, LEN}, {bytes + 2 * LEN + MIB, LEN - MIB}};
    for (size_t at = 0; at < COUNT; at++)
        memset((void *)ranges[at].memory, (int)at + 1, ranges[at].len);
    hugekit_snapshot_options options = {.size = sizeof options, .max_cow_bytes = LEN};
    hugekit_snapshot *snapshots[COUNT] = {NULL, NULL, NULL};
    CHECK(hugekit_snapshot_new_several(ranges, COUNT, &options, snapshots) == HUGEKIT_STATUS_OK);
    hugekit_snapshot_stats stats = {.size = sizeof stats};
    CHECK(hugekit_snapshot_statistics(snapshots[0], &stats) == HUGEKIT_STATUS_OK && stats.cap == 2 * LEN);
    CHECK(hugekit_snapshot_statistics(snapshots[2], &stats) == HUGEKIT_STATUS_OK && stats.cap == LEN);
    memset(bytes, 9, 3 * LEN);
    for (size_t at = 0; at < COUNT; at++) {
        CHECK(hugekit_snapshot_len(snapshots[at]) == ranges[at].len);
        CHECK(hugekit_snapshot_copy(snapshots[at], copy, ranges[at].len, NULL) == HUGEKIT_STATUS_OK);
        CHECK(all(copy, ranges[at].len, (unsigned char)(at + 1)));
        hugekit_snapshot_free(snapshots[at]);
        snapshots[at] = NULL;
    }
    ranges[1].memory = NULL;
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_snapshot_new_several(ranges, COUNT, NULL, snapshots), "ranges[1]");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_snapshot_new_several(NULL, 1, NULL, snapshots), "NULL");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_snapshot_new_several(ranges, SIZE_MAX, NULL, snapshots), "ranges");
    CHECK(snapshots[0] == NULL && hugekit_snapshot_new_several(NULL, 0, NULL, NULL) == HUGEKIT_STATUS_OK);
    free(copy);
    free(bytes);
}

/* One reserve serves one snapshot after the other; who comes meanwhile goes without, and who is left has it. */
static void a_reserve_is_used_again_and_again(void)
{
    unsigned char *bytes = malloc(LEN);
    CHECK(bytes);
    hugekit_reserve *reserve = NULL;
    CHECK(hugekit_reserve_new(LEN - 1, &reserve) == HUGEKIT_STATUS_OK && hugekit_reserve_len(reserve) == LEN);
    hugekit_snapshot_options options = {.size = sizeof options, .max_cow_bytes = LEN, .reserve = reserve};
    hugekit_snapshot_stats stats = {.size = sizeof stats};
    hugekit_snapshot *snapshot = NULL, *other = NULL;
    for (unsigned char round = 1; round < 4; round++) {
        memset(bytes, round, LEN);
        CHECK(hugekit_snapshot_new(bytes, LEN, &options, &snapshot) == HUGEKIT_STATUS_OK);
        CHECK(hugekit_snapshot_new(bytes, LEN, &options, &other) == HUGEKIT_STATUS_OK);
        CHECK(hugekit_snapshot_statistics(other, &stats) == HUGEKIT_STATUS_OK && stats.reserved == 0);
        hugekit_snapshot_free(other);
        CHECK(hugekit_snapshot_statistics(snapshot, &stats) == HUGEKIT_STATUS_OK && stats.reserved > 0);
        memset(bytes, 9, LEN);
        unsigned char first[16];
        CHECK(hugekit_snapshot_read(snapshot, LEN / 2, first, sizeof first) == HUGEKIT_STATUS_OK);
        CHECK(all(first, sizeof first, round));
        if (round == 3) {
            hugekit_reserve_free(reserve);
            CHECK(hugekit_snapshot_read(snapshot, LEN / 2, first, sizeof first) == HUGEKIT_STATUS_OK);
            CHECK(all(first, sizeof first, round));
        }
        hugekit_snapshot_free(snapshot);
    }
    hugekit_reserve_free(NULL);
    CHECK(hugekit_reserve_len(NULL) == 0);
    CHECK(hugekit_reserve_new(SIZE_MAX / 2, &reserve) == HUGEKIT_STATUS_NO_MEMORY);
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_reserve_new(LEN, NULL), "reserve");
    free(bytes);
}

static void errors_name_what_is_in_the_way(void)
{
    hugekit_snapshot *snapshot = NULL;
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_snapshot_new(NULL, 5, NULL, &snapshot), "memory");
    CHECK(hugekit_snapshot_new(&snapshot, 0, NULL, &snapshot) == HUGEKIT_STATUS_INVALID);
    CHECK(hugekit_snapshot_new((void *)65536, 4096, NULL, &snapshot) == HUGEKIT_STATUS_INVALID);
    void *shared = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK_REFUSED(HUGEKIT_STATUS_UNSUPPORTED, hugekit_snapshot_new(shared, LEN, NULL, &snapshot), "shared");
    munmap(shared, LEN);
    hugekit_snapshot_options options = {.size = sizeof options, .granule = 9};
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_snapshot_new(&options, 1, &options, &snapshot), "granule");
    hugekit_snapshot_options reserved = {.size = sizeof reserved, .reserved = 1u << 31};
    CHECK_REFUSED(HUGEKIT_STATUS_UNSUPPORTED, hugekit_snapshot_new(&options, 1, &reserved, &snapshot),
                  "hugekit_snapshot_options.reserved is 0x80000000");
    CHECK(snapshot == NULL);
}

static void what_the_owner_unmaps_is_lost(void)
{
    unsigned char *bytes = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(bytes != MAP_FAILED);
    memset(bytes, 1, LEN);
    hugekit_snapshot *snapshot = NULL;
    CHECK(hugekit_snapshot_new(bytes, LEN, NULL, &snapshot) == HUGEKIT_STATUS_OK);
    munmap(bytes, LEN);
    unsigned char *copy = malloc(LEN);
    CHECK(hugekit_snapshot_copy(snapshot, copy, LEN, NULL) == HUGEKIT_STATUS_LOST);
    hugekit_snapshot_free(snapshot);
    free(copy);
}

static hugekit_status all_is_rewritten(unsigned char *bytes, size_t len, hugekit_snapshot_options *options, FILE *file)
{
    hugekit_snapshot *snapshot = NULL;
    memset(bytes, 1, len);
    CHECK(hugekit_snapshot_new(bytes, len, options, &snapshot) == HUGEKIT_STATUS_OK);
    memset(bytes, 2, len);
    rewind(file);
    hugekit_status status = hugekit_snapshot_write(snapshot, fileno(file), NULL);
    hugekit_snapshot_free(snapshot);
    return status;
}

/* By default no writer outruns a snapshot; with a limit, the remedy names one that works. */
static void what_is_all_rewritten_is_what_was(size_t len)
{
    unsigned char *bytes = malloc(len);
    FILE *file = tmpfile();
    CHECK(bytes && file);
    CHECK(all_is_rewritten(bytes, len, NULL, file) == HUGEKIT_STATUS_OK);
    rewind(file);
    CHECK(fread(bytes, 1, len, file) == len && all(bytes, len, 1));
    hugekit_snapshot_options options = {.size = sizeof options, .max_cow_bytes = 8 * MIB};
    CHECK(all_is_rewritten(bytes, len, &options, file) == HUGEKIT_STATUS_LOST);
    const char *named = hugekit_last_remedy() ? strstr(hugekit_last_remedy(), "set max_cow_bytes to ") : NULL;
    CHECK(named && sscanf(named, "set max_cow_bytes to %zu", &options.max_cow_bytes) == 1);
    CHECK(all_is_rewritten(bytes, len, &options, file) == HUGEKIT_STATUS_OK);
    fclose(file);
    free(bytes);
}

static void a_region_has_snapshots_that_outlive_it(void)
{
    hugekit_pool_options options = {.size = sizeof options, .backing = HUGEKIT_BACKING_BASE};
    hugekit_pool *pool = NULL;
    hugekit_region *region = NULL;
    hugekit_snapshot *snapshot = NULL;
    CHECK(hugekit_pool_new(2 * LEN, &options, &pool) == HUGEKIT_STATUS_OK);
    CHECK(hugekit_region_new(pool, LEN, NULL, &region) == HUGEKIT_STATUS_OK);
    unsigned char *bytes = hugekit_region_address(region), *copy = malloc(LEN);
    memset(bytes, 1, LEN);
    CHECK(hugekit_region_snapshot(region, NULL, &snapshot) == HUGEKIT_STATUS_OK);
    memset(bytes, 2, LEN / 2);
    hugekit_region_free(region);
    CHECK(hugekit_snapshot_read(snapshot, 0, copy, LEN) == HUGEKIT_STATUS_OK && all(copy, LEN, 1));
    hugekit_snapshot_free(snapshot);
    hugekit_snapshot_free(NULL);
    hugekit_pool_free(pool);
    free(copy);
}

/* Its arguments are the MiB of memory to rewrite: then this is all that is tested. */
int main(int count, char **arguments)
{
    for (int at = 1; at < count; at++)
        what_is_all_rewritten_is_what_was((size_t)atoi(arguments[at]) * MIB);
    if (count > 1)
        return 0;
    reads_what_was_there();
    a_file_has_one_moment();
    pointers_are_followed_in_a_view();
    several_are_taken_together();
    a_reserve_is_used_again_and_again();
    errors_name_what_is_in_the_way();
    what_the_owner_unmaps_is_lost();
    what_is_all_rewritten_is_what_was(64 * MIB);
    a_region_has_snapshots_that_outlive_it();
    return 0;
}
