/* Forks while threads copy, read and write; every child copies, allocates, reads and writes before it leaves. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES 200000

static unsigned char source[BYTES];
static atomic_int is_over;
static int file;

static void work(unsigned char *to, int rounds)
{
    for (int round = 0; round < rounds; round++) {
        size_t bytes = (size_t)(1 + round * 7919) % BYTES;
        memset(to, 1, bytes);
        memcpy(to, source, bytes);
        CHECK(memcmp(to, source, bytes) == 0);
        CHECK(pread(file, to, BYTES, 0) == BYTES && memcmp(to, source, BYTES) == 0);
        CHECK(pwrite(file, source, BYTES, 0) == BYTES);
        if (round % 5 == 0)
            CHECK(close(dup(file)) == 0);
    }
}

static void *copy(void *unused)
{
    unsigned char *to = malloc(BYTES);
    while (!atomic_load(&is_over))
        work(to, 20);
    free(to);
    return unused;
}

int main(int count, char **arguments)
{
    CHECK(count == 2);
    for (volatile size_t at = 0; at < BYTES; at++)
        source[at] = byte_at(at, 1);
    file = open(arguments[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(file >= 0 && write(file, source, BYTES) == BYTES);
    pthread_t threads[3];
    for (int nth = 0; nth < 3; nth++)
        CHECK(pthread_create(&threads[nth], NULL, copy, NULL) == 0);
    for (int child = 0; child < 60; child++) {
        pid_t process = fork();
        CHECK(process >= 0);
        if (process == 0) {
            unsigned char *to = malloc(BYTES);
            work(to, 12);
            free(to);
            _exit(0);
        }
        int status;
        CHECK(waitpid(process, &status, 0) == process && status == 0);
    }
    atomic_store(&is_over, 1);
    for (int nth = 0; nth < 3; nth++)
        CHECK(pthread_join(threads[nth], NULL) == 0);
    puts("every child copied");
    return 0;
}
