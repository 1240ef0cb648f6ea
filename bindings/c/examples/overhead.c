/* What one call of hugekit_clear costs beside memset, for few bytes: alternating loops.
 *
 *   cc -O2 -std=c11 overhead.c $(pkg-config --cflags --libs hugekit) -o overhead && ./overhead [CALLS] */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <hugekit.h>

enum { ROUNDS = 21 };

static char bytes[4096];

/* Called by address, as a library's function is. */
static void *(*volatile set)(void *, int, size_t) = memset;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int count, char **arguments)
{
    int calls = count > 1 ? atoi(arguments[1]) : 1000000;
    static const size_t lengths[] = {0, 64, 256, 1024, 4096};
    for (size_t at = 0; at < sizeof lengths / sizeof *lengths; at++) {
        size_t len = lengths[at];
        double theirs[ROUNDS], ours[ROUNDS];
        for (int round = 0; round < ROUNDS; round++) {
            double start = now();
            for (int call = 0; call < calls; call++)
                set(bytes, 0, len);
            double middle = now();
            for (int call = 0; call < calls; call++)
                if (hugekit_clear(bytes, len) != HUGEKIT_STATUS_OK)
                    return 1;
            theirs[round] = (middle - start) / calls;
            ours[round] = (now() - middle) / calls;
        }
        qsort(theirs, ROUNDS, sizeof *theirs, ascending);
        qsort(ours, ROUNDS, sizeof *ours, ascending);
        printf("%4zu bytes: memset %5.1f ns, hugekit_clear %5.1f ns, %+.1f ns\n", len, theirs[ROUNDS / 2],
               ours[ROUNDS / 2], ours[ROUNDS / 2] - theirs[ROUNDS / 2]);
    }
    return 0;
}
