//! A damaged list that names the extents of another key: whatever is done to the damaged key, the other one keeps its value.

#![expect(clippy::unwrap_used, reason = "a test fails if its setup fails")]

use bytes::Bytes;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_host::copy::crc32c;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    FrontEndId, NamespaceId, ReadRelease, RecordExpiry, SsdCommand, SsdCompletion, WriteCondition,
};
use headwater_ssd::engine::inspection::{MediumInspection, RecordFault, inspect};
use headwater_ssd::engine::{DeviceConfig, SsdDevice, StartTime};
use headwater_ssd::log::page::PageSpare;
use headwater_ssd::media::file::zones::{FileZones, ZoneOwner};
use headwater_ssd::media::file::{FileMedia, FileOptions};
use headwater_ssd::media::{
    BlockId, FlashGeometry, Media, MediaCompletion, MediaError, MediaOp, MediaToken, MediaTraits,
    PAGE_DATA_BYTES, PAGE_SPARE_BYTES, PageAddress, RefusedOp,
};
use std::fs;
use std::ops::Range;
use tempfile::TempDir;

const FRONT_END: FrontEndId = FrontEndId(1);
const WALL: UnixMillis = UnixMillis(1_000_000);
const START: StartTime = StartTime { now: Nanos::ZERO, wall: WALL };
const UUID: [u8; 16] = [9; 16];
const BLOCKS: u32 = 48;
const EXTENT: usize = 262_144;
/// Extents of each of the two values, and their bytes behind them.
const EXTENTS: usize = 2;
const REST: usize = 9_000;
/// Places of the format (`docs/formats/medium-2.md`): the key of a record, and the order in a spare.
const KEY_AT: usize = 48;
const SPARE_ORDER_AT: usize = 24;
/// Bytes of an entry of a list, and the place of the order in it.
const ENTRY_BYTES: usize = 16;
const ENTRY_ORDER_AT: usize = 8;
/// Bytes of the checksum at the start of a record, which covers what follows.
const CRC_BYTES: usize = 4;
/// Input/output error: the same read may succeed later.
const EIO: i32 = 5;
/// The two keys, in the order of their records on the medium.
const KEYS: [&str; 2] = ["first", "second"];

type FileDevice = SsdDevice<FailingFile>;

/// A medium in a file, some pages of which cannot be read. No wait between two attempts takes time.
#[derive(Debug)]
struct FailingFile {
    file: FileMedia,
    failing: Vec<PageAddress>,
    failed: Vec<MediaCompletion>,
    /// Reads that failed.
    errors: u64,
}

impl FailingFile {
    fn new(file: FileMedia, failing: Vec<PageAddress>) -> Self {
        Self { file, failing, failed: Vec::new(), errors: 0 }
    }
}

impl Media for FailingFile {
    fn geometry(&self) -> FlashGeometry {
        self.file.geometry()
    }

    fn traits(&self) -> MediaTraits {
        self.file.traits()
    }

    fn submit(&mut self, token: MediaToken, op: MediaOp, now: Nanos) -> Result<(), RefusedOp> {
        match op {
            MediaOp::Read { page, frame } if self.failing.contains(&page) => {
                self.errors += 1;
                let result = Err(MediaError::Io { errno: EIO, page });
                self.failed.push(MediaCompletion { token, frame: Some(frame), result });
                Ok(())
            }
            op => self.file.submit(token, op, now),
        }
    }

    fn allow_blocking_flush(&mut self, is_allowed: bool) {
        self.file.allow_blocking_flush(is_allowed);
    }

    fn poll(&mut self, now: Nanos, done: &mut Vec<MediaCompletion>) {
        done.append(&mut self.failed);
        self.file.poll(now, done);
    }

    fn wait(&mut self, now: Nanos) -> Nanos {
        if self.failed.is_empty() { self.file.wait(now) } else { now }
    }

    fn next_event(&self) -> Option<Nanos> {
        self.file.next_event()
    }

    fn in_flight(&self) -> usize {
        self.file.in_flight() + self.failed.len()
    }
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

fn retrieve(device: &mut FileDevice, key: &str) -> SsdCompletion {
    let key = Bytes::copy_from_slice(key.as_bytes());
    run(device, SsdCommand::retrieve_whole(key, Vec::new().into(), ReadRelease::WhenDurable))
}

fn holds(device: &mut FileDevice, key: &str, value: &[u8], what: &str) {
    let found = retrieve(device, key);
    assert_eq!(found.status, Status::SUCCESS, "{key}, {what}");
    assert!(found.sink == value, "{key} has other bytes, {what}");
}

fn text(bytes: usize, salt: u64) -> Vec<u8> {
    let mut text = vec![0; bytes];
    fastrand::Rng::with_seed(salt).fill(&mut text);
    text
}

/// A medium with two long values, in a folder.
struct ContestBench {
    folder: TempDir,
    zones: FileZones,
    /// The file as its device closed it.
    pristine: Vec<u8>,
    /// The values of [`KEYS`].
    values: [Vec<u8>; 2],
}

impl ContestBench {
    fn new() -> Self {
        let folder = TempDir::new_in("/dev/shm").unwrap();
        let geometry = FlashGeometry::with_blocks(BLOCKS);
        let file = FileMedia::create(folder.path(), geometry, UUID, FileOptions::default()).unwrap();
        let media = FailingFile::new(file, Vec::new());
        let mut device = SsdDevice::open(media, DeviceConfig::default(), START, &mut |_| {}).unwrap();
        let values = [1, 2].map(|salt| text(EXTENTS * EXTENT + REST, salt));
        for (key, value) in KEYS.iter().zip(&values) {
            store(&mut device, key, value);
        }
        // The records are not in the block in which the window of the next opening begins.
        for number in 0..40 {
            store(&mut device, &format!("short {number}"), &text(REST, 100 + number));
        }
        device.shutdown(Nanos::ZERO, WALL).unwrap();
        drop(device.into_media());
        let pristine = fs::read(folder.path().join("flash")).unwrap();
        Self { folder, zones: FileZones::new(geometry), pristine, values }
    }

    fn slot(&self, page: PageAddress) -> Range<usize> {
        let range = self.zones.range(ZoneOwner::Slot(page));
        usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()
    }

    /// Returns the list of a value's extents as its record has it.
    fn list_of(&self, value: &[u8]) -> Vec<u8> {
        let entry = |part: &[u8]| {
            let begins_with = |block: &BlockId| {
                let slot = self.slot(PageAddress::new(*block, 0));
                self.pristine[slot][..PAGE_DATA_BYTES] == part[..PAGE_DATA_BYTES]
            };
            let block = (0..BLOCKS).map(BlockId).find(begins_with).expect("each extent is in the file");
            let order = self.slot(PageAddress::new(block, 0)).start + PAGE_DATA_BYTES + SPARE_ORDER_AT;
            [&block.0.to_le_bytes()[..], &[0; 4], &self.pristine[order..order + 8]].concat()
        };
        value.chunks_exact(EXTENT).flat_map(entry).collect()
    }

    /// Returns the page that holds a list, and its offset there.
    fn place_of(&self, list: &[u8]) -> (PageAddress, usize) {
        let pages = (0..BLOCKS).flat_map(|block| (0..64).map(move |page| (BlockId(block), page)));
        let found = pages.map(|(block, page)| PageAddress::new(block, page)).find_map(|page| {
            let data = &self.pristine[self.slot(page)][..PAGE_DATA_BYTES];
            data.windows(list.len()).position(|part| part == list).map(|at| (page, at))
        });
        found.expect("the list lies on one page")
    }

    /// Returns the lists of both values.
    fn lists(&self) -> [Vec<u8>; 2] {
        [0, 1].map(|nth| self.list_of(&self.values[nth]))
    }

    /// Returns a page that holds nothing but a part of the rest of a value.
    fn rest_page(&self, nth: usize) -> PageAddress {
        let (page, _) = self.place_of(&self.list_of(&self.values[nth]));
        let behind = PageAddress::new(page.block, page.page + 1);
        let part = &self.pristine[self.slot(behind)][..PAGE_DATA_BYTES];
        let rest = &self.values[nth][EXTENTS * EXTENT..];
        assert!(rest.windows(PAGE_DATA_BYTES).any(|window| window == part), "another thing lies there");
        behind
    }

    fn media(&self, failing: Vec<PageAddress>) -> FailingFile {
        let file = FileMedia::open(self.folder.path(), FileOptions::default()).unwrap();
        FailingFile::new(file, failing)
    }

    fn device(&self) -> FileDevice {
        self.device_without(Vec::new())
    }

    /// Opens the device while some pages cannot be read.
    fn device_without(&self, failing: Vec<PageAddress>) -> FileDevice {
        SsdDevice::open(self.media(failing), DeviceConfig::default(), START, &mut |_| {}).unwrap()
    }

    fn inspect(&self) -> MediumInspection {
        inspect(self.media(Vec::new()), &DeviceConfig::default(), START, &mut |_| {}).unwrap().0
    }

    fn write(&self, bytes: &[u8]) {
        fs::write(self.folder.path().join("flash"), bytes).unwrap();
    }

    /// Returns the file with another list of one key, in a page that proves itself, and the place of the list. The checksum of
    /// the record is what it was.
    fn with_list(&self, altered: usize, list: &[u8]) -> (Vec<u8>, PageAddress, usize) {
        let (page, at) = self.place_of(&self.lists()[altered]);
        let mut bytes = self.pristine.clone();
        let slot = &mut bytes[self.slot(page)];
        slot[at..at + list.len()].copy_from_slice(list);
        set_page_checksums(slot);
        (bytes, page, at)
    }

    /// Writes the file with another list of one key, whose record is damaged then.
    fn write_damaged(&self, altered: usize, list: &[u8]) {
        let (bytes, page, at) = self.with_list(altered, list);
        self.write(&bytes);
        let found = self.inspect();
        assert_eq!(found.faults.count, 1, "{:?}", found.faults);
        let (record, fault) = found.faults.first[0];
        let offset = usize::from(page.page) * PAGE_DATA_BYTES + at - KEY_AT - KEYS[altered].len();
        assert_eq!((record.page, record.offset, fault), (page, offset, RecordFault::Damaged));
    }

    /// Writes the file with another list of one key, whose record is intact nevertheless.
    fn write_sealed(&self, altered: usize, list: &[u8]) {
        let (mut bytes, page, at) = self.with_list(altered, list);
        let key_bytes = KEYS[altered].len();
        let start = usize::from(page.page) * PAGE_DATA_BYTES + at - KEY_AT - key_bytes;
        let end = start + KEY_AT + key_bytes + list.len() + REST;
        let page_at =
            |offset: usize| PageAddress::new(page.block, u8::try_from(offset / PAGE_DATA_BYTES).unwrap());
        let place = |offset: usize| self.slot(page_at(offset)).start + offset % PAGE_DATA_BYTES;
        let covered: Vec<u8> = (start + CRC_BYTES..end).map(|offset| bytes[place(offset)]).collect();
        let crc = crc32c(0, &covered).to_le_bytes();
        bytes[place(start)..place(start) + CRC_BYTES].copy_from_slice(&crc);
        set_page_checksums(&mut bytes[self.slot(page_at(start))]);
        self.write(&bytes);
        // Not the record is at fault, but a page of an extent that it names.
        assert_eq!(self.inspect().damaged_pages.count, 1);
    }

    /// Returns the list of one key with its first `named` entries replaced by those of the other.
    fn list_with(&self, altered: usize, named: usize) -> Vec<u8> {
        let lists = self.lists();
        let bytes = named * ENTRY_BYTES;
        [&lists[1 - altered][..bytes], &lists[altered][bytes..]].concat()
    }

    /// Returns the list of one key whose first entry names an older life of the other key's first extent.
    fn list_with_older(&self, altered: usize) -> Vec<u8> {
        let mut list = self.list_with(altered, 1);
        let order = &mut list[ENTRY_ORDER_AT..ENTRY_BYTES];
        let older = u64::from_le_bytes((&*order).try_into().unwrap()) - 1;
        order.copy_from_slice(&older.to_le_bytes());
        list
    }

    /// Stores long values until each block that is free was filled.
    fn fill_free_blocks(device: &mut FileDevice) {
        for round in 0..20 {
            store(device, "filler", &text(3 * EXTENT, 1_000 + round));
        }
    }

    /// Writes the damaged key again and removes it; the other key keeps its value all the time.
    fn check(&self, altered: usize, list: &[u8], what: &str) {
        let innocent = 1 - altered;
        let (damaged_key, key, value) = (KEYS[altered], KEYS[innocent], &self.values[innocent][..]);
        self.write_damaged(altered, list);
        let mut device = self.device();
        let found = retrieve(&mut device, damaged_key);
        assert_eq!((found.status, found.sink.len()), (Status::UNRECOVERED_ERROR, 0), "{what}");
        holds(&mut device, key, value, what);
        store(&mut device, damaged_key, b"written again");
        Self::fill_free_blocks(&mut device);
        holds(&mut device, key, value, what);
        let (name, condition) = (Bytes::from_static(damaged_key.as_bytes()), WriteCondition::IfExists);
        let delete = SsdCommand::Delete { key: name, condition };
        assert_eq!(run(&mut device, delete).status, Status::SUCCESS, "{what}");
        Self::fill_free_blocks(&mut device);
        holds(&mut device, key, value, what);
        device.shutdown(Nanos::ZERO, WALL).unwrap();
        drop(device.into_media());
        assert_eq!(self.inspect().faults.count, 0, "{what}");
        let mut device = self.device();
        holds(&mut device, key, value, what);
        assert_eq!(retrieve(&mut device, damaged_key).status, Status::KEY_DOES_NOT_EXIST, "{what}");
        drop(device.into_media());
    }

    /// Opens the file while a page of the records of some keys cannot be read. Returns the device once it can again, and whether
    /// the opening asked for one of the pages.
    fn opened_without(&self, unreadable: &[usize]) -> (FileDevice, bool) {
        let mut device = self.device_without(unreadable.iter().map(|nth| self.rest_page(*nth)).collect());
        let media = device.media_mut();
        media.failing.clear();
        let has_asked = media.errors > 0;
        (device, has_asked)
    }

    /// Deletes the altered key, fills what that freed, and returns true if the other key has its value.
    fn keeps_value(&self, device: &mut FileDevice, altered: usize) -> bool {
        delete(device, KEYS[altered]);
        Self::fill_free_blocks(device);
        let found = retrieve(device, KEYS[1 - altered]);
        found.status == Status::SUCCESS && found.sink == self.values[1 - altered]
    }
}

fn delete(device: &mut FileDevice, key: &'static str) {
    let (key, condition) = (Bytes::from_static(key.as_bytes()), WriteCondition::Always);
    assert_eq!(run(device, SsdCommand::Delete { key, condition }).status, Status::SUCCESS);
}

fn set_page_checksums(slot: &mut [u8]) {
    PageSpare::set_checksums(&mut slot[..PAGE_DATA_BYTES + PAGE_SPARE_BYTES], crc32c(0, &UUID));
}

// The device freed the extents that the list named, when the record with the damaged list lay first on the medium.
#[test]
fn a_key_keeps_the_extents_that_a_damaged_list_of_another_key_names() {
    let bench = ContestBench::new();
    for (altered, key) in KEYS.into_iter().enumerate() {
        for named in 1..=EXTENTS {
            let what = format!("{named} of its extents in the list of {}", key);
            let list = bench.list_with(altered, named);
            bench.check(altered, &list, &what);
        }
        bench.write_damaged(altered, &bench.list_with(altered, EXTENTS));
        assert!(bench.keeps_value(&mut bench.device(), altered), "after the delete of {}", key);
    }
}

#[test]
fn a_key_keeps_its_extents_beside_a_list_that_names_one_twice_or_its_older_life() {
    let bench = ContestBench::new();
    for (altered, key) in KEYS.into_iter().enumerate() {
        let lists = bench.lists();
        for (list, what) in [
            (lists[altered][..ENTRY_BYTES].repeat(EXTENTS), "a list with one of its own extents twice"),
            (
                lists[1 - altered][..ENTRY_BYTES].repeat(EXTENTS),
                "a list with one of the other's extents twice",
            ),
            (bench.list_with_older(altered), "a list with an older life"),
        ] {
            bench.check(altered, &list, &format!("{what} at {}", key));
        }
    }
}

#[test]
fn a_key_keeps_its_extents_while_its_record_cannot_be_read() {
    let bench = ContestBench::new();
    for (altered, key) in KEYS.into_iter().enumerate() {
        bench.write_damaged(altered, &bench.list_with(altered, EXTENTS));
        let (mut device, has_asked) = bench.opened_without(&[1 - altered]);
        assert!(has_asked, "nothing asked for the record of {}", KEYS[1 - altered]);
        assert!(bench.keeps_value(&mut device, altered), "beside a damaged list of {}", key);
        drop(device.into_media());

        // The record is intact, but no reader of it finds this life of the block.
        bench.write_sealed(altered, &bench.list_with_older(altered));
        let (mut device, has_asked) = bench.opened_without(&[1 - altered]);
        assert!(!has_asked, "the block's life tells which record has it");
        assert!(bench.keeps_value(&mut device, altered), "beside an older list of {}", key);
        drop(device.into_media());
    }
}

#[test]
fn extents_of_records_that_cannot_be_told_apart_are_freed_by_none() {
    let bench = ContestBench::new();
    for (altered, key) in KEYS.into_iter().enumerate() {
        bench.write_damaged(altered, &bench.list_with(altered, EXTENTS));
        let (mut device, _) = bench.opened_without(&[0, 1]);
        assert_eq!(device.stats().quarantined, EXTENTS as u64);
        assert!(bench.keeps_value(&mut device, altered), "beside a list of {}", key);
        device.shutdown(Nanos::ZERO, WALL).unwrap();
        drop(device.into_media());
        let (mut device, innocent) = (bench.device(), 1 - altered);
        assert_eq!(device.stats().quarantined, 0, "the next opening knows the owner");
        holds(&mut device, KEYS[innocent], &bench.values[innocent], "after another opening");
        drop(device.into_media());
    }
}

#[cfg(feature = "mutants")]
#[test]
fn without_the_guard_a_damaged_list_would_take_the_extents() {
    let bench = ContestBench::new();
    // The record with the damaged list lies first on the medium.
    bench.write_damaged(0, &bench.list_with(0, EXTENTS));
    headwater_ssd::mutant::plant(Some(headwater_ssd::mutant::Mutant::FirstClaimWins));
    let mut device = bench.device();
    headwater_ssd::mutant::plant(None);
    assert!(!bench.keeps_value(&mut device, 0), "the value was not taken");
}
