/* Writes of a file on persistent memory that must survive a power cut without fsync, and a file system that is full.
 * dax write FILE: writes into a hole of a new file. dax check FILE: the bytes are there. dax full FOLDER: no space is left. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_BYTES (8 << 20)
#define START 1000001
#define BYTES 3000003

static unsigned char bytes[BYTES], found[FILE_BYTES];

static void write_file(const char *path)
{
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(file >= 0 && ftruncate(file, FILE_BYTES) == 0 && fsync(file) == 0);
    sync();
    CHECK(pwrite(file, bytes, BYTES, START) == BYTES);
    CHECK(pread(file, found, BYTES, START) == BYTES && memcmp(found, bytes, BYTES) == 0);
    /* No fsync: the write itself is durable. */
}

static void check_file(const char *path)
{
    int file = open(path, O_RDONLY);
    CHECK(file >= 0 && pread(file, found, FILE_BYTES, 0) == FILE_BYTES);
    for (volatile size_t at = 0; at < FILE_BYTES; at++)
        CHECK(found[at] == (at >= START && at < START + BYTES ? byte_at(at - START, 8) : 0));
}

static void fill_file_system(const char *folder)
{
    char name[4096];
    snprintf(name, sizeof name, "%s/sparse", folder);
    int sparse = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(sparse >= 0 && ftruncate(sparse, FILE_BYTES) == 0);
    CHECK(pwrite(sparse, bytes, 100000, 0) == 100000);
    snprintf(name, sizeof name, "%s/filler", folder);
    int filler = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    ssize_t done;
    while ((done = write(filler, bytes, BYTES)) > 0)
        ;
    while ((done = write(filler, bytes, 4096)) > 0)
        ;
    CHECK(done == -1 && errno == ENOSPC);
    for (int round = 0; round < 3; round++) {
        errno = 0;
        done = pwrite(sparse, bytes, 1000000, 4 << 20);
        CHECK((done == -1 && errno == ENOSPC) || (done > 0 && done < 1000000));
        CHECK(pwrite(sparse, bytes, 100000, 0) == 100000);
    }
    CHECK(close(filler) == 0 && unlink(name) == 0);
    sync();
    CHECK(pwrite(sparse, bytes, 1000000, 4 << 20) == 1000000);
    CHECK(pread(sparse, found, 1000000, 4 << 20) == 1000000 && memcmp(found, bytes, 1000000) == 0);
    CHECK(close(sparse) == 0);
}

int main(int count, char **arguments)
{
    CHECK(count == 3);
    for (volatile size_t at = 0; at < BYTES; at++)
        bytes[at] = byte_at(at, 8);
    if (strcmp(arguments[1], "write") == 0)
        write_file(arguments[2]);
    else if (strcmp(arguments[1], "check") == 0)
        check_file(arguments[2]);
    else
        fill_file_system(arguments[2]);
    puts("as expected");
    return 0;
}
