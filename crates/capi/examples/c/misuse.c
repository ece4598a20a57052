/* Misuse of a pool, and the code that each call returns. Afterwards the pool works as before. */
#include "check.h"

#include <string.h>

static void free_wrongly(hw_pool *pool) {
    char on_the_stack[64];
    char *buffer = NULL, *other = NULL;
    void *heap = malloc(64);
    hw_pool *second = NULL;

    CHECK_CODE(hw_pool_alloc(pool, 20000, 0, 0, (void **)&buffer), HW_CODE_OK);
    CHECK_CODE(hw_pool_alloc(pool, 3 << 20, 0, 0, (void **)&other), HW_CODE_OK);

    /* Memory of no pool. */
    CHECK_CODE(hw_pool_free(pool, on_the_stack), HW_CODE_FOREIGN);
    CHECK_CODE(hw_pool_free(pool, heap), HW_CODE_FOREIGN);
    CHECK_CODE(hw_pool_free(pool, (void *)(uintptr_t)0x10), HW_CODE_FOREIGN);
    CHECK_CODE(hw_pool_free(pool, (void *)UINTPTR_MAX), HW_CODE_FOREIGN);
    CHECK_CODE(hw_pool_free(pool, NULL), HW_CODE_NULL);
    free(heap);

    /* Memory of another pool. */
    CHECK_CODE(hw_pool_open(NULL, &second), HW_CODE_OK);
    CHECK_CODE(hw_pool_free(second, buffer), HW_CODE_FOREIGN);
    CHECK_CODE(hw_pool_close(second), HW_CODE_OK);

    /* Addresses inside a buffer: in its first page, at a page, and its last byte. */
    CHECK_CODE(hw_pool_free(pool, buffer + 8), HW_CODE_INTERIOR);
    CHECK_CODE(hw_pool_free(pool, buffer + 4096), HW_CODE_INTERIOR);
    CHECK_CODE(hw_pool_free(pool, buffer + 19999), HW_CODE_INTERIOR);
    CHECK_CODE(hw_pool_free(pool, other + (2 << 20)), HW_CODE_INTERIOR);
    CHECK(strstr(hw_last_error(), "starts") != NULL);

    /* The same buffer twice: of a size that thread caches keep, and of one that they do not. */
    CHECK_CODE(hw_pool_free(pool, buffer), HW_CODE_OK);
    CHECK_CODE(hw_pool_free(pool, buffer), HW_CODE_DOUBLE_FREE);
    CHECK_CODE(hw_pool_free(pool, other), HW_CODE_OK);
    CHECK_CODE(hw_pool_free(pool, other), HW_CODE_DOUBLE_FREE);
    CHECK_CODE(hw_pool_free(pool, other), HW_CODE_DOUBLE_FREE);
    CHECK(strstr(hw_last_error(), "before") != NULL);
}

static void allocate_wrongly(hw_pool *pool) {
    void *out = NULL;
    void *pair[2];
    hw_segment segments[2];
    hw_lookup found;
    hw_pool_totals now;
    uint32_t count = 7;

    CHECK_CODE(hw_pool_alloc(pool, 0, 0, 0, &out), HW_CODE_ZERO);
    CHECK_CODE(hw_pool_alloc(pool, SIZE_MAX, 0, 0, &out), HW_CODE_OVERFLOW);
    CHECK_CODE(hw_pool_alloc(pool, (size_t)1 << 40, 0, 0, &out), HW_CODE_OVER_CAP);
    CHECK_CODE(hw_pool_alloc(pool, 1, 3, 0, &out), HW_CODE_ALIGN);
    CHECK_CODE(hw_pool_alloc(pool, 1, (size_t)1 << 40, 0, &out), HW_CODE_ALIGN);
    CHECK_CODE(hw_pool_alloc(pool, 1, 0, 0x80, &out), HW_CODE_ARGUMENT);
    CHECK_CODE(hw_pool_alloc(pool, 1, 0, 0, NULL), HW_CODE_NULL);
    CHECK_CODE(hw_pool_alloc(pool, 1, 0, 0, (void **)((char *)pair + 1)), HW_CODE_ARGUMENT);
    CHECK_CODE(hw_pool_alloc_segments(pool, 1, 0, 0, segments, 0, &count), HW_CODE_NO_SEGMENTS);
    CHECK_CODE(hw_pool_alloc_segments(pool, 1, 0, 0, NULL, 2, &count), HW_CODE_NULL);
    CHECK_CODE(hw_pool_alloc_segments(pool, 1, 0, 0, segments, 2, NULL), HW_CODE_NULL);
    CHECK(out == NULL && count == 7);
    CHECK_CODE(hw_pool_lookup(pool, &found, &found), HW_CODE_FOREIGN);
    CHECK_CODE(hw_pool_lookup(pool, &found, NULL), HW_CODE_NULL);
    CHECK_CODE(hw_pool_statistics(pool, &now, 3), HW_CODE_ARGUMENT);
    CHECK_CODE(hw_pool_set_cap(pool, 1), HW_CODE_CONFIG);
}

static void open_wrongly(void) {
    hw_pool_config config, defaults;
    hw_pool *pool = NULL;
    CHECK_CODE(hw_pool_config_init(&defaults, sizeof defaults), HW_CODE_OK);
    CHECK_CODE(hw_pool_config_init(&config, 8), HW_CODE_ARGUMENT);
    CHECK_CODE(hw_pool_config_init(NULL, sizeof config), HW_CODE_NULL);
    config = defaults, config.struct_bytes = 1;
    CHECK_CODE(hw_pool_open(&config, &pool), HW_CODE_ARGUMENT);
    config = defaults, config.preset = "paper-9.9";
    CHECK_CODE(hw_pool_open(&config, &pool), HW_CODE_CONFIG);
    config = defaults, config.chunk_bytes = 12345;
    CHECK_CODE(hw_pool_open(&config, &pool), HW_CODE_CONFIG);
    config = defaults, config.cap_bytes = UINT64_MAX;
    CHECK_CODE(hw_pool_open(&config, &pool), HW_CODE_CONFIG);
    config = defaults, config.cache_per_mille = 51;
    CHECK_CODE(hw_pool_open(&config, &pool), HW_CODE_CONFIG);
    CHECK_CODE(hw_pool_open(&defaults, NULL), HW_CODE_NULL);
    CHECK(pool == NULL);
}

static void use_invalid_handles(void) {
    char memory[64];
    void *out = NULL;
    hw_pool *closed = NULL;
    CHECK_CODE(hw_pool_alloc(NULL, 1, 0, 0, &out), HW_CODE_NULL);
    CHECK_CODE(hw_pool_alloc((hw_pool *)memory, 1, 0, 0, &out), HW_CODE_HANDLE);
    CHECK_CODE(hw_pool_free((hw_pool *)(uintptr_t)0xdeadbeef, memory), HW_CODE_HANDLE);
    CHECK_CODE(hw_pool_close((hw_pool *)UINTPTR_MAX), HW_CODE_HANDLE);
    CHECK_CODE(hw_pool_open(NULL, &closed), HW_CODE_OK);
    CHECK_CODE(hw_pool_close(closed), HW_CODE_OK);
    CHECK_CODE(hw_pool_close(closed), HW_CODE_CLOSED);
    CHECK_CODE(hw_pool_alloc(closed, 1, 0, 0, &out), HW_CODE_CLOSED);
    CHECK_CODE(hw_pool_tick(closed), HW_CODE_OK);
}

int main(void) {
    hw_pool *pool = NULL;
    hw_pool_totals now;
    CHECK(strcmp(hw_last_error(), "") == 0);
    CHECK_CODE(hw_pool_open(NULL, &pool), HW_CODE_OK);
    for (int round = 0; round < 3; round++) {
        free_wrongly(pool);
        allocate_wrongly(pool);
        open_wrongly();
        use_invalid_handles();
    }
    CHECK_CODE(hw_pool_statistics(pool, &now, sizeof now), HW_CODE_OK);
    CHECK(now.in_use_bytes == 0);
    CHECK_CODE(hw_pool_close(pool), HW_CODE_OK);
    CHECK(strcmp(hw_code_name(HW_CODE_DOUBLE_FREE), "HW_CODE_DOUBLE_FREE") == 0);
    CHECK(strcmp(hw_code_name((hw_code)4711), "unknown") == 0);
    printf("every misuse returned its code\n");
    return 0;
}
