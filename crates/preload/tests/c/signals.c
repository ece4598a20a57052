/* Copies, fills and reads from a signal handler, while the program itself copies, allocates and reads. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#define BYTES 300000
#define ROUNDS 300

static unsigned char from[BYTES], to[BYTES], handler_to[BYTES], file_bytes[BYTES];
static volatile sig_atomic_t handled, wrong;
static int file;

static volatile sig_atomic_t in_handler;
void *__libc_malloc(size_t);

/* The handler allocates nothing, and so neither does the library below it. */
void *malloc(size_t bytes)
{
    if (in_handler)
        abort();
    return __libc_malloc(bytes);
}

static void handle(int number)
{
    size_t lengths[] = {7, 100, 1000, 20000, BYTES};
    size_t bytes = lengths[handled % 5];
    int before = errno;
    (void)number;
    in_handler = 1;
    memset(handler_to, 3, bytes);
    memcpy(handler_to, from, bytes);
    wrong |= memcmp(handler_to, from, bytes) != 0;
    wrong |= pread(file, handler_to, bytes, 0) != (ssize_t)bytes;
    wrong |= pwrite(file, file_bytes, bytes, 0) != (ssize_t)bytes;
    for (volatile size_t at = 0; at < bytes; at += 97)
        wrong |= handler_to[at] != byte_at(at, 2);
    wrong |= errno != before;
    in_handler = 0;
    handled++;
}

int main(int count, char **arguments)
{
    CHECK(count == 2);
    for (volatile size_t at = 0; at < BYTES; at++) {
        from[at] = byte_at(at, 1);
        file_bytes[at] = byte_at(at, 2);
    }
    file = open(arguments[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(file >= 0 && pwrite(file, file_bytes, BYTES, 0) == BYTES);
    struct sigaction action = {.sa_handler = handle};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval timer = {{0, 500}, {0, 500}};
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
    while (handled < ROUNDS) {
        for (size_t bytes = 1; bytes <= BYTES; bytes = bytes * 3 + 1) {
            memset(to, 9, bytes);
            memcpy(to, from, bytes);
            for (volatile size_t at = 0; at < bytes; at += 101)
                CHECK(to[at] == byte_at(at, 1));
            CHECK(pread(file, to, bytes, 0) == (ssize_t)bytes && memcmp(to, file_bytes, bytes) == 0);
            CHECK(pwrite(file, file_bytes, bytes, 0) == (ssize_t)bytes);
            unsigned char *heap = calloc(1, bytes);
            CHECK(heap && (heap = realloc(heap, bytes * 2)));
            free(heap);
        }
    }
    timer.it_value.tv_usec = 0;
    timer.it_interval.tv_usec = 0;
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
    CHECK(!wrong);
    puts("handlers copied what they should");
    return 0;
}
