//! Tests of PRP and SGL translation: well-formed lists of any shape yield their data; malformed lists yield a status.

mod lists;

use super::*;
use crate::data_pointer::sgl::SGL_DESCRIPTORS_MAX;
use crate::spec::sgl::{SglDescriptor, SglKind};
use lists::{HostMemory, PrpHost, SglHost, merged_runs};
use proptest::prelude::*;
use zerocopy::little_endian::U64;

const KIB4: u64 = 4_096;

fn prp(first: u64, second: u64) -> SubmissionEntry {
    SubmissionEntry { prp1: U64::new(first), prp2: U64::new(second), ..SubmissionEntry::default() }
}

fn memory_run(start: u64, bytes: u32) -> DataRange {
    DataRange::Memory(IovaRange { start: Iova(start), bytes })
}

fn by_prp(
    entry: &SubmissionEntry,
    bytes: u32,
    page: PageBytes,
    memory: &HostMemory,
) -> Result<Vec<DataRange>, Status> {
    let mut ranges = vec![DataRange::Discard(1)];
    prp_ranges(entry, bytes, page, |at, into| memory.read(at, into), &mut ranges).map(|()| ranges)
}

fn by_sgl(
    first: SglDescriptor,
    transfer: HostTransfer,
    memory: &HostMemory,
) -> Result<Vec<DataRange>, Status> {
    let entry = SubmissionEntry::default().with_sgl(first);
    let mut ranges = vec![DataRange::Discard(1)];
    sgl_ranges(&entry, transfer, |at, into| memory.read(at, into), &mut ranges).map(|()| ranges)
}

#[test]
fn data_in_one_page_uses_only_the_first_entry() {
    let none = HostMemory::default();
    let junk = 0x1234_5677;
    assert_eq!(by_prp(&prp(junk, junk), 0, PageBytes::MIN, &none), Ok(vec![]));
    assert_eq!(by_prp(&prp(0x5000, junk), 4_096, PageBytes::MIN, &none), Ok(vec![memory_run(0x5000, 4_096)]));
    assert_eq!(by_prp(&prp(0x5FFC, junk), 4, PageBytes::MIN, &none), Ok(vec![memory_run(0x5FFC, 4)]));
    let large = PageBytes::of_mps(4).unwrap();
    assert_eq!(by_prp(&prp(0x1_0000, junk), 65_536, large, &none), Ok(vec![memory_run(0x1_0000, 65_536)]));
}

#[test]
fn data_in_two_pages_uses_the_second_entry_as_page() {
    let none = HostMemory::default();
    let two = by_prp(&prp(0x5800, 0x9000), 4_096, PageBytes::MIN, &none);
    assert_eq!(two, Ok(vec![memory_run(0x5800, 2_048), memory_run(0x9000, 2_048)]));
    let joined = by_prp(&prp(0x5800, 0x6000), 6_144, PageBytes::MIN, &none);
    assert_eq!(joined, Ok(vec![memory_run(0x5800, 6_144)]));
}

#[test]
fn prp_offset_rules_depend_on_position() {
    let mut memory = HostMemory::default();
    memory.write(0x1_0000, &[0x2_0000, 0x3_0000, 0x4_0800]);
    let offset = Err(Status::PRP_OFFSET_INVALID);
    for bit in 0..2 {
        assert_eq!(by_prp(&prp(0x5000 | 1 << bit, 0), 8, PageBytes::MIN, &memory), offset, "dword aligned");
    }
    for bit in 0..12 {
        let second = 0x9000 | 1 << bit;
        assert_eq!(by_prp(&prp(0x5800, second), 4_096, PageBytes::MIN, &memory), offset, "page aligned");
    }
    for bit in 0..3 {
        let list = 0x1_0000 | 1 << bit;
        assert_eq!(by_prp(&prp(0x5000, list), 12_288, PageBytes::MIN, &memory), offset, "qword aligned");
    }
    assert!(by_prp(&prp(0x5000, 0x1_0000), 12_288, PageBytes::MIN, &memory).is_ok());
    assert_eq!(by_prp(&prp(0x5000, 0x1_0000), 16_384, PageBytes::MIN, &memory), offset, "inside a list");
}

#[test]
fn last_list_slot_is_pointer_only_if_more_than_one_entry_is_left() {
    // Two slots are left in the list page: two more data pages take two entries, three take an entry and a pointer.
    let list = 0x1_0FF0;
    let mut memory = HostMemory::default();
    memory.write(list, &[0x2_0000, 0x3_0000]);
    let two = by_prp(&prp(0x5000, list), 3 * 4_096, PageBytes::MIN, &memory).unwrap();
    assert_eq!(two, [memory_run(0x5000, 4_096), memory_run(0x2_0000, 4_096), memory_run(0x3_0000, 4_096)]);
    memory.write(0x3_0000, &[0x4_0000, 0x6_0000]);
    let three = by_prp(&prp(0x5000, list), 4 * 4_096 - 1, PageBytes::MIN, &memory).unwrap();
    let expected = [(0x5000, 4_096), (0x2_0000, 4_096), (0x4_0000, 4_096), (0x6_0000, 4_095)];
    assert_eq!(three, expected.map(|(start, bytes)| memory_run(start, bytes)));
    memory.write(0x1_0FF8, &[0x3_0008]);
    let refused = by_prp(&prp(0x5000, list), 4 * 4_096, PageBytes::MIN, &memory);
    assert_eq!(refused, Err(Status::PRP_OFFSET_INVALID), "a further list page has no offset");
}

#[test]
fn unreadable_list_is_a_data_transfer_error() {
    let memory = HostMemory::default();
    for list in [0x1_0000, 0, u64::MAX - 7] {
        let refused = by_prp(&prp(0x5000, list), 1 << 20, PageBytes::MIN, &memory);
        assert_eq!(refused, Err(Status::DATA_TRANSFER_ERROR));
    }
    let segment = SglDescriptor::new(SglKind::LastSegment, u64::MAX - 15, 64);
    assert_eq!(by_sgl(segment, HostTransfer::ToHost(9), &memory), Err(Status::DATA_TRANSFER_ERROR));
}

#[test]
fn cyclic_prp_list_ends_with_the_data() {
    let mut memory = HostMemory::default();
    // Every entry is the address of the list page itself.
    memory.write(0x1_0000, &[0x1_0000; 512]);
    let ranges = by_prp(&prp(0x1_0000, 0x1_0000), 16 << 20, PageBytes::MIN, &memory).unwrap();
    assert_eq!(ranges.len(), 4_096);
    // The last slot of the page is read as a pointer seven times and never as an entry.
    assert!(memory.reads() < 600, "{} reads", memory.reads());
}

#[test]
fn page_size_follows_mps() {
    assert_eq!(PageBytes::of_mps(0).unwrap().get(), 4_096);
    assert_eq!(PageBytes::of_mps(15).unwrap().get(), 128 << 20);
    assert_eq!(PageBytes::of_mps(16), None);
}

#[test]
fn single_data_block_needs_no_segment() {
    let none = HostMemory::default();
    let block = |bytes| SglDescriptor::new(SglKind::DataBlock, 0x1235, bytes);
    let exact = Ok(vec![memory_run(0x1235, 100)]);
    assert_eq!(by_sgl(block(100), HostTransfer::FromHost(100), &none), exact, "any alignment is valid");
    assert_eq!(by_sgl(block(u32::MAX), HostTransfer::ToHost(100), &none), exact, "a longer block is valid");
    assert_eq!(by_sgl(block(99), HostTransfer::ToHost(100), &none), Err(Status::DATA_SGL_LENGTH_INVALID));
    assert_eq!(by_sgl(block(0), HostTransfer::ToHost(0), &none), Ok(vec![]));
}

#[test]
fn bit_buckets_discard_reads_and_have_no_effect_on_writes() {
    let mut memory = HostMemory::default();
    let list = [
        SglDescriptor::new(SglKind::DataBlock, 0x1000, 10),
        SglDescriptor::new(SglKind::BitBucket, 0, 20),
        SglDescriptor::new(SglKind::DataBlock, 0x2000, 30),
    ];
    let segment = memory.segment(0x9000, &list, SglKind::LastSegment);
    let read = by_sgl(segment, HostTransfer::ToHost(60), &memory).unwrap();
    assert_eq!(read, [memory_run(0x1000, 10), DataRange::Discard(20), memory_run(0x2000, 30)]);
    let written = by_sgl(segment, HostTransfer::FromHost(40), &memory).unwrap();
    assert_eq!(written, [memory_run(0x1000, 10), memory_run(0x2000, 30)]);
    let short = by_sgl(segment, HostTransfer::FromHost(60), &memory);
    assert_eq!(short, Err(Status::DATA_SGL_LENGTH_INVALID));
}

#[test]
fn keyed_transport_and_unknown_descriptors_are_refused() {
    let mut memory = HostMemory::default();
    let good = SglDescriptor::new(SglKind::DataBlock, 0x1000, 10);
    for identifier in 0..=u8::MAX {
        let bad = SglDescriptor { identifier, ..good };
        if bad.kind().is_some() {
            continue;
        }
        assert_eq!(by_sgl(bad, HostTransfer::ToHost(10), &memory), Err(Status::SGL_TYPE_INVALID));
        let segment = memory.segment(0x9000, &[good, bad], SglKind::LastSegment);
        assert_eq!(by_sgl(segment, HostTransfer::ToHost(20), &memory), Err(Status::SGL_TYPE_INVALID));
    }
}

#[test]
fn segments_hold_whole_descriptors_and_one_final_segment_descriptor() {
    let data = SglDescriptor::new(SglKind::DataBlock, 0x1000, 10);
    let mut memory = HostMemory::default();
    let last = memory.segment(0xA000, &[data], SglKind::LastSegment);
    let mut with = |list: &[SglDescriptor], kind| {
        let segment = memory.segment(0x9000, list, kind);
        by_sgl(segment, HostTransfer::ToHost(20), &memory)
    };
    assert!(with(&[data, last], SglKind::Segment).is_ok());
    assert_eq!(with(&[last, data], SglKind::Segment), Err(Status::INVALID_SGL_COUNT), "not at the end");
    assert_eq!(with(&[data, last], SglKind::LastSegment), Err(Status::INVALID_SGL_SEGMENT), "successor");
    assert_eq!(with(&[data], SglKind::Segment), Err(Status::INVALID_SGL_SEGMENT), "no successor");
    for bytes in [0, 1, 15, 17, 31] {
        let odd = SglDescriptor::new(SglKind::LastSegment, 0x9000, bytes);
        assert_eq!(by_sgl(odd, HostTransfer::ToHost(20), &memory), Err(Status::INVALID_SGL_SEGMENT));
    }
}

#[test]
fn cyclic_segments_end_with_a_status() {
    let mut memory = HostMemory::default();
    let empty = SglDescriptor::new(SglKind::DataBlock, 0x1000, 0);
    let cycle = SglDescriptor::new(SglKind::Segment, 0x9000, 32);
    memory.segment(0x9000, &[empty, cycle], SglKind::Segment);
    assert_eq!(by_sgl(cycle, HostTransfer::ToHost(1), &memory), Err(Status::INVALID_SGL_COUNT));
    assert!(memory.reads() <= u64::from(SGL_DESCRIPTORS_MAX));
    let vast = SglDescriptor::new(SglKind::LastSegment, 0x9000, !15);
    assert_eq!(by_sgl(vast, HostTransfer::ToHost(1), &memory), Err(Status::INVALID_SGL_COUNT));
}

#[test]
fn psdt_selects_the_pointer_format() {
    let memory = HostMemory::default();
    let plain = prp(0x1000, 0);
    let with = |flags| {
        let entry = SubmissionEntry { flags, ..plain };
        let mut ranges = vec![DataRange::Discard(1)];
        let read = |at: Iova, into: &mut [u8]| memory.read(at, into);
        let taken = data_ranges(&entry, HostTransfer::ToHost(8), PageBytes::MIN, read, &mut ranges);
        (taken, ranges)
    };
    assert_eq!(with(0), (Ok(()), vec![memory_run(0x1000, 8)]));
    assert_eq!(with(0x40).0, Err(Status::DATA_SGL_LENGTH_INVALID), "a data block of no bytes");
    assert_eq!(with(0x80), (Err(Status::INVALID_FIELD), vec![]));
    assert_eq!(with(0xC0), (Err(Status::INVALID_FIELD), vec![]));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn valid_prp_lists_yield_their_data(host in PrpHost::any()) {
        let built = host.build();
        let ranges = by_prp(&built.entry, host.bytes, host.page(), &built.memory);
        prop_assert_eq!(merged_runs(&ranges.unwrap()), built.data);
    }

    #[test]
    fn valid_sgls_yield_their_data(host in SglHost::any()) {
        let built = host.build();
        let ranges = by_sgl(built.first, host.transfer(), &built.memory);
        prop_assert_eq!(merged_runs(&ranges.unwrap()), built.data);
    }

    /// Reads random memory in which lists may point anywhere.
    #[test]
    fn random_memory_never_yields_more_than_the_data(
        words in prop::collection::vec(lists::wild_word(), 512),
        entry in any::<[u64; 8]>(),
        first in lists::wild_word(),
        second in lists::wild_word(),
        bytes in 0..=16_u32 << 20,
        to_host in any::<bool>(),
    ) {
        let mut memory = HostMemory::default();
        for page in 0..4 {
            memory.write(page * KIB4, &words);
        }
        let mut entry = SubmissionEntry::from_words(entry);
        entry.prp1 = U64::new(first);
        entry.prp2 = U64::new(second);
        let transfer = if to_host { HostTransfer::ToHost(bytes) } else { HostTransfer::FromHost(bytes) };
        let mut ranges = Vec::new();
        let read = |at: Iova, into: &mut [u8]| memory.read(at, into);
        if data_ranges(&entry, transfer, PageBytes::MIN, read, &mut ranges).is_ok() {
            let described: u64 = merged_runs(&ranges).iter().map(|run| run.bytes).sum();
            prop_assert_eq!(described, u64::from(bytes));
            prop_assert!(to_host || !ranges.iter().any(|range| matches!(range, DataRange::Discard(_))));
        }
        prop_assert!(memory.reads() <= u64::from(SGL_DESCRIPTORS_MAX) + 4_096);
    }
}
