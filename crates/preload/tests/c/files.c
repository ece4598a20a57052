/* Positioned reads and writes beside the kernel's own calls: every kind of range and descriptor, results and errno. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define FILE_BYTES 3000000
#define BUFFER_BYTES 1500000

static unsigned char model[2 * FILE_BYTES], buffer[BUFFER_BYTES], found[BUFFER_BYTES], expected[BUFFER_BYTES];
static const char *path;

static long kernel_pread(int file, void *to, size_t bytes, long offset)
{
    return syscall(SYS_pread64, file, to, bytes, offset);
}

static long kernel_pwrite(int file, const void *from, size_t bytes, long offset)
{
    return syscall(SYS_pwrite64, file, from, bytes, offset);
}

/* Reads by the library and by the kernel: bytes, result and errno must be the same. */
static long same_read(int file, size_t bytes, long offset)
{
    memset(found, 1, sizeof found);
    memset(expected, 1, sizeof expected);
    errno = 0;
    long one = pread(file, found, bytes, offset);
    int one_error = errno;
    errno = 0;
    long other = kernel_pread(file, expected, bytes, offset);
    CHECK(one == other && one_error == errno);
    CHECK(memcmp(found, expected, sizeof found) == 0);
    return one;
}

/* Writes to two files, one by the library and one by the kernel: results, errno and contents must be the same. */
static long same_write(int file, int twin, size_t bytes, long offset)
{
    errno = 0;
    long one = pwrite(file, buffer, bytes, offset);
    int one_error = errno;
    errno = 0;
    long other = kernel_pwrite(twin, buffer, bytes, offset);
    CHECK(one == other && one_error == errno);
    struct stat status, twin_status;
    CHECK(fstat(file, &status) == 0 && fstat(twin, &twin_status) == 0 && status.st_size == twin_status.st_size);
    return one;
}

static void same_contents(int file, int twin)
{
    long at = 0, read;
    while ((read = kernel_pread(file, found, sizeof found, at)) > 0) {
        CHECK(kernel_pread(twin, expected, sizeof expected, at) == read);
        CHECK(memcmp(found, expected, (size_t)read) == 0);
        at += read;
    }
    CHECK(read == 0 && kernel_pread(twin, expected, 1, at) == 0);
}

static int open_new(const char *suffix, int flags)
{
    char name[4096];
    snprintf(name, sizeof name, "%s.%s", path, suffix);
    unlink(name);
    int file = open(name, O_RDWR | O_CREAT | O_EXCL | flags, 0644);
    CHECK(file >= 0);
    return file;
}

static int reopen(const char *suffix, int flags)
{
    char name[4096];
    snprintf(name, sizeof name, "%s.%s", path, suffix);
    return open(name, flags);
}

static void fill_file(int file)
{
    for (volatile size_t at = 0; at < FILE_BYTES; at++)
        model[at] = byte_at(at, 6);
    CHECK(kernel_pwrite(file, model, FILE_BYTES, 0) == FILE_BYTES);
}

static void check_ranges(unsigned seed)
{
    int file = open_new("one", 0), twin = open_new("two", 0);
    fill_file(file);
    fill_file(twin);
    size_t lengths[] = {0, 1, 4095, 4096, 4097, 65535, 65536, 65537, 300000, 1000001};
    for (int round = 0; round < 400; round++) {
        seed = seed * 1664525 + 1013904223;
        size_t bytes = lengths[seed / 65536 % 10];
        seed = seed * 1664525 + 1013904223;
        long offset = (long)(seed % (FILE_BYTES + 200000));
        for (size_t at = 0; at < bytes; at += 1 + at / 64)
            buffer[at] = (unsigned char)(seed + at);
        if (round % 2)
            same_write(file, twin, bytes, offset);
        else
            same_read(file, bytes, offset);
    }
    same_contents(file, twin);
    /* The end of the file: a short read, none, and a write that extends. */
    struct stat status;
    CHECK(fstat(file, &status) == 0);
    CHECK(same_read(file, 100000, status.st_size - 70000) == 70000);
    CHECK(same_read(file, 100000, status.st_size) == 0);
    CHECK(same_read(file, 100000, status.st_size + 5) == 0);
    CHECK(same_read(file, 100000, -1) == -1 && errno == EINVAL);
    CHECK(same_write(file, twin, 100000, -1) == -1 && errno == EINVAL);
    CHECK(same_write(file, twin, 100000, status.st_size - 50000) == 100000);
    CHECK(same_write(file, twin, 100000, status.st_size + 5000000) == 100000);
    CHECK(same_read(file, 1000000, status.st_size + 2000000) == 1000000); /* a hole */
    CHECK(same_write(file, twin, 1000000, status.st_size + 1000000) == 1000000);
    same_contents(file, twin);
    CHECK(ftruncate(file, 100000) == 0 && ftruncate(twin, 100000) == 0);
    CHECK(same_read(file, 90000, 50000) == 50000);
    CHECK(same_write(file, twin, 90000, 50000) == 90000);
    CHECK(ftruncate(file, 2000000) == 0 && ftruncate(twin, 2000000) == 0);
    CHECK(same_read(file, 1000000, 90000) == 1000000);
    same_contents(file, twin);
    CHECK(close(file) == 0 && close(twin) == 0);
}

static void check_descriptors(void)
{
    int file = reopen("one", O_RDWR), twin = reopen("two", O_RDWR);
    CHECK(same_read(file, 100000, 0) == 100000 && same_write(file, twin, 100000, 7) == 100000);
    int reader = reopen("one", O_RDONLY), writer = reopen("one", O_WRONLY), twin_reader = reopen("two", O_RDONLY),
        twin_writer = reopen("two", O_WRONLY);
    CHECK(same_read(reader, 100000, 3) == 100000);
    CHECK(same_write(reader, twin_reader, 100000, 3) == -1 && errno == EBADF);
    CHECK(same_read(writer, 100000, 3) == -1 && errno == EBADF);
    CHECK(same_write(writer, twin_writer, 100000, 11) == 100000);
    int appender = reopen("one", O_RDWR | O_APPEND), twin_appender = reopen("two", O_RDWR | O_APPEND);
    CHECK(same_write(appender, twin_appender, 100000, 0) == 100000);
    CHECK(same_read(appender, 100000, 0) == 100000);
    same_contents(file, twin);
    /* A descriptor that gets and loses O_APPEND. */
    CHECK(fcntl(file, F_SETFL, O_APPEND) == 0 && fcntl(twin, F_SETFL, O_APPEND) == 0);
    CHECK(same_write(file, twin, 100000, 0) == 100000);
    CHECK(fcntl(file, F_SETFL, 0) == 0 && fcntl(twin, F_SETFL, 0) == 0);
    CHECK(same_write(file, twin, 100000, 0) == 100000);
    int synchronous = reopen("one", O_RDWR | O_SYNC), twin_synchronous = reopen("two", O_RDWR | O_SYNC);
    CHECK(same_write(synchronous, twin_synchronous, 100000, 0) == 100000);
    int path_only = reopen("one", O_PATH);
    CHECK(same_read(path_only, 100000, 0) == -1 && errno == EBADF);
    int direct = reopen("one", O_RDWR | O_DIRECT);
    if (direct >= 0) {
        same_read(direct, 100001, 3);
        CHECK(close(direct) == 0);
    }
    int ends[2], folder = open("/", O_RDONLY | O_DIRECTORY);
    CHECK(pipe(ends) == 0);
    CHECK(same_read(ends[0], 100000, 0) == -1 && errno == ESPIPE);
    CHECK(same_read(folder, 100000, 0) == -1 && errno == EISDIR);
    CHECK(same_read(-1, 100000, 0) == -1 && errno == EBADF);
    CHECK(same_read(999999, 100000, 0) == -1 && errno == EBADF);
    same_contents(file, twin);
    int all[] = {file, twin, reader, writer, twin_reader, twin_writer, appender, twin_appender, synchronous,
                 twin_synchronous, path_only, ends[0], ends[1], folder};
    for (size_t at = 0; at < sizeof all / sizeof *all; at++)
        CHECK(close(all[at]) == 0);
}

/* Descriptors that are closed, copied, replaced and used again for other files. */
static void check_reuse(void)
{
    for (unsigned round = 0; round < 60; round++) {
        int file = open_new("reused", 0);
        for (volatile size_t at = 0; at < 200000; at++)
            buffer[at] = byte_at(at, round);
        CHECK(kernel_pwrite(file, buffer, 200000, 0) == 200000);
        CHECK(pread(file, found, 200000, 0) == 200000 && memcmp(found, buffer, 200000) == 0);
        int second = dup(file);
        CHECK(second >= 0);
        if (round % 3 == 0)
            CHECK(close(file) == 0);
        else if (round % 3 == 1)
            CHECK(syscall(SYS_close, file) == 0); /* the library does not see this */
        else
            CHECK(dup2(second, file) == file && close(file) == 0);
        memset(found, 0, sizeof found);
        CHECK(pread(second, found, 200000, 0) == 200000 && memcmp(found, buffer, 200000) == 0);
        buffer[150000] ^= 1;
        CHECK(pwrite(second, buffer, 200000, 0) == 200000);
        CHECK(kernel_pread(second, found, 200000, 0) == 200000 && memcmp(found, buffer, 200000) == 0);
        CHECK(syscall(SYS_close, second) == 0);
    }
}

static void check_buffers(void)
{
    int file = reopen("one", O_RDWR), twin = reopen("two", O_RDWR);
    unsigned char *pages = mmap(NULL, 400000, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED && munmap(pages + 200704, 400000 - 200704) == 0);
    for (int kind = 0; kind < 3; kind++) {
        unsigned char *bad = kind == 0 ? NULL : kind == 1 ? pages + 200704 : (unsigned char *)(UINTPTR_MAX - 500000);
        errno = 0;
        CHECK(pread(file, bad, 100000, 0) == -1 && errno == EFAULT);
        errno = 0;
        CHECK(pwrite(file, bad, 100000, 0) == -1 && errno == EFAULT);
    }
    /* A buffer that ends too early: what the kernel's call returns for it. */
    long one = pread(file, pages + 100000, 150000, 0), other = kernel_pread(twin, pages + 100000, 150000, 0);
    CHECK(one == other);
    one = pwrite(file, pages + 100000, 150000, 0);
    other = kernel_pwrite(twin, pages + 100000, 150000, 0);
    CHECK(one == other);
    /* Memory that can only be read. */
    CHECK(mprotect(pages, 100000, PROT_READ) == 0);
    errno = 0;
    CHECK(pread(file, pages, 90000, 0) == -1 && errno == EFAULT);
    CHECK(close(file) == 0 && close(twin) == 0);
}

static void check_times_and_modes(void)
{
    int file = open_new("timed", 0);
    CHECK(kernel_pwrite(file, model, 300000, 0) == 300000);
    CHECK(pwrite(file, model, 100000, 0) == 100000);
    struct timespec old[2] = {{1000, 0}, {1000, 0}};
    struct stat before, after;
    CHECK(futimens(file, old) == 0 && fstat(file, &before) == 0 && before.st_mtime == 1000);
    errno = 77;
    CHECK(pwrite(file, model + 1, 100000, 0) == 100000 && errno == 77);
    CHECK(fstat(file, &after) == 0 && after.st_mtime > 1000 && after.st_atime == 1000);
    CHECK(pread(file, found, 100000, 0) == 100000 && errno == 77);
    /* A write takes the right to run as its owner away. */
    int kernel = open_new("moded", 0), is_root = geteuid() == 0;
    CHECK(kernel_pwrite(kernel, model, 300000, 0) == 300000);
    if (is_root)
        /* Root keeps it: the files' owner writes. */
        CHECK(fchown(file, 65534, 65534) == 0 && fchown(kernel, 65534, 65534) == 0 && seteuid(65534) == 0);
    CHECK(fchmod(file, 04755) == 0 && pwrite(file, model, 100000, 0) == 100000);
    CHECK(fchmod(kernel, 04755) == 0 && kernel_pwrite(kernel, model, 100000, 0) == 100000);
    CHECK(fstat(file, &after) == 0 && fstat(kernel, &before) == 0);
    CHECK(before.st_mode == after.st_mode && (after.st_mode & S_ISUID) == 0);
    CHECK(fchmod(file, 0600) == 0);
    if (is_root) {
        /* Another user's program: the kernel sets the time. */
        CHECK(fchown(file, 0, 0) == -1 && seteuid(0) == 0 && fchown(file, 0, 0) == 0);
        CHECK(futimens(file, old) == 0 && seteuid(65534) == 0);
        CHECK(pwrite(file, model, 100000, 0) == 100000 && fstat(file, &after) == 0 && after.st_mtime > 1000);
        CHECK(seteuid(0) == 0);
    }
    CHECK(close(file) == 0 && close(kernel) == 0);
}

static void check_seals(void)
{
    int file = memfd_create("sealed", MFD_ALLOW_SEALING);
    CHECK(file >= 0 && kernel_pwrite(file, model, 300000, 0) == 300000);
    CHECK(pwrite(file, model, 200000, 1) == 200000 && pread(file, found, 200000, 1) == 200000);
    CHECK(fcntl(file, F_ADD_SEALS, F_SEAL_WRITE) == 0);
    errno = 0;
    CHECK(pwrite(file, model, 200000, 1) == -1 && errno == EPERM);
    CHECK(pread(file, found, 200000, 1) == 200000 && memcmp(found, model, 200000) == 0);
    CHECK(close(file) == 0);
}

int main(int count, char **arguments)
{
    CHECK(count == 3);
    path = arguments[1];
    check_ranges((unsigned)atoi(arguments[2]));
    check_descriptors();
    check_reuse();
    check_buffers();
    check_times_and_modes();
    check_seals();
    puts("files are as the kernel leaves them");
    return 0;
}
