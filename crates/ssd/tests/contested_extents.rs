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
use headwater_ssd::media::{BlockId, FlashGeometry, PAGE_DATA_BYTES, PAGE_SPARE_BYTES, PageAddress};
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
/// Bytes of an entry of a list.
const ENTRY_BYTES: usize = 16;
/// The two keys, in the order of their records on the medium.
const KEYS: [&str; 2] = ["first", "second"];

type FileDevice = SsdDevice<FileMedia>;

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
        let media = FileMedia::create(folder.path(), geometry, UUID, FileOptions::default()).unwrap();
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

    fn media(&self) -> FileMedia {
        FileMedia::open(self.folder.path(), FileOptions::default()).unwrap()
    }

    fn device(&self) -> FileDevice {
        SsdDevice::open(self.media(), DeviceConfig::default(), START, &mut |_| {}).unwrap()
    }

    fn inspect(&self) -> MediumInspection {
        inspect(self.media(), &DeviceConfig::default(), START, &mut |_| {}).unwrap().0
    }

    /// Writes the file with the first `named` entries of one key's list replaced by those of the other, in a page that proves
    /// itself. The checksum of the record is what it was.
    fn write_altered(&self, altered: usize, named: usize) {
        let lists = [0, 1].map(|nth| self.list_of(&self.values[nth]));
        let (page, at) = self.place_of(&lists[altered]);
        let mut bytes = self.pristine.clone();
        let slot = &mut bytes[self.slot(page)];
        slot[at..at + named * ENTRY_BYTES].copy_from_slice(&lists[1 - altered][..named * ENTRY_BYTES]);
        PageSpare::set_checksums(&mut slot[..PAGE_DATA_BYTES + PAGE_SPARE_BYTES], crc32c(0, &UUID));
        fs::write(self.folder.path().join("flash"), &bytes).unwrap();
        let found = self.inspect();
        assert_eq!(found.faults.count, 1, "{:?}", found.faults);
        let (record, fault) = found.faults.first[0];
        let offset = usize::from(page.page) * PAGE_DATA_BYTES + at - KEY_AT - KEYS[altered].len();
        assert_eq!((record.page, record.offset, fault), (page, offset, RecordFault::Damaged));
    }

    /// Stores long values until each block that is free was filled.
    fn fill_free_blocks(device: &mut FileDevice) {
        for round in 0..20 {
            store(device, "filler", &text(3 * EXTENT, 1_000 + round));
        }
    }

    fn check(&self, altered: usize, named: usize) {
        let innocent = 1 - altered;
        let (damaged_key, key, value) = (KEYS[altered], KEYS[innocent], &self.values[innocent][..]);
        let what = format!("{named} of its extents in the list of {damaged_key}");
        self.write_altered(altered, named);
        let mut device = self.device();
        let found = retrieve(&mut device, damaged_key);
        assert_eq!((found.status, found.sink.len()), (Status::UNRECOVERED_ERROR, 0), "{what}");
        holds(&mut device, key, value, &what);
        store(&mut device, damaged_key, b"written again");
        Self::fill_free_blocks(&mut device);
        holds(&mut device, key, value, &what);
        let (name, condition) = (Bytes::from_static(damaged_key.as_bytes()), WriteCondition::IfExists);
        let delete = SsdCommand::Delete { key: name, condition };
        assert_eq!(run(&mut device, delete).status, Status::SUCCESS, "{what}");
        Self::fill_free_blocks(&mut device);
        holds(&mut device, key, value, &what);
        device.shutdown(Nanos::ZERO, WALL).unwrap();
        drop(device.into_media());
        assert_eq!(self.inspect().faults.count, 0, "{what}");
        let mut device = self.device();
        holds(&mut device, key, value, &what);
        assert_eq!(retrieve(&mut device, damaged_key).status, Status::KEY_DOES_NOT_EXIST, "{what}");
        drop(device.into_media());
    }

    /// Deletes the damaged key at once, then fills what that freed.
    fn check_delete(&self, altered: usize) {
        self.write_altered(altered, EXTENTS);
        let mut device = self.device();
        let (key, condition) = (Bytes::from_static(KEYS[altered].as_bytes()), WriteCondition::Always);
        assert_eq!(run(&mut device, SsdCommand::Delete { key, condition }).status, Status::SUCCESS);
        Self::fill_free_blocks(&mut device);
        let innocent = 1 - altered;
        holds(&mut device, KEYS[innocent], &self.values[innocent], "after the delete of the other key");
        drop(device.into_media());
    }
}

// The device freed the extents that the list named, when the record with the damaged list lay first on the medium.
#[test]
fn a_key_keeps_the_extents_that_a_damaged_list_of_another_key_names() {
    let bench = ContestBench::new();
    for altered in 0..KEYS.len() {
        for named in 1..=EXTENTS {
            bench.check(altered, named);
        }
        bench.check_delete(altered);
    }
}
