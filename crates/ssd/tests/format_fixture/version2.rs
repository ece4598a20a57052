//! Flash files of version 2 open in every later version of the program, and are written to.
//!
//! A fixture is a sequence of sectors that are not all zero: number of the sector in the file (u32, little-endian), then
//! its 512 bytes; at its end lies the length of the file (u64). Each is of a device that was closed, and of the same
//! device killed before that. [`write_the_fixtures`] wrote them; it is run by hand when the format gets a new version.

use super::*;
use headwater_nvme::controller::NvmSubsystem as _;
use headwater_ssd::media::file::{FileMedia, FileOptions};
use std::path::Path;
use tempfile::TempDir;

const SECTOR: usize = 512;
const FLASH_FILE: &str = "flash";
const UUID: [u8; 16] = *b"fixture of two!!";

/// Each fixture, and what its device must answer.
const FIXTURES: [(&[u8], FixtureCheck); 4] = [
    (include_bytes!("../fixtures/flash-file-v2-keys-closed.bin"), check),
    (include_bytes!("../fixtures/flash-file-v2-keys-killed.bin"), check),
    (include_bytes!("../fixtures/flash-file-v2-blocks-closed.bin"), check_attached),
    (include_bytes!("../fixtures/flash-file-v2-blocks-killed.bin"), check_attached),
];

/// Values in extents, of the first program that had them.
const EXTENT_FIXTURES: [&[u8]; 2] = [
    include_bytes!("../fixtures/flash-file-v2-extents-closed.bin"),
    include_bytes!("../fixtures/flash-file-v2-extents-killed.bin"),
];

type FixtureCheck = fn(&mut SsdDevice<FileMedia>);

/// Returns the bytes of the file that a fixture holds.
fn unpacked(fixture: &[u8]) -> Vec<u8> {
    let (sectors, bytes) = fixture.split_last_chunk::<8>().unwrap();
    let mut file = vec![0; usize::try_from(u64::from_le_bytes(*bytes)).unwrap()];
    for sector in sectors.chunks_exact(4 + SECTOR) {
        let (number, bytes) = sector.split_first_chunk::<4>().unwrap();
        let at = u32::from_le_bytes(*number) as usize * SECTOR;
        file[at..at + SECTOR].copy_from_slice(bytes);
    }
    file
}

fn packed(file: &[u8]) -> Vec<u8> {
    let mut fixture = Vec::new();
    for (number, sector) in
        file.chunks_exact(SECTOR).enumerate().filter(|(_, sector)| **sector != [0; SECTOR])
    {
        fixture.extend_from_slice(&u32::try_from(number).unwrap().to_le_bytes());
        fixture.extend_from_slice(sector);
    }
    fixture.extend_from_slice(&(file.len() as u64).to_le_bytes());
    fixture
}

fn opened(directory: &Path) -> SsdDevice<FileMedia> {
    open(FileMedia::open(directory, FileOptions::default()).unwrap())
}

#[test]
fn files_of_version_2_open_keep_what_they_hold_and_are_written_to() {
    for (fixture, check) in FIXTURES {
        let directory = TempDir::new().unwrap();
        std::fs::write(directory.path().join(FLASH_FILE), unpacked(fixture)).unwrap();
        let mut device = opened(directory.path());
        let losses = device.opening_losses();
        assert_eq!((losses.lost_pages(), losses.doubt, losses.damaged_checkpoint_pages), (0, None, 0));
        check(&mut device);
        // The program that wrote it kept no counters.
        let health = device.health();
        assert_eq!((health.power_cycles, health.unsafe_shutdowns, health.host_writes), (1, 0, 0));
        run(&mut device, 1, store("new", b"of this program".to_vec(), RecordExpiry::Never));
        run(
            &mut device,
            1,
            SsdCommand::Delete { key: Bytes::from("new"), condition: WriteCondition::Always },
        );
        check(&mut device);
        device.shutdown(Nanos::ZERO, WALL).unwrap();
        drop(device);
        let mut device = opened(directory.path());
        check(&mut device);
        let health = device.health();
        assert_eq!((health.power_cycles, health.unsafe_shutdowns, health.host_writes), (2, 0, 1));
    }
}

/// Returns a value of two extents and a rest, of which most sectors are zero.
fn sparse() -> Vec<u8> {
    let mut value = vec![0; 2 * 262_144 + 1_000];
    let places: [(usize, u8); 7] =
        [(0, 1), (5_000, 1), (262_143, 144), (262_144, 145), (500_000, 1), (524_288, 89), (525_287, 88)];
    for (at, byte) in places {
        value[at] = byte;
    }
    value
}

fn fill_extents(device: &mut SsdDevice<FileMedia>) {
    run(device, 1, store("replaced", vec![0; 262_144], RecordExpiry::Never));
    run(device, 1, store("replaced", b"short".to_vec(), RecordExpiry::Never));
    run(device, 1, store("sparse", sparse(), RecordExpiry::Never));
    run(device, 1, store("plain", b"value".to_vec(), RecordExpiry::Never));
}

fn check_extents(device: &mut SsdDevice<FileMedia>) {
    assert_eq!(get(device, 1, "sparse"), Ok(sparse()));
    assert_eq!(get(device, 1, "replaced"), Ok(b"short".to_vec()));
    assert_eq!(get(device, 1, "plain"), Ok(b"value".to_vec()));
}

#[test]
fn files_with_extents_open_keep_what_they_hold_and_are_written_to() {
    for fixture in EXTENT_FIXTURES {
        let directory = TempDir::new().unwrap();
        std::fs::write(directory.path().join(FLASH_FILE), unpacked(fixture)).unwrap();
        let mut device = opened(directory.path());
        check_extents(&mut device);
        run(&mut device, 1, store("new", vec![9; 700_000], RecordExpiry::Never));
        device.shutdown(Nanos::ZERO, WALL).unwrap();
        drop(device);
        let mut device = opened(directory.path());
        check_extents(&mut device);
        assert_eq!(get(&mut device, 1, "new"), Ok(vec![9; 700_000]));
    }
}

#[test]
#[ignore = "writes the fixtures of a new version; run by hand with FIXTURE_OUT naming a directory"]
fn write_the_fixtures() {
    let out = std::env::var("FIXTURE_OUT").expect("FIXTURE_OUT names the directory");
    let write = |name: &str, state: &str, directory: &Path| {
        let file = std::fs::read(directory.join(FLASH_FILE)).unwrap();
        std::fs::write(Path::new(&out).join(format!("flash-file-v2-{name}-{state}.bin")), packed(&file))
            .unwrap();
    };
    let fills: [(&str, FixtureCheck); 3] =
        [("keys", fill), ("blocks", fill_attached), ("extents", fill_extents)];
    for (name, fill) in fills {
        let directory = TempDir::new().unwrap();
        let geometry = FlashGeometry::with_blocks(BLOCKS);
        let media = FileMedia::create(directory.path(), geometry, UUID, FileOptions::default()).unwrap();
        let mut device = open(media);
        fill(&mut device);
        run(&mut device, 1, SsdCommand::Flush);
        write(name, "killed", directory.path());
        device.shutdown(Nanos::ZERO, WALL).unwrap();
        drop(device);
        write(name, "closed", directory.path());
    }
}
