//! Regression tests of defect B11 of the released NVMeDirect, one for each of its parts.

use crate::fake::{CacheRig, small_config};
use headwater_dma::pool::{Pool, PoolConfig};
use headwater_io::Buffer;
use headwater_io::cache::{BlockCache, CacheConfig, DeviceShape, TransferKind};
use headwater_nvme::spec::status::Status;

const PAGE: u64 = 4_096;

/// Guards against a hit test that compared the end with the page and failed for every write of more than one block:
/// such a write bypassed cached pages, which became stale.
#[test]
fn b11_write_of_several_blocks_hits_all_cached_pages() {
    let mut rig =
        CacheRig::new(64 * 4_096, CacheConfig { dirty_background: 80, dirty_max: 80, ..small_config() }, 1);
    rig.read(0, 6 * 4_096);
    rig.lower.log.clear();
    let hits = rig.cache.statistics().hits;
    assert!(rig.cache.write_hit(rig.owner, 512, &[7; 5 * 4_096]));
    assert_eq!(rig.cache.statistics().hits - hits, 6);
    assert_eq!(rig.read(512, 5 * 4_096), [7; 5 * 4_096]);
    assert_eq!(rig.lower.log, []);
    assert_eq!(rig.flush(), Status::SUCCESS);
    assert_eq!(rig.lower.durable[512..512 + 5 * 4_096], [7; 5 * 4_096]);
}

/// Guards against one page list for all handles of a device: a scan through one handle evicted the pages of another.
#[test]
fn b11_scan_through_one_handle_keeps_the_cache_of_another() {
    let mut quiet = CacheRig::new(256 * 4_096, small_config(), 1);
    let mut scanning = CacheRig::new(256 * 4_096, small_config(), 1);
    quiet.read(0, 10 * 4_096);
    for page in 0..256 {
        scanning.read(page * PAGE, 4_096);
    }
    quiet.lower.log.clear();
    quiet.read(0, 10 * 4_096);
    assert_eq!(quiet.lower.log, []);
    assert!(scanning.cache.statistics().evictions > 200);
    assert_eq!(quiet.cache.statistics().evictions, 0);
}

/// Guards against a cache that could not shrink.
#[test]
fn b11_shrink_with_dirty_pages_loses_none() {
    let config = CacheConfig { pages: 64, dirty_background: 80, dirty_max: 80, ..small_config() };
    let mut rig = CacheRig::new(256 * 4_096, config, 1);
    for page in 0..50 {
        rig.write(page * PAGE, &[u8::try_from(page).unwrap() + 1; 4_096]);
    }
    assert_eq!(rig.lower.count(TransferKind::Write), 0);
    assert_eq!(rig.resize(8), Status::SUCCESS);
    assert_eq!(rig.cache.statistics().capacity_bytes, 8 * PAGE);
    for page in 0..50 {
        assert_eq!(rig.read(page * PAGE, 4_096), [u8::try_from(page).unwrap() + 1; 4_096]);
    }
    assert_eq!(rig.flush(), Status::SUCCESS);
}

/// Guards against freeing a page list that lazy initialisation had not created. Memory returns to its pool once,
/// whether it was used or not, after a resize, and with dirty pages.
#[test]
fn b11_memory_returns_to_its_pool_exactly_once() {
    let pool = Pool::open(PoolConfig { cap: 8 << 20, cap_max: 8 << 20, ..PoolConfig::default() }).unwrap();
    let take = |bytes: usize| -> Result<Buffer, headwater_io::IoError> {
        Ok(Buffer::from_pool(pool.buffer(bytes).unwrap()))
    };
    let shape = DeviceShape { device_bytes: 1 << 30, block_bytes: 512 };
    let config = CacheConfig { pages: 1_024, block_pages: 64, ..CacheConfig::default() };
    for round in 0..20 {
        let mut cache = BlockCache::new(shape, config, &mut { take }).unwrap();
        let owner = cache.join();
        let mut lower = crate::fake::FakeDevice::new(1 << 20, 1);
        if round % 2 == 0 {
            let request = crate::fake::write(0, &[1; 4_096]);
            cache.submit(&mut lower, owner, request, 1).unwrap();
            cache.resize(&mut lower, owner, (512, 2), &mut { take }).unwrap();
        }
    }
    // All of the memory is available again at once.
    let whole = BlockCache::new(shape, CacheConfig { pages: 1_536, ..config }, &mut { take });
    assert!(whole.is_ok());
}
