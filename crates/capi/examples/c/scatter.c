/* Memory in pieces, from a fragmented pool: written to a file and read back with one system call each. */
#define _DEFAULT_SOURCE
#include "check.h"

#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 512, PIECES = 64 };

_Static_assert(sizeof(hw_segment) == sizeof(struct iovec), "a segment is an iovec");
_Static_assert(offsetof(hw_segment, bytes) == offsetof(struct iovec, iov_len), "a segment is an iovec");

/* A pool of one chunk, of which every other pair of pages is allocated. */
static hw_pool *fragmented(void **held) {
    hw_pool_config config;
    hw_pool *pool = NULL;
    CHECK_CODE(hw_pool_config_init(&config, sizeof config), HW_CODE_OK);
    config.chunk_bytes = config.cap_bytes = PAGES * PAGE;
    config.chunk_adapts = 0;
    config.cache_per_mille = 0;
    CHECK_CODE(hw_pool_open(&config, &pool), HW_CODE_OK);
    for (int i = 0; i < PAGES / 2; i++) CHECK_CODE(hw_pool_alloc(pool, 2 * PAGE, 0, 0, &held[i]), HW_CODE_OK);
    for (int i = 0; i < PAGES / 2; i++) {
        if ((uintptr_t)held[i] / (2 * PAGE) % 2 == 0) {
            CHECK_CODE(hw_pool_free(pool, held[i]), HW_CODE_OK);
            held[i] = NULL;
        }
    }
    return pool;
}

static void through_a_file(hw_segment *segments, int count, ssize_t bytes) {
    const struct iovec *pieces = (const struct iovec *)segments;
    FILE *file = tmpfile();
    CHECK(file != NULL);
    for (int i = 0; i < count; i++) memset(segments[i].address, i + 1, segments[i].bytes);
    CHECK(pwritev(fileno(file), pieces, count, 0) == bytes);
    for (int i = 0; i < count; i++) memset(segments[i].address, 0, segments[i].bytes);
    CHECK(preadv(fileno(file), pieces, count, 0) == bytes);
    for (int i = 0; i < count; i++)
        for (size_t at = 0; at < segments[i].bytes; at++)
            CHECK(((unsigned char *)segments[i].address)[at] == i + 1);
    fclose(file);
}

int main(void) {
    void *held[PAGES / 2], *one_piece = NULL;
    hw_segment segments[PIECES];
    uint32_t count = 0;
    size_t bytes = 100 * PAGE - 17, sum = 0;
    hw_pool *pool = fragmented(held);

    CHECK_CODE(hw_pool_alloc(pool, bytes, 0, 0, &one_piece), HW_CODE_WOULD_BLOCK);
    CHECK_CODE(hw_pool_alloc_segments(pool, bytes, 0, 0, segments, 8, &count), HW_CODE_WOULD_BLOCK);
    CHECK_CODE(hw_pool_alloc_segments(pool, bytes, 0, HW_ALLOC_ZEROED, segments, PIECES, &count), HW_CODE_OK);
    CHECK(count == 50);
    /* No piece fits in no room, not even one that a thread's cache has. */
    CHECK_CODE(hw_pool_alloc_segments(pool, PAGE, 0, 0, segments + 50, 0, &count), HW_CODE_NO_SEGMENTS);
    CHECK(count == 50);
    for (uint32_t i = 0; i < count; i++) {
        sum += segments[i].bytes;
        CHECK((uintptr_t)segments[i].address % PAGE == 0);
        CHECK(i + 1 == count || segments[i].bytes % PAGE == 0);
    }
    CHECK(sum == bytes);
    through_a_file(segments, (int)count, (ssize_t)bytes);

    /* All or none: with one wrong address nothing is freed. */
    hw_segment right = segments[20];
    segments[20].address = (char *)right.address + PAGE;
    CHECK_CODE(hw_pool_free_segments(pool, segments, count), HW_CODE_INTERIOR);
    segments[20].address = segments[19].address;
    CHECK_CODE(hw_pool_free_segments(pool, segments, count), HW_CODE_DOUBLE_FREE);
    segments[20] = right;
    through_a_file(segments, (int)count, (ssize_t)bytes);
    CHECK_CODE(hw_pool_free_segments(pool, segments, count), HW_CODE_OK);
    CHECK_CODE(hw_pool_free_segments(pool, segments, count), HW_CODE_DOUBLE_FREE);

    for (int i = 0; i < PAGES / 2; i++)
        if (held[i] != NULL) CHECK_CODE(hw_pool_free(pool, held[i]), HW_CODE_OK);
    CHECK_CODE(hw_pool_alloc_segments(pool, PAGES * PAGE, 0, 0, segments, PIECES, &count), HW_CODE_OK);
    CHECK(count == 1 && segments[0].bytes == PAGES * PAGE);
    CHECK_CODE(hw_pool_free(pool, segments[0].address), HW_CODE_OK);
    CHECK_CODE(hw_pool_close(pool), HW_CODE_OK);
    printf("50 pieces written to a file and read back\n");
    return 0;
}
