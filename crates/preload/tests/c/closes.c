/* A lock of an open file ends with its last descriptor, whichever function closes it, although the file was mapped. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define BYTES (1 << 18)
#define MOVED_TO 700

static unsigned char buffer[BYTES], found[BYTES];
static const char *path;

/* Opens the file, locks it, and reads it by a mapping. */
static int open_locked(void)
{
    int file = open(path, O_RDWR);
    CHECK(file >= 0 && flock(file, LOCK_EX | LOCK_NB) == 0);
    CHECK(pread(file, found, BYTES, 0) == BYTES && memcmp(found, buffer, BYTES) == 0);
    return file;
}

static void check_unlocked(void)
{
    int other = open(path, O_RDWR);
    CHECK(other >= 0 && flock(other, LOCK_EX | LOCK_NB) == 0 && close(other) == 0);
}

static void check_locked(void)
{
    int other = open(path, O_RDWR | O_CLOEXEC);
    CHECK(other >= 0 && flock(other, LOCK_EX | LOCK_NB) == -1 && errno == EWOULDBLOCK);
    /* By the kernel: a close by the library would remove the mapping. */
    CHECK(fcntl(other, F_GETFD) == FD_CLOEXEC);
}

int main(int count, char **arguments)
{
    CHECK(count == 2);
    path = arguments[1];
    int null = open("/dev/null", O_RDWR), file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    for (size_t at = 0; at < BYTES; at++)
        buffer[at] = byte_at(at, 9);
    CHECK(null >= 0 && file >= 0 && write(file, buffer, BYTES) == BYTES && close(file) == 0);

    CHECK(close(open_locked()) == 0);
    check_unlocked();

    FILE *stream = fdopen(open_locked(), "r+");
    CHECK(stream != NULL);
    errno = 77;
    CHECK(fclose(stream) == 0 && errno == 77);
    check_unlocked();

    file = open_locked();
    CHECK(dup2(null, file) == file);
    check_unlocked();

    file = open_locked();
    CHECK(dup3(null, file, O_CLOEXEC) == file && fcntl(file, F_GETFD) == FD_CLOEXEC);
    check_unlocked();

    file = open_locked();
    CHECK(dup2(file, MOVED_TO) == MOVED_TO && close(file) == 0);
    CHECK(pread(MOVED_TO, found, BYTES, 0) == BYTES);
    check_locked();
    CHECK(close_range(MOVED_TO, MOVED_TO + 5, 0) == 0);
    check_unlocked();

    /* What closes nothing. The mapping is made once, and removed by the last call. */
    file = open_locked();
    CHECK(dup2(file, file) == file && close_range((unsigned)file, (unsigned)file, 4) == 0);
    CHECK(dup3(file, file, 0) == -1 && errno == EINVAL);
    CHECK(pread(file, found, BYTES, 0) == BYTES && memcmp(found, buffer, BYTES) == 0);
    check_locked();
    CHECK(dup2(-1, MOVED_TO) == -1 && errno == EBADF && close_range(9, 8, 4) == -1 && errno == EINVAL);
    CHECK(pread(file, found, BYTES, 0) == BYTES && memcmp(found, buffer, BYTES) == 0);
    CHECK(close(file) == 0);
    check_unlocked();

    /* A stream without a descriptor. */
    stream = fmemopen(buffer, sizeof buffer, "r");
    CHECK(stream != NULL && fclose(stream) == 0);
    puts("locks ended with their files");
    return 0;
}
