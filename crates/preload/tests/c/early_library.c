/* A library with an indirect function: its resolver runs while libraries are relocated, and copies. */
#include <string.h>

int library_constructor_copied;
static unsigned char from[400], to[400];

static int answer(void) { return 42; }
static int failure(void) { return 1; }

static int (*resolve(void))(void)
{
    for (unsigned at = 0; at < sizeof from; at++)
        ((volatile unsigned char *)from)[at] = (unsigned char)(at * 3);
    memcpy(to, from, 15);
    memcpy(to + 15, from + 15, 100);
    memcpy(to + 115, from + 115, 285);
    int is_same = memcmp(to, from, sizeof from) == 0;
    memset(to, 0, sizeof to);
    return is_same && to[399] == 0 ? answer : failure;
}

int chosen_by_resolver(void) __attribute__((ifunc("resolve")));

__attribute__((constructor)) static void constructor(void)
{
    memmove(to, from, sizeof from);
    library_constructor_copied = memcmp(to, from, sizeof from) == 0;
}
