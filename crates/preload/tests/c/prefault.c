/* Long copies, fills and reads into memory that has no pages yet: the bytes are right, nothing around them gets a page, `errno`
 * stays, and memory that must not be written ends the program as it does without the library. */
#define _GNU_SOURCE
#include "check.h"
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096
#define BYTES ((size_t)16 << 20)
#define LONG ((size_t)4 << 20)
#define FILE_BYTES ((size_t)8 << 20)

static sigjmp_buf before_fault;

static void leave(int number)
{
    (void)number;
    siglongjmp(before_fault, 1);
}

static unsigned char *fresh(int access)
{
    unsigned char *start = mmap(NULL, BYTES, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(start != MAP_FAILED);
    madvise(start, BYTES, MADV_NOHUGEPAGE);
    return start;
}

static size_t present_pages(unsigned char *start)
{
    static unsigned char present[BYTES / PAGE];
    size_t sum = 0;
    CHECK(mincore(start, BYTES, present) == 0);
    for (volatile size_t at = 0; at < BYTES / PAGE; at++)
        sum += present[at] & 1;
    return sum;
}

static void check_bytes(const unsigned char *found, size_t bytes, size_t from, unsigned seed)
{
    for (volatile size_t at = 0; at < bytes; at++)
        CHECK(found[at] == byte_at(from + at, seed));
}

/* Returns 1 if a copy ends with a signal. */
static int faults(unsigned char *to, const unsigned char *from)
{
    if (sigsetjmp(before_fault, 1))
        return 1;
    memcpy(to, from, LONG);
    return 0;
}

static void check_memory(const unsigned char *source)
{
    unsigned char *target = fresh(PROT_READ | PROT_WRITE), *to = target + 3 * PAGE + 5;
    for (int again = 0; again < 2; again++) {
        errno = 77;
        CHECK(memcpy(to, source + 1, LONG) == to && errno == 77);
        check_bytes(to, LONG, 1, 3);
        CHECK(present_pages(target) == LONG / PAGE + 1);
    }
    CHECK(memset(target + BYTES / 2, 9, LONG) == target + BYTES / 2);
    for (volatile size_t at = 0; at < LONG; at++)
        CHECK(target[BYTES / 2 + at] == 9);
    CHECK(present_pages(target) == LONG / PAGE + 1 + LONG / PAGE);
    memmove(to + 100, to, LONG - 100);
    check_bytes(to + 100, LONG - 100, 1, 3);
    memmove(to, to + 100, LONG - 100);
    check_bytes(to, LONG - 100, 1, 3);
    CHECK(munmap(target, BYTES) == 0);
}

static void check_file(const char *name, const unsigned char *source)
{
    int file = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(file >= 0 && ftruncate(file, (off_t)FILE_BYTES) == 0);
    CHECK(pwrite(file, source, FILE_BYTES, 0) == (ssize_t)FILE_BYTES);
    unsigned char *target = fresh(PROT_READ | PROT_WRITE);
    CHECK(pread(file, target, FILE_BYTES, 0) == (ssize_t)FILE_BYTES);
    check_bytes(target, FILE_BYTES, 0, 3);
    CHECK(pread(file, target, FILE_BYTES, 0) == (ssize_t)FILE_BYTES);
    CHECK(present_pages(target) == FILE_BYTES / PAGE);
    CHECK(munmap(target, BYTES) == 0 && close(file) == 0);
}

int main(int count, char **arguments)
{
    unsigned char *source = fresh(PROT_READ | PROT_WRITE);
    for (volatile size_t at = 0; at < BYTES; at++)
        source[at] = byte_at(at, 3);
    check_memory(source);
    if (count > 1)
        check_file(arguments[1], source);
    CHECK(signal(SIGSEGV, leave) != SIG_ERR);
    CHECK(faults(fresh(PROT_READ), source) == 1);
    CHECK(faults(fresh(PROT_READ | PROT_WRITE), fresh(PROT_NONE)) == 1);
    puts("absent pages became present");
    return 0;
}
