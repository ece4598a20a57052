//! The controller's own reader decodes what the builder writes to exactly the data.

use super::*;
use crate::data_pointer::{DataRange, HostTransfer, prp_ranges, sgl_ranges};
use crate::driver::memory::DmaBlock;
use crate::spec::sgl::PointerKind;
use headwater_dma::iova::Iova;
use headwater_host::ring_memory::HeapWords;
use proptest::prelude::*;

const LISTS_AT: u64 = 0x7000_0000_0000;

/// List pages, and a controller's view of them.
struct DecodingHost {
    lists: ListPages<HeapWords>,
    words: HeapWords,
}

impl DecodingHost {
    fn new(pages: usize, mps: u8) -> Self {
        let page = PageBytes::of_mps(mps).unwrap();
        let words = HeapWords::zeroed(pages * page.words());
        let block = DmaBlock { words: words.clone(), address: LISTS_AT };
        Self { lists: ListPages::within(&block, page), words }
    }

    fn read(&self, at: Iova, into: &mut [u8]) {
        for (offset, chunk) in (at.0 - LISTS_AT..).step_by(8).zip(into.chunks_mut(8)) {
            let word = self.words.load_relaxed(usize::try_from(offset / 8).unwrap());
            chunk.copy_from_slice(&word.to_le_bytes());
        }
    }

    /// Returns the runs that a controller decodes from an entry.
    fn decoded_runs(&self, entry: &SubmissionEntry, bytes: u32) -> Vec<IovaRange> {
        let mut ranges = Vec::new();
        let read = |at, into: &mut [u8]| {
            self.read(at, into);
            Ok(())
        };
        match entry.pointer_kind() {
            PointerKind::Prp => prp_ranges(entry, bytes, self.lists.page(), read, &mut ranges),
            _ => sgl_ranges(entry, HostTransfer::ToHost(bytes), read, &mut ranges),
        }
        .unwrap();
        ranges
            .into_iter()
            .map(|range| match range {
                DataRange::Memory(range) => range,
                DataRange::Discard(_) => panic!("nothing was to be discarded"),
            })
            .collect()
    }
}

fn run(start: u64, bytes: u32) -> IovaRange {
    IovaRange { start: Iova(start), bytes }
}

/// Returns the addresses of all dwords of the data, as a naive model.
fn dwords(runs: &[IovaRange]) -> Vec<u64> {
    runs.iter().flat_map(|run| (run.start.0..run.start.0 + u64::from(run.bytes)).step_by(4)).collect()
}

fn total(runs: &[IovaRange]) -> u32 {
    runs.iter().map(|run| run.bytes).sum()
}

/// Generates runs of whole pages, except that the first may begin and the last may end anywhere.
fn page_runs() -> impl Strategy<Value = (u8, Vec<IovaRange>)> {
    let lengths = prop::collection::vec((1..40_u32, any::<bool>()), 1..12);
    (0..3_u8, any::<u32>(), any::<u32>(), lengths).prop_map(|(mps, offset, end, lengths)| {
        let page = PageBytes::of_mps(mps).unwrap().get();
        let mut at = u64::from(page) * 9;
        let count = lengths.len();
        let mut runs = Vec::new();
        for (index, (pages, apart)) in lengths.into_iter().enumerate() {
            let cut = if index == 0 { offset % page / 4 * 4 } else { 0 };
            let short = if index + 1 == count { end % (pages * page - cut) } else { 0 };
            runs.push(run(at + u64::from(cut), pages * page - cut - short / 4 * 4));
            at += u64::from(page) * u64::from(pages + u32::from(apart) * 3);
        }
        (mps, runs)
    })
}

/// Generates runs of dwords at any dword address.
fn any_runs() -> impl Strategy<Value = Vec<IovaRange>> {
    prop::collection::vec((1..3_000_u32, 0..3_u64), 1..900).prop_map(|lengths| {
        let mut at = 0x1_0000;
        let mut runs = Vec::new();
        for (dwords, apart) in lengths {
            runs.push(run(at, dwords * 4));
            at += u64::from(dwords) * 4 + apart * 8;
        }
        runs
    })
}

proptest! {
    #[test]
    fn prps_describe_exactly_the_data((mps, runs) in page_runs()) {
        let mut host = DecodingHost::new(3, mps);
        let mut entry = SubmissionEntry::default();
        let chain = build_data_pointer(&mut entry, &runs, SglUse::Never, &mut host.lists).unwrap();
        prop_assert_eq!(entry.pointer_kind(), PointerKind::Prp);
        prop_assert_eq!(dwords(&host.decoded_runs(&entry, total(&runs))), dwords(&runs));
        host.lists.release(chain);
        prop_assert_eq!(host.lists.free_pages(), 3);
    }

    #[test]
    fn sgls_describe_exactly_the_data(runs in any_runs()) {
        let mut host = DecodingHost::new(5, 0);
        let mut entry = SubmissionEntry::default();
        let chain = build_data_pointer(&mut entry, &runs, SglUse::Lists, &mut host.lists).unwrap();
        prop_assert_eq!(dwords(&host.decoded_runs(&entry, total(&runs))), dwords(&runs));
        host.lists.release(chain);
        prop_assert_eq!(host.lists.free_pages(), 5);
    }

    #[test]
    fn arbitrary_runs_are_described_or_fail_without_side_effects(
        runs in prop::collection::vec((any::<u64>(), prop_oneof![any::<u32>(), 0..9_000_u32]), 0..6),
        choice in 0..3_u8,
    ) {
        let runs: Vec<_> = runs.into_iter().map(|(at, bytes)| run(at, bytes)).collect();
        let sgl = [SglUse::Never, SglUse::Needed, SglUse::Lists][usize::from(choice)];
        let mut host = DecodingHost::new(2, 0);
        let mut entry = SubmissionEntry::default();
        match build_data_pointer(&mut entry, &runs, sgl, &mut host.lists) {
            Ok(chain) => host.lists.release(chain),
            Err(_) => prop_assert_eq!(entry, SubmissionEntry::default()),
        }
        prop_assert_eq!(host.lists.free_pages(), 2);
    }
}

/// Covers NVMeDirect's defect B5: the pages of a buffer were counted without its offset in the first.
#[test]
fn b5_data_that_begins_inside_a_page_needs_one_page_more() {
    let mut host = DecodingHost::new(1, 0);
    let mut entry = SubmissionEntry::default();
    let runs = [run(0x1_0E00, 8_192)];
    let chain = build_data_pointer(&mut entry, &runs, SglUse::Never, &mut host.lists).unwrap();
    assert!(!chain.is_none(), "three pages: one in PRP1, two in a list");
    assert_eq!(host.decoded_runs(&entry, 8_192), runs);
}

/// Covers NVMeDirect's defect B6: one list page per command, so 2 MiB at most, and a spin loop when no page was free.
#[test]
fn b6_lists_are_chained_and_a_lack_of_free_pages_is_an_error() {
    let mut host = DecodingHost::new(17, 0);
    let mut first = SubmissionEntry::default();
    let runs = [run(0x40_0200, 32 << 20)];
    let chain = build_data_pointer(&mut first, &runs, SglUse::Never, &mut host.lists).unwrap();
    assert_eq!(host.lists.free_pages(), 0, "8,192 entries in 17 pages of 511 and a link");
    assert_eq!(host.decoded_runs(&first, 32 << 20), runs);
    let mut second = SubmissionEntry::default();
    let refused = build_data_pointer(&mut second, &[run(0, 12_289)], SglUse::Never, &mut host.lists);
    assert!(matches!(refused, Err(DataPointerError::NoListPages)));
    host.lists.release(chain);
    let more = build_data_pointer(&mut second, &[run(0, 36 << 20)], SglUse::Never, &mut host.lists);
    assert!(matches!(more, Err(DataPointerError::TooLong { pages: 19, total: 17 })));
    let chain = build_data_pointer(&mut second, &runs, SglUse::Never, &mut host.lists).unwrap();
    host.lists.release(chain);
    assert_eq!(host.lists.free_pages(), 17);
}

/// Checks that a list that fills a page to its last slot has no link in it, and that one entry more adds one.
#[test]
fn the_last_slot_of_a_page_holds_an_entry_or_a_link_by_the_length_of_the_list() {
    for (pages, taken) in [(513, 1), (514, 2), (513 + 511, 2), (514 + 511, 3)] {
        let mut host = DecodingHost::new(4, 0);
        let mut entry = SubmissionEntry::default();
        let runs = [run(0x10_0000, pages * 4_096)];
        let chain = build_data_pointer(&mut entry, &runs, SglUse::Never, &mut host.lists).unwrap();
        assert_eq!(host.lists.free_pages(), 4 - taken, "{pages} pages");
        assert_eq!(host.decoded_runs(&entry, pages * 4_096), runs);
        host.lists.release(chain);
    }
}

#[test]
fn gaps_are_refused_for_prps_and_described_by_an_sgl() {
    let runs = [run(0x1000, 0x1000), run(0x5200, 0xE00), run(0x9000, 0x200)];
    let mut host = DecodingHost::new(1, 0);
    let mut entry = SubmissionEntry::default();
    let refused = build_data_pointer(&mut entry, &runs, SglUse::Never, &mut host.lists);
    assert!(matches!(refused, Err(DataPointerError::Gap { run: 1, address: 0x5200, page: 4_096 })));
    let chain = build_data_pointer(&mut entry, &runs, SglUse::Needed, &mut host.lists).unwrap();
    assert_eq!(entry.pointer_kind(), PointerKind::Sgl);
    assert_eq!(dwords(&host.decoded_runs(&entry, total(&runs))), dwords(&runs));
    host.lists.release(chain);
}
