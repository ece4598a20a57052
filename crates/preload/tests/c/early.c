/* Calls before any constructor: by an allocator of the program, by .preinit_array, and by an indirect function of a library
 * that is relocated before the preloaded one. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int chosen_by_resolver(void);
extern int library_constructor_copied;

static _Alignas(16) unsigned char arena[64 << 20];
static size_t used;
static int early_calls;

/* An allocator that uses the memory functions: the C library calls it while it starts. */
void *malloc(size_t bytes)
{
    size_t whole = (bytes + 31) & ~(size_t)15;
    unsigned char *start = arena + used;
    if (used + whole > sizeof arena)
        return NULL;
    used += whole;
    memset(start, 0xAB, whole);
    memcpy(start, &bytes, sizeof bytes);
    return start + 16;
}

void free(void *memory) { (void)memory; }

void *calloc(size_t count, size_t bytes)
{
    void *memory = malloc(count * bytes);
    return memory ? memset(memory, 0, count * bytes) : NULL;
}

void *realloc(void *memory, size_t bytes)
{
    size_t before = 0;
    void *moved = malloc(bytes);
    if (memory && moved) {
        memcpy(&before, (unsigned char *)memory - 16, sizeof before);
        memmove(moved, memory, before < bytes ? before : bytes);
    }
    return moved;
}

static void before_constructors(void)
{
    unsigned char from[1000], to[1000];
    for (volatile size_t at = 0; at < sizeof from; at++)
        from[at] = byte_at(at, 1);
    for (size_t bytes = 0; bytes <= sizeof from; bytes += 111) {
        memset(to, 0, sizeof to);
        memcpy(to, from, bytes);
        CHECK(memcmp(to, from, bytes) == 0 && (bytes == 1000 || to[bytes] == 0));
        memmove(from + 1, from, bytes ? bytes - 1 : 0);
        memmove(from, to, bytes);
    }
    int file = open("/proc/self/exe", O_RDONLY);
    CHECK(pread(file, to, 4, 0) == 4 && to[1] == 'E' && close(file) == 0);
    early_calls++;
}

__attribute__((section(".preinit_array"), used)) static void (*preinit)(void) = before_constructors;

__attribute__((constructor)) static void constructor(void)
{
    before_constructors();
}

int main(void)
{
    CHECK(early_calls == 2);
    CHECK(chosen_by_resolver() == 42 && library_constructor_copied == 1);
    char *text = NULL;
    CHECK(asprintf(&text, "%d bytes", (int)used) > 0);
    free(text);
    puts("early calls worked");
    return 0;
}
