/* What a program does by mistake: NULL, sizes and lengths that cannot be, structures at odd addresses, and callbacks
 * that call the library again, fork, or end the thread or the process. None of it hangs, and the process goes on or
 * ends as it was told. In children, whose alarm ends what hangs. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define MIB ((size_t)1 << 20)
#define LEN (8 * MIB)

static void nothing_at_all(void)
{
    CHECK(hugekit_pool_new(MIB, NULL, NULL) == HUGEKIT_STATUS_INVALID);
    CHECK(hugekit_region_new(NULL, MIB, NULL, NULL) == HUGEKIT_STATUS_INVALID);
    hugekit_region *region = NULL;
    CHECK(hugekit_region_new(NULL, MIB, NULL, &region) == HUGEKIT_STATUS_INVALID && region == NULL);
    CHECK(hugekit_region_fork(NULL, NULL, &region) == HUGEKIT_STATUS_INVALID && region == NULL);
    CHECK(hugekit_region_pin(NULL, 0, 1, NULL) == HUGEKIT_STATUS_INVALID);
    CHECK(hugekit_snapshot_new(NULL, 0, NULL, NULL) == HUGEKIT_STATUS_INVALID);
    CHECK(hugekit_snapshot_new_several(NULL, 3, NULL, NULL) == HUGEKIT_STATUS_INVALID);
    CHECK(hugekit_snapshot_read(NULL, 0, NULL, 1) == HUGEKIT_STATUS_INVALID);
    CHECK(hugekit_snapshot_copy(NULL, NULL, 0, NULL) == HUGEKIT_STATUS_INVALID);
    CHECK(hugekit_snapshot_write(NULL, -1, NULL) == HUGEKIT_STATUS_INVALID);
    CHECK(hugekit_snapshot_view(NULL, NULL) == HUGEKIT_STATUS_INVALID);
    CHECK(hugekit_view_bytes(NULL, 0, 1, NULL) == HUGEKIT_STATUS_INVALID);
    CHECK(hugekit_changes_first(NULL, 1, NULL, NULL) == HUGEKIT_STATUS_INVALID);
    CHECK(hugekit_changes_write(NULL, NULL, NULL, NULL) == HUGEKIT_STATUS_INVALID);
    CHECK(hugekit_machine_query(NULL) == HUGEKIT_STATUS_INVALID);
    CHECK(hugekit_doctor(NULL) == HUGEKIT_STATUS_INVALID);
    CHECK(hugekit_clear(NULL, 1) == HUGEKIT_STATUS_INVALID);
    CHECK(hugekit_populate(NULL, 1, NULL, NULL) == HUGEKIT_STATUS_INVALID);
    CHECK(hugekit_snapshot_len(NULL) == 0 && hugekit_view_len(NULL) == 0 && hugekit_changes_len(NULL) == 0);
    hugekit_pool_free(NULL);
    hugekit_region_free(NULL);
    hugekit_pin_free(NULL);
    hugekit_snapshot_free(NULL);
    hugekit_view_free(NULL);
    hugekit_reserve_free(NULL);
    hugekit_changes_free(NULL);
    hugekit_epoch_free(NULL);
    hugekit_cancel_free(NULL);
    hugekit_cancel_set(NULL);
    hugekit_string_free(NULL);
}

static void sizes_and_lengths_that_cannot_be(void)
{
    static const size_t sizes[] = {0, 1, 7, 4097, SIZE_MAX};
    char byte = 1;
    for (size_t at = 0; at < sizeof sizes / sizeof *sizes; at++) {
        hugekit_options options = {.size = sizes[at]};
        hugekit_report report = {.size = sizes[at]};
        CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_clear_with(&byte, 1, &options, NULL), "size");
        CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_clear_with(&byte, 1, NULL, &report), "size");
        hugekit_pool *pool = NULL;
        hugekit_pool_options of_pool = {.size = sizes[at]};
        CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_pool_new(MIB, &of_pool, &pool), "size");
        hugekit_snapshot *snapshot = NULL;
        hugekit_snapshot_options of = {.size = sizes[at]};
        CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_snapshot_new(&byte, 1, &of, &snapshot), "size");
        CHECK(pool == NULL && snapshot == NULL && byte == 1);
    }
    static const size_t lengths[] = {SIZE_MAX, SIZE_MAX / 2 + 1, SIZE_MAX - 4095};
    for (size_t at = 0; at < sizeof lengths / sizeof *lengths; at++) {
        hugekit_snapshot *snapshot = NULL;
        hugekit_reserve *reserve = NULL;
        hugekit_pool *pool = NULL;
        hugekit_range range = {&byte, lengths[at]};
        CHECK(hugekit_clear(&byte, lengths[at]) == HUGEKIT_STATUS_INVALID);
        CHECK(hugekit_copy(&byte, &byte, lengths[at]) == HUGEKIT_STATUS_INVALID);
        CHECK(hugekit_snapshot_new(&byte, lengths[at], NULL, &snapshot) == HUGEKIT_STATUS_INVALID);
        CHECK(hugekit_snapshot_new_several(&range, 1, NULL, &snapshot) == HUGEKIT_STATUS_INVALID);
        CHECK(hugekit_snapshot_new_several(&range, lengths[at], NULL, &snapshot) == HUGEKIT_STATUS_INVALID);
        CHECK(hugekit_reserve_new(lengths[at], &reserve) == HUGEKIT_STATUS_NO_MEMORY);
        hugekit_status made = hugekit_pool_new(lengths[at], NULL, &pool);
        CHECK(made != HUGEKIT_STATUS_OK && pool == NULL && snapshot == NULL && reserve == NULL);
    }
}

static void structures_at_odd_addresses(void)
{
    char room[sizeof(hugekit_options) + 1], out[sizeof(hugekit_report) + 1], bytes[64];
    hugekit_options options = {.size = sizeof options, .threads = 1};
    hugekit_report report = {.size = sizeof report};
    memcpy(room + 1, &options, sizeof options);
    memcpy(out + 1, &report, sizeof report);
    CHECK(hugekit_clear_with(bytes, sizeof bytes, (void *)(room + 1), (void *)(out + 1)) == HUGEKIT_STATUS_OK);
    memcpy(&report, out + 1, sizeof report);
    CHECK(report.bytes == sizeof bytes);
}

static char *anonymous(void)
{
    char *memory = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    memset(memory, 7, LEN);
    return memory;
}

struct again {
    hugekit_snapshot *snapshot;
    hugekit_changes *changes;
    char *memory;
    int calls;
};

/* The handle has ended, and says so. */
static void calls_again(size_t done, size_t total, void *context)
{
    struct again *again = context;
    hugekit_snapshot_stats stats = {.size = sizeof stats};
    char byte;
    (void)done, (void)total;
    again->calls++;
    again->memory[again->calls] = 8;
    if (again->snapshot == NULL)
        return;
    CHECK(hugekit_snapshot_len(again->snapshot) == 0);
    CHECK(hugekit_snapshot_read(again->snapshot, 0, &byte, 1) == HUGEKIT_STATUS_INVALID);
    CHECK(hugekit_snapshot_copy(again->snapshot, &byte, 1, NULL) == HUGEKIT_STATUS_INVALID);
    CHECK(hugekit_snapshot_prepare_write(again->snapshot, 0, 1) == HUGEKIT_STATUS_INVALID);
    CHECK(hugekit_snapshot_statistics(again->snapshot, &stats) == HUGEKIT_STATUS_OK);
}

static int takes_again(size_t offset, const void *bytes, size_t len, void *context)
{
    struct again *again = context;
    hugekit_changes *more = NULL;
    hugekit_epoch *epoch = NULL;
    (void)offset, (void)bytes, (void)len;
    CHECK(hugekit_changes_len(again->changes) == 0);
    CHECK(hugekit_changes_write(again->changes, takes_again, again, &epoch) == HUGEKIT_STATUS_INVALID);
    CHECK(hugekit_changes_first(again->memory, LEN, NULL, &more) == HUGEKIT_STATUS_OK);
    hugekit_changes_free(more);
    again->calls++;
    return 0;
}

static void callbacks_that_call_again(void)
{
    struct again again = {.memory = anonymous()};
    char *copy = anonymous();
    hugekit_options options = {.size = sizeof options, .progress = calls_again, .context = &again};
    hugekit_status taken = hugekit_snapshot_new(again.memory, LEN, NULL, &again.snapshot);
    if (taken != HUGEKIT_STATUS_OK)
        return;
    CHECK(hugekit_snapshot_copy(again.snapshot, copy, LEN, &options) == HUGEKIT_STATUS_OK);
    CHECK(again.calls > 0 && copy[1] == 7 && copy[LEN - 1] == 7);
    hugekit_snapshot_free(again.snapshot);
    again.snapshot = NULL;
    hugekit_epoch *epoch = NULL;
    CHECK(hugekit_changes_first(again.memory, LEN, NULL, &again.changes) == HUGEKIT_STATUS_OK);
    again.calls = 0;
    CHECK(hugekit_changes_write(again.changes, takes_again, &again, &epoch) == HUGEKIT_STATUS_OK);
    CHECK(again.calls > 0);
    hugekit_changes_free(again.changes);
    hugekit_epoch_free(epoch);
}

static void ends_the_process(size_t done, size_t total, void *context)
{
    (void)done, (void)total, (void)context;
    exit(7);
}

static void ends_the_thread(size_t done, size_t total, void *context)
{
    (void)done, (void)total, (void)context;
    pthread_exit(NULL);
}

/* The child goes on in the callback, and returns from the call. */
static void forks(size_t done, size_t total, void *context)
{
    pid_t *child = context;
    (void)done, (void)total;
    if (*child != 0)
        return;
    *child = fork();
    CHECK(*child >= 0);
    if (*child == 0) {
        alarm(30);
        *child = -1;
    }
}

static hugekit_options telling(hugekit_progress progress, void *context, size_t threads)
{
    hugekit_options options = {.size = sizeof options, .threads = threads, .progress = progress, .context = context};
    return options;
}

static void clear(hugekit_progress progress, size_t threads)
{
    char *memory = anonymous();
    hugekit_options options = telling(progress, NULL, threads);
    (void)hugekit_clear_with(memory, LEN, &options, NULL);
}

static void copy_snapshot(hugekit_progress progress, size_t threads)
{
    char *memory = anonymous(), *copy = anonymous();
    hugekit_options options = telling(progress, NULL, threads);
    hugekit_snapshot *snapshot = NULL;
    if (hugekit_snapshot_new(memory, LEN, NULL, &snapshot) == HUGEKIT_STATUS_OK)
        (void)hugekit_snapshot_copy(snapshot, copy, LEN, &options);
    else
        progress(0, 1, NULL);
}

static void *clears_and_ends(void *threads)
{
    clear(ends_the_thread, *(size_t *)threads);
    return NULL;
}

static void *copies_and_ends(void *threads)
{
    copy_snapshot(ends_the_thread, *(size_t *)threads);
    return NULL;
}

static int status_of(pid_t child)
{
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

static void callbacks_that_end(void (*work)(hugekit_progress, size_t), void *(*thread)(void *))
{
    for (size_t threads = 1; threads <= 2; threads++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            work(ends_the_process, threads);
            _exit(1);
        }
        int status = status_of(child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
        child = fork();
        if (child == 0) {
            alarm(60);
            CHECK(freopen("/dev/null", "w", stderr));
            pthread_t id;
            CHECK(pthread_create(&id, NULL, thread, &threads) == 0);
            CHECK(pthread_join(id, NULL) == 0);
            /* Where only the thread has ended, the library goes on. */
            char bytes[64];
            CHECK(hugekit_clear(bytes, sizeof bytes) == HUGEKIT_STATUS_OK);
            clear(NULL, 2);
            copy_snapshot(NULL, 1);
            _exit(0);
        }
        status = status_of(child);
        CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0) || (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT));
    }
}

static void a_callback_that_forks(void)
{
    for (size_t threads = 1; threads <= 2; threads++) {
        pid_t child = 0;
        char *memory = anonymous();
        hugekit_options options = telling(forks, &child, threads);
        hugekit_status cleared = hugekit_clear_with(memory, LEN, &options, NULL);
        if (child == -1)
            _exit(cleared == HUGEKIT_STATUS_OK || cleared == HUGEKIT_STATUS_FORKED ? 0 : 1);
        CHECK(cleared == HUGEKIT_STATUS_OK && memory[LEN - 1] == 0);
        CHECK(status_of(child) == 0);
    }
}

int main(void)
{
    alarm(300);
    nothing_at_all();
    sizes_and_lengths_that_cannot_be();
    structures_at_odd_addresses();
    callbacks_that_call_again();
    callbacks_that_end(clear, clears_and_ends);
    callbacks_that_end(copy_snapshot, copies_and_ends);
    a_callback_that_forks();
}
