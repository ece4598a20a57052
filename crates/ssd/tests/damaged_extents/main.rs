//! Damage to each place that a long value needs: the pages of its extents, their spares, and the record that names them. A read
//! is an error and returns no byte, other keys are answered, and the inspection names the record and the page.

#![expect(clippy::unwrap_used, reason = "a test fails if its setup fails")]

mod bench;

use bench::{
    BLOCKS, DamageBench, EXTENT, FileDevice, KEY_AT, PAGES, PlacedDamage, REST, START, UUID, extents_of,
    holds, on, retrieve_part, run, slot_of, store, text,
};
use bytes::Bytes;
use headwater_host::copy::crc32c;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{SsdCommand, SsdCompletion, ValueReader};
use headwater_ssd::engine::DeviceConfig;
use headwater_ssd::engine::inspection::inspect;
use headwater_ssd::log::page::PageSpare;
use headwater_ssd::media::file::zones::{FileZones, ZoneOwner};
use headwater_ssd::media::file::{FileMedia, FileOptions};
use headwater_ssd::media::{FlashGeometry, PAGE_DATA_BYTES, PAGE_SPARE_BYTES, PageAddress};
use std::fs;
use std::ops::Range;
use std::path::Path;
use tempfile::TempDir;

/// Places of a record (`docs/formats/medium-2.md`): the number of extents, and an entry of the list of extents.
const EXTENTS_AT: usize = 14;
const ENTRY_BYTES: usize = 16;
/// Place of the order in an entry of the list, and in a spare.
const ENTRY_ORDER_AT: usize = 8;
const SPARE_ORDER_AT: usize = 24;

#[test]
fn each_field_of_the_spare_of_an_extent_page_proves_its_bytes() {
    let bench = DamageBench::new();
    let page = bench.page(1, 5);
    let mut struck = 0;
    for zone in bench.zones.fields(ZoneOwner::Slot(page)) {
        if zone.field == "data" || zone.field == "padding" {
            continue;
        }
        struck += 1;
        let at = usize::try_from(zone.range.start).unwrap();
        bench.check_page(&format!("bit of {}", zone.field), page, vec![bench.flip(at)]);
    }
    assert!(struck > 15, "{struck} fields were struck");
    let spare = bench.slot(page).start + PAGE_DATA_BYTES;
    for byte in [0, 0xFF] {
        bench.check_page("lost spare", page, vec![(spare, vec![byte; PAGE_SPARE_BYTES])]);
    }
}

#[test]
fn a_page_that_lies_in_the_place_of_an_extent_page_is_no_answer() {
    let bench = DamageBench::new();
    let (page, start) = (bench.page(2, 40), bench.slot(bench.page(2, 40)).start);
    bench.check_page("zeroes", page, vec![bench.zeroes(page)]);
    bench.check_page("ones", page, vec![(start, vec![0xFF; bench.slot(page).len()])]);
    bench.check_page("last bit", page, vec![bench.flip(start + PAGE_DATA_BYTES - 1)]);
    let other = extents_of(&bench.closed.bytes, &bench.zones, &bench.closed.other_keys[0].1)[0];
    let elsewhere = [bench.page(2, 41), bench.page(1, 40), PageAddress::new(other, 40)];
    for from in elsewhere {
        let bytes = bench.closed.bytes[bench.slot(from)].to_vec();
        bench.check_page(&format!("{from} instead"), page, vec![(start, bytes)]);
    }
    let old = bench.page(bench.reused_extent(), 40);
    bench.check_page("older life", old, vec![bench.stale(old)]);
}

#[test]
fn a_part_fails_exactly_if_a_page_that_it_needs_is_damaged() {
    let bench = DamageBench::new();
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let long = &bench.closed.long;
    let (mut failed, mut read) = (0, 0);
    for _ in 0..12 {
        let (page, of_page) = bench.strike(&mut random);
        let mut device = on(bench.open());
        for _ in 0..20 {
            // Half of the parts begin or end close to the page.
            let near = of_page.start.saturating_sub(PAGE_DATA_BYTES)..of_page.end + PAGE_DATA_BYTES;
            let start = if random.bool() { random.usize(..long.len()) } else { random.usize(near) };
            let most = 1 << random.u32(1..20);
            let bytes = random.usize(1..most).min(long.len() - start);
            let part = (u32::try_from(start).unwrap(), u32::try_from(bytes).unwrap());
            let found = retrieve_part(&mut device, "long", part);
            if start < of_page.end && start + bytes > of_page.start {
                assert_eq!(
                    (found.status, found.sink.len()),
                    (Status::UNRECOVERED_ERROR, 0),
                    "seed {seed}: {part:?} with {page}"
                );
                failed += 1;
            } else {
                assert_eq!(found.status, Status::SUCCESS, "seed {seed}: {part:?} with {page}");
                assert!(found.sink == long[start..start + bytes], "seed {seed}: {part:?} has other bytes");
                read += 1;
            }
        }
        drop(device.into_media());
    }
    assert!(failed > 10 && read > 10, "seed {seed}: {failed} parts failed, {read} were read");
}

/// Opens a reader of the long value, and reads a part of it, from an offset on and of so many bytes.
fn read_part(device: &mut FileDevice, number: u64, (offset, bytes_max): (u32, u32)) -> SsdCompletion {
    let reader = ValueReader::new(number);
    let key = Bytes::from_static(b"long");
    let opened = run(device, SsdCommand::OpenValue { key, reader: reader.clone() });
    assert_eq!(opened.status, Status::SUCCESS);
    run(device, SsdCommand::ReadPart { reader, offset, sink: b"old".to_vec(), bytes_max })
}

#[test]
fn a_part_of_a_reader_fails_exactly_if_a_page_that_it_needs_is_damaged() {
    let bench = DamageBench::new();
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let long = &bench.closed.long;
    let (mut failed, mut read) = (0, 0);
    for _ in 0..6 {
        let (page, of_page) = bench.strike(&mut random);
        let mut device = on(bench.open());
        let (first, end) = (of_page.start, of_page.end);
        // In front of the page, up to it, into it, inside of it, out of it, and from its end on.
        let edges = [
            (first.saturating_sub(9_000), 9_000),
            (first.saturating_sub(9_000), 9_001),
            (first + 100, 50),
            (end - 1, 9_000),
            (end, 9_000),
        ];
        let random_parts = (0..10).map(|_| (random.usize(..long.len()), random.usize(1..100_000)));
        for (number, (start, bytes)) in (1..).zip(edges.into_iter().chain(random_parts)) {
            let bytes = bytes.min(long.len() - start);
            let part = (u32::try_from(start).unwrap(), u32::try_from(bytes).unwrap());
            let found = read_part(&mut device, number, part);
            if start < end && start + bytes > first {
                assert_eq!(
                    (found.status, found.sink.len()),
                    (Status::UNRECOVERED_ERROR, 0),
                    "seed {seed}: {part:?} with {page}"
                );
                failed += 1;
            } else {
                assert_eq!(found.status, Status::SUCCESS, "seed {seed}: {part:?} with {page}");
                assert!(found.sink == long[start..start + bytes], "seed {seed}: {part:?} has other bytes");
                read += 1;
            }
        }
        drop(device.into_media());
    }
    assert!(failed > 10 && read > 10, "seed {seed}: {failed} parts failed, {read} were read");
}

#[test]
fn a_torn_extent_and_a_missing_one_are_errors() {
    let bench = DamageBench::new();
    let torn = bench.reused_extent();
    let half = PAGES.end / 2;
    let stale = |pages: Range<u8>| pages.map(|page| bench.stale(bench.page(torn, page))).collect::<Vec<_>>();
    bench.check_page("older second half", bench.page(torn, half), stale(half..PAGES.end));
    bench.check_page("older first half", bench.page(torn, 0), stale(0..half));
    bench.check_page("older extent", bench.page(torn, 0), stale(PAGES));
    bench.check_page("older last page", bench.page(torn, PAGES.end - 1), stale(PAGES.end - 1..PAGES.end));
    // A write that was cut inside of a page.
    let page = bench.page(torn, 20);
    let slot = bench.slot(page);
    let cut = slot.start + PAGE_DATA_BYTES / 2;
    bench.check_page("torn page", page, vec![(cut, bench.closed.earlier[cut..slot.end].to_vec())]);
    let zeroes = |extent: usize, pages: Range<u8>| {
        pages.map(|page| bench.zeroes(bench.page(extent, page))).collect::<Vec<_>>()
    };
    for extent in 0..bench.extents.len() {
        bench.check_page("erased last page", bench.page(extent, 63), zeroes(extent, 63..64));
        bench.check_page("erased second half", bench.page(extent, half), zeroes(extent, half..PAGES.end));
    }
    let last = bench.extents.len() - 1;
    bench.check_page("missing last extent", bench.page(last, 0), zeroes(last, PAGES));
}

#[test]
fn damage_to_the_record_that_names_the_extents_costs_its_key_only() {
    let bench = DamageBench::new();
    let record = bench.record();
    let list = KEY_AT + b"long".len();
    let behind = list + bench.extents.len() * ENTRY_BYTES;
    let entries = (0..bench.extents.len()).map(|nth| list + nth * ENTRY_BYTES);
    let in_entries = entries.flat_map(|entry| [entry, entry + ENTRY_ORDER_AT]);
    let places = in_entries.chain([0, EXTENTS_AT, 20, KEY_AT, behind, behind + REST - 1]);
    for place in places {
        let (page, at) = bench.logged(record.page.block, record.offset + place);
        bench.check_page(&format!("byte {place} of the record"), page, vec![bench.flip(at)]);
    }
    let (page, _) = bench.logged(record.page.block, record.offset + list);
    let spare = bench.slot(page).start + PAGE_DATA_BYTES;
    bench.check_page("order in the spare", page, vec![bench.flip(spare + SPARE_ORDER_AT)]);
    bench.check_page("zeroes", page, vec![bench.zeroes(page)]);
}

#[test]
fn a_list_that_was_wrong_before_it_was_written_names_no_other_value() {
    let bench = DamageBench::new();
    let record = bench.record();
    let bytes = &bench.closed.bytes;
    let other = extents_of(bytes, &bench.zones, &bench.closed.other_keys[0].1)[0];
    let spare = bench.slot(PageAddress::new(other, 0)).start + PAGE_DATA_BYTES;
    let order = &bytes[spare + SPARE_ORDER_AT..spare + SPARE_ORDER_AT + 8];
    let of_other = [&other.0.to_le_bytes()[..], &[0; 4], order].concat();
    let list = KEY_AT + b"long".len();
    let changes = [("number", EXTENTS_AT, vec![2]), ("entry", list, of_other)];
    for (what, place, change) in changes {
        let (page, at) = bench.logged(record.page.block, record.offset + place);
        let slot = bench.slot(page);
        let mut sealed = bytes[slot.clone()].to_vec();
        sealed[at - slot.start..][..change.len()].copy_from_slice(&change);
        PageSpare::set_checksums(&mut sealed[..PAGE_DATA_BYTES + PAGE_SPARE_BYTES], crc32c(0, &UUID));
        let what = format!("another {what} in the list");
        bench.check(&PlacedDamage { what, patches: vec![(slot.start, sealed)], page: None });
    }
}

/// Opens the file in a folder.
fn device_in(folder: &Path) -> FileDevice {
    on(FileMedia::open(folder, FileOptions::default()).unwrap())
}

#[test]
fn a_torn_extent_of_the_last_commit_leaves_the_older_value() {
    let folder = TempDir::new_in("/dev/shm").unwrap();
    let geometry = FlashGeometry::with_blocks(BLOCKS);
    let mut device = on(FileMedia::create(folder.path(), geometry, UUID, FileOptions::default()).unwrap());
    let (old, new) = (text(2 * EXTENT + 100, 1), text(3 * EXTENT + 100, 2));
    store(&mut device, "long", &old);
    store(&mut device, "short", b"short");
    // The value of the last commit: nothing says that it is durable.
    store(&mut device, "long", &new);
    drop(device.into_media());
    let path = folder.path().join("flash");
    let pristine = fs::read(&path).unwrap();
    let zones = FileZones::new(geometry);
    holds(&mut device_in(folder.path()), "long", &new, "no damage");
    for block in extents_of(&pristine, &zones, &new) {
        for pages in [0..1, 20..21, 63..64, 32..64, PAGES] {
            let what = format!("pages {pages:?} of {block} erased");
            let mut bytes = pristine.clone();
            for page in pages {
                bytes[slot_of(&zones, PageAddress::new(block, page))].fill(0);
            }
            fs::write(&path, bytes).unwrap();
            let media = FileMedia::open(folder.path(), FileOptions::default()).unwrap();
            let (found, media) = inspect(media, &DeviceConfig::default(), START, &mut |_| {}).unwrap();
            drop(media);
            assert_eq!((found.is_commit_discarded, found.faults.count), (true, 0), "{what}");
            let mut device = device_in(folder.path());
            holds(&mut device, "long", &old, &what);
            holds(&mut device, "short", b"short", &what);
            drop(device.into_media());
        }
    }
}
