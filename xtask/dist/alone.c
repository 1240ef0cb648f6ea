// A program that has nothing but the library.
#include <hugekit.h>
#include <stdio.h>
static char bytes[8 << 20];
int main(void)
{
    hugekit_pool *pool;
    if (hugekit_clear(bytes, sizeof bytes) != HUGEKIT_STATUS_OK
        || hugekit_pool_new((size_t)4 << 20, NULL, &pool) != HUGEKIT_STATUS_OK)
        return fprintf(stderr, "%s\n", hugekit_last_error()), 1;
    hugekit_pool_free(pool);
    return puts(HUGEKIT_VERSION) < 0;
}
