/* Guest memory, preallocated with progress: what a VMM does before it starts a machine.
 *
 *   cc -std=c11 prealloc.c $(pkg-config --cflags --libs hugekit) -o prealloc && ./prealloc [MEBIBYTES [THREADS]]
 *
 * The memory comes from a pool on huge pages, which several threads populate while a line says how far they are.
 * Then it is mapped as one region in microseconds, and KVM's memory slots take its address. A second machine of
 * the same size gets the first one's memory, cleared again. Ctrl-C stops the guest's writes. */
#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <hugekit.h>

static hugekit_cancel *cancel;

/* The one function of hugekit's that a signal handler may call. */
static void stop(int signal)
{
    (void)signal;
    hugekit_cancel_set(cancel);
}

static void tell(size_t done, size_t total, void *what)
{
    fprintf(stderr, "\r%s: %zu of %zu MiB", (const char *)what, done >> 20, total >> 20);
    if (done == total)
        fputc('\n', stderr);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void must(hugekit_status status)
{
    if (status == HUGEKIT_STATUS_OK)
        return;
    fprintf(stderr, "\n%s: %s\n", hugekit_status_name(status), hugekit_last_error());
    if (hugekit_last_remedy()[0])
        fprintf(stderr, "remedy: %s\n", hugekit_last_remedy());
    exit(1);
}

/* A machine's memory: zeroed, committed, and in the page tables. Returns the seconds it took. */
static double machine(const hugekit_pool *pool, size_t bytes, size_t threads, hugekit_region **memory)
{
    double start = now();
    hugekit_region_options options = {.size = sizeof options, .threads = threads, .progress = tell};
    options.context = "clearing";
    must(hugekit_region_new(pool, bytes, &options, memory));
    hugekit_options mapping = {.size = sizeof mapping, .threads = threads};
    must(hugekit_region_populate(*memory, 0, bytes, &mapping, NULL));
    return now() - start;
}

int main(int count, char **arguments)
{
    size_t mebibytes = count > 1 ? strtoul(arguments[1], NULL, 10) : 256;
    size_t threads = count > 2 ? strtoul(arguments[2], NULL, 10) : 0;
    size_t bytes = mebibytes << 20;

    hugekit_pool_options options = {.size = sizeof options, .name = "guest"};
    options.threads = threads;
    options.progress = tell;
    options.context = "populating";
    hugekit_pool *pool = NULL;
    must(hugekit_pool_new(bytes, &options, &pool));
    printf("%zu MiB on pages of %zu KiB\n%s", mebibytes, hugekit_pool_page_size(pool) >> 10,
           hugekit_pool_fallbacks(pool));

    hugekit_region *memory = NULL;
    printf("first machine:  %.3f s\n", machine(pool, bytes, threads, &memory));

    /* What a guest leaves behind, written at the speed of memory. */
    cancel = hugekit_cancel_new();
    signal(SIGINT, stop);
    hugekit_options work = {.size = sizeof work, .threads = threads, .progress = tell, .cancel = cancel};
    work.context = "the guest writes";
    char *image = malloc(bytes);
    if (!image)
        return 1;
    memset(image, 0x5a, bytes);
    hugekit_status status = hugekit_copy_with(hugekit_region_address(memory), image, bytes, &work, NULL);
    if (status == HUGEKIT_STATUS_CANCELLED)
        fprintf(stderr, "\n%s\n", hugekit_last_error());
    else
        must(status);
    free(image);

    hugekit_region_free(memory);
    printf("second machine: %.3f s\n", machine(pool, bytes, threads, &memory));
    const char *guest = hugekit_region_address(memory);
    for (size_t at = 0; at < bytes; at += 4096)
        if (guest[at] != 0)
            return 1;
    puts("all of it is zero");
    hugekit_region_free(memory);
    hugekit_pool_free(pool);
    hugekit_cancel_free(cancel);
    return 0;
}
