/* Between two preloaded libraries: what the first leaves to the next one reaches it. Then dlopen and dlclose. */
#define _GNU_SOURCE
#include "check.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **arguments)
{
    CHECK(count == 2);
    int *moves = dlsym(RTLD_DEFAULT, "other_moves"), *fills = dlsym(RTLD_DEFAULT, "other_fills"),
        *reads = dlsym(RTLD_DEFAULT, "other_reads");
    static unsigned char from[5000], to[5000];
    for (volatile size_t at = 0; at < sizeof from; at++)
        from[at] = byte_at(at, 1);
    int moves_before = moves ? *moves : 0, fills_before = fills ? *fills : 0, reads_before = reads ? *reads : 0;
    memcpy(to, from, 5000);
    CHECK(memcmp(to, from, 5000) == 0);
    memset(to, 0, 5000);
    CHECK(to[0] == 0 && to[4999] == 0);
    int file = open("/proc/self/exe", O_RDONLY);
    CHECK(pread(file, to, 5000, 0) > 100 && to[1] == 'E' && close(file) == 0);
    if (moves)
        CHECK(*moves > moves_before && *fills > fills_before && *reads > reads_before);
    /* The library itself, opened once more and closed: it stays. */
    for (int round = 0; round < 3; round++) {
        void *again = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
        CHECK(again);
        void *(*copy)(void *, const void *, size_t) = (void *(*)(void *, const void *, size_t))dlsym(again, "memcpy");
        CHECK(copy && copy(to, from, 3000) == to && memcmp(to, from, 3000) == 0);
        CHECK(dlclose(again) == 0);
        CHECK(copy(to, from + 1, 4000) == to && memcmp(to, from + 1, 4000) == 0);
    }
    puts(moves ? "the next library was reached" : "there is no next library");
    return 0;
}
