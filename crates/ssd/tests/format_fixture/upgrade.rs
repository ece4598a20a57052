//! Flash files of version 1 are upgraded in place, and refused where the upgrade could lose something.

use super::*;
use headwater_ssd::engine::LossDigest;
use headwater_ssd::engine::upgrade::{UpgradeError, UpgradedFile, upgrade_file};
use headwater_ssd::media::file::{FileMedia, FileMediaError, FileOptions, StartupFile};
use headwater_testkit::version1_file::Version1File;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use tempfile::TempDir;

const FLASH_FILE: &str = "flash";
const UUID: [u8; 16] = *b"fixture of one!!";
/// The kernel's number of a file system without space.
const ENOSPC: i32 = 28;

type DeviceCheck = fn(&mut SsdDevice<FileMedia>);

const FIXTURES: [(&[u8], DeviceCheck); 3] =
    [(FIXTURE, check), (BLOCKS_FIXTURE, check_blocks), (ATTACHED_FIXTURE, check_attached)];

/// Writes a file of version 1 with the fixture's pages for which `keep` returns true.
fn version_1_file(fixture: &[u8], keep: impl Fn(&PageSpare) -> bool) -> TempDir {
    let mut file = Version1File::new(BLOCKS, UUID);
    for page in fixture.chunks_exact(4 + PAGE_BYTES) {
        let (number, bytes) = page.split_first_chunk::<4>().unwrap();
        let number = u32::from_le_bytes(*number);
        let address = PageAddress::new(BlockId(number / 64), u8::try_from(number % 64).unwrap());
        if keep(&PageSpare::decode(bytes, address.page).expect("the fixture is whole")) {
            file.add_page(address, bytes);
        }
    }
    let directory = TempDir::new().unwrap();
    let made = File::create(directory.path().join(FLASH_FILE)).unwrap();
    made.set_len(file.file_bytes() as u64).unwrap();
    for (offset, bytes) in file.finish() {
        made.write_all_at(&bytes, offset as u64).unwrap();
    }
    directory
}

/// The file beneath a medium, whose writes behind a limit find no space.
struct FullFile {
    file: File,
    limit: u64,
}

impl StartupFile for FullFile {
    fn length(&self) -> io::Result<u64> {
        self.file.length()
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        StartupFile::read_at(&self.file, bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if offset + bytes.len() as u64 > self.limit {
            return Err(io::Error::from_raw_os_error(ENOSPC));
        }
        StartupFile::write_at(&self.file, bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

fn upgrade_with(
    directory: &Path,
    accept_loss: Option<LossDigest>,
    limit: u64,
) -> Result<UpgradedFile, UpgradeError> {
    let mut open = || {
        let media = FileMedia::open(directory, FileOptions::default())?;
        let file = media.startup_file()?;
        Ok((media, FullFile { file, limit }))
    };
    let config = DeviceConfig { accept_loss, ..DeviceConfig::default() };
    upgrade_file(&mut open, &config, StartTime { now: Nanos::ZERO, wall: WALL }, &mut |_| {})
}

fn upgrade(directory: &Path) -> Result<UpgradedFile, UpgradeError> {
    upgrade_with(directory, None, u64::MAX)
}

fn opened(directory: &Path) -> SsdDevice<FileMedia> {
    open(FileMedia::open(directory, FileOptions::default()).unwrap())
}

fn version_of(directory: &Path) -> MediumVersion {
    FileMedia::open_read_only(directory, FileOptions::default()).unwrap().traits().version
}

/// Flips a bit in the last byte of every `text` in the flash file.
fn damage(directory: &Path, text: &[u8]) {
    let path = directory.join(FLASH_FILE);
    let mut bytes = std::fs::read(&path).unwrap();
    let places: Vec<usize> =
        bytes.windows(text.len()).enumerate().filter(|(_, found)| *found == text).map(|(at, _)| at).collect();
    assert!(!places.is_empty());
    places.into_iter().for_each(|at| bytes[at + text.len() - 1] ^= 1);
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn every_fixture_of_version_1_is_upgraded_and_written_to() {
    for (fixture, check) in FIXTURES {
        for has_checkpoint in [true, false] {
            let kept = |spare: &PageSpare| has_checkpoint || spare.kind != PageKind::Checkpoint;
            let directory = version_1_file(fixture, kept);
            check(&mut opened(directory.path()));
            assert_eq!(version_of(directory.path()), MediumVersion::One);
            let upgraded = upgrade(directory.path()).unwrap();
            assert!(upgraded.is_done && upgraded.blocks_left == 0, "{upgraded:?}");
            let media = FileMedia::open(directory.path(), FileOptions::default()).unwrap();
            assert!(!media.holds_version_1() && media.bad_superblocks().is_empty());
            let mut device = open(media);
            let losses = device.opening_losses();
            assert_eq!((losses.lost_pages(), losses.damaged_cells.len()), (0, 0));
            check(&mut device);
            run(&mut device, 1, store("new", b"of version 2".to_vec(), RecordExpiry::Never));
            device.shutdown(Nanos::ZERO, WALL).unwrap();
            drop(device);
            assert_eq!(get(&mut opened(directory.path()), 1, "new").unwrap(), b"of version 2");
        }
    }
}

#[test]
fn a_file_of_version_2_and_a_file_in_use_are_refused() {
    let directory = version_1_file(FIXTURE, |_| true);
    let held = FileMedia::open(directory.path(), FileOptions::default()).unwrap();
    let refused = upgrade(directory.path()).unwrap_err();
    assert!(matches!(refused, UpgradeError::File(FileMediaError::InUse { .. })), "{refused}");
    drop(held);
    upgrade(directory.path()).unwrap();
    let before = std::fs::read(directory.path().join(FLASH_FILE)).unwrap();
    assert!(matches!(upgrade(directory.path()), Err(UpgradeError::NotVersion1)));
    assert!(std::fs::read(directory.path().join(FLASH_FILE)).unwrap() == before);
}

#[test]
fn damage_refuses_the_upgrade_until_it_is_accepted() {
    let directory = version_1_file(FIXTURE, |_| true);
    damage(directory.path(), b"plainvalue");
    let before = std::fs::read(directory.path().join(FLASH_FILE)).unwrap();
    let refused = upgrade(directory.path()).unwrap_err();
    let UpgradeError::Damaged { damage, accepted: None } = refused else { panic!("{refused}") };
    assert_eq!(damage.records, 1, "{damage}");
    let other = LossDigest(damage.digest.0 ^ 1);
    assert!(upgrade_with(directory.path(), Some(other), u64::MAX).is_err());
    assert!(
        std::fs::read(directory.path().join(FLASH_FILE)).unwrap() == before,
        "a refusal changed the file"
    );
    let upgraded = upgrade_with(directory.path(), Some(damage.digest), u64::MAX).unwrap();
    assert_eq!((upgraded.is_done, upgraded.blocks_left), (false, 1));
    // The block with the damage stays of version 1; everything else in it was moved.
    let again = upgrade(directory.path()).unwrap();
    assert_eq!((again.switched, again.is_done, again.blocks_left), (None, false, 1));
    let mut device = opened(directory.path());
    assert!(get(&mut device, 1, "plain").unwrap_err() != Status::KEY_DOES_NOT_EXIST);
    assert_eq!(get(&mut device, 1, "overwritten").unwrap(), b"new");
    assert_eq!(get(&mut device, 1, "spanning").unwrap(), vec![7; 10_000]);
    // A write of the key ends the damage, and the upgrade with it.
    run(&mut device, 1, store("plain", b"value".to_vec(), RecordExpiry::Never));
    drop(device);
    assert!(upgrade(directory.path()).unwrap().is_done);
    check(&mut opened(directory.path()));
}

#[test]
fn a_page_that_only_version_2_would_refuse_refuses_the_upgrade() {
    let directory = version_1_file(FIXTURE, |spare| spare.kind != PageKind::Checkpoint);
    // A bit of the spare of the second page, on which the record "spanning" lies: version 1 reads its records all the same.
    let path = directory.path().join(FLASH_FILE);
    let mut bytes = std::fs::read(&path).unwrap();
    let magic = bytes.windows(4).enumerate().filter(|(_, found)| *found == b"HWP1").map(|(at, _)| at);
    let second = magic.take(2).last().unwrap();
    bytes[second + 40] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    check(&mut opened(directory.path()));
    let refused = upgrade(directory.path()).unwrap_err();
    assert!(matches!(refused, UpgradeError::Damaged { .. }), "{refused}");
    check(&mut opened(directory.path()));
}

#[test]
fn a_full_file_system_refuses_the_upgrade_and_the_file_keeps_version_1() {
    let directory = version_1_file(FIXTURE, |_| true);
    let length = std::fs::metadata(directory.path().join(FLASH_FILE)).unwrap().len();
    for room in [0, 4_096, 40_000, 135_168] {
        let refused = upgrade_with(directory.path(), None, length + room).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("No space left on device") && text.contains("version 1"), "{text}");
        assert_eq!(version_of(directory.path()), MediumVersion::One);
        check(&mut opened(directory.path()));
    }
    assert!(upgrade(directory.path()).unwrap().is_done);
    check(&mut opened(directory.path()));
}

#[test]
fn a_file_that_is_longer_than_an_upgrade_makes_it_is_refused() {
    let directory = version_1_file(FIXTURE, |_| true);
    let path = directory.path().join(FLASH_FILE);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(file.metadata().unwrap().len() + (1 << 20)).unwrap();
    let refused = upgrade(directory.path()).unwrap_err();
    assert!(matches!(refused, UpgradeError::TooLong { .. }), "{refused}");
    assert_eq!(version_of(directory.path()), MediumVersion::One);
}
