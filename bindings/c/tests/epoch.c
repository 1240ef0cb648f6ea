/* Epochs: states as what has changed since the one before, of malloc's memory and of regions, in files and back. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { MIB = 1 << 20, LEN = 8 * MIB };

static void skip_unless_possible(hugekit_status status)
{
    if (status == HUGEKIT_STATUS_NOT_PERMITTED || status == HUGEKIT_STATUS_UNSUPPORTED)
        SKIP(hugekit_last_error());
}

/* What a callback puts what has changed into. */
struct image {
    unsigned char *bytes;
    size_t given;
    int refuse;
};

static int32_t put(size_t offset, const void *bytes, size_t len, void *context)
{
    struct image *image = context;
    if (image->refuse)
        return ENOSPC;
    memcpy(image->bytes + offset, bytes, len);
    image->given += len;
    return 0;
}

static size_t changed(const hugekit_changes *changes, hugekit_part *first)
{
    size_t count = 0;
    CHECK(hugekit_changes_parts(changes, first, 1, &count) == HUGEKIT_STATUS_OK);
    return count;
}

static void states_have_what_was_written(void)
{
    unsigned char *bytes = aligned_alloc(2 * MIB, LEN);
    struct image image = {.bytes = malloc(LEN)};
    CHECK(bytes && image.bytes);
    memset(bytes, 1, LEN);
    hugekit_changes *changes = NULL;
    hugekit_epoch *epoch = NULL;
    hugekit_part part;
    hugekit_snapshot_options options = {.size = sizeof options, .granule = HUGEKIT_GRANULE_SMALL};
    hugekit_status status = hugekit_changes_first(bytes, LEN, &options, &changes);
    skip_unless_possible(status);
    CHECK(status == HUGEKIT_STATUS_OK && hugekit_changes_len(changes) == LEN);
    CHECK(changed(changes, &part) == 1 && part.offset == 0 && part.len == LEN);
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_changes_write(changes, NULL, NULL, &epoch), "take");
    CHECK(hugekit_changes_write(changes, put, &image, &epoch) == HUGEKIT_STATUS_OK);
    CHECK(image.given == LEN && memcmp(image.bytes, bytes, LEN) == 0);
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_changes_write(changes, put, &image, &epoch), "ended");
    CHECK(hugekit_changes_len(changes) == 0);
    hugekit_changes_free(changes);

    CHECK(hugekit_epoch_prepare_write(epoch, 5 * MIB, 1) == HUGEKIT_STATUS_OK);
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_epoch_prepare_write(epoch, LEN, 1), "8388609");
    bytes[3 * MIB] = 2;
    CHECK(hugekit_changes_since(epoch, &options, &changes) == HUGEKIT_STATUS_OK);
    CHECK(changed(changes, &part) == 2 && part.offset == 3 * MIB && part.len == 64 << 10);
    CHECK(hugekit_changes_prepare_write(changes, 0, 1) == HUGEKIT_STATUS_OK);
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_changes_since(epoch, NULL, &changes), "ended");
    CHECK(hugekit_epoch_unwatched(epoch) == 0);
    hugekit_epoch_free(epoch);
    image.given = 0;
    bytes[3 * MIB] = 3;
    CHECK(hugekit_changes_write(changes, put, &image, &epoch) == HUGEKIT_STATUS_OK);
    CHECK(image.given == 128 << 10 && image.bytes[3 * MIB] == 2);
    hugekit_changes_free(changes);

    /* A callback that fails ends it. */
    CHECK(hugekit_changes_since(epoch, NULL, &changes) == HUGEKIT_STATUS_OK);
    hugekit_epoch_free(epoch);
    epoch = NULL;
    image.refuse = 1;
    CHECK(hugekit_changes_write(changes, put, &image, &epoch) == HUGEKIT_STATUS_SYSTEM);
    CHECK(hugekit_last_errno() == ENOSPC && epoch == NULL);
    hugekit_changes_free(changes);
    hugekit_changes_free(NULL);
    hugekit_epoch_free(NULL);
    CHECK(hugekit_epoch_unwatched(NULL) == 0 && hugekit_changes_len(NULL) == 0);
    free(image.bytes);
    free(bytes);
}

static const char path[] = "/tmp/hugekit-delta-XXXXXX";
static char paths[8][sizeof path];
static size_t files;

static void remove_files(void)
{
    while (files > 0)
        unlink(paths[--files]);
}

/* With a name until the program ends, because a chain compares only with files that have one. */
static FILE *named_file(void)
{
    CHECK(files < sizeof paths / sizeof *paths && (files > 0 || atexit(remove_files) == 0));
    char *name = memcpy(paths[files], path, sizeof path);
    int descriptor = mkstemp(name);
    CHECK(descriptor >= 0);
    files++;
    FILE *file = fdopen(descriptor, "w+");
    CHECK(file);
    return file;
}

/* Saves a state to a file of its own. */
static FILE *saved(hugekit_chain *chain, hugekit_changes *changes, hugekit_saved *what, hugekit_epoch **epoch)
{
    FILE *file = named_file();
    what->size = sizeof *what;
    CHECK(hugekit_chain_save(chain, changes, fileno(file), what, epoch) == HUGEKIT_STATUS_OK);
    hugekit_changes_free(changes);
    CHECK(lseek(fileno(file), 0, SEEK_SET) == 0);
    return file;
}

static void a_region_is_saved_as_a_chain_and_restored(void)
{
    hugekit_pool_options base = {.size = sizeof base, .backing = HUGEKIT_BACKING_BASE};
    hugekit_pool *pool = NULL;
    hugekit_region *region = NULL, *other = NULL;
    hugekit_changes *changes = NULL;
    hugekit_epoch *epoch = NULL;
    CHECK(hugekit_pool_new(3 * LEN, &base, &pool) == HUGEKIT_STATUS_OK);
    CHECK(hugekit_region_new(pool, LEN, NULL, &region) == HUGEKIT_STATUS_OK);
    unsigned char *bytes = hugekit_region_address(region);
    memset(bytes, 1, LEN);
    hugekit_status status = hugekit_region_changes(region, NULL, NULL, &changes);
    skip_unless_possible(status);
    CHECK(status == HUGEKIT_STATUS_OK);

    hugekit_chain *chain = NULL;
    hugekit_saved full, delta;
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_chain_save(NULL, changes, 1, NULL, &epoch), "chain");
    CHECK(hugekit_chain_new(LEN + 1, &chain) == HUGEKIT_STATUS_OK);
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_chain_save(chain, changes, 1, NULL, &epoch), "8388609");
    hugekit_chain_free(chain);
    CHECK(hugekit_chain_new(LEN, &chain) == HUGEKIT_STATUS_OK);
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_chain_save(chain, changes, -1, NULL, &epoch), "descriptor");
    FILE *first = saved(chain, changes, &full, &epoch);
    CHECK(full.is_full && full.changed == LEN && full.written > LEN);

    bytes[4 * MIB + 5] = 2;
    CHECK(hugekit_region_changes(region, epoch, NULL, &changes) == HUGEKIT_STATUS_OK);
    hugekit_epoch_free(epoch);
    bytes[4 * MIB + 5] = 3;
    FILE *second = saved(chain, changes, &delta, &epoch);
    CHECK(!delta.is_full && delta.changed == 4096 && delta.written < 5000);

    /* The epoch of one region is none of another. */
    CHECK(hugekit_region_new(pool, LEN, NULL, &other) == HUGEKIT_STATUS_OK);
    CHECK_REFUSED(HUGEKIT_STATUS_CONFLICT, hugekit_region_changes(other, epoch, NULL, &changes), "epoch");
    hugekit_epoch_free(epoch);
    hugekit_region_free(other);

    unsigned char *restored = malloc(LEN);
    CHECK(restored);
    memset(restored, 9, LEN);
    hugekit_state state = {{0}};
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID,
                  hugekit_delta_apply(restored, LEN, NULL, fileno(second), &state), "begins with state");
    CHECK(restored[0] == 9 && lseek(fileno(second), 0, SEEK_SET) == 0);
    CHECK(hugekit_delta_apply(restored, LEN, NULL, fileno(first), &state) == HUGEKIT_STATUS_OK);
    CHECK(memcmp(&state, &full.state, sizeof state) == 0 && restored[4 * MIB + 5] == 1);
    CHECK(hugekit_delta_apply(restored, LEN, &state, fileno(second), &state) == HUGEKIT_STATUS_OK);
    CHECK(memcmp(&state, &delta.state, sizeof state) == 0 && restored[4 * MIB + 5] == 2);
    bytes[4 * MIB + 5] = 2;
    CHECK(memcmp(restored, bytes, LEN) == 0);
    free(restored);
    fclose(first);
    fclose(second);
    hugekit_chain_free(chain);
    hugekit_chain_free(NULL);
    hugekit_region_free(region);
    hugekit_pool_free(pool);
}

static void a_forked_child_has_no_epoch(void)
{
    unsigned char *bytes = aligned_alloc(2 * MIB, LEN);
    struct image image = {.bytes = malloc(LEN)};
    CHECK(bytes && image.bytes);
    memset(bytes, 1, LEN);
    hugekit_changes *changes = NULL;
    hugekit_epoch *epoch = NULL;
    CHECK(hugekit_changes_first(bytes, LEN, NULL, &changes) == HUGEKIT_STATUS_OK);
    CHECK(hugekit_changes_write(changes, put, &image, &epoch) == HUGEKIT_STATUS_OK);
    hugekit_changes_free(changes);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        bytes[0] = 2;
        int refused = hugekit_changes_since(epoch, NULL, &changes) == HUGEKIT_STATUS_FORKED;
        hugekit_epoch_free(epoch);
        _exit(refused ? 0 : 1);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    hugekit_epoch_free(epoch);
    free(image.bytes);
    free(bytes);
}

int main(void)
{
    states_have_what_was_written();
    a_region_is_saved_as_a_chain_and_restored();
    a_forked_child_has_no_epoch();
    return 0;
}
