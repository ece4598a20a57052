/* Every memory function against a loop over the bytes: lengths, alignments, overlaps, and ranges that end at a guard page. */
#define _GNU_SOURCE
#include "check.h"
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define ROOM 8192
#define PAGE 4096

void *__memcpy_chk(void *, const void *, size_t, size_t);
void *__memmove_chk(void *, const void *, size_t, size_t);
void *__memset_chk(void *, int, size_t, size_t);

/* Pages with a page in front and behind that no access survives. */
static unsigned char *guarded(void)
{
    unsigned char *start = mmap(NULL, ROOM + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(start != MAP_FAILED);
    CHECK(mprotect(start + PAGE, ROOM, PROT_READ | PROT_WRITE) == 0);
    return start + PAGE;
}

static void fill(unsigned char *to, size_t bytes, unsigned seed)
{
    for (volatile size_t at = 0; at < bytes; at++)
        to[at] = byte_at(at, seed);
}

static void check_copy(unsigned char *to, unsigned char *from, size_t bytes, int kind)
{
    void *(*checked)(void *, const void *, size_t, size_t) = kind == 2 ? __memcpy_chk : __memmove_chk;
    fill(from, bytes, (unsigned)bytes);
    void *returned = kind == 0   ? memcpy(to, from, bytes)
                     : kind == 1 ? memmove(to, from, bytes)
                                 : checked(to, from, bytes, bytes + (size_t)kind);
    CHECK(returned == to);
    for (volatile size_t at = 0; at < bytes; at++)
        CHECK(to[at] == byte_at(at, (unsigned)bytes));
    CHECK(memcmp(to, from, bytes) == 0);
}

static void check_fill(unsigned char *to, size_t bytes, int value)
{
    CHECK((value & 1 ? memset(to, value, bytes) : __memset_chk(to, value, bytes, bytes)) == to);
    for (volatile size_t at = 0; at < bytes; at++)
        CHECK(to[at] == (unsigned char)value);
}

static void check_compare(unsigned char *one, unsigned char *other, size_t bytes, size_t step)
{
    fill(one, bytes, 9);
    fill(other, bytes, 9);
    for (size_t at = 0; at < bytes; at += step) {
        unsigned char kept = other[at];
        other[at] = (unsigned char)(kept + 1 + at % 254);
        int expected = one[at] < other[at] ? -1 : 1, found = memcmp(one, other, bytes);
        CHECK((found > 0) - (found < 0) == expected);
        CHECK(memcmp(one, other, at) == 0);
        other[at] = kept;
    }
}

/* Copies inside one buffer at a distance, and checks every byte of it. */
static void check_overlap(unsigned char *buffer, size_t from, size_t to, size_t bytes, int kind)
{
    fill(buffer, 2048, 5);
    CHECK((kind ? memcpy(buffer + to, buffer + from, bytes) : memmove(buffer + to, buffer + from, bytes)) == buffer + to);
    for (volatile size_t at = 0; at < 2048; at++) {
        int inside = at >= to && at < to + bytes;
        CHECK(buffer[at] == byte_at(inside ? at - to + from : at, 5));
    }
}

static void check_owner(const char *name)
{
    Dl_info info;
    void *address = dlsym(RTLD_DEFAULT, name);
    CHECK(address && dladdr(address, &info) && strstr(info.dli_fname, "headwater_preload"));
}

int main(int count, char **arguments)
{
    const char *names[] = {"memcpy", "memmove", "memset", "memcmp", "__memcpy_chk", "__memmove_chk", "__memset_chk"};
    for (size_t at = 0; at < sizeof names / sizeof *names; at++)
        check_owner(names[at]);
    unsigned char *one = guarded(), *other = guarded();
    if (count > 1) {
        /* Asks for the end of the program. */
        __memcpy_chk(one, other, (size_t)atoi(arguments[1]), 10);
        return 0;
    }
    for (size_t bytes = 0; bytes <= 700; bytes++) {
        for (int kind = 0; kind < 4; kind++) {
            check_copy(one, other + ROOM - bytes, bytes, kind);
            check_copy(one + ROOM - bytes, other, bytes, kind);
        }
        for (size_t at = 0; at < 64; at += 1 + (bytes > 150) * 6)
            check_copy(one + at, other + (at * 7 + bytes) % 64, bytes, (int)(at % 2));
        check_fill(one, bytes, (int)bytes);
        check_fill(one + ROOM - bytes, bytes, (int)bytes + 256);
        check_compare(one, other + ROOM - bytes, bytes, 1 + bytes / 40);
        check_compare(one + ROOM - bytes, other, bytes, 1 + bytes / 40);
    }
    for (size_t bytes = 0; bytes <= 600; bytes += 1 + bytes / 20)
        for (size_t distance = 0; distance <= bytes + 65; distance += 1 + distance / 10)
            for (int kind = 0; kind < 2; kind++) {
                check_overlap(one, 100, 100 + distance, bytes, kind);
                check_overlap(one, 100 + distance, 100, bytes, kind);
            }
    size_t long_ones[] = {4095, 4096, 4097, 8191, 8192};
    for (size_t at = 0; at < 5; at++) {
        check_copy(one, other, long_ones[at], 0);
        check_copy(one + ROOM - long_ones[at], other, long_ones[at], 1);
        check_fill(one, long_ones[at], 77);
        check_compare(one, other + ROOM - long_ones[at], long_ones[at], 97);
    }
    puts("memory is as a byte loop leaves it");
    return 0;
}
