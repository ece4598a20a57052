/*
 * SPDK's names for DMA memory over Headwater's pool, for programs written to them.
 *
 * One pool for the process, opened by the first call, configured by environment variables:
 *
 *   HEADWATER_POOL_CAP      maximum bytes (256M)               HEADWATER_POOL_PIN      none, or locked by mlock(2) (none)
 *   HEADWATER_POOL_CHUNK    bytes of a chunk (4M, adapting)     HEADWATER_POOL_MISUSE   report or abort: what a wrong
 *   HEADWATER_POOL_IDLE_MS  when idle chunks are freed (10000)                           free leads to (report)
 *
 * Every address is a multiple of 4,096. No call waits: it returns null when the cap is reached. Physical addresses are
 * not reported, so `unused` is null. SPDK_MALLOC_SHARE is not supported. A forked child gets null.
 *
 * crates/spdk-dma/src defines these functions; a test compares this file with it.
 */
#ifndef HEADWATER_SPDK_DMA_H
#define HEADWATER_SPDK_DMA_H

#include <stddef.h>
#include <stdint.h>

#define SPDK_ENV_SOCKET_ID_ANY (-1)
#define SPDK_ENV_NUMA_ID_ANY SPDK_ENV_SOCKET_ID_ANY
#define SPDK_MALLOC_DMA 0x01
#define SPDK_MALLOC_SHARE 0x02

#ifdef __cplusplus
extern "C" {
#endif

void *spdk_malloc(size_t size, size_t align, uint64_t *unused, int numa_id, uint32_t flags);
void *spdk_zmalloc(size_t size, size_t align, uint64_t *unused, int numa_id, uint32_t flags);
void *spdk_realloc(void *buf, size_t size, size_t align);
void spdk_free(void *buf);

void *spdk_dma_malloc(size_t size, size_t align, uint64_t *unused);
void *spdk_dma_zmalloc(size_t size, size_t align, uint64_t *unused);
void *spdk_dma_malloc_socket(size_t size, size_t align, uint64_t *unused, int numa_id);
void *spdk_dma_zmalloc_socket(size_t size, size_t align, uint64_t *unused, int numa_id);
void *spdk_dma_realloc(void *buf, size_t size, size_t align, uint64_t *unused);
/* Null is ignored. Foreign, interior and double frees change nothing and are reported on standard error. */
void spdk_dma_free(void *buf);

#ifdef __cplusplus
}
#endif

#endif
