//! Tests of the block table: states, victims, the watermark, accounting over chained records.

use super::*;
use crate::config::VictimPolicy;
use crate::log::record::{RecordAddress, UNIT_BYTES};
use crate::media::geometry::PAGE_DATA_BYTES;

fn ready(count: u32) -> BlockTable {
    let mut blocks = BlockTable::new(FlashGeometry::with_blocks(count));
    while let Some(block) = blocks.take_dirty() {
        blocks.complete_erase(block);
    }
    blocks
}

#[test]
fn greedy_selects_the_emptiest_block_and_fifo_the_oldest() {
    let mut blocks = ready(4);
    let first = blocks.open(Sequence(1), BlockUse::Log).unwrap();
    let second = blocks.open(Sequence(5), BlockUse::Log).unwrap();
    blocks.add_live(RecordAddress::in_block(first, 0), 100);
    blocks.add_live(RecordAddress::in_block(second, 0), 10);
    let victim = |blocks: &BlockTable, policy, below| blocks.victim(policy, Tick(9), below);
    assert_eq!(victim(&blocks, VictimPolicy::Greedy, 9), None, "open blocks are not collected");
    blocks.close(first, 64);
    blocks.close(second, 64);
    assert_eq!(victim(&blocks, VictimPolicy::Greedy, 9), Some(second));
    assert_eq!(victim(&blocks, VictimPolicy::Fifo, 9), Some(first));
    assert_eq!(victim(&blocks, VictimPolicy::Greedy, 2), Some(first), "the second lies in the window");
    assert!(blocks.has_garbage_behind(2));
    blocks.set_last_tick(second, Tick(12));
    assert_eq!(victim(&blocks, VictimPolicy::Greedy, 9), Some(first), "not known to be durable yet");
}

#[test]
fn the_watermark_waits_until_no_map_lists_a_freed_block() {
    let mut blocks = ready(4);
    let first = blocks.open(Sequence(1), BlockUse::Log).unwrap();
    blocks.open(Sequence(5), BlockUse::Log).unwrap();
    blocks.close(first, 64);
    let early = blocks.begin_map();
    assert_eq!(blocks.watermark(), Sequence(1));
    blocks.mark_evacuated(first);
    blocks.mark_erasing(first);
    blocks.complete_erase(first);
    blocks.finish_map(early);
    assert_eq!(blocks.watermark(), Sequence(1), "the map was written before the block was freed");
    let later = blocks.begin_map();
    assert_eq!(blocks.watermark(), Sequence(1), "no durable record names the later map yet");
    blocks.finish_map(later);
    assert_eq!(blocks.watermark(), Sequence(5));
}

#[test]
fn a_chained_record_counts_in_every_block_it_touches() {
    let mut blocks = ready(3);
    let first = blocks.open(Sequence(1), BlockUse::Log).unwrap();
    let second = blocks.open(Sequence(1), BlockUse::Log).unwrap();
    blocks.set_next(first, second);
    let address = RecordAddress::in_block(first, BLOCK_DATA_BYTES - 32);
    blocks.add_live(address, 10);
    assert_eq!((blocks.get(first).live_bytes, blocks.get(second).live_bytes), (32, 128));
    blocks.remove_live(address, 10);
    assert_eq!((blocks.get(first).live_bytes, blocks.get(second).live_bytes), (0, 0));
    assert_eq!(blocks.live_bytes(), 0);
}

#[test]
fn block_that_a_map_lists_is_opened_first_and_counts_as_free_when_no_map_lists_it() {
    let mut blocks = ready(4);
    let first = blocks.open(Sequence(1), BlockUse::Log).unwrap();
    blocks.close(first, 64);
    let map = blocks.begin_map();
    blocks.finish_map(map);
    blocks.mark_evacuated(first);
    blocks.mark_erasing(first);
    blocks.complete_erase(first);
    assert_eq!((blocks.free_count(), blocks.unlisted_free_count()), (4, 3), "a power cut takes it back");
    assert_eq!(blocks.open(Sequence(2), BlockUse::Log), Some(first));
    assert_eq!((blocks.free_count(), blocks.unlisted_free_count()), (3, 3));
    blocks.close(first, 64);
    blocks.mark_evacuated(first);
    blocks.mark_erasing(first);
    blocks.complete_erase(first);
    let map = blocks.begin_map();
    blocks.finish_map(map);
    assert_eq!((blocks.free_count(), blocks.unlisted_free_count()), (4, 4));
}

/// Compares the counts of the pages with a naive model: the records of each page, over blocks that continue in each other.
#[test]
fn pages_are_needed_as_long_as_a_record_lies_in_them() {
    let seed = fastrand::u64(..);
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut blocks = ready(4);
    let opened: Vec<BlockId> = std::iter::from_fn(|| blocks.open(Sequence(1), BlockUse::Log)).collect();
    opened.windows(2).for_each(|pair| blocks.set_next(pair[0], pair[1]));
    // Records of the model lie behind each other on the four blocks as on one.
    let start = |unit: usize| {
        let offset = unit * UNIT_BYTES;
        RecordAddress::in_block(opened[offset / BLOCK_DATA_BYTES], offset % BLOCK_DATA_BYTES)
    };
    let mut records: Vec<(usize, u32, bool)> = Vec::new();
    let all_units = 4 * BLOCK_DATA_BYTES / UNIT_BYTES;
    let mut unit = 0;
    while unit < all_units {
        let units = [2, 5, 130, 200, 1_000, 9_000][rng.usize(0..6)].min(all_units - unit);
        let (length, is_tombstone) = (u32::try_from(units).unwrap(), rng.u8(0..4) == 0);
        match is_tombstone {
            true => blocks.add_tombstone(start(unit), length, Sequence(unit as u64)),
            false => blocks.add_live(start(unit), length),
        }
        records.push((unit, length, is_tombstone));
        unit += units;
    }
    while !records.is_empty() {
        let (unit, length, is_tombstone) = records.swap_remove(rng.usize(..records.len()));
        match is_tombstone {
            true => blocks.remove_tombstone(start(unit), length),
            false => blocks.remove_live(start(unit), length),
        }
        if rng.u8(0..16) != 0 && !records.is_empty() {
            continue;
        }
        let mut needed = vec![false; 4 * PAGES_PER_BLOCK];
        for (unit, length, _) in &records {
            let end = (unit + *length as usize) * UNIT_BYTES;
            needed[unit * UNIT_BYTES / PAGE_DATA_BYTES..end.div_ceil(PAGE_DATA_BYTES)].fill(true);
        }
        for (page, needed) in needed.into_iter().enumerate() {
            let (block, page) = (opened[page / PAGES_PER_BLOCK], page % PAGES_PER_BLOCK);
            assert_eq!(blocks.needs_page(block, page), needed, "seed {seed}, {block}, page {page}");
        }
    }
    assert_eq!((blocks.live_bytes(), blocks.tombstone_bytes()), (0, 0), "seed {seed}");
}

#[test]
fn block_is_needless_without_records_and_without_tombstones_of_older_blocks() {
    let mut blocks = ready(3);
    let first = blocks.open(Sequence(1), BlockUse::Log).unwrap();
    let second = blocks.open(Sequence(5), BlockUse::Log).unwrap();
    let address = RecordAddress::in_block(second, 0);
    blocks.add_live(address, 10);
    assert!(!blocks.is_needless(second) && blocks.is_needless(first));
    blocks.remove_live(address, 10);
    assert!(blocks.is_needless(second));
    blocks.add_tombstone(address, 4, Sequence(7));
    assert!(!blocks.is_needless(second), "the first block may hold a record of the removed key");
    blocks.close(first, 64);
    blocks.mark_evacuated(first);
    blocks.mark_erasing(first);
    blocks.complete_erase(first);
    assert!(!blocks.is_needless(second), "a map may list the first block");
    let map = blocks.begin_map();
    blocks.finish_map(map);
    assert!(blocks.is_needless(second));
}
