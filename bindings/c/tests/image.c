/* An image: loaded, mapped twice, given to another program. */
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static const size_t BYTES = ((size_t)5 << 20) + 4095;
/* Zeroes: the image has no pages there. */
static const size_t ZEROES = (size_t)2 << 20;

static unsigned char byte_at(size_t at)
{
    return at < ZEROES ? 0 : (unsigned char)(1 + at % 251);
}

/* The path of a file that ends with this process. */
static const char *memory_file(void)
{
    static char path[64];
    unsigned char *bytes = malloc(BYTES);
    CHECK(bytes != NULL);
    for (size_t at = 0; at < BYTES; at++)
        bytes[at] = byte_at(at);
    int file = memfd_create("memory.bin", 0);
    CHECK(file >= 0 && write(file, bytes, BYTES) == (ssize_t)BYTES);
    free(bytes);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    return path;
}

static int is_whole(const unsigned char *bytes)
{
    for (size_t at = 0; at < BYTES; at++)
        if (bytes[at] != byte_at(at))
            return 0;
    return 1;
}

static void arguments_are_looked_at(const char *path)
{
    hugekit_image *image = NULL;
    hugekit_mapping *mapping = NULL;
    hugekit_image_options options = {.size = sizeof options, .reserved = 1};
    CHECK_REFUSED(HUGEKIT_STATUS_UNSUPPORTED, hugekit_image_load(path, &options, &image), "reserved");
    options.reserved = 0;
    options.delta_count = 1;
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_image_load(path, &options, &image), "deltas");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_image_load(NULL, NULL, &image), "NULL");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_image_load(path, NULL, NULL), "NULL");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_image_map(NULL, &mapping), "NULL");
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_image_get(NULL, "x", &image), "NULL");
    CHECK(hugekit_image_get("/nonexistent/socket", "x", &image) != HUGEKIT_STATUS_OK);
    CHECK(hugekit_image_file(NULL) == -1 && hugekit_mapping_address(NULL) == NULL);
    CHECK(hugekit_mapping_len(NULL) == 0 && !image && !mapping);
    hugekit_image_free(NULL);
    hugekit_mapping_free(NULL);
}

static void files_that_make_no_image_are_refused_by_name(const char *path)
{
    hugekit_image *image = NULL;
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_image_load("/dev/zero", NULL, &image), "/dev/zero");
    CHECK(hugekit_image_load("/nonexistent/file", NULL, &image) == HUGEKIT_STATUS_SYSTEM);
    CHECK(strstr(hugekit_last_error(), "/nonexistent/file") && hugekit_last_errno() != 0);
    const char *deltas[] = {path};
    hugekit_image_options options = {.size = sizeof options, .deltas = deltas, .delta_count = 1};
    CHECK_REFUSED(HUGEKIT_STATUS_INVALID, hugekit_image_load(path, &options, &image), path);
    CHECK(!image);
}

static void count(size_t done, size_t total, void *context)
{
    size_t *last = context;
    CHECK(done > *last && done <= total && total == BYTES);
    *last = done;
}

static void a_load_can_be_watched_and_stopped(const char *path)
{
    size_t last = 0;
    hugekit_image *image = NULL;
    hugekit_image_options options = {
        .size = sizeof options, .progress = count, .context = &last, .threads = 1};
    CHECK(hugekit_image_load(path, &options, &image) == HUGEKIT_STATUS_OK && last == BYTES);
    hugekit_image_free(image);
    image = NULL;
    hugekit_cancel *cancel = hugekit_cancel_new();
    hugekit_cancel_set(cancel);
    hugekit_image_options stopped = {.size = sizeof stopped, .cancel = cancel};
    CHECK(hugekit_image_load(path, &stopped, &image) == HUGEKIT_STATUS_CANCELLED && !image);
    hugekit_cancel_free(cancel);
}

static void no_mapping_sees_the_writes_of_another(const hugekit_image *image)
{
    hugekit_mapping *one = NULL, *other = NULL;
    CHECK(hugekit_image_map(image, &one) == HUGEKIT_STATUS_OK);
    CHECK(hugekit_image_map(image, &other) == HUGEKIT_STATUS_OK);
    CHECK(hugekit_mapping_len(one) == BYTES);
    unsigned char *bytes = hugekit_mapping_address(one);
    CHECK((uintptr_t)bytes % ((uintptr_t)2 << 20) == 0 && is_whole(bytes));
    memset(bytes, 7, BYTES);
    CHECK(is_whole(hugekit_mapping_address(other)));
    /* A child has the memory as it was, and its writes are its own. */
    pid_t child = fork();
    if (child == 0) {
        int is_there = bytes[BYTES - 1] == 7;
        memset(bytes, 8, BYTES);
        hugekit_mapping_free(one);
        _exit(is_there ? 0 : 1);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(bytes[0] == 7 && bytes[BYTES - 1] == 7);
    hugekit_mapping_free(one);
    hugekit_mapping_free(other);
}

static void another_program_reads_it_by_its_path(const hugekit_image *image)
{
    char path[64], command[256];
    int file = dup(hugekit_image_file(image));
    CHECK(file >= 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    snprintf(command, sizeof command, "test $(wc -c < %s) = %zu", path, BYTES);
    CHECK(system(command) == 0);
    CHECK(write(file, "x", 1) < 0);
    close(file);
}

int main(void)
{
    const char *path = memory_file();
    arguments_are_looked_at(path);
    files_that_make_no_image_are_refused_by_name(path);
    a_load_can_be_watched_and_stopped(path);
    hugekit_image *image = NULL;
    hugekit_image_options options = {.size = sizeof options, .name = "test"};
    CHECK(hugekit_image_load(path, &options, &image) == HUGEKIT_STATUS_OK);
    hugekit_image_facts facts = {.size = sizeof facts};
    CHECK(hugekit_image_query(image, &facts) == HUGEKIT_STATUS_OK && facts.bytes == BYTES);
    /* 2 MiB of zeroes take no memory, and the last granule at most 2 MiB. */
    CHECK(facts.present >= BYTES - ZEROES && facts.present <= 2 * ZEROES);
    CHECK(facts.huge <= facts.present);
    no_mapping_sees_the_writes_of_another(image);
    another_program_reads_it_by_its_path(image);
    hugekit_mapping *mapping = NULL;
    CHECK(hugekit_image_map(image, &mapping) == HUGEKIT_STATUS_OK);
    hugekit_image_free(image);
    CHECK(is_whole(hugekit_mapping_address(mapping)));
    hugekit_mapping_free(mapping);
    return 0;
}
