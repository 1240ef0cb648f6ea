/* What the tests share: a check that says where it failed, and a test that cannot run here. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hugekit.h"

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: %s\nlast error: %s\n", __FILE__, __LINE__, #condition,        \
                    hugekit_last_error());                                                        \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

/* The status, and a message that names what was wrong. */
#define CHECK_REFUSED(status, call, words)                                                        \
    do {                                                                                          \
        CHECK((call) == (status));                                                                \
        CHECK(strstr(hugekit_last_error(), (words)) != NULL);                                     \
    } while (0)

/* The harness counts it as skipped. */
#define SKIP(reason)                                                                              \
    do {                                                                                          \
        printf("SKIP %s\n", (reason));                                                            \
        exit(77);                                                                                 \
    } while (0)

#endif
