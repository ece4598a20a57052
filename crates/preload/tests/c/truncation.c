/* A file that is shortened and extended while it is read and written, and signals of the program beside that. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES 4000000

static unsigned char written[BYTES], found[BYTES];
static atomic_int is_over;
static int file;
static sigjmp_buf back;
/* An address without a page, which the compiler does not know. */
static void *volatile unreachable = (void *)8;

static void *shorten(void *unused)
{
    while (!atomic_load(&is_over)) {
        CHECK(ftruncate(file, 4096) == 0);
        CHECK(ftruncate(file, BYTES) == 0);
    }
    return unused;
}

static void jump_back(int number)
{
    (void)number;
    siglongjmp(back, 1);
}

/* A fault of the program ends it as it would without the library, or is handled by its own handler. */
static void check_own_faults(unsigned char *gone)
{
    for (int kind = 0; kind < 2; kind++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            if (kind == 0)
                *(volatile unsigned char *)8 = 1;
            else
                *(volatile unsigned char *)gone = 1;
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == (kind == 0 ? SIGSEGV : SIGBUS));
        child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            raise(kind == 0 ? SIGSEGV : SIGBUS);
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == (kind == 0 ? SIGSEGV : SIGBUS));
    }
    struct sigaction action = {.sa_handler = jump_back}, before;
    CHECK(sigaction(SIGSEGV, &action, &before) == 0);
    int handled = 0;
    if (sigsetjmp(back, 1) == 0)
        *(volatile unsigned char *)8 = 1;
    else
        handled = 1;
    CHECK(handled);
    /* Now the kernel does every transfer: a bad buffer is an error, and no signal. */
    errno = 0;
    CHECK(pread(file, unreachable, 1000000, 0) == -1 && errno == EFAULT);
    CHECK(sigaction(SIGSEGV, &before, NULL) == 0);
}

int main(int count, char **arguments)
{
    CHECK(count == 3);
    int least_faults = atoi(arguments[2]);
    file = open(arguments[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(file >= 0 && ftruncate(file, BYTES) == 0);
    memset(written, 7, BYTES);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, shorten, NULL) == 0);
    /* The counter of faults is the library's; without one the rounds are the bound. */
    for (int round = 0; round < 3000; round++) {
        errno = 0;
        ssize_t done = round % 2 ? pwrite(file, written, BYTES - 1000, 500) : pread(file, found, BYTES - 1000, 500);
        CHECK(done >= 0 && done <= BYTES - 1000 && errno == 0);
        for (ssize_t at = 0; round % 2 == 0 && at < done; at += 997)
            CHECK(found[at] == 0 || found[at] == 7);
        if (round >= least_faults)
            break;
    }
    atomic_store(&is_over, 1);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(ftruncate(file, BYTES) == 0);
    CHECK(pwrite(file, written, BYTES, 0) == BYTES && pread(file, found, BYTES, 0) == BYTES);
    CHECK(memcmp(found, written, BYTES) == 0);
    /* A thread that blocks a signal of faults leaves transfers to the kernel. */
    sigset_t faults, before;
    sigemptyset(&faults);
    sigaddset(&faults, SIGBUS);
    CHECK(pthread_sigmask(SIG_BLOCK, &faults, &before) == 0);
    CHECK(pread(file, found, BYTES, 0) == BYTES && memcmp(found, written, BYTES) == 0);
    CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    unsigned char *mapped = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(mapped != MAP_FAILED && ftruncate(file, 4096) == 0);
    /* A buffer whose file is too short: an error of the kernel's call, not a signal. */
    char name[4096];
    snprintf(name, sizeof name, "%s.source", arguments[1]);
    int other = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(other >= 0 && write(other, written, 1000000) == 1000000);
    errno = 0;
    CHECK(pread(other, mapped + 4096, 1000000, 0) == -1 && errno == EFAULT);
    errno = 0;
    CHECK(pwrite(other, mapped + 4096, 1000000, 0) == -1 && errno == EFAULT);
    check_own_faults(mapped + 4096);
    puts("shortened files ended no program");
    return 0;
}
