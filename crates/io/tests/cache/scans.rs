//! Tests that frequently used pages survive scans.

use crate::fake::{CacheRig, small_config};
use headwater_io::cache::CacheConfig;

const PAGE: u64 = 4_096;

#[test]
fn hot_set_survives_a_scan_of_ten_times_the_cache() {
    let pages = 256;
    let mut rig = CacheRig::new(4_096 * 4_096, CacheConfig { pages: 256, ..small_config() }, 1);
    let hot = 100;
    for _ in 0..4 {
        for page in 0..hot {
            rig.read(page * PAGE, 4_096);
        }
    }
    for page in 1_000..1_000 + 10 * pages {
        rig.read(page * PAGE, 4_096);
    }
    let before = rig.cache.statistics().misses;
    for page in 0..hot {
        rig.read(page * PAGE, 4_096);
    }
    let lost = rig.cache.statistics().misses - before;
    assert!(lost <= hot / 20, "{lost} of {hot} hot pages were evicted");
}

#[test]
fn hot_set_survives_a_scan_in_small_pieces_with_prefetch() {
    let mut rig =
        CacheRig::new(4_096 * 4_096, CacheConfig { pages: 256, prefetch_pages: 32, ..small_config() }, 1);
    for _ in 0..4 {
        for page in 0..100 {
            rig.read(page * 3 * PAGE, 4_096);
        }
    }
    for piece in 0..2_560 * 8 {
        rig.read(1_000 * PAGE + piece * 512, 512);
    }
    let before = rig.cache.statistics().misses;
    for page in 0..100 {
        rig.read(page * 3 * PAGE, 4_096);
    }
    let lost = rig.cache.statistics().misses - before;
    assert!(lost <= 5, "{lost} of 100 hot pages were evicted");
}

#[test]
fn hot_set_survives_a_scan_of_writes() {
    let mut rig = CacheRig::new(4_096 * 4_096, CacheConfig { pages: 256, ..small_config() }, 1);
    for _ in 0..4 {
        for page in 0..100 {
            rig.read(page * PAGE, 4_096);
        }
    }
    for page in 1_000..3_560 {
        rig.write(page * PAGE, &[1; 4_096]);
    }
    let before = rig.cache.statistics().misses;
    for page in 0..100 {
        rig.read(page * PAGE, 4_096);
    }
    let lost = rig.cache.statistics().misses - before;
    assert!(lost <= 5, "{lost} of 100 hot pages were evicted");
}
