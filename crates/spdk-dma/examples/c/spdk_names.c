/* A program written to SPDK's names, over the pool. */
#include <headwater/spdk_dma.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                       \
    do {                                                                                                       \
        if (!(condition)) {                                                                                    \
            fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition);                            \
            exit(1);                                                                                           \
        }                                                                                                      \
    } while (0)

static void check_zero(const unsigned char *bytes, size_t size) {
    for (size_t i = 0; i < size; i++) CHECK(bytes[i] == 0);
}

static void allocate_by_every_name(void) {
    uint64_t physical = 0;
    for (int round = 0; round < 3; round++) {
        unsigned char *all[6];
        all[0] = spdk_dma_malloc(5000, 0x1000, NULL);
        all[1] = spdk_dma_zmalloc(5000, 64, NULL);
        all[2] = spdk_dma_malloc_socket(5000, 0, NULL, SPDK_ENV_SOCKET_ID_ANY);
        all[3] = spdk_dma_zmalloc_socket(5000, 1 << 16, NULL, 0);
        all[4] = spdk_malloc(5000, 512, NULL, SPDK_ENV_NUMA_ID_ANY, SPDK_MALLOC_DMA);
        all[5] = spdk_zmalloc(5000, 1, NULL, 0, SPDK_MALLOC_DMA);
        for (int i = 0; i < 6; i++) CHECK(all[i] != NULL && (uintptr_t)all[i] % 4096 == 0);
        CHECK((uintptr_t)all[3] % (1 << 16) == 0);
        check_zero(all[1], 5000), check_zero(all[3], 5000), check_zero(all[5], 5000);
        for (int i = 0; i < 6; i++) memset(all[i], 0xEE, 5000);
        for (int i = 0; i < 6; i++) i % 2 ? spdk_dma_free(all[i]) : spdk_free(all[i]);
    }
    CHECK(spdk_dma_malloc(5000, 0, &physical) == NULL);
    CHECK(spdk_dma_malloc(0, 0, NULL) == NULL);
    CHECK(spdk_dma_malloc(1, 3, NULL) == NULL);
    CHECK(spdk_dma_malloc((size_t)1 << 40, 0, NULL) == NULL);
    CHECK(spdk_dma_malloc_socket(1, 0, NULL, 4000) == NULL);
    CHECK(spdk_dma_malloc_socket(1, 0, NULL, -2) == NULL);
    CHECK(spdk_malloc(1, 0, NULL, 0, 0) == NULL);
    CHECK(spdk_malloc(1, 0, NULL, 0, SPDK_MALLOC_DMA | SPDK_MALLOC_SHARE) == NULL);
}

static void reallocate(void) {
    unsigned char *bytes = spdk_dma_realloc(NULL, 4000, 0, NULL), *longer;
    CHECK(bytes != NULL);
    memset(bytes, 7, 4000);
    CHECK(spdk_dma_realloc(bytes, 4096, 0, NULL) == bytes);
    longer = spdk_realloc(bytes, 100000, 0);
    CHECK(longer != NULL && longer != bytes);
    for (int i = 0; i < 4000; i++) CHECK(longer[i] == 7);
    CHECK(spdk_realloc(longer, (size_t)1 << 40, 0) == NULL);
    CHECK(spdk_realloc(longer, 0, 0) == NULL);
    CHECK(longer[3999] == 7);
    spdk_free(longer);
}

int main(void) {
    allocate_by_every_name();
    reallocate();
    /* HEADWATER_POOL_CAP is 8M in the test that runs this. */
    void *most = spdk_dma_malloc(8 << 20, 0, NULL);
    CHECK(most != NULL && spdk_dma_malloc(1, 0, NULL) == NULL);
    spdk_dma_free(most);
    spdk_dma_free(NULL);

    char *buffer = spdk_dma_malloc(9000, 0, NULL), on_the_stack = 0;
    CHECK(buffer != NULL);
    spdk_dma_free(buffer + 4096);
    spdk_dma_free(&on_the_stack);
    memset(buffer, 1, 9000);
    spdk_dma_free(buffer);

    spdk_dma_free(buffer);
    printf("SPDK's names work\n");
    return 0;
}
