//! Tests of the block table: states, victims, the watermark, accounting over chained records.

use super::*;
use crate::config::VictimPolicy;

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
    let first = blocks.open(Sequence(1), false).unwrap();
    let second = blocks.open(Sequence(5), false).unwrap();
    blocks.add_live(RecordAddress::in_block(first, 0), 100);
    blocks.add_live(RecordAddress::in_block(second, 0), 10);
    assert_eq!(blocks.victim(VictimPolicy::Greedy, (Sequence(9), 9)), None, "open blocks are not collected");
    blocks.close(first, 64);
    blocks.close(second, 64);
    assert_eq!(blocks.victim(VictimPolicy::Greedy, (Sequence(9), 9)), Some(second));
    assert_eq!(blocks.victim(VictimPolicy::Fifo, (Sequence(9), 9)), Some(first));
    blocks.raise_max_sequence(second, Sequence(12));
    assert_eq!(blocks.victim(VictimPolicy::Greedy, (Sequence(9), 9)), Some(first), "not durable yet");
}

#[test]
fn the_watermark_waits_for_durable_erases() {
    let mut blocks = ready(4);
    let first = blocks.open(Sequence(1), false).unwrap();
    blocks.open(Sequence(5), false).unwrap();
    blocks.close(first, 64);
    assert_eq!(blocks.watermark(), Sequence(1));
    blocks.mark_evacuated(first);
    blocks.mark_erasing(first);
    blocks.begin_flush();
    blocks.complete_erase(first);
    blocks.complete_flush();
    assert_eq!(
        blocks.watermark(),
        Sequence(1),
        "the flush began before the erase completed, so a power cut may undo the erase"
    );
    blocks.begin_flush();
    blocks.complete_flush();
    assert_eq!(blocks.watermark(), Sequence(5));
}

#[test]
fn no_tombstone_is_dropped_while_a_block_was_neither_adopted_nor_erased() {
    let mut blocks = BlockTable::new(FlashGeometry::with_blocks(2));
    blocks.finish_adoption(0);
    let first = blocks.take_dirty().unwrap();
    let second = blocks.take_dirty().unwrap();
    blocks.complete_erase(first);
    blocks.put_back_dirty(second);
    blocks.begin_flush();
    blocks.complete_flush();
    assert_eq!(blocks.watermark(), Sequence(0), "the second block may hold any record");
    let second = blocks.take_dirty().unwrap();
    blocks.complete_erase(second);
    assert_eq!(blocks.watermark(), Sequence(0), "a power cut may still undo the erase");
    blocks.begin_flush();
    blocks.complete_flush();
    blocks.open(Sequence(7), false).unwrap();
    assert_eq!(blocks.watermark(), Sequence(7));
}

#[test]
fn a_chained_record_counts_in_every_block_it_touches() {
    let mut blocks = ready(3);
    let first = blocks.open(Sequence(1), false).unwrap();
    let second = blocks.open(Sequence(1), false).unwrap();
    blocks.set_next(first, second);
    let address = RecordAddress::in_block(first, BLOCK_DATA_BYTES - 32);
    blocks.add_live(address, 10);
    assert_eq!((blocks.get(first).live_bytes, blocks.get(second).live_bytes), (32, 128));
    blocks.remove_live(address, 10);
    assert_eq!((blocks.get(first).live_bytes, blocks.get(second).live_bytes), (0, 0));
    assert_eq!(blocks.live_bytes(), 0);
}
