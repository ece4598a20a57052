//! Tests that media of every released format version still open.
//!
//! A fixture of version 1 holds the pages of a device after a shutdown; without its checkpoint pages it is the same
//! device after a power cut. It is a sequence of pages: number of the page on the medium (u32, little-endian), then data
//! and spare (4,224 bytes). No program writes it any more. The fixtures of version 2 are whole flash files ([`version2`]).

#![expect(clippy::unwrap_used, reason = "a test fails if its setup fails")]

use bytes::Bytes;
use headwater_dma::frame::MediaFrame;
use headwater_host::clock::{Clock, Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    BatchWrite, FrontEndId, Fua, Lba, LbaRange, NamespaceId, ReadRelease, RecordExpiry, SsdCommand,
    SsdCompletion, WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, SsdDevice, StartTime};
use headwater_ssd::log::page::PageKind;
use headwater_ssd::log::page_version1::PageSpare;
use headwater_ssd::media::memory::MemoryMedia;
use headwater_ssd::media::{
    BlockId, FlashGeometry, Media, MediaOp, MediaToken, MediumVersion, PAGE_DATA_BYTES, PAGE_SPARE_BYTES,
    PageAddress,
};
use headwater_ssd::namespace::{BlockFormat, Namespace, NamespaceChange, NamespaceKind, NamespaceLimits};

mod upgrade;
mod version2;

const BLOCKS: u32 = 32;
const PAGE_BYTES: usize = PAGE_DATA_BYTES + PAGE_SPARE_BYTES;
const WALL: UnixMillis = UnixMillis(1_700_000_000_000);
const FRONT_END: FrontEndId = FrontEndId(1);

fn open<M: Media>(media: M) -> SsdDevice<M> {
    let start = StartTime { now: Nanos::ZERO, wall: WALL };
    SsdDevice::open(media, DeviceConfig::default(), start, &mut |_| {}).unwrap()
}

fn run<M: Media>(device: &mut SsdDevice<M>, namespace: u8, command: SsdCommand) -> SsdCompletion {
    device.submit(FRONT_END, NamespaceId(namespace), 1, command).unwrap();
    (0..100_000)
        .find_map(|_| {
            if !device.poll(Nanos::ZERO, WALL) {
                // The disk is at work.
                Clock::sleep(Nanos(50_000));
            }
            device.next_completion(FRONT_END)
        })
        .expect("a completion within 100,000 polls")
}

fn store(key: &'static str, value: Vec<u8>, expiry: RecordExpiry) -> SsdCommand {
    SsdCommand::Store {
        key: Bytes::from(key),
        value: value.into(),
        condition: WriteCondition::Always,
        expiry,
    }
}

fn get<M: Media>(device: &mut SsdDevice<M>, namespace: u8, key: &'static str) -> Result<Vec<u8>, Status> {
    let command = SsdCommand::retrieve_whole(Bytes::from(key), Vec::new().into(), ReadRelease::WhenDurable);
    let completion = run(device, namespace, command);
    if completion.status.is_success() { Ok(completion.sink) } else { Err(completion.status) }
}

/// Runs the commands of the fixtures of keys.
fn fill<M: Media>(device: &mut SsdDevice<M>) {
    run(device, 1, store("plain", b"value".to_vec(), RecordExpiry::Never));
    run(device, 1, store("overwritten", b"old".to_vec(), RecordExpiry::Never));
    run(device, 1, store("overwritten", b"new".to_vec(), RecordExpiry::Never));
    run(device, 1, store("spanning", vec![7; 10_000], RecordExpiry::Never));
    run(device, 1, store("mortal", b"soon".to_vec(), RecordExpiry::At(WALL.0 + 1_000)));
    run(device, 1, store("deleted", b"gone".to_vec(), RecordExpiry::Never));
    run(device, 1, SsdCommand::Delete { key: Bytes::from("deleted"), condition: WriteCondition::Always });
    let write = |key: &'static str| BatchWrite::Store {
        key: Bytes::from(key),
        value: Bytes::from(key),
        condition: WriteCondition::Always,
        expiry: RecordExpiry::Never,
    };
    run(device, 1, SsdCommand::Batch { writes: vec![write("left"), write("middle"), write("right")] });
    run(device, 2, store("cleared", b"gone".to_vec(), RecordExpiry::Never));
    run(device, 2, SsdCommand::Clear);
    run(device, 2, store("after", b"clear".to_vec(), RecordExpiry::Never));
}

fn check<M: Media>(device: &mut SsdDevice<M>) {
    assert_eq!(get(device, 1, "plain").unwrap(), b"value");
    assert_eq!(get(device, 1, "overwritten").unwrap(), b"new");
    assert_eq!(get(device, 1, "spanning").unwrap(), vec![7; 10_000]);
    assert_eq!(get(device, 1, "mortal").unwrap(), b"soon");
    assert_eq!(get(device, 1, "deleted").unwrap_err(), Status::KEY_DOES_NOT_EXIST);
    for key in ["left", "middle", "right"] {
        assert_eq!(get(device, 1, key).unwrap(), key.as_bytes());
    }
    assert_eq!(get(device, 2, "cleared").unwrap_err(), Status::KEY_DOES_NOT_EXIST);
    assert_eq!(get(device, 2, "after").unwrap(), b"clear");
    assert_eq!((device.keys(NamespaceId(1)), device.keys(NamespaceId(2))), (7, 1));
    assert_eq!(device.next_expiry(), Some(UnixMillis(WALL.0 + 1_000)));
}

/// Returns a medium with the fixture's pages for which `keep` returns true.
fn medium(fixture: &[u8], keep: impl Fn(&PageSpare) -> bool) -> MemoryMedia {
    let mut media = MemoryMedia::erased(FlashGeometry::with_blocks(BLOCKS)).unwrap();
    let mut done = Vec::new();
    for page in fixture.chunks_exact(4 + PAGE_BYTES) {
        let (number, bytes) = page.split_first_chunk::<4>().unwrap();
        let number = u32::from_le_bytes(*number);
        let address = PageAddress::new(BlockId(number / 64), u8::try_from(number % 64).unwrap());
        if !keep(&PageSpare::decode(bytes, address.page).expect("the fixture is whole")) {
            continue;
        }
        let mut frame = MediaFrame::zeroed();
        frame[..PAGE_BYTES].copy_from_slice(bytes);
        media.submit(MediaToken(0), MediaOp::Program { page: address, frame }, Nanos::ZERO).unwrap();
        media.poll(Nanos::ZERO, &mut done);
    }
    media.after_power_cut().as_version_1()
}

const FIXTURE: &[u8] = include_bytes!("../fixtures/record-v1.bin");
/// Fixture with a block namespace: records of blocks, namespace table version 1, checkpoint version 2.
const BLOCKS_FIXTURE: &[u8] = include_bytes!("../fixtures/blocks-v1.bin");
/// The same, with namespace table version 2.
const ATTACHED_FIXTURE: &[u8] = include_bytes!("../fixtures/attached-v2.bin");
const DISK: u8 = 2;
/// A namespace attached only to controllers 1 and 3.
const SHARED: u8 = 3;

fn fixture_namespace() -> Namespace {
    let kind = NamespaceKind::Block(BlockFormat::B512);
    let limits = NamespaceLimits { iops: 1_000_000, bytes_per_second: 1 << 40, burst: 999 };
    Namespace { kind, size: 100, limits, uuid: [0xAB; 16], ..Namespace::IMPLICIT }
}

fn write(lba: u64, byte: u8, blocks: usize) -> SsdCommand {
    SsdCommand::Write { start: Lba(lba), data: vec![byte; blocks * 512].into(), fua: Fua::No }
}

fn read<M: Media>(device: &mut SsdDevice<M>, lba: u64) -> Vec<u8> {
    let range = LbaRange { start: Lba(lba), blocks: 1 };
    let completion = run(device, DISK, SsdCommand::Read { range, sink: Vec::new().into() });
    assert_eq!(completion.status, Status::SUCCESS);
    completion.sink
}

/// Runs the commands of the fixtures of blocks.
fn fill_blocks<M: Media>(device: &mut SsdDevice<M>) {
    run(device, 1, store("plain", b"value".to_vec(), RecordExpiry::Never));
    let create = run(device, 1, SsdCommand::Namespace(NamespaceChange::Create(fixture_namespace())));
    assert_eq!(create.position, u32::from(DISK));
    run(device, DISK, write(0, 1, 20));
    run(device, DISK, write(5, 2, 3));
    let ranges = vec![LbaRange { start: Lba(10), blocks: 4 }];
    run(device, DISK, SsdCommand::Deallocate { ranges, fua: Fua::No });
    run(device, DISK, write(99, 9, 1));
}

/// Runs the commands of the fixtures of attachments.
fn fill_attached<M: Media>(device: &mut SsdDevice<M>) {
    fill_blocks(device);
    let create = run(device, 1, SsdCommand::Namespace(NamespaceChange::CreateDetached(Namespace::IMPLICIT)));
    assert_eq!(create.position, u32::from(SHARED));
    run(device, SHARED, SsdCommand::Namespace(NamespaceChange::Attach(vec![3, 1])));
    run(device, DISK, SsdCommand::Namespace(NamespaceChange::Detach(vec![2])));
}

fn check_attached<M: Media>(device: &mut SsdDevice<M>) {
    check_blocks(device);
    let has = |namespace, controllers: [u16; 4]| {
        controllers.map(|controller| device.is_attached(NamespaceId(namespace), controller))
    };
    assert_eq!(has(SHARED, [1, 2, 3, 4]), [true, false, true, false]);
    assert_eq!(has(DISK, [1, 2, 3, 4]), [true, false, true, true]);
    assert_eq!(has(1, [1, 2, 3, 4]), [true; 4]);
}

#[test]
fn attachments_of_version_2_open_with_and_without_a_checkpoint() {
    check_attached(&mut open(medium(ATTACHED_FIXTURE, |_| true)));
    check_attached(&mut open(medium(ATTACHED_FIXTURE, |spare| spare.kind != PageKind::Checkpoint)));
}

fn check_blocks<M: Media>(device: &mut SsdDevice<M>) {
    assert_eq!(get(device, 1, "plain").unwrap(), b"value");
    assert_eq!(device.namespace(NamespaceId(DISK)), Some(fixture_namespace()));
    assert_eq!(device.namespace_usage(NamespaceId(DISK)), 17);
    for (lba, byte) in [(0, 1), (4, 1), (5, 2), (7, 2), (8, 1), (10, 0), (13, 0), (14, 1), (20, 0), (99, 9)] {
        assert_eq!(read(device, lba), vec![byte; 512], "block {lba}");
    }
}

#[test]
fn blocks_open_from_a_checkpoint_of_version_2() {
    check_blocks(&mut open(medium(BLOCKS_FIXTURE, |_| true)));
}

#[test]
fn blocks_open_by_scanning_their_records() {
    check_blocks(&mut open(medium(BLOCKS_FIXTURE, |spare| spare.kind != PageKind::Checkpoint)));
}

#[test]
fn namespace_with_a_damaged_record_is_unusable() {
    for checkpoint in [true, false] {
        let mut fixture = BLOCKS_FIXTURE.to_vec();
        let uuid = fixture_namespace().uuid;
        let at = fixture.windows(16).position(|bytes| bytes == uuid).expect("the table's record is there");
        fixture[at] ^= 1;
        let kept = |spare: &PageSpare| checkpoint || spare.kind != PageKind::Checkpoint;
        let device = &mut open(medium(&fixture, kept));
        let disk = NamespaceId(DISK);
        assert_eq!(device.namespace(disk), None);
        assert_eq!(get(device, DISK, "k"), Err(Status::NAMESPACE_NOT_READY));
    }
}

#[test]
fn version_1_opens_from_its_checkpoint() {
    check(&mut open(medium(FIXTURE, |_| true)));
}

#[test]
fn version_1_is_only_read() {
    let device = &mut open(medium(FIXTURE, |_| true));
    let before = device.media().traits();
    for command in [store("k", vec![1], RecordExpiry::Never), SsdCommand::Clear, SsdCommand::Flush] {
        assert_eq!(run(device, 1, command).status, Status::NAMESPACE_WRITE_PROTECTED);
    }
    // A batch that only checks keys is a read.
    let condition = WriteCondition::IfAbsent;
    let check_of =
        |key: &'static str| BatchWrite::Check { key: Bytes::from_static(key.as_bytes()), condition };
    let write = BatchWrite::Delete { key: Bytes::from_static(b"k"), condition };
    let checks = SsdCommand::Batch { writes: vec![check_of("missing"), check_of("missing too")] };
    assert_eq!(run(device, 1, checks).status, Status::SUCCESS);
    let writes = SsdCommand::Batch { writes: vec![check_of("missing"), write] };
    assert_eq!(run(device, 1, writes).status, Status::NAMESPACE_WRITE_PROTECTED);
    assert_eq!(before.version, MediumVersion::One);
    assert_eq!(device.stats().programmed_bytes, 0);
    check(device);
}

#[test]
fn version_1_opens_by_scanning_its_records() {
    check(&mut open(medium(FIXTURE, |spare| spare.kind != PageKind::Checkpoint)));
}
