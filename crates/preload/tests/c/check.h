/* Checks of the test programs: a failed one says where, and ends the program. */
#pragma once
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                       \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

/* A byte that depends on its place and on a seed. */
static inline unsigned char byte_at(size_t place, unsigned seed)
{
    return (unsigned char)((place * 2654435761u + seed * 40503u) >> 7);
}
