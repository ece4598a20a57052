/* Another preloaded library: counts what reaches it, and does the rest itself. */
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

int other_moves, other_fills, other_reads;

void *memmove(void *to, const void *from, size_t bytes)
{
    volatile unsigned char *target = to;
    const volatile unsigned char *source = from;
    other_moves++;
    if (target < source || target >= source + bytes)
        for (size_t at = 0; at < bytes; at++)
            target[at] = source[at];
    else
        for (size_t at = bytes; at > 0; at--)
            target[at - 1] = source[at - 1];
    return to;
}

void *memset(void *to, int value, size_t bytes)
{
    volatile unsigned char *target = to;
    other_fills++;
    for (size_t at = 0; at < bytes; at++)
        target[at] = (unsigned char)value;
    return to;
}

ssize_t pread64(int file, void *to, size_t bytes, long offset)
{
    other_reads++;
    return syscall(SYS_pread64, file, to, bytes, offset);
}
