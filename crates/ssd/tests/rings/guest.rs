//! Tests of clients whose data pointers are PRPs and SGLs, as a guest's driver writes them.

use crate::harness::{BASE, HarnessClient, RingHarness, at, key};
use headwater_nvme::controller::QueueKind;
use headwater_nvme::data_pointer::PageBytes;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::kv::{DataPointer, StoreOptions, list, retrieve, store};
use headwater_nvme::spec::sgl::{SglDescriptor, SglKind};
use headwater_nvme::spec::status::Status;
use headwater_ssd::nvme::request::AddressMode;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

/// Returns the address of a page of the client's region.
fn page_address(number: u64) -> u64 {
    BASE + number * 4_096
}

fn page_offset(number: u64) -> usize {
    usize::try_from(number * 4_096).expect("an offset in the region")
}

fn guest(bench: &mut RingHarness) -> HarnessClient {
    let client = bench.client(8, QueueKind::Standard);
    bench
        .front_end
        .rings
        .set_address_mode(client.id, AddressMode::Lists(PageBytes::MIN))
        .expect("an existing client");
    client
}

fn with_prps(entry: SubmissionEntry, first: u64, second: u64) -> SubmissionEntry {
    SubmissionEntry { prp1: U64::new(first), prp2: U64::new(second), ..entry }
}

/// Returns bytes that differ between pages and between offsets.
fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| u8::try_from((at / 4_096 * 31 + at) % 251).expect("below 251")).collect()
}

#[test]
fn values_scattered_over_pages_are_stored_and_returned() {
    let mut bench = RingHarness::new();
    let mut client = guest(&mut bench);
    let value = pattern(3 * 4_096 + 100);
    // The value starts at the end of page 9 and continues on pages 3, 5 and 2, which the list on page 20 names.
    client.write(page_offset(10) - 100, &value[..100]);
    for (number, part) in [3, 5, 2].into_iter().zip(value[100..].chunks(4_096)) {
        client.write(page_offset(number), part);
    }
    client.write(
        page_offset(20) + 64,
        [page_address(3), page_address(5), page_address(2)].map(u64::to_le_bytes).as_flattened(),
    );
    let bytes = DataPointer { address: 0, bytes: u32::try_from(value.len()).unwrap() };
    let put = with_prps(
        store(1, key(b"k"), bytes, StoreOptions::NONE),
        page_address(10) - 100,
        page_address(20) + 64,
    );
    assert_eq!(bench.run(&mut client, put).0, Status::SUCCESS);
    // Read it back into other pages, with another list.
    client.write(
        page_offset(21),
        [page_address(31), page_address(30), page_address(33)].map(u64::to_le_bytes).as_flattened(),
    );
    let get = with_prps(retrieve(1, key(b"k"), bytes), page_address(41) - 100, page_address(21));
    assert_eq!(bench.run(&mut client, get), (Status::SUCCESS, bytes.bytes));
    let mut back = client.read(page_offset(41) - 100, 100);
    for number in [31, 30, 33] {
        back.extend(client.read(page_offset(number), 4_096));
    }
    assert_eq!(back, value);
}

#[test]
fn sgl_with_a_bit_bucket_skips_part_of_a_value() {
    let mut bench = RingHarness::new();
    let mut client = guest(&mut bench);
    let value = pattern(1_000);
    let from = client.write(77, &value);
    let one_block = SglDescriptor::new(SglKind::DataBlock, from.address, 1_000);
    let put = store(1, key(b"k"), from, StoreOptions::NONE).with_sgl(one_block);
    assert_eq!(bench.run(&mut client, put).0, Status::SUCCESS);
    let descriptors = [
        SglDescriptor::new(SglKind::DataBlock, page_address(3) + 1, 10),
        SglDescriptor::new(SglKind::BitBucket, 0, 900),
        SglDescriptor::new(SglKind::DataBlock, page_address(3) + 501, 90),
    ];
    client.write(page_offset(20), descriptors.as_bytes());
    let segment = SglDescriptor::new(SglKind::LastSegment, page_address(20), 48);
    let get = retrieve(1, key(b"k"), at(0, 1_000)).with_sgl(segment);
    assert_eq!(bench.run(&mut client, get), (Status::SUCCESS, 1_000));
    assert_eq!(client.read(page_offset(3) + 1, 10), value[..10]);
    assert_eq!(client.read(page_offset(3) + 501, 90), value[910..]);
    assert_eq!(client.read(page_offset(3) + 11, 490), [0; 490], "bytes of the bit bucket were written");
    let keys = list(1, None, at(0, 64)).with_sgl(SglDescriptor::new(SglKind::DataBlock, page_address(4), 64));
    assert_eq!(bench.run(&mut client, keys).0, Status::SUCCESS);
    assert_eq!(client.read(page_offset(4), 8), b"\x01\0\0\0\x01\0k\0");
}

#[test]
fn flat_addresses_of_several_buffers_are_an_sgl() {
    let mut bench = RingHarness::new();
    let mut client = bench.client(32, QueueKind::Standard);
    let value = pattern(10_000);
    let parts = [(40_000, 0..1), (20_003, 1..7_000), (50_000, 7_000..10_000)];
    let list_of = |parts: &[(usize, std::ops::Range<usize>)]| -> Vec<SglDescriptor> {
        let block = |(offset, part): &(usize, std::ops::Range<usize>)| {
            let DataPointer { address, bytes } = at(*offset, part.len());
            SglDescriptor::new(SglKind::DataBlock, address, bytes)
        };
        parts.iter().map(block).collect()
    };
    for (offset, part) in &parts {
        client.write(*offset, &value[part.clone()]);
    }
    let list = client.write(1_024, list_of(&parts).as_bytes());
    let segment = SglDescriptor::new(SglKind::LastSegment, list.address, list.bytes);
    let put = store(1, key(b"k"), at(0, 10_000), StoreOptions::NONE).with_sgl(segment);
    assert_eq!(bench.run(&mut client, put).0, Status::SUCCESS);
    let into = [(30_000, 0..6_000), (3_000, 6_000..10_000)];
    let list = client.write(1_024, list_of(&into).as_bytes());
    let segment = SglDescriptor::new(SglKind::LastSegment, list.address, list.bytes);
    let get = retrieve(1, key(b"k"), at(0, 10_000)).with_sgl(segment);
    assert_eq!(bench.run(&mut client, get), (Status::SUCCESS, 10_000));
    for (offset, part) in into {
        assert_eq!(client.read(offset, part.len()), value[part]);
    }
}

#[test]
fn pointers_outside_the_guest_memory_are_data_transfer_errors() {
    let mut bench = RingHarness::new();
    let mut client = guest(&mut bench);
    client.write(
        page_offset(20),
        [page_address(3), 1 << 40, page_address(2)].map(u64::to_le_bytes).as_flattened(),
    );
    let three = |first, second| {
        let bytes = DataPointer { address: 0, bytes: 4 * 4_096 };
        with_prps(store(1, key(b"k"), bytes, StoreOptions::NONE), first, second)
    };
    let refused = [
        (three(1 << 40, page_address(21)), Status::DATA_TRANSFER_ERROR),
        (three(page_address(1), 1 << 40), Status::DATA_TRANSFER_ERROR),
        (three(page_address(1), page_address(20)), Status::DATA_TRANSFER_ERROR),
        (three(page_address(1), page_address(20) + 4), Status::PRP_OFFSET_INVALID),
        (three(page_address(1) + 2, page_address(20)), Status::PRP_OFFSET_INVALID),
        (
            three(0, 0).with_sgl(SglDescriptor::new(SglKind::DataBlock, 1 << 40, 1 << 20)),
            Status::DATA_TRANSFER_ERROR,
        ),
        (
            three(0, 0).with_sgl(SglDescriptor::new(SglKind::LastSegment, u64::MAX - 15, 16)),
            Status::DATA_TRANSFER_ERROR,
        ),
        (
            three(0, 0).with_sgl(SglDescriptor::new(SglKind::DataBlock, page_address(1), 100)),
            Status::DATA_SGL_LENGTH_INVALID,
        ),
        (SubmissionEntry { flags: 0x80, ..three(page_address(1), page_address(20)) }, Status::INVALID_FIELD),
    ];
    for (entry, status) in refused {
        assert_eq!(bench.run(&mut client, entry).0, status, "{entry:?}");
    }
    let none = with_prps(store(1, key(b"k"), at(0, 0), StoreOptions::NONE), u64::MAX, u64::MAX);
    assert_eq!(
        bench.run(&mut client, none).0,
        Status::SUCCESS,
        "the data pointer of an empty value was used"
    );
}
