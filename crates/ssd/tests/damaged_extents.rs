//! Damage to each place that a long value needs: the pages of its extents, their spares, and the record that names them. A read
//! is an error and returns no byte, other keys are answered, and the inspection names the record and the page.

#![expect(clippy::unwrap_used, reason = "a test fails if its setup fails")]

use bytes::Bytes;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_host::copy::crc32c;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    FrontEndId, NamespaceId, ReadCaching, ReadRelease, RecordExpiry, SsdCommand, SsdCompletion,
    WriteCondition,
};
use headwater_ssd::engine::inspection::{MediumInspection, RecordFault, RecordLocation, inspect};
use headwater_ssd::engine::{DeviceConfig, SsdDevice, StartTime};
use headwater_ssd::log::page::PageSpare;
use headwater_ssd::media::file::zones::{FileZones, ZoneOwner};
use headwater_ssd::media::file::{FileMedia, FileOptions};
use headwater_ssd::media::{
    BlockId, FlashGeometry, PAGE_DATA_BYTES, PAGE_SPARE_BYTES, PAGES_PER_BLOCK, PageAddress,
};
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;
use tempfile::TempDir;

const FRONT_END: FrontEndId = FrontEndId(1);
const WALL: UnixMillis = UnixMillis(1_000_000);
const START: StartTime = StartTime { now: Nanos::ZERO, wall: WALL };
const UUID: [u8; 16] = [7; 16];
const BLOCKS: u32 = 48;
const EXTENT: usize = 262_144;
/// Bytes of a long value behind its extents, which lie in its record.
const REST: usize = 9_000;
/// Places of a record (`docs/formats/medium-2.md`): the number of extents, the key, and an entry of the list of extents.
const EXTENTS_AT: usize = 14;
const KEY_AT: usize = 48;
const ENTRY_BYTES: usize = 16;
/// Place of the order in an entry of the list, and in a spare.
const ENTRY_ORDER_AT: usize = 8;
const SPARE_ORDER_AT: usize = 24;
/// The kind of a page, in its spare, and that of pages of extents.
const SPARE_KIND_AT: usize = 5;
const KIND_EXTENT: u8 = 4;
/// The pages of a block, by number.
const PAGES: Range<u8> = 0..64;

type FileDevice = SsdDevice<FileMedia>;

fn on(media: FileMedia) -> FileDevice {
    SsdDevice::open(media, DeviceConfig::default(), START, &mut |_| {}).unwrap()
}

fn run(device: &mut FileDevice, command: SsdCommand) -> SsdCompletion {
    device.submit(FRONT_END, NamespaceId::FIRST, 1, command).unwrap();
    for _ in 0..100_000_000 {
        device.poll(Nanos::ZERO, WALL);
        if let Some(completion) = device.next_completion(FRONT_END) {
            return completion;
        }
    }
    panic!("no command completes");
}

fn store(device: &mut FileDevice, key: &str, value: &[u8]) {
    let command = SsdCommand::Store {
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: value.to_vec().into(),
        condition: WriteCondition::Always,
        expiry: RecordExpiry::Never,
    };
    assert_eq!(run(device, command).status, Status::SUCCESS, "{key}");
}

fn retrieve(device: &mut FileDevice, key: &str, bytes_max: u32) -> SsdCompletion {
    retrieve_part(device, key, (0, bytes_max))
}

fn retrieve_part(device: &mut FileDevice, key: &str, (offset, bytes_max): (u32, u32)) -> SsdCompletion {
    let key = Bytes::copy_from_slice(key.as_bytes());
    let (release, caching) = (ReadRelease::WhenDurable, ReadCaching::ByLength);
    run(device, SsdCommand::Retrieve { key, sink: Vec::new().into(), bytes_max, offset, caching, release })
}

fn text(bytes: usize, salt: u64) -> Vec<u8> {
    let mut text = vec![0; bytes];
    fastrand::Rng::with_seed(salt).fill(&mut text);
    text
}

fn holds(device: &mut FileDevice, key: &str, value: &[u8], what: &str) {
    let found = retrieve(device, key, u32::MAX);
    assert_eq!(found.status, Status::SUCCESS, "{key} with {what}");
    assert!(found.sink == value, "{key} has other bytes with {what}");
}

fn slot_of(zones: &FileZones, page: PageAddress) -> Range<usize> {
    let range = zones.range(ZoneOwner::Slot(page));
    usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()
}

/// Returns the blocks that are the extents of a value, in its order.
fn extents_of(bytes: &[u8], zones: &FileZones, value: &[u8]) -> Vec<BlockId> {
    let begins_with = |block: BlockId, data: &[u8]| {
        let start = slot_of(zones, PageAddress::new(block, 0)).start;
        &bytes[start..start + PAGE_DATA_BYTES] == data
    };
    let extent = |part: &[u8]| {
        let found = (0..BLOCKS).map(BlockId).find(|block| begins_with(*block, &part[..PAGE_DATA_BYTES]));
        found.expect("each extent is in the file")
    };
    value.chunks_exact(EXTENT).map(extent).collect()
}

/// A file that a device closed.
struct ClosedFile {
    bytes: Vec<u8>,
    /// The file when its blocks held other values.
    earlier: Vec<u8>,
    long: Vec<u8>,
    /// The other keys and their values.
    other_keys: Vec<(String, Vec<u8>)>,
}

impl ClosedFile {
    fn new() -> Self {
        let folder = TempDir::new_in("/dev/shm").unwrap();
        let geometry = FlashGeometry::with_blocks(BLOCKS);
        let mut device =
            on(FileMedia::create(folder.path(), geometry, UUID, FileOptions::default()).unwrap());
        let path = folder.path().join("flash");
        let mut other_keys = vec![("other".to_owned(), text(2 * EXTENT + 5_000, 901))];
        store(&mut device, "other", &other_keys[0].1);
        let (mut long, mut earlier) = (Vec::new(), Vec::new());
        // More than twice as many extents as the medium has blocks.
        for round in 0..44 {
            long = text(3 * EXTENT + REST, round);
            store(&mut device, "long", &long);
            if round == 22 {
                earlier = fs::read(&path).unwrap();
            }
        }
        // The record of the long value is not in the block in which the window of the next opening begins.
        for number in 0..40 {
            let (key, value) = (format!("short {number}"), text(9_000, 1_000 + number));
            store(&mut device, &key, &value);
            other_keys.push((key, value));
        }
        device.shutdown(Nanos::ZERO, WALL).unwrap();
        drop(device.into_media());
        Self { bytes: fs::read(&path).unwrap(), earlier, long, other_keys }
    }
}

/// One damage, and where the inspection finds it.
struct PlacedDamage {
    what: String,
    /// Bytes that lie at these offsets of the file instead.
    patches: Vec<(usize, Vec<u8>)>,
    /// The page that does not prove itself; `None` if the record was damaged before its page was written.
    page: Option<PageAddress>,
}

/// A file that is damaged in one way after the other.
struct DamageBench {
    folder: TempDir,
    closed: &'static ClosedFile,
    zones: FileZones,
    /// The blocks of the long value.
    extents: Vec<BlockId>,
}

impl DamageBench {
    fn new() -> Self {
        static CLOSED: OnceLock<ClosedFile> = OnceLock::new();
        let closed = CLOSED.get_or_init(ClosedFile::new);
        let zones = FileZones::new(FlashGeometry::with_blocks(BLOCKS));
        let extents = extents_of(&closed.bytes, &zones, &closed.long);
        Self { folder: TempDir::new_in("/dev/shm").unwrap(), closed, zones, extents }
    }

    fn slot(&self, page: PageAddress) -> Range<usize> {
        slot_of(&self.zones, page)
    }

    /// Returns a page of an extent of the long value, both by number.
    fn page(&self, extent: usize, page: u8) -> PageAddress {
        PageAddress::new(self.extents[extent], page)
    }

    /// Returns an extent of the long value whose block was an extent of an older one.
    fn reused_extent(&self) -> usize {
        let was_extent = |block: BlockId| {
            PAGES.map(|page| self.slot(PageAddress::new(block, page))).all(|slot| {
                let spare = slot.start + PAGE_DATA_BYTES;
                let (old, new) = (&self.closed.earlier, &self.closed.bytes);
                old[spare + SPARE_KIND_AT] == KIND_EXTENT && old[slot.clone()] != new[slot]
            })
        };
        let found = self.extents.iter().position(|block| was_extent(*block));
        found.expect("an extent lies in a block that held an older value")
    }

    fn zeroes(&self, page: PageAddress) -> (usize, Vec<u8>) {
        let slot = self.slot(page);
        (slot.start, vec![0; slot.len()])
    }

    fn stale(&self, page: PageAddress) -> (usize, Vec<u8>) {
        let slot = self.slot(page);
        (slot.start, self.closed.earlier[slot].to_vec())
    }

    fn flip(&self, at: usize) -> (usize, Vec<u8>) {
        (at, vec![self.closed.bytes[at] ^ 8])
    }

    fn open(&self) -> FileMedia {
        FileMedia::open(self.folder.path(), FileOptions::default()).unwrap()
    }

    /// Writes the damaged file, and returns what the inspection finds.
    fn inspect(&self, damage: &PlacedDamage) -> MediumInspection {
        let mut bytes = self.closed.bytes.clone();
        for (at, patch) in &damage.patches {
            let place = &mut bytes[*at..*at + patch.len()];
            assert!(place != &patch[..], "{} changes nothing at {at}", damage.what);
            place.copy_from_slice(patch);
        }
        fs::write(self.folder.path().join("flash"), &bytes).unwrap();
        inspect(self.open(), &DeviceConfig::default(), START, &mut |_| {}).unwrap().0
    }

    /// Returns the place of the record that names the extents.
    fn record(&self) -> RecordLocation {
        let page = self.page(1, 7);
        let patches = vec![self.flip(self.slot(page).start)];
        let found = self.inspect(&PlacedDamage { what: "a bit".to_owned(), patches, page: Some(page) });
        found.faults.first[0].0
    }

    /// Returns the page and the offset in the file of a byte of a block of the log.
    fn logged(&self, block: BlockId, offset: usize) -> (PageAddress, usize) {
        let page = PageAddress::new(block, u8::try_from(offset / PAGE_DATA_BYTES).unwrap());
        (page, self.slot(page).start + offset % PAGE_DATA_BYTES)
    }

    /// Asserts that the inspection names the key by its record, and the page.
    fn assert_named(&self, found: &MediumInspection, damage: &PlacedDamage) {
        let what = &damage.what;
        assert_eq!(found.faults.count, 1, "{what}: {:?}", found.faults);
        let (record, fault) = found.faults.first[0];
        assert_eq!((fault, record.namespace), (RecordFault::Damaged, 1), "{what}");
        let key = (0..b"long".len()).map(|nth| {
            let (_, at) = self.logged(record.page.block, record.offset + KEY_AT + nth);
            self.closed.bytes[at]
        });
        assert_eq!(key.collect::<Vec<_>>(), b"long", "{what}: the inspection names another key");
        let counts = found.namespaces[0];
        let other_keys = u64::try_from(self.closed.other_keys.len()).unwrap();
        assert_eq!(
            (counts.records, counts.intact, counts.damaged),
            (other_keys + 1, other_keys, 1),
            "{what}"
        );
        assert!(found.doubtful.is_empty(), "{what}: {:?}", found.doubtful);
        if let Some(page) = damage.page {
            let pages = &found.damaged_pages.first;
            assert!(pages.contains(&page), "{what}: {page} is not among {pages:?}");
        }
        assert!(found.damaged_records > 0, "{what}");
    }

    /// Runs the inspection on a damaged file, and asks a device on it for every key.
    fn check(&self, damage: &PlacedDamage) {
        let what = &damage.what[..];
        let found = self.inspect(damage);
        self.assert_named(&found, damage);
        let mut device = on(self.open());
        for _ in 0..2 {
            let found = retrieve(&mut device, "long", u32::MAX);
            assert_eq!((found.status, found.sink.len()), (Status::UNRECOVERED_ERROR, 0), "{what}");
        }
        for bytes_max in [5_000_u32, 300_000, 700_000] {
            let found = retrieve(&mut device, "long", bytes_max);
            let wanted = &self.closed.long[..usize::try_from(bytes_max).unwrap()];
            let is_error = found.status == Status::UNRECOVERED_ERROR && found.sink.is_empty();
            assert!(is_error || found.sink == wanted, "{what}: {bytes_max} bytes are wrong or too few");
        }
        for (key, value) in &self.closed.other_keys {
            holds(&mut device, key, value, what);
        }
        store(&mut device, "long", b"written again");
        holds(&mut device, "long", b"written again", what);
        // The blocks of the value that was replaced are erased and filled: none of them was another key's.
        for _ in 0..4 {
            store(&mut device, "long", &self.closed.long);
        }
        for (key, value) in &self.closed.other_keys {
            holds(&mut device, key, value, what);
        }
        drop(device.into_media());
    }

    fn check_page(&self, what: &str, page: PageAddress, patches: Vec<(usize, Vec<u8>)>) {
        self.check(&PlacedDamage { what: format!("{what} of {page}"), patches, page: Some(page) });
    }
}

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
    let extent_bytes = bench.extents.len() * EXTENT;
    let (mut failed, mut read) = (0, 0);
    for _ in 0..12 {
        let struck = random.usize(..extent_bytes);
        let page = bench.page(struck / EXTENT, u8::try_from(struck % EXTENT / PAGE_DATA_BYTES).unwrap());
        let at = bench.slot(page).start + struck % PAGE_DATA_BYTES;
        let patches = vec![bench.flip(at)];
        bench.inspect(&PlacedDamage { what: format!("byte {struck}"), patches, page: Some(page) });
        let mut device = on(bench.open());
        let of_page =
            struck / PAGE_DATA_BYTES * PAGE_DATA_BYTES..(struck / PAGE_DATA_BYTES + 1) * PAGE_DATA_BYTES;
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

const _: () = assert!(PAGES_PER_BLOCK == 64);
