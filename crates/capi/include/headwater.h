/*
 * Headwater: pinned memory for C.
 *
 * Every function that can fail returns an hw_code; hw_last_error() says in a sentence what the last failure on this
 * thread was, and what to change. Nothing here waits but hw_pool_alloc_within. All functions can be called from any
 * thread, on the same pool at once, and from a child of the process, where they return HW_CODE_FORKED.
 *
 * Written by `make header` from crates/capi/src: change it there.
 */

#ifndef HEADWATER_H
#define HEADWATER_H

#include <stddef.h>
#include <stdint.h>

// Memory is resident when it is given out; the kernel may still swap and move it.
#define HW_PINNING_NONE 0

// Chunks are locked by mlock(2): never swapped. Opening fails with HW_CODE_PIN if the cap is more than may be locked.
#define HW_PINNING_LOCKED 1

// Chunks are registered with an io_uring. Opening fails with HW_CODE_UNAVAILABLE: the ring is an object of Rust's.
#define HW_PINNING_IO_URING 2

// Chunks are mapped for a device behind an IOMMU. Opening fails with HW_CODE_UNAVAILABLE: the VFIO container, which opens the
// device, is an object of Rust's.
#define HW_PINNING_VFIO 3

// The bytes are zero. Without it they are whatever this process last wrote there.
#define HW_ALLOC_ZEROED 1

// The device has addresses of its own, and `iova` is one.
#define HW_DEVICE_IOVA 1

// A ring knows the memory by number, and `slot` is that.
#define HW_DEVICE_SLOT 2

// What became of a call.
typedef enum hw_code {
  // It is done.
  HW_CODE_OK = 0,
  // A pointer that must point somewhere is null.
  HW_CODE_NULL = 1,
  // The pool is none that this library opened, or it is closed and all of its memory is back.
  HW_CODE_HANDLE = 2,
  // A pointer that is not aligned for what it points to, a flag that does not exist, a struct of the wrong length.
  HW_CODE_ARGUMENT = 3,
  // The configuration contradicts itself.
  HW_CODE_CONFIG = 4,
  // More pools are open than there is room for.
  HW_CODE_TOO_MANY_POOLS = 5,
  // A request for 0 bytes.
  HW_CODE_ZERO = 6,
  // The length does not fit the address space once it is rounded up to pages.
  HW_CODE_OVERFLOW = 7,
  // The alignment is no power of two, or too large.
  HW_CODE_ALIGN = 8,
  // Scatter/gather in 0 segments.
  HW_CODE_NO_SEGMENTS = 9,
  // More than the cap leaves for requests: never to be had before the cap is raised.
  HW_CODE_OVER_CAP = 10,
  // More than addresses were reserved for when the pool was opened.
  HW_CODE_CAP_TOO_HIGH = 11,
  // The pool has no memory on such a node.
  HW_CODE_NO_SUCH_NODE = 12,
  // Not now: buffers must come back first.
  HW_CODE_WOULD_BLOCK = 13,
  // It did not come free in time.
  HW_CODE_TIMEOUT = 14,
  // Memory could not be pinned.
  HW_CODE_PIN = 15,
  // The kernel gave no memory, or no addresses, or not on that node.
  HW_CODE_NO_MEMORY = 16,
  // Freed: an address that is not of this pool.
  HW_CODE_FOREIGN = 17,
  // Freed: an address inside of a buffer.
  HW_CODE_INTERIOR = 18,
  // Freed: a buffer that was freed before.
  HW_CODE_DOUBLE_FREE = 19,
  // Freed: a buffer that was never handed to C.
  HW_CODE_NOT_RAW = 20,
  // The pool belongs to the parent of this process.
  HW_CODE_FORKED = 21,
  // The pool was closed.
  HW_CODE_CLOSED = 22,
  // The system would not start a thread.
  HW_CODE_NO_THREAD = 23,
  // A mistake in this library. The call may have done a part of its work.
  HW_CODE_PANIC = 24,
  // Anything else; hw_last_error() says what.
  HW_CODE_OTHER = 25,
  // The way of pinning needs an object that this interface has no way to take.
  HW_CODE_UNAVAILABLE = 26,
} hw_code;

// Who has a page.
typedef enum hw_page {
  // Nobody.
  HW_PAGE_FREE = 0,
  // The pool's own caches, or a program that uses the pool from Rust.
  HW_PAGE_OWNED = 1,
  // A program in C, until it frees it.
  HW_PAGE_RAW = 2,
} hw_page;

// A pool of pinned memory.
typedef struct hw_pool hw_pool;

// What a pool is opened with. Fill it by hw_pool_config_init, then change what should differ.
typedef struct hw_pool_config {
  // Bytes of this struct. hw_pool_config_init sets it.
  size_t struct_bytes;
  // m: bytes of a chunk, a power of two from 64 KiB to 1 GiB.
  uint64_t chunk_bytes;
  // M: most bytes that are taken from the system at a time.
  uint64_t cap_bytes;
  // The most that hw_pool_set_cap can raise the cap to; 0 for four times the cap.
  uint64_t cap_max_bytes;
  // t: a chunk that was empty for so many nanoseconds is given back.
  uint64_t idle_ns;
  // Bytes of empty chunks that are kept however long they are empty.
  uint64_t min_idle_bytes;
  // The borders between small, medium and large requests, in the words of HEADWATER_TIERS: "calibrated", "paper-4.1",
  // "paper-5.2", or "SMALL:LARGE" in bytes. Null leaves them to that variable, and without it to what was measured.
  const char *preset;
  // 1: m follows the load, between 2 MiB and 64 MiB. 0: m stays as it is.
  uint32_t chunk_adapts;
  // Thousandths of the cap that the caches of all threads may hold together: 0 to 50.
  uint32_t cache_per_mille;
  // 1: the pool has a thread that gives idle chunks back. 0: the program calls hw_pool_tick now and then.
  uint32_t ticker;
  // One of the HW_PINNING_ constants.
  uint32_t pinning;
} hw_pool_config;

// What an address is to a pool.
typedef struct hw_lookup {
  // Where the buffer starts that the address lies in; null if the page is free.
  void *start;
  // Bytes that the buffer has room for: whole pages, of which the request named the first part.
  size_t room_bytes;
  // Bytes from the start of the buffer to the address.
  size_t offset;
  // Bytes of the chunk; 0 if no memory is behind the address now.
  size_t chunk_bytes;
  // Who has the page.
  enum hw_page page;
  // The node of memory.
  uint32_t node;
} hw_lookup;

// Where a device finds a part of a buffer.
typedef struct hw_device_segment {
  // Where it starts in this process.
  void *address;
  // Its length: to the end of the buffer's last page.
  size_t bytes;
  // The address by which the device knows it, if `known` has HW_DEVICE_IOVA; else 0. Without it a device that can be
  // reached at all takes the address.
  uint64_t iova;
  // Bytes from the start of the registered range of that number, if `known` has HW_DEVICE_SLOT; else 0.
  uint64_t slot_offset;
  // The number of the range, if `known` has HW_DEVICE_SLOT; else 0.
  uint32_t slot;
  // HW_DEVICE_IOVA and HW_DEVICE_SLOT, by how the pool pins.
  uint32_t known;
} hw_device_segment;

// The borders between small, medium and large requests.
typedef struct hw_tiers {
  // Longest request that is worth copying to memory that stays pinned.
  uint64_t small_max_bytes;
  // Shortest request that is pinned for itself.
  uint64_t large_min_bytes;
  // From so many bytes on the program's own memory is pinned where it is and not copied; 0 is never.
  uint64_t import_min_bytes;
} hw_tiers;

// A piece of memory, laid out as POSIX's struct iovec.
typedef struct hw_segment {
  // Where it starts: a multiple of 4,096.
  void *address;
  // Its length: of all pieces but the last a multiple of 4,096.
  size_t bytes;
} hw_segment;

// A pool at one moment. All are bytes or counts.
typedef struct hw_pool_totals {
  // M.
  uint64_t cap_bytes;
  // m of the next chunk.
  uint64_t chunk_bytes;
  // Taken from the system by the static tier.
  uint64_t static_bytes;
  // By the pool.
  uint64_t pool_bytes;
  // By the dynamic tier.
  uint64_t dynamic_bytes;
  // In the hands of callers and devices.
  uint64_t in_use_bytes;
  // In the caches of threads.
  uint64_t cached_bytes;
  // Lent to a device and never taken back.
  uint64_t quarantined_bytes;
  // Held for good by a device or the kernel.
  uint64_t stuck_bytes;
  // Requests that a thread's cache served.
  uint64_t served_by_cache;
  // By a free run.
  uint64_t served_contiguous;
  // By several free runs.
  uint64_t served_scattered;
  // By memory taken from the system for it.
  uint64_t served_by_growth;
  // After waiting in line.
  uint64_t served_after_waiting;
  // Requests refused.
  uint64_t refused;
  // Requests in line now.
  uint64_t waiting;
  // Requests that gave up waiting.
  uint64_t gave_up;
  // Chunks taken from the system since the pool was opened.
  uint64_t grown_chunks;
  // Chunks given back since.
  uint64_t retired_chunks;
  // External fragmentation in thousandths: 1 - longest free run / free bytes.
  uint64_t fragmentation_per_mille;
  // Half of all chunks were pinned within so many nanoseconds, to the next power of two.
  uint64_t pin_ns_median;
  // 99 of 100 were.
  uint64_t pin_ns_p99;
  // Nodes of memory; see hw_pool_node_statistics.
  uint64_t nodes;
} hw_pool_totals;

// One node of memory.
typedef struct hw_node_totals {
  // The kernel's number of it.
  uint64_t node;
  // Chunks.
  uint64_t chunks;
  // Bytes of these.
  uint64_t pinned_bytes;
  // Bytes of chunks of which nothing is given out.
  uint64_t empty_bytes;
  // Bytes that are neither given out nor in a cache.
  uint64_t free_bytes;
  // Bytes of the longest free run.
  uint64_t largest_free_bytes;
  // Bytes in huge pages of 1 GiB.
  uint64_t huge_1g_bytes;
  // In huge pages of 2 MiB.
  uint64_t huge_2m_bytes;
  // In memory that the kernel may back by huge pages.
  uint64_t transparent_bytes;
  // In pages of 4 KiB.
  uint64_t small_bytes;
} hw_node_totals;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The name of a code as it stands in this header. "unknown" for a number that is none.
const char *hw_code_name(int32_t code);

// What the last failure on this thread was and what to change, as a sentence. Empty if there was none. Valid until the
// next call on this thread that fails, or the end of the thread.
const char *hw_last_error(void);

// Writes the defaults: chunks of 4 MiB that adapt, a cap of 256 MiB, an idle time of 10 s, a thread that ticks.
// `config_bytes` is sizeof(hw_pool_config).
//
// Pointers:
// A `config` that is neither null nor misaligned is valid for writes of `config_bytes` bytes.
enum hw_code hw_pool_config_init(struct hw_pool_config *config,
                                 size_t config_bytes);

// Opens a pool and writes its handle to `out`. A null `config` stands for the defaults. Nothing is taken from the system
// before something is asked for. A child of this process cannot use it.
//
// Pointers:
// A `config` that is not null is one that hw_pool_config_init filled, its preset null or a string. An `out` that is
// neither null nor misaligned is valid for a write.
enum hw_code hw_pool_open(const struct hw_pool_config *config,
                          struct hw_pool **out);

// Closes a pool. Nothing can be allocated from it any more, and who waits for memory is told. Buffers that are out stay
// valid and are freed by the same handle; with the last of them the handle ends.
enum hw_code hw_pool_close(struct hw_pool *pool);

// Changes the cap, M. A lower one takes effect as buffers come back; idle chunks go at once.
enum hw_code hw_pool_set_cap(struct hw_pool *pool, uint64_t cap_bytes);

// Lets time have its effect: chunks that were idle for long go back to the system. For pools without a ticker, to be
// called a few times in each idle time.
enum hw_code hw_pool_tick(struct hw_pool *pool);

// Allocates memory in one piece and writes its address to `out`: now, or HW_CODE_WOULD_BLOCK.
//
// `align` is a power of two, or 0; every buffer starts on a page of 4,096 bytes. `flags` is 0 or HW_ALLOC_ZEROED. The
// buffer is freed by hw_pool_free, on any thread. On failure `out` is left as it is.
//
// Pointers:
// An `out` that is neither null nor misaligned is valid for a write.
enum hw_code hw_pool_alloc(struct hw_pool *pool,
                           size_t bytes,
                           size_t align,
                           uint32_t flags,
                           void **out);

// The same on node `node` of memory, by the kernel's number, and on no other. HW_CODE_NO_SUCH_NODE if the pool has no memory
// there; hw_pool_node_statistics tells which nodes it has. HW_CODE_NO_MEMORY if the node has none to spare.
//
// Pointers:
// As for hw_pool_alloc.
enum hw_code hw_pool_alloc_on(struct hw_pool *pool,
                              uint32_t node,
                              size_t bytes,
                              size_t align,
                              uint32_t flags,
                              void **out);

// The same as hw_pool_alloc, waiting in line for at most `timeout_ns` nanoseconds; then HW_CODE_TIMEOUT.
//
// Pointers:
// As for hw_pool_alloc.
enum hw_code hw_pool_alloc_within(struct hw_pool *pool,
                                  size_t bytes,
                                  size_t align,
                                  uint32_t flags,
                                  uint64_t timeout_ns,
                                  void **out);

// Frees a buffer by the address at which it starts. Any other address is an error and changes nothing: HW_CODE_FOREIGN,
// HW_CODE_INTERIOR or HW_CODE_DOUBLE_FREE.
//
// A buffer that was freed and allocated again is the new owner's: freeing it by the old address frees the new buffer, as
// with every allocator.
enum hw_code hw_pool_free(struct hw_pool *pool,
                          void *address);

// What an address is to the pool, written to `out`. HW_CODE_FOREIGN if the pool has nothing to do with it. The address is
// not followed, so any will do.
//
// Pointers:
// An `out` that is neither null nor misaligned is valid for a write.
enum hw_code hw_pool_lookup(struct hw_pool *pool,
                            const void *address,
                            struct hw_lookup *out);

// Where a device finds the bytes from `address` to the end of the buffer that it lies in, written to `out`. Each buffer is
// one piece for the device, too; memory in several pieces is asked for piece by piece. HW_CODE_FOREIGN if the address lies
// in no buffer of the pool.
//
// Pointers:
// An `out` that is neither null nor misaligned is valid for a write.
enum hw_code hw_pool_device_segment(struct hw_pool *pool,
                                    const void *address,
                                    struct hw_device_segment *out);

// The borders between the tiers, written to `out`: those of the pool's preset, else those that HEADWATER_TIERS names, else
// what was measured on this machine, which takes up to 50 ms the first time. HW_CODE_CONFIG if that variable names none.
//
// Pointers:
// An `out` that is neither null nor misaligned is valid for a write.
enum hw_code hw_pool_tiers(struct hw_pool *pool,
                           struct hw_tiers *out);

// Allocates memory in up to `segments_max` pieces, one if that is to be had. Writes the pieces to `segments`, an array of
// `segments_max`, and how many there are to `count`. Now, or HW_CODE_WOULD_BLOCK. On failure nothing is written.
//
// Each piece starts on a page, and all but the last are whole pages: what PRP lists of NVMe can say. `align` is that of
// the first. They are freed together by hw_pool_free_segments, or each by hw_pool_free.
//
// Pointers:
// Pointers that are neither null nor misaligned are valid for writes: `segments` of `segments_max` elements, `count` of
// one.
enum hw_code hw_pool_alloc_segments(struct hw_pool *pool,
                                    size_t bytes,
                                    size_t align,
                                    uint32_t flags,
                                    struct hw_segment *segments,
                                    uint32_t segments_max,
                                    uint32_t *count);

// Frees `count` pieces, by their addresses; lengths do not matter. If one of them cannot be freed none is, and the code
// is that of the first such, as for hw_pool_free.
//
// Pointers:
// A `segments` that is neither null nor misaligned is valid for reads of `count` elements.
enum hw_code hw_pool_free_segments(struct hw_pool *pool,
                                   const struct hw_segment *segments,
                                   uint32_t count);

// Writes the pool's numbers to `out`. `out_bytes` is sizeof(hw_pool_totals).
//
// Pointers:
// An `out` that is neither null nor misaligned is valid for writes of `out_bytes` bytes.
enum hw_code hw_pool_statistics(struct hw_pool *pool, struct hw_pool_totals *out, size_t out_bytes);

// Writes the numbers of node `index`, counted from 0 to hw_pool_totals.nodes, to `out`. `out_bytes` is
// sizeof(hw_node_totals).
//
// Pointers:
// As for hw_pool_statistics.
enum hw_code hw_pool_node_statistics(struct hw_pool *pool,
                                     uint32_t index,
                                     struct hw_node_totals *out,
                                     size_t out_bytes);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* HEADWATER_H */
