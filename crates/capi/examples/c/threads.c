/* Buffers that one thread allocates and another frees, and one buffer that all threads free: exactly one succeeds. */
#define _DEFAULT_SOURCE
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { THREADS = 4, ROUNDS = 20000, SLOTS = 64 };

static hw_pool *pool;
static _Atomic(unsigned char *) slots[SLOTS];
static void *_Atomic shared;
static atomic_int freed, refused;
static pthread_barrier_t barrier;

static void *swap_buffers(void *seed) {
    unsigned random = (unsigned)(uintptr_t)seed * 2654435761u + 1;
    for (int round = 0; round < ROUNDS; round++) {
        unsigned char *mine = NULL, *theirs;
        random = random * 1664525u + 1013904223u;
        size_t bytes = 1 + (random >> 8) % 100000;
        CHECK_CODE(hw_pool_alloc(pool, bytes, 0, 0, (void **)&mine), HW_CODE_OK);
        /* Both ends carry the same mark, which the thread that frees the buffer checks. */
        mine[0] = (unsigned char)random;
        memcpy(mine + 1, &bytes, bytes > 100 ? sizeof bytes : 0);
        mine[bytes - 1] = mine[0];
        theirs = atomic_exchange(&slots[(random >> 20) % SLOTS], mine);
        if (theirs == NULL) continue;
        hw_lookup found;
        CHECK_CODE(hw_pool_lookup(pool, theirs, &found), HW_CODE_OK);
        CHECK(found.start == theirs && found.page == HW_PAGE_RAW);
        if (found.room_bytes > 4096) {
            memcpy(&bytes, theirs + 1, sizeof bytes);
            CHECK(bytes <= found.room_bytes && theirs[bytes - 1] == theirs[0]);
        }
        CHECK_CODE(hw_pool_free(pool, theirs), HW_CODE_OK);
    }
    return NULL;
}

static void *free_the_same(void *nothing) {
    for (int round = 0; round < 1000; round++) {
        if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD) {
            void *one = NULL;
            CHECK_CODE(hw_pool_alloc(pool, 4096, 0, 0, &one), HW_CODE_OK);
            atomic_store(&shared, one);
        }
        pthread_barrier_wait(&barrier);
        hw_code code = hw_pool_free(pool, atomic_load(&shared));
        CHECK(code == HW_CODE_OK || code == HW_CODE_DOUBLE_FREE);
        atomic_fetch_add(code == HW_CODE_OK ? &freed : &refused, 1);
    }
    return nothing;
}

static void run(void *(*work)(void *)) {
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

int main(void) {
    hw_pool_totals now;
    CHECK_CODE(hw_pool_open(NULL, &pool), HW_CODE_OK);
    CHECK(pthread_barrier_init(&barrier, NULL, THREADS) == 0);
    run(swap_buffers);
    run(free_the_same);
    CHECK(freed == 1000 && refused == (THREADS - 1) * 1000);
    for (int i = 0; i < SLOTS; i++)
        if (slots[i] != NULL) CHECK_CODE(hw_pool_free(pool, slots[i]), HW_CODE_OK);
    CHECK_CODE(hw_pool_statistics(pool, &now, sizeof now), HW_CODE_OK);
    CHECK(now.in_use_bytes == 0);
    CHECK_CODE(hw_pool_close(pool), HW_CODE_OK);
    printf("each buffer was freed once\n");
    return 0;
}
