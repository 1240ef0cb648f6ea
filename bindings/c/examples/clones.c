/* Clones that share one image: loads a memory file once, and forks clones that each write memory of their own.
 *
 *     cc -std=c11 clones.c $(pkg-config --cflags --libs hugekit) -o clones
 *     ./clones memory.bin 16
 */
#define _GNU_SOURCE
#include <hugekit.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static int fail(const char *what)
{
    fprintf(stderr, "%s: %s\n%s\n", what, hugekit_last_error(), hugekit_last_remedy());
    return 1;
}

/* A clone reads the shared bytes, and writes bytes that only it has. */
static int run_clone(unsigned char *memory, size_t len, int number)
{
    unsigned char first = memory[0];
    memory[0] = (unsigned char)number;
    memory[len - 1] = (unsigned char)number;
    printf("clone %d: byte 0 was %#x, and is %#x here\n", number, first, memory[0]);
    return fflush(stdout) == 0 ? 0 : 1;
}

int main(int count, char **arguments)
{
    if (count < 2)
        return fprintf(stderr, "usage: %s MEMORY-FILE [CLONES]\n", arguments[0]), 2;
    int clones = count > 2 ? atoi(arguments[2]) : 4;

    hugekit_image *image;
    if (hugekit_image_load(arguments[1], NULL, &image) != HUGEKIT_STATUS_OK)
        return fail(arguments[1]);
    hugekit_image_facts facts = {.size = sizeof facts};
    hugekit_mapping *mapping;
    if (hugekit_image_query(image, &facts) != HUGEKIT_STATUS_OK
        || hugekit_image_map(image, &mapping) != HUGEKIT_STATUS_OK)
        return fail("the image");
    printf("%zu bytes, %zu in memory, %zu on huge pages\n", (size_t)facts.bytes, (size_t)facts.present,
           (size_t)facts.huge);
    fflush(stdout);

    unsigned char *memory = hugekit_mapping_address(mapping);
    size_t len = hugekit_mapping_len(mapping);
    unsigned char first = memory[0];
    int failures = 0;
    for (int number = 1; number <= clones; number++)
        if (fork() == 0)
            _exit(run_clone(memory, len, number));
    for (int status; wait(&status) > 0;)
        failures += status != 0;
    failures += memory[0] != first;
    hugekit_mapping_free(mapping);
    hugekit_image_free(image);
    return failures == 0 ? 0 : 1;
}
