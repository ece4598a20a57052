/* Prints what calls cost, in nanoseconds: the least of many rounds. Run it alone and under the library, and compare.
 * cost short: memory functions by length. cost cold: copies of 1 and 64 MiB that are not in the cache, read at once or not.
 * cost file FILE: positioned reads and writes. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static unsigned char one[1 << 17] __attribute__((aligned(64))), other[1 << 17] __attribute__((aligned(64)));
static volatile int sink;

static double cost(int kind, size_t bytes)
{
    double best = 1e18;
    int calls = bytes < 2048 ? 20000 : 2000;
    for (int round = 0; round < 400; round++) {
        double start = now();
        for (int call = 0; call < calls; call++) {
            if (kind == 0)
                memcpy(one, other, bytes);
            else if (kind == 1)
                memset(one, call, bytes);
            else
                sink = memcmp(one, other, bytes);
            __asm__ volatile("" ::: "memory");
        }
        double each = (now() - start) / calls;
        best = each < best ? each : best;
    }
    return best;
}

static void print_short(void)
{
    size_t lengths[] = {1, 4, 8, 15, 16, 24, 32, 48, 64, 100, 128, 129, 256, 512, 1024, 4096, 16384, 65536};
    const char *names[] = {"memcpy", "memset", "memcmp"};
    for (size_t at = 0; at < sizeof lengths / sizeof *lengths; at++)
        for (int kind = 0; kind < 3; kind++) {
            memset(one, 0, sizeof one);
            printf("%s %zu %.2f\n", names[kind], lengths[at], cost(kind, lengths[at]));
        }
}

static void print_cold(size_t bytes)
{
    size_t room = (size_t)1 << 29;
    unsigned char *from = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned char *to = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(from != MAP_FAILED && to != MAP_FAILED);
    memset(from, 1, room);
    memset(to, 1, room);
    for (int is_read = 0; is_read < 2; is_read++) {
        double best = 1e18, sum = 0;
        int rounds = 0;
        for (int round = 0; round < 4; round++)
            for (size_t at = 0; at + bytes <= room; at += bytes, rounds++) {
                double start = now();
                memcpy(to + at, from + at, bytes);
                unsigned long seen = 0;
                for (size_t place = 0; is_read && place < bytes; place += 8)
                    seen += *(volatile unsigned long *)(to + at + place);
                double took = now() - start;
                sink = (int)seen;
                best = took < best ? took : best;
                sum += took;
            }
        printf("cold %zu %s least %.0f mean %.0f\n", bytes, is_read ? "read" : "not-read", best, sum / rounds);
    }
    munmap(from, room);
    munmap(to, room);
}

static void print_file(const char *path)
{
    static unsigned char bytes[1 << 20];
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(file >= 0);
    for (int at = 0; at < 64; at++)
        CHECK(pwrite(file, bytes, sizeof bytes, (off_t)at << 20) == sizeof bytes);
    for (size_t length = 4096; length <= sizeof bytes; length *= 4)
        for (int is_write = 0; is_write < 2; is_write++) {
            double best = 1e18;
            for (int round = 0; round < 400; round++) {
                off_t at = (off_t)(round % 60) << 20;
                double start = now();
                ssize_t done = is_write ? pwrite(file, bytes, length, at) : pread(file, bytes, length, at);
                double took = now() - start;
                CHECK(done == (ssize_t)length);
                best = took < best ? took : best;
            }
            printf("%s %zu %.0f\n", is_write ? "pwrite" : "pread", length, best);
        }
}

int main(int count, char **arguments)
{
    CHECK(count > 1);
    if (strcmp(arguments[1], "short") == 0)
        print_short();
    else if (strcmp(arguments[1], "cold") == 0) {
        print_cold(1 << 20);
        print_cold(1 << 26);
    } else
        print_file(arguments[2]);
    return 0;
}
