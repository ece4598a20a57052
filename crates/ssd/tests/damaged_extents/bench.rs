//! A closed file with long and short values, and the checks of a damaged copy of it.
//!
//! Input: bytes that lie in the file instead. Output: the inspection of that file, and a device on it.

use bytes::Bytes;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    FrontEndId, NamespaceId, ReadCaching, ReadRelease, RecordExpiry, SsdCommand, SsdCompletion,
    WriteCondition,
};
use headwater_ssd::engine::inspection::{MediumInspection, RecordFault, RecordLocation, inspect};
use headwater_ssd::engine::{DeviceConfig, SsdDevice, StartTime};
use headwater_ssd::media::file::zones::{FileZones, ZoneOwner};
use headwater_ssd::media::file::{FileMedia, FileOptions};
use headwater_ssd::media::{BlockId, FlashGeometry, PAGE_DATA_BYTES, PAGES_PER_BLOCK, PageAddress};
use std::fs;
use std::ops::Range;
use std::sync::OnceLock;
use tempfile::TempDir;

const FRONT_END: FrontEndId = FrontEndId(1);
const WALL: UnixMillis = UnixMillis(1_000_000);
pub(crate) const START: StartTime = StartTime { now: Nanos::ZERO, wall: WALL };
pub(crate) const UUID: [u8; 16] = [7; 16];
pub(crate) const BLOCKS: u32 = 48;
pub(crate) const EXTENT: usize = 262_144;
/// Bytes of a long value behind its extents, which lie in its record.
pub(crate) const REST: usize = 9_000;
/// Place of the key in a record (`docs/formats/medium-2.md`).
pub(crate) const KEY_AT: usize = 48;
/// The kind of a page, in its spare, and that of pages of extents.
const SPARE_KIND_AT: usize = 5;
const KIND_EXTENT: u8 = 4;
/// The pages of a block, by number.
pub(crate) const PAGES: Range<u8> = 0..64;

pub(crate) type FileDevice = SsdDevice<FileMedia>;

pub(crate) fn on(media: FileMedia) -> FileDevice {
    SsdDevice::open(media, DeviceConfig::default(), START, &mut |_| {}).unwrap()
}

pub(crate) fn run(device: &mut FileDevice, command: SsdCommand) -> SsdCompletion {
    device.submit(FRONT_END, NamespaceId::FIRST, 1, command).unwrap();
    for _ in 0..100_000_000 {
        device.poll(Nanos::ZERO, WALL);
        if let Some(completion) = device.next_completion(FRONT_END) {
            return completion;
        }
    }
    panic!("no command completes");
}

pub(crate) fn store(device: &mut FileDevice, key: &str, value: &[u8]) {
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

pub(crate) fn retrieve_part(
    device: &mut FileDevice,
    key: &str,
    (offset, bytes_max): (u32, u32),
) -> SsdCompletion {
    let key = Bytes::copy_from_slice(key.as_bytes());
    let (release, caching) = (ReadRelease::WhenDurable, ReadCaching::ByLength);
    run(device, SsdCommand::Retrieve { key, sink: Vec::new().into(), bytes_max, offset, caching, release })
}

pub(crate) fn text(bytes: usize, salt: u64) -> Vec<u8> {
    let mut text = vec![0; bytes];
    fastrand::Rng::with_seed(salt).fill(&mut text);
    text
}

pub(crate) fn holds(device: &mut FileDevice, key: &str, value: &[u8], what: &str) {
    let found = retrieve(device, key, u32::MAX);
    assert_eq!(found.status, Status::SUCCESS, "{key} with {what}");
    assert!(found.sink == value, "{key} has other bytes with {what}");
}

pub(crate) fn slot_of(zones: &FileZones, page: PageAddress) -> Range<usize> {
    let range = zones.range(ZoneOwner::Slot(page));
    usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()
}

/// Returns the blocks that are the extents of a value, in its order.
pub(crate) fn extents_of(bytes: &[u8], zones: &FileZones, value: &[u8]) -> Vec<BlockId> {
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
pub(crate) struct ClosedFile {
    pub(crate) bytes: Vec<u8>,
    /// The file when its blocks held other values.
    pub(crate) earlier: Vec<u8>,
    pub(crate) long: Vec<u8>,
    /// The other keys and their values.
    pub(crate) other_keys: Vec<(String, Vec<u8>)>,
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
pub(crate) struct PlacedDamage {
    pub(crate) what: String,
    /// Bytes that lie at these offsets of the file instead.
    pub(crate) patches: Vec<(usize, Vec<u8>)>,
    /// The page that does not prove itself; `None` if the record was damaged before its page was written.
    pub(crate) page: Option<PageAddress>,
}

/// A file that is damaged in one way after the other.
pub(crate) struct DamageBench {
    folder: TempDir,
    pub(crate) closed: &'static ClosedFile,
    pub(crate) zones: FileZones,
    /// The blocks of the long value.
    pub(crate) extents: Vec<BlockId>,
}

impl DamageBench {
    pub(crate) fn new() -> Self {
        static CLOSED: OnceLock<ClosedFile> = OnceLock::new();
        let closed = CLOSED.get_or_init(ClosedFile::new);
        let zones = FileZones::new(FlashGeometry::with_blocks(BLOCKS));
        let extents = extents_of(&closed.bytes, &zones, &closed.long);
        Self { folder: TempDir::new_in("/dev/shm").unwrap(), closed, zones, extents }
    }

    pub(crate) fn slot(&self, page: PageAddress) -> Range<usize> {
        slot_of(&self.zones, page)
    }

    /// Returns a page of an extent of the long value, both by number.
    pub(crate) fn page(&self, extent: usize, page: u8) -> PageAddress {
        PageAddress::new(self.extents[extent], page)
    }

    /// Returns an extent of the long value whose block was an extent of an older one.
    pub(crate) fn reused_extent(&self) -> usize {
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

    pub(crate) fn zeroes(&self, page: PageAddress) -> (usize, Vec<u8>) {
        let slot = self.slot(page);
        (slot.start, vec![0; slot.len()])
    }

    pub(crate) fn stale(&self, page: PageAddress) -> (usize, Vec<u8>) {
        let slot = self.slot(page);
        (slot.start, self.closed.earlier[slot].to_vec())
    }

    pub(crate) fn flip(&self, at: usize) -> (usize, Vec<u8>) {
        (at, vec![self.closed.bytes[at] ^ 8])
    }

    pub(crate) fn open(&self) -> FileMedia {
        FileMedia::open(self.folder.path(), FileOptions::default()).unwrap()
    }

    /// Writes the file with a flipped byte at a random place of the extents. Returns the page that is damaged, and the bytes of
    /// the long value that lie in it.
    pub(crate) fn strike(&self, random: &mut fastrand::Rng) -> (PageAddress, Range<usize>) {
        let struck = random.usize(..self.extents.len() * EXTENT);
        let page = self.page(struck / EXTENT, u8::try_from(struck % EXTENT / PAGE_DATA_BYTES).unwrap());
        let patches = vec![self.flip(self.slot(page).start + struck % PAGE_DATA_BYTES)];
        self.inspect(&PlacedDamage { what: format!("byte {struck}"), patches, page: Some(page) });
        let first = struck / PAGE_DATA_BYTES * PAGE_DATA_BYTES;
        (page, first..first + PAGE_DATA_BYTES)
    }

    /// Writes the damaged file, and returns what the inspection finds.
    pub(crate) fn inspect(&self, damage: &PlacedDamage) -> MediumInspection {
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
    pub(crate) fn record(&self) -> RecordLocation {
        let page = self.page(1, 7);
        let patches = vec![self.flip(self.slot(page).start)];
        let found = self.inspect(&PlacedDamage { what: "a bit".to_owned(), patches, page: Some(page) });
        found.faults.first[0].0
    }

    /// Returns the page and the offset in the file of a byte of a block of the log.
    pub(crate) fn logged(&self, block: BlockId, offset: usize) -> (PageAddress, usize) {
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
    pub(crate) fn check(&self, damage: &PlacedDamage) {
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

    pub(crate) fn check_page(&self, what: &str, page: PageAddress, patches: Vec<(usize, Vec<u8>)>) {
        self.check(&PlacedDamage { what: format!("{what} of {page}"), patches, page: Some(page) });
    }
}

const _: () = assert!(PAGES_PER_BLOCK == 64);
