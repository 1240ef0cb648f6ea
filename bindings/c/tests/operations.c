/* Runs a sequence of operations through the C interface and compares every byte with a plain model.
 *
 * A sequence is text, an operation a line: a verb and four numbers, of which each is taken modulo what there is, so that
 * any line may be left out of a sequence and the rest still means something. What an operation may answer is stated
 * beside it; anything else, any byte that differs, any signal ends the program with a message. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum { POOLS = 3, PLACES = 8, MOMENTS = 6, PINS = 4, MIB = 1 << 20, MOST = 4 * MIB, WORD = sizeof(uint64_t) };

/* Statuses as a set. */
#define ONE_OF(status) (1u << (status))
enum {
    FINE = ONE_OF(HUGEKIT_STATUS_OK),
    /* Memory is short, or faults cannot be served here: nothing has changed. */
    LACKING = ONE_OF(HUGEKIT_STATUS_NO_MEMORY) | ONE_OF(HUGEKIT_STATUS_NOT_PERMITTED)
              | ONE_OF(HUGEKIT_STATUS_UNSUPPORTED),
    CONFLICT = ONE_OF(HUGEKIT_STATUS_CONFLICT),
    LOST = ONE_OF(HUGEKIT_STATUS_LOST),
    INVALID = ONE_OF(HUGEKIT_STATUS_INVALID),
};

static size_t line_number;
static char line_text[128];

_Noreturn static void fail(const char *what)
{
    fprintf(stderr, "line %zu: %s: %s\nlast error: %s\n", line_number, line_text, what, hugekit_last_error());
    exit(1);
}

/* Whether it succeeded; ends the program if the answer is none of those it may be. */
static int allowed(hugekit_status status, unsigned set)
{
    if (!(set & ONE_OF(status)))
        fail(hugekit_status_name((int)status));
    return status == HUGEKIT_STATUS_OK;
}

/* Memory that is neither malloc's nor anything's that is snapshotted. */
static unsigned char *pages(size_t len)
{
    void *pages = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        fail("no memory for the model");
    return pages;
}

struct place {
    /* What a pool allocated, or NULL for plain memory. */
    hugekit_region *region;
    unsigned char *bytes;
    size_t len;
    /* What the bytes are. */
    unsigned char *model;
    /* A thread that writes the last quarter, if one is at it; the round that it is in. */
    pthread_t writer;
    int is_written;
    atomic_int stop;
    _Atomic uint64_t round;
};

/* What a snapshot must show, or NULL as model if there is none. */
struct moment {
    hugekit_snapshot *snapshot;
    hugekit_view *view;
    unsigned char *model;
    size_t len;
    struct place *of;
    size_t offset;
    /* Part of the memory was discarded or unmapped since, or little may be retained. */
    int may_be_lost;
    /* Bytes from here on raced with a writer, between these rounds. */
    size_t raced;
    uint64_t first, last;
};

static hugekit_pool *pools[POOLS];
static struct place places[PLACES];
static struct moment moments[MOMENTS];
static struct { hugekit_pin *pin; struct place *of; } pins[PINS];
static hugekit_reserve *reserve;

static size_t written_from(const struct place *place)
{
    return place->len / 4 * 3 / WORD * WORD;
}

/* A range of a place that its writer leaves alone. */
static size_t within(const struct place *place, unsigned number, size_t *len)
{
    size_t most = place->is_written ? written_from(place) : place->len;
    size_t start = (size_t)number * 2654435761u % most;
    *len = *len % (most - start) + 1;
    return start;
}

static void compare(const struct place *place)
{
    size_t most = place->is_written ? written_from(place) : place->len;
    if (memcmp(place->bytes, place->model, most) != 0) {
        size_t at = 0;
        while (place->bytes[at] == place->model[at])
            at++;
        fprintf(stderr, "place %td, byte %zu of %zu: %d, not %d\n", place - places, at, place->len, place->bytes[at],
                place->model[at]);
        fail("memory differs");
    }
}

static void *write_rounds(void *argument)
{
    struct place *place = argument;
    _Atomic uint64_t *words = (void *)(place->bytes + written_from(place));
    size_t count = (place->len - written_from(place)) / WORD;
    while (!atomic_load(&place->stop)) {
        uint64_t round = atomic_load(&place->round) + 1;
        atomic_store(&place->round, round);
        for (size_t at = 0; at < count; at++)
            atomic_store_explicit(&words[at], round, memory_order_relaxed);
    }
    return NULL;
}

static void start_writer(struct place *place)
{
    if (!place->bytes || place->is_written || place->len < 64)
        return;
    memset(place->bytes + written_from(place), 0, place->len - written_from(place));
    atomic_store(&place->stop, 0);
    atomic_store(&place->round, 0);
    place->is_written = 1;
    if (pthread_create(&place->writer, NULL, write_rounds, place) != 0)
        fail("no thread");
}

static void stop_writer(struct place *place)
{
    if (!place->is_written)
        return;
    atomic_store(&place->stop, 1);
    pthread_join(place->writer, NULL);
    place->is_written = 0;
    size_t from = written_from(place);
    uint64_t round = atomic_load(&place->round);
    for (size_t at = from; at + WORD <= place->len; at += WORD)
        if (memcmp(place->bytes + at, &round, WORD) != 0)
            fail("a thread's stores are gone");
    memcpy(place->model + from, place->bytes + from, place->len - from);
}

/* What raced with a writer is of one of the rounds that it was in. */
static void check_raced(const unsigned char *bytes, size_t len, uint64_t first, uint64_t last)
{
    for (size_t at = 0; at + WORD <= len; at += WORD) {
        uint64_t word;
        memcpy(&word, bytes + at, WORD);
        if (word + 1 < first || word > last + 1)
            fail("a word is of no round that the writer was in");
    }
}

static void end_moment(struct moment *moment)
{
    if (moment->view)
        hugekit_view_free(moment->view);
    hugekit_snapshot_free(moment->snapshot);
    if (moment->model)
        munmap(moment->model, MOST);
    memset(moment, 0, sizeof *moment);
}

/* Snapshots of plain memory lose what its owner takes away; those of regions keep it. */
static void endanger(const struct place *place)
{
    for (size_t at = 0; at < MOMENTS; at++)
        if (moments[at].of == place && !place->region)
            moments[at].may_be_lost = 1;
}

static void forget(const struct place *place)
{
    for (size_t at = 0; at < MOMENTS; at++)
        if (moments[at].of == place)
            moments[at].of = NULL;
}

static int is_pinned(const struct place *place)
{
    for (size_t at = 0; at < PINS; at++)
        if (pins[at].pin && pins[at].of == place)
            return 1;
    return 0;
}

static void free_pins(const struct place *place)
{
    for (size_t at = 0; at < PINS; at++)
        if (pins[at].pin && (!place || pins[at].of == place)) {
            hugekit_pin_free(pins[at].pin);
            pins[at].pin = NULL;
        }
}

static void drop_place(struct place *place)
{
    if (!place->bytes)
        return;
    stop_writer(place);
    compare(place);
    endanger(place);
    forget(place);
    free_pins(place);
    if (place->region)
        hugekit_region_free(place->region);
    else
        munmap(place->bytes, MOST);
    munmap(place->model, MOST);
    memset(place, 0, sizeof *place);
}

static void check_stats(const hugekit_pool *pool)
{
    hugekit_stats stats = {.size = sizeof stats};
    allowed(hugekit_pool_stats(pool, &stats), FINE);
    if (stats.page_size * (stats.holes + stats.clean + stats.in_use + stats.dirty) != hugekit_pool_capacity(pool))
        fail("the states of pages do not add up");
}

/* The verbs. */

static void pool(unsigned a, unsigned b, unsigned c, unsigned d)
{
    hugekit_pool **pool = &pools[a % POOLS];
    if (*pool) {
        check_stats(*pool);
        hugekit_pool_free(*pool);
        *pool = NULL;
        return;
    }
    hugekit_pool_options options = {.size = sizeof options, .flags = c & 15, .clearing = d % 3};
    unsigned backings[] = {HUGEKIT_BACKING_BASE, HUGEKIT_BACKING_BASE, HUGEKIT_BACKING_THP, HUGEKIT_BACKING_DEFAULT};
    options.backing = backings[b % 4];
    allowed(hugekit_pool_new(16 * MIB, &options, pool), FINE | LACKING);
}

static void tend(unsigned a, unsigned b, unsigned c, unsigned d)
{
    (void)c, (void)d;
    hugekit_pool *pool = pools[a % POOLS];
    if (!pool)
        return;
    switch (b % 4) {
    case 0: allowed(hugekit_pool_scrub(pool, NULL), FINE); break;
    case 1: allowed(hugekit_pool_pause_scrubbing(pool), FINE); break;
    case 2: allowed(hugekit_pool_resume_scrubbing(pool), FINE); break;
    default: check_stats(pool);
    }
}

static void region(unsigned a, unsigned b, unsigned c, unsigned d)
{
    struct place *place = &places[a % PLACES];
    hugekit_pool *pool = pools[b % POOLS];
    drop_place(place);
    if (!pool)
        return;
    hugekit_region_options options = {.size = sizeof options, .clearing = d % 3, .fault_mode = d / 3 % 3};
    size_t len = (size_t)c * 4099 % MOST + 1;
    if (!allowed(hugekit_region_new(pool, len, &options, &place->region), FINE | LACKING))
        return;
    place->bytes = hugekit_region_address(place->region);
    place->len = len;
    place->model = pages(MOST);
}

static void plain(unsigned a, unsigned b, unsigned c, unsigned d)
{
    (void)c, (void)d;
    struct place *place = &places[a % PLACES];
    drop_place(place);
    place->bytes = pages(MOST);
    place->len = (size_t)b * 4099 % MOST + 1;
    place->model = pages(MOST);
}

static void drop(unsigned a, unsigned b, unsigned c, unsigned d)
{
    (void)c, (void)d;
    struct place *place = &places[a % PLACES];
    if (place->region && b % 3 == 0) {
        stop_writer(place);
        compare(place);
        if (!allowed(hugekit_region_retire(place->region), is_pinned(place) ? CONFLICT : FINE))
            return;
        place->region = NULL;
        forget(place);
        munmap(place->model, MOST);
        memset(place, 0, sizeof *place);
        return;
    }
    drop_place(place);
}

static void fill(unsigned a, unsigned b, unsigned c, unsigned d)
{
    struct place *place = &places[a % PLACES];
    if (!place->bytes)
        return;
    size_t len = (size_t)c * 613, start = within(place, b, &len);
    memset(place->bytes + start, (int)d, len);
    memset(place->model + start, (int)d, len);
}

static void poke(unsigned a, unsigned b, unsigned c, unsigned d)
{
    struct place *place = &places[a % PLACES];
    if (!place->bytes)
        return;
    for (unsigned at = 0; at < c % 64; at++) {
        size_t len = 1, start = within(place, b + at, &len);
        place->bytes[start] = place->model[start] = (unsigned char)(d + at);
    }
}

static void clear(unsigned a, unsigned b, unsigned c, unsigned d)
{
    struct place *place = &places[a % PLACES];
    if (!place->bytes)
        return;
    size_t len = (size_t)c * 1021, start = within(place, b, &len);
    hugekit_options options = {.size = sizeof options, .threads = d % 3, .flags = d & 3, .reuse = d / 4 % 4,
                              .target = len / 2};
    allowed(hugekit_clear_with(place->bytes + start, len, d & 16 ? &options : NULL, NULL), FINE);
    memset(place->model + start, 0, len);
}

static void copy(unsigned a, unsigned b, unsigned c, unsigned d)
{
    struct place *to = &places[a % PLACES], *from = &places[b % PLACES];
    if (!to->bytes || !from->bytes || to == from)
        return;
    size_t most = SIZE_MAX / 2, start = within(to, c, &most), len = (size_t)d * 509 % most + 1, other = len;
    size_t offset = within(from, d, &other);
    len = other < len ? other : len;
    allowed(hugekit_copy(to->bytes + start, from->bytes + offset, len), FINE);
    memcpy(to->model + start, from->model + offset, len);
}

static void release(unsigned a, unsigned b, unsigned c, unsigned d)
{
    (void)d;
    struct place *place = &places[a % PLACES];
    if (!place->region || place->is_written || is_pinned(place))
        return;
    size_t page = 2 * MIB;
    for (size_t at = 0; at < POOLS; at++)
        if (pools[at] && hugekit_pool_page_size(pools[at]) > page)
            page = hugekit_pool_page_size(pools[at]);
    size_t start = b % (place->len / page + 1) * page, end = start + (c % 2 + 1) * page;
    end = end < place->len ? end : place->len;
    if (start >= end)
        return;
    if (allowed(hugekit_region_release(place->region, start, end - start), FINE | LACKING | CONFLICT))
        memset(place->model + start, 0, end - start);
}

static void prepare(unsigned a, unsigned b, unsigned c, unsigned d)
{
    struct place *place = &places[a % PLACES];
    if (!place->region)
        return;
    size_t len = (size_t)c * 977, start = within(place, b, &len);
    if (d % 2)
        allowed(hugekit_region_prepare_write(place->region, start, len), FINE | LACKING);
    else
        allowed(hugekit_region_populate(place->region, start, len, NULL, NULL), FINE | LACKING);
}

static void pin(unsigned a, unsigned b, unsigned c, unsigned d)
{
    struct place *place = &places[b % PLACES];
    size_t at = a % PINS;
    if (pins[at].pin) {
        hugekit_pin_free(pins[at].pin);
        pins[at].pin = NULL;
    } else if (place->region) {
        size_t len = (size_t)d * 769, start = within(place, c, &len);
        if (allowed(hugekit_region_pin(place->region, start, len, &pins[at].pin), FINE | LACKING))
            pins[at].of = place;
    }
}

/* The same bytes in another region; what raced is looked at once, and must stay as it is from then on. */
static void divide(unsigned a, unsigned b, unsigned c, unsigned d)
{
    struct place *of = &places[a % PLACES], *fork = &places[b % PLACES];
    if (!of->region || of == fork)
        return;
    drop_place(fork);
    hugekit_fork_options options = {.size = sizeof options, .fault_mode = c % 3, .granule = d % 3 ? 0 : 64 << 10};
    uint64_t first = atomic_load(&of->round);
    /* What the family's first fork was told holds. */
    unsigned set = FINE | LACKING | CONFLICT | (options.granule || options.fault_mode ? INVALID : 0);
    if (!allowed(hugekit_region_fork(of->region, &options, &fork->region), set))
        return;
    uint64_t last = atomic_load(&of->round);
    fork->bytes = hugekit_region_address(fork->region);
    fork->len = of->len;
    fork->model = pages(MOST);
    memcpy(fork->model, of->model, of->len);
    if (of->is_written) {
        size_t from = written_from(of);
        check_raced(fork->bytes + from, of->len - from, first, last);
        memcpy(fork->model + from, fork->bytes + from, of->len - from);
    }
    compare(fork);
}

/* Takes note of what a snapshot of part of a place must show. */
static void note(struct moment *moment, struct place *of, size_t offset, size_t len, uint64_t first)
{
    moment->of = of;
    moment->offset = offset;
    moment->len = len;
    moment->model = pages(MOST);
    memcpy(moment->model, of->model + offset, len);
    moment->raced = len;
    if (of->is_written && offset + len > written_from(of)) {
        moment->raced = written_from(of) > offset ? written_from(of) - offset : 0;
        moment->first = first;
        moment->last = atomic_load(&of->round);
    }
}

static void snapshot(unsigned a, unsigned b, unsigned c, unsigned d)
{
    struct moment *moment = &moments[a % MOMENTS];
    struct place *of = &places[b % PLACES];
    end_moment(moment);
    if (!of->bytes)
        return;
    uint64_t first = atomic_load(&of->round);
    if (of->region) {
        if (allowed(hugekit_region_snapshot(of->region, NULL, &moment->snapshot), FINE | LACKING | CONFLICT))
            note(moment, of, 0, of->len, first);
        return;
    }
    hugekit_snapshot_options options = {.size = sizeof options, .fault_mode = d % 3, .granule = d / 3 % 3};
    options.flags = d / 9 % 2 ? HUGEKIT_SNAPSHOT_IN_BACKGROUND : 0;
    options.max_cow_bytes = d / 18 % 4 ? 0 : 2 * MIB;
    options.populate_copies = d / 72 % 2 ? MIB : 0;
    options.reserve = d / 144 % 2 ? reserve : NULL;
    size_t offset = d % 5 ? 0 : (size_t)c * 7919 % of->len / WORD * WORD;
    size_t len = d % 7 ? of->len - offset : (size_t)c * 104729 % (of->len - offset) + 1;
    if (!allowed(hugekit_snapshot_new(of->bytes + offset, len, &options, &moment->snapshot), FINE | LACKING | CONFLICT))
        return;
    note(moment, of, offset, len, first);
    moment->may_be_lost = options.max_cow_bytes != 0;
}

static void several(unsigned a, unsigned b, unsigned c, unsigned d)
{
    struct moment *into[2] = {&moments[a % MOMENTS], &moments[(a + 1) % MOMENTS]};
    struct place *of[2] = {&places[b % PLACES], &places[c % PLACES]};
    if (of[0] == of[1] || !of[0]->bytes || !of[1]->bytes || of[0]->region || of[1]->region)
        return;
    hugekit_range ranges[2];
    hugekit_snapshot *made[2] = {NULL, NULL};
    uint64_t first[2];
    for (size_t at = 0; at < 2; at++) {
        end_moment(into[at]);
        ranges[at] = (hugekit_range){of[at]->bytes, of[at]->len};
        first[at] = atomic_load(&of[at]->round);
    }
    hugekit_snapshot_options options = {.size = sizeof options, .fault_mode = d % 3, .granule = d / 3 % 3};
    if (!allowed(hugekit_snapshot_new_several(ranges, 2, &options, made), FINE | LACKING | CONFLICT))
        return;
    for (size_t at = 0; at < 2; at++) {
        into[at]->snapshot = made[at];
        note(into[at], of[at], 0, of[at]->len, first[at]);
    }
}

/* What was read of a moment, from an offset on. */
static void check_read(const struct moment *moment, const unsigned char *bytes, size_t offset, size_t len)
{
    size_t raced = moment->raced > offset ? moment->raced - offset : 0;
    size_t still = raced < len ? raced : len;
    if (memcmp(bytes, moment->model + offset, still) != 0)
        fail("a snapshot differs from what was there");
    size_t word = (moment->offset + offset + still + WORD - 1) / WORD * WORD - moment->offset - offset;
    if (still < len && word < len)
        check_raced(bytes + word, len - word, moment->first, moment->last);
}

static void look(unsigned a, unsigned b, unsigned c, unsigned d)
{
    struct moment *moment = &moments[a % MOMENTS];
    if (!moment->snapshot || !moment->model)
        return;
    unsigned set = FINE | (moment->may_be_lost ? LOST : 0);
    size_t offset = (size_t)b * 7919 % moment->len, len = (size_t)c * 4099 % (moment->len - offset) + 1;
    unsigned char *bytes = pages(MOST);
    if (d % 3 == 0 && !moment->view)
        allowed(hugekit_snapshot_view(moment->snapshot, &moment->view), FINE | LACKING);
    if (d % 3 == 0 && moment->view) {
        const void *there = NULL;
        if (allowed(hugekit_view_bytes(moment->view, offset, len, &there), set))
            check_read(moment, there, offset, len);
    } else if (allowed(hugekit_snapshot_read(moment->snapshot, offset, bytes, len), set)) {
        check_read(moment, bytes, offset, len);
    }
    munmap(bytes, MOST);
}

/* Reads all of it away, to memory or to a file. */
static void finish(unsigned a, unsigned b, unsigned c, unsigned d)
{
    (void)c, (void)d;
    struct moment *moment = &moments[a % MOMENTS];
    if (!moment->snapshot || !moment->model)
        return;
    unsigned set = FINE | (moment->may_be_lost ? LOST : 0) | (moment->view ? CONFLICT : 0);
    unsigned char *bytes = pages(MOST);
    if (b % 2) {
        int file = memfd_create("moment", 0);
        if (allowed(hugekit_snapshot_write(moment->snapshot, file, NULL), set)) {
            if (pread(file, bytes, moment->len, 0) != (ssize_t)moment->len)
                fail("a file of a snapshot is too short");
            check_read(moment, bytes, 0, moment->len);
        }
        close(file);
    } else if (allowed(hugekit_snapshot_copy(moment->snapshot, bytes, moment->len, NULL), set)) {
        check_read(moment, bytes, 0, moment->len);
    }
    munmap(bytes, MOST);
    end_moment(moment);
}

static void leave(unsigned a, unsigned b, unsigned c, unsigned d)
{
    (void)b, (void)c, (void)d;
    end_moment(&moments[a % MOMENTS]);
}

/* What the owner may ask of the kernel. Only what discards changes a byte. */
static void advise(unsigned a, unsigned b, unsigned c, unsigned d)
{
    static const int advice[] = {MADV_DONTNEED, MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_COLLAPSE, MADV_COLD, MADV_PAGEOUT,
                                 MADV_WILLNEED, MADV_RANDOM};
    struct place *place = &places[a % PLACES];
    if (!place->bytes || place->is_written)
        return;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), count = (place->len + page - 1) / page;
    size_t start = b % count, some = c % (count - start) + 1;
    size_t from = start * page, len = some * page;
    int asked = advice[d % 8];
    if (place->region && asked == MADV_DONTNEED)
        return;
    if (madvise(place->bytes + from, len, asked) != 0 || asked != MADV_DONTNEED)
        return;
    endanger(place);
    memset(place->model + from, 0, from + len < place->len ? len : place->len - from);
}

static void protect(unsigned a, unsigned b, unsigned c, unsigned d)
{
    (void)b, (void)c, (void)d;
    struct place *place = &places[a % PLACES];
    if (!place->bytes || place->region || place->is_written)
        return;
    if (mprotect(place->bytes, MOST, PROT_READ) != 0)
        return;
    compare(place);
    if (mprotect(place->bytes, MOST, PROT_READ | PROT_WRITE) != 0)
        fail("the protection cannot be lifted");
}

static void threaded(unsigned a, unsigned b, unsigned c, unsigned d)
{
    (void)c, (void)d;
    struct place *place = &places[a % PLACES];
    if (b % 2)
        start_writer(place);
    else
        stop_writer(place);
}

static void hoard(unsigned a, unsigned b, unsigned c, unsigned d)
{
    (void)b, (void)c, (void)d;
    if (reserve) {
        hugekit_reserve_free(reserve);
        reserve = NULL;
    } else {
        allowed(hugekit_reserve_new((size_t)(a % 4 + 1) * MIB, &reserve), FINE | LACKING);
    }
}

/* A process forked from this one has plain memory as it was, writes it without the library's noticing, has no region's, and
   is refused by every call. */
static void child(unsigned a, unsigned b, unsigned c, unsigned d)
{
    fflush(NULL);
    pid_t process = fork();
    if (process < 0)
        return;
    if (process == 0) {
        alarm(20);
        for (size_t at = 0; at < PLACES; at++) {
            struct place *place = &places[at];
            unsigned char is_there = 0;
            if (place->region && mincore(place->bytes, 1, &is_there) == 0)
                _exit(2);
            if (!place->bytes || place->region)
                continue;
            size_t still = place->is_written ? written_from(place) : place->len;
            if (memcmp(place->bytes, place->model, still) != 0)
                _exit(3);
            memset(place->bytes, (int)d, still);
        }
        hugekit_region *region = NULL;
        hugekit_pool *pool = pools[a % POOLS];
        if (pool && hugekit_region_new(pool, 1, NULL, &region) != HUGEKIT_STATUS_FORKED)
            _exit(4);
        /* What was copied at once is the child's, too. */
        const struct moment *moment = &moments[b % MOMENTS];
        unsigned char byte;
        if (moment->snapshot && moment->raced
            && hugekit_snapshot_read(moment->snapshot, 0, &byte, 1) == HUGEKIT_STATUS_OK && byte != moment->model[0])
            _exit(5);
        if (c % 2)
            hugekit_pool_free(pool);
        _exit(0);
    }
    int status = 0;
    while (waitpid(process, &status, 0) < 0)
        if (errno != EINTR)
            fail("waitpid");
    if (status != 0) {
        fprintf(stderr, "the child ended with %#x\n", status);
        fail("a child saw something else");
    }
}

static void check(unsigned a, unsigned b, unsigned c, unsigned d)
{
    (void)a, (void)b, (void)c, (void)d;
    for (size_t at = 0; at < PLACES; at++)
        if (places[at].bytes)
            compare(&places[at]);
    for (size_t at = 0; at < POOLS; at++)
        if (pools[at])
            check_stats(pools[at]);
}

static const struct {
    const char *name;
    void (*run)(unsigned, unsigned, unsigned, unsigned);
} verbs[] = {
    {"pool", pool},       {"tend", tend},       {"region", region},   {"plain", plain},     {"drop", drop},
    {"fill", fill},       {"poke", poke},       {"clear", clear},     {"copy", copy},       {"release", release},
    {"prepare", prepare}, {"pin", pin},         {"divide", divide},   {"snapshot", snapshot}, {"several", several},
    {"look", look},       {"finish", finish},   {"leave", leave},     {"advise", advise},   {"protect", protect},
    {"threaded", threaded}, {"hoard", hoard},   {"child", child},     {"check", check},
};

static void run(const char *name, unsigned a, unsigned b, unsigned c, unsigned d)
{
    for (size_t at = 0; at < sizeof verbs / sizeof *verbs; at++)
        if (strcmp(verbs[at].name, name) == 0) {
            verbs[at].run(a, b, c, d);
            return;
        }
    fail("there is no such verb");
}

/* Nothing that was allocated, and no thread, is left. */
static void drop_all(void)
{
    check(0, 0, 0, 0);
    for (unsigned at = 0; at < MOMENTS; at++) {
        look(at, 0, 1000, 1);
        finish(at, at, 0, 0);
        end_moment(&moments[at]);
    }
    for (size_t at = 0; at < PLACES; at++)
        drop_place(&places[at]);
    free_pins(NULL);
    for (size_t at = 0; at < POOLS; at++) {
        hugekit_stats stats = {.size = sizeof stats};
        if (!pools[at])
            continue;
        allowed(hugekit_pool_stats(pools[at], &stats), FINE);
        if (stats.in_use != 0)
            fail("pages of a pool are in use although every region is freed");
        hugekit_pool_free(pools[at]);
    }
    if (reserve)
        hugekit_reserve_free(reserve);
}

int main(void)
{
    char name[16];
    unsigned a, b, c, d;
    while (fgets(line_text, sizeof line_text, stdin)) {
        line_number++;
        line_text[strcspn(line_text, "\n")] = 0;
        if (line_text[0] == 0 || line_text[0] == '#')
            continue;
        if (sscanf(line_text, "%15s %u %u %u %u", name, &a, &b, &c, &d) != 5)
            fail("no operation");
        run(name, a, b, c, d);
    }
    strcpy(line_text, "(the end)");
    drop_all();
    return 0;
}
