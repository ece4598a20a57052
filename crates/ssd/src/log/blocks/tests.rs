//! Tests of the block table: states, victims, the watermark, accounting over chained records.

use super::*;
use crate::config::VictimPolicy;
use crate::log::record::RecordAddress;

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
