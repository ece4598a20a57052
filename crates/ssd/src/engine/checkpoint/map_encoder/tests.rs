//! Tests of the encoder of maps: parts are short, and blocks and settled keys may go between them.

use super::*;
use crate::command::NamespaceId;
use crate::config::DeviceConfig;
use crate::engine::checkpoint::stream::{DecodedMap, decode_map};
use crate::ftl::recovering::{FoundLog, RecoveringFtl};
use crate::log::blocks::{BlockEntry, BlockState};
use crate::media::geometry::FlashGeometry;
use crate::media::memory::MemoryMedia;
use headwater_dma::pool::Pool;
use std::collections::{BTreeMap, BTreeSet};

const BLOCKS: u32 = 500;
/// Blocks of the log; the rest are free.
const LISTED: u32 = 300;
const PART: usize = 7;
/// The last sequence when a map begins.
const LAST: Sequence = Sequence(1_000);
const NAMESPACE: NamespaceId = NamespaceId(2);

/// Returns a device with blocks of the log, orders descending with their numbers, and these settled keys.
fn filled(settled: BTreeMap<u128, Sequence>) -> RecoveringFtl<MemoryMedia> {
    let media = MemoryMedia::erased(FlashGeometry::with_blocks(BLOCKS)).unwrap();
    let mut ftl = RecoveringFtl::new(media, &DeviceConfig::default(), &Pool::of_process().unwrap());
    for number in 0..LISTED {
        let (state, order) = (BlockState::Closed, u64::from(LISTED - number));
        let tombstone_bytes = 16 * number;
        ftl.adopt(BlockId(number), BlockEntry { state, order, pages: 64, tombstone_bytes, ..EMPTY_ENTRY });
    }
    ftl.finish_adoption(1);
    let mut below = [Sequence(0); SPACES];
    below[NAMESPACE.index()] = Sequence(900);
    ftl.set_doubts(Doubts::new(below, settled));
    ftl.continue_after(FoundLog { sequence: LAST, ..FoundLog::default() });
    ftl
}

fn root<M: Media>(ftl: &Ftl<M>) -> CheckpointRoot {
    let (start_order, start) = ftl.window_start();
    CheckpointRoot { number: 1, start_order, start, ..CheckpointRoot::default() }
}

/// Encodes one part, and moves the pages that it completes to `map`.
fn encode_part<M: Media>(encoder: &mut MapEncoder, ftl: &Ftl<M>, map: &mut Vec<u8>) {
    let taken = encoder.fill(ftl, PART);
    assert!(taken <= PART, "a turn took {taken} entries");
    assert!(encoder.buffer().len() < 2 * PAGE_DATA_BYTES, "more than a page was buffered");
    if encoder.has_page() {
        let mut page = [0; PAGE_DATA_BYTES];
        let used = encoder.buffer().copy_page(&mut page);
        map.extend_from_slice(&page[..used]);
        encoder.buffer().consume(used);
    }
}

/// Returns the map of these bytes, which have the length that was announced.
fn decoded(encoder: &MapEncoder, bytes: &[u8]) -> DecodedMap {
    assert_eq!(bytes.len().div_ceil(PAGE_DATA_BYTES), encoder.pages() as usize);
    decode_map(bytes).expect("the map is whole")
}

#[test]
fn a_turn_encodes_no_more_entries_than_its_part() {
    let settled: BTreeMap<u128, Sequence> = (1..=400).map(|digest| (digest << 100, Sequence(500))).collect();
    let ftl = filled(settled.clone());
    let mut encoder = MapEncoder::new(&*ftl, &root(&ftl));
    let (mut map, mut turns) = (Vec::new(), 0);
    while !encoder.is_written() {
        encode_part(&mut encoder, &ftl, &mut map);
        turns += 1;
    }
    assert!(turns >= (LISTED as usize + settled.len()) / PART, "{turns} turns");
    let map = decoded(&encoder, &map);
    let mut listed: Vec<_> =
        map.blocks.iter().map(|(block, entry)| (block.0, entry.order, entry.tombstone_bytes)).collect();
    listed.sort_unstable();
    let all: Vec<_> = (0..LISTED).map(|number| (number, u64::from(LISTED - number), 16 * number)).collect();
    assert_eq!(listed, all);
    assert_eq!(map.doubts.settled().collect::<BTreeMap<_, _>>(), settled);
    assert_eq!(map.doubts.below()[NAMESPACE.index()], Sequence(900));
    assert_eq!(map.sequence, LAST);
}

#[test]
fn a_map_is_whole_although_blocks_are_freed_between_its_parts() {
    for seed in 0..20 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut ftl = filled(BTreeMap::new()).into_ftl(BTreeSet::new());
        let mut encoder = MapEncoder::new(&ftl, &root(&ftl));
        let mut left: Vec<u32> = (0..LISTED).collect();
        let mut map = Vec::new();
        while !encoder.is_written() {
            encode_part(&mut encoder, &ftl, &mut map);
            for _ in 0..rng.usize(0..4).min(left.len()) {
                ftl.discard_checkpoint_block(BlockId(left.swap_remove(rng.usize(0..left.len()))));
            }
        }
        let map = decoded(&encoder, &map);
        let listed: BTreeMap<u32, u64> =
            map.blocks.iter().map(|(block, entry)| (block.0, entry.order)).collect();
        let is_listed = |number: &u32| listed.get(number) == Some(&u64::from(LISTED - number));
        assert!(left.iter().all(is_listed), "seed {seed}: a block in use is not listed");
        let nowhere = map.blocks.iter().filter(|(block, _)| block.0 == BLOCKS).count();
        assert!(nowhere > 0, "seed {seed}: no block was freed before its part");
        assert_eq!(map.blocks.len(), LISTED as usize, "seed {seed}");
        assert!(listed.keys().all(|block| *block == BLOCKS || *block < LISTED), "seed {seed}");
    }
}

#[test]
fn keys_that_are_settled_between_the_parts_are_left_to_the_log() {
    let old: BTreeMap<u128, Sequence> = (1..=50).map(|digest| (digest << 64, Sequence(500))).collect();
    let mut ftl = filled(old.clone());
    let mut encoder = MapEncoder::new(&*ftl, &root(&ftl));
    let mut map = Vec::new();
    let mut later = 1_000;
    while !encoder.is_written() {
        encode_part(&mut encoder, &ftl, &mut map);
        // In front of every old key, and the last of them once more.
        for digest in [later, 50 << 64] {
            later += 1;
            ftl.settle_removed(NAMESPACE, digest, Sequence(u64::try_from(later).unwrap()));
        }
    }
    let settled: BTreeMap<_, _> = decoded(&encoder, &map).doubts.settled().collect();
    let kept: BTreeMap<_, _> = old.into_iter().take(49).collect();
    assert_eq!(settled, kept, "the window has every later removal");
}

#[test]
fn a_clear_between_the_parts_leaves_a_map_of_no_settled_key() {
    let old: BTreeMap<u128, Sequence> = (1..=50).map(|digest| (digest << 64, Sequence(500))).collect();
    let mut ftl = filled(old);
    let mut encoder = MapEncoder::new(&*ftl, &root(&ftl));
    let mut map = Vec::new();
    encode_part(&mut encoder, &ftl, &mut map);
    ftl.settle_cleared(NAMESPACE, Sequence(1_001));
    while !encoder.is_written() {
        encode_part(&mut encoder, &ftl, &mut map);
    }
    let doubts = decoded(&encoder, &map).doubts;
    assert_eq!(doubts.settled().count(), 0);
    assert_eq!(doubts.below()[NAMESPACE.index()], Sequence(900), "the log has the clear");
}
