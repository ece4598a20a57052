//! The pool's interface by plain addresses.
//!
//! Input: pools over unpinned memory. Output: the results of correct and incorrect frees.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test that cannot have its memory fails")]

use headwater_dma::buffer::{PoolAllocation, PoolBuffer};
use headwater_dma::pool::{ChunkRule, Pool, PoolConfig, PoolError, PoolRequest};
use headwater_host::reservation::AdoptError;

const PAGE: usize = 4_096;

/// Opens a pool of one chunk of 512 pages, without caches.
fn one_chunk() -> Pool {
    let (chunk, cap) = (512 * PAGE, 512 * PAGE);
    let config =
        PoolConfig { chunk, cap, chunk_rule: ChunkRule::Fixed, cache_per_mille: 0, ..PoolConfig::default() };
    Pool::open(config).unwrap()
}

#[test]
fn an_address_is_freed_once_with_and_without_caches() {
    for pool in [one_chunk(), Pool::open(PoolConfig::default()).unwrap()] {
        for _ in 0..3 {
            let address = pool.allocate_raw(&PoolRequest::bytes(10_000).zeroed()).unwrap().as_ptr();
            assert!(address.addr().is_multiple_of(PAGE));
            let inside = address.wrapping_add(PAGE);
            assert_eq!(pool.free_raw(inside), Err(PoolError::Adopt(AdoptError::Interior)));
            assert_eq!(pool.free_raw(address), Ok(()));
            assert_eq!(pool.free_raw(address), Err(PoolError::Adopt(AdoptError::DoubleFree)));
        }
        assert_eq!(pool.statistics().in_use_bytes, 0);
    }
}

/// Returns a pool in which every other pair of pages is free, and the buffers that hold the rest.
fn fragmented() -> (Pool, Vec<PoolBuffer>) {
    let pool = one_chunk();
    let held: Vec<_> = (0..256).map(|_| pool.buffer(2 * PAGE).unwrap()).collect();
    let odd = |buffer: &PoolBuffer| buffer.as_ptr().addr() / (2 * PAGE) % 2 == 1;
    let held = held.into_iter().filter(odd).collect();
    (pool, held)
}

#[test]
fn a_raw_allocation_is_never_scattered() {
    let (pool, held) = fragmented();
    let request = PoolRequest::bytes(3 * PAGE).scattered(64);
    assert!(matches!(pool.allocate_raw(&request), Err(PoolError::WouldBlock { .. })));
    drop(held);
    assert!(pool.allocate_raw(&request).is_ok());
}

#[test]
fn split_pieces_keep_their_bytes_and_are_freed_separately() {
    let (pool, _held) = fragmented();
    let before = pool.statistics().in_use_bytes;
    let bytes = 10 * PAGE - 5;
    let PoolAllocation::Scattered(mut pieces) =
        pool.allocate(&PoolRequest::bytes(bytes).scattered(8)).unwrap()
    else {
        unreachable!("there is no run of ten pages");
    };
    let written: Vec<u8> = (0..=250).cycle().take(bytes).collect();
    assert_eq!(pieces.copy_from(&written), bytes);
    let buffers = pieces.into_buffers();
    assert_eq!(
        buffers.iter().map(|buffer| buffer.len()).collect::<Vec<_>>(),
        [8_192, 8_192, 8_192, 8_192, 8_187]
    );
    assert!(buffers.iter().flat_map(|buffer| buffer.iter()).eq(&written));
    for (left, buffer) in (0..5_u64).rev().zip(buffers) {
        drop(buffer);
        assert_eq!(pool.statistics().in_use_bytes, before + left * 8_192);
    }
}

#[test]
fn a_closed_pool_still_frees_raw_addresses() {
    let pool = one_chunk();
    let (other, address) = (pool.clone(), pool.allocate_raw(&PoolRequest::bytes(1)).unwrap());
    other.close();
    other.close();
    assert_eq!(pool.allocate_raw(&PoolRequest::bytes(1)), Err(PoolError::Closed));
    assert_eq!(pool.free_raw(address.as_ptr()), Ok(()));
    assert_eq!(pool.statistics().tier_bytes, [0; 3]);
}
