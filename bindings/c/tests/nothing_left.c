/* A process that has no mapping, no address or no data left, and nothing in malloc's lists: the first call says
 * HUGEKIT_STATUS_NO_MEMORY, or works; nothing ends the process, and handles can be freed. Each in a child. */
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define MIB ((size_t)1 << 20)
#define LEN (4 * MIB)

static void lower(int resource)
{
    struct rlimit limit;
    CHECK(getrlimit(resource, &limit) == 0);
    limit.rlim_cur = 1;
    CHECK(setrlimit(resource, &limit) == 0);
}

/* Neighbours with different rights never become one mapping. */
static void map_all(void)
{
    for (int page = 0;; page++) {
        int rights = page % 2 == 0 ? PROT_READ : PROT_NONE;
        if (mmap(NULL, 4096, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
            return;
    }
}

static void lack(int what)
{
    if (what == 0)
        map_all();
    else
        lower(what == 1 ? RLIMIT_AS : RLIMIT_DATA);
    for (size_t size = MIB; size >= 16;)
        if (malloc(size) == NULL)
            size /= 2;
}

/* Without printf, which allocates. */
#define WORKS_OR_SHORT(call)                                                                       \
    do {                                                                                           \
        hugekit_status ended = (call);                                                             \
        if (ended != HUGEKIT_STATUS_OK && ended != HUGEKIT_STATUS_NO_MEMORY)                       \
            _exit(__LINE__ % 199 + 1);                                                             \
        if (ended != HUGEKIT_STATUS_OK && hugekit_last_error()[0] == '\0')                         \
            _exit(200);                                                                            \
    } while (0)

static void told(size_t done, size_t total, void *context)
{
    (void)done, (void)total;
    ++*(int *)context;
}

static void first_calls(char *memory, char *other)
{
    hugekit_pool *pool = NULL;
    hugekit_snapshot *snapshot = NULL;
    hugekit_snapshot *several[2] = {NULL, NULL};
    hugekit_range ranges[2] = {{memory, LEN}, {other, LEN}};
    hugekit_changes *changes = NULL;
    hugekit_reserve *reserve = NULL;
    int calls = 0;
    hugekit_cancel *cancel = hugekit_cancel_new();
    hugekit_options options = {.size = sizeof options, .threads = 2, .progress = told, .context = &calls, .cancel = cancel};
    WORKS_OR_SHORT(hugekit_pool_new(LEN, NULL, &pool));
    WORKS_OR_SHORT(hugekit_snapshot_new(memory, LEN, NULL, &snapshot));
    WORKS_OR_SHORT(hugekit_snapshot_new_several(ranges, 2, NULL, several));
    WORKS_OR_SHORT(hugekit_changes_first(memory, LEN, NULL, &changes));
    WORKS_OR_SHORT(hugekit_reserve_new(2 * MIB, &reserve));
    WORKS_OR_SHORT(hugekit_populate(memory, LEN, &options, NULL));
    if (hugekit_clear_with(other, LEN, &options, NULL) != HUGEKIT_STATUS_OK || calls == 0 || other[LEN - 1] != 0)
        _exit(201);
    if (hugekit_copy(memory, other, LEN) != HUGEKIT_STATUS_OK || memory[0] != 0)
        _exit(202);
    /* A mistake is told from a shortage. */
    if (hugekit_pool_new(LEN, NULL, NULL) != HUGEKIT_STATUS_INVALID || hugekit_last_error()[0] == '\0')
        _exit(203);
    hugekit_changes_free(changes);
    hugekit_snapshot_free(snapshot);
    hugekit_snapshot_free(several[0]);
    hugekit_snapshot_free(several[1]);
    hugekit_reserve_free(reserve);
    hugekit_pool_free(pool);
    hugekit_cancel_free(cancel);
}

static void later_calls(char *memory, int what)
{
    hugekit_pool *pool = NULL;
    hugekit_region *region = NULL, *region_to_go = NULL, *fork = NULL, *more = NULL;
    hugekit_snapshot *snapshot = NULL, *of_region = NULL;
    hugekit_view *view = NULL;
    hugekit_pin *pin = NULL;
    hugekit_pool_options base = {.size = sizeof base, .backing = HUGEKIT_BACKING_BASE};
    CHECK(hugekit_pool_new(4 * LEN, &base, &pool) == HUGEKIT_STATUS_OK);
    CHECK(hugekit_region_new(pool, LEN, NULL, &region) == HUGEKIT_STATUS_OK);
    CHECK(hugekit_region_new(pool, LEN, NULL, &region_to_go) == HUGEKIT_STATUS_OK);
    hugekit_status taken = hugekit_snapshot_new(memory, LEN, NULL, &snapshot);
    lack(what);
    WORKS_OR_SHORT(hugekit_region_new(pool, LEN, NULL, &more));
    hugekit_status forked = hugekit_region_fork(region, NULL, &fork);
    if (forked != HUGEKIT_STATUS_NOT_PERMITTED && forked != HUGEKIT_STATUS_UNSUPPORTED)
        WORKS_OR_SHORT(forked);
    (void)hugekit_region_snapshot(region, NULL, &of_region);
    WORKS_OR_SHORT(hugekit_region_pin(region, 0, 4096, &pin));
    if (taken == HUGEKIT_STATUS_OK) {
        WORKS_OR_SHORT(hugekit_snapshot_view(snapshot, &view));
        hugekit_view_free(view);
        WORKS_OR_SHORT(hugekit_snapshot_read(snapshot, 0, (char *)hugekit_region_address(region), LEN));
    }
    hugekit_snapshot_free(snapshot);
    hugekit_snapshot_free(of_region);
    hugekit_pin_free(pin);
    hugekit_region_free(more);
    hugekit_region_free(fork);
    hugekit_region_free(region);
    hugekit_region_free(region_to_go);
    hugekit_pool_free(pool);
}

static char *anonymous(void)
{
    char *memory = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    memset(memory, 7, LEN);
    return memory;
}

static void in_a_child(int what, int is_first)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char *memory = anonymous(), *other = anonymous();
        alarm(60);
        if (is_first) {
            lack(what);
            first_calls(memory, other);
        } else {
            later_calls(memory, what);
        }
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    if (status != 0)
        fprintf(stderr, "what %d, first %d: status %#x\n", what, is_first, (unsigned)status);
    CHECK(status == 0);
}

int main(void)
{
    for (int what = 0; what < 3; what++) {
        in_a_child(what, 1);
        in_a_child(what, 0);
    }
}
