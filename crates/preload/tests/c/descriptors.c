/* Descriptors that cannot be mapped, or ask for more than a mapping gives; and a program that writes its title over its
 * environment, as servers do. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BYTES (1 << 20)
#define ROUNDS 50

extern char **environ;

static unsigned char buffer[BYTES], found[BYTES];

int main(int count, char **arguments)
{
    CHECK(count == 3);
    const char *path = arguments[1];
    int is_synchronous = strcmp(arguments[2], "synchronous") == 0;
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(file >= 0 && write(file, buffer, BYTES) == BYTES);
    /* The writer cannot be mapped, and leaves the mapping of the reader alone. */
    int reader = open(path, O_RDONLY), writer = open(path, O_WRONLY);
    int synchronous = open(path, O_RDWR | O_DSYNC);
    CHECK(reader >= 0 && writer >= 0 && synchronous >= 0);
    for (int round = 1; round <= ROUNDS; round++) {
        memset(buffer, round, BYTES);
        int target = is_synchronous ? synchronous : writer;
        CHECK(pwrite(target, buffer, BYTES / 2, 0) == BYTES / 2);
        CHECK(pread(reader, found, BYTES, 0) == BYTES);
        CHECK(memcmp(found, buffer, BYTES / 2) == 0);
    }
    for (char **entry = environ; *entry; entry++)
        memset(*entry, 'x', strlen(*entry));
    puts("descriptors did what they promise");
    return 0;
}
