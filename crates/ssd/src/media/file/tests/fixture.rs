//! A stored file of version 1 opens in every later version of the program, which only reads it.

use super::*;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

/// The start of a file of one block and three pages, made by version 1; zeros follow.
const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/flash-file-v1.bin");

/// Bytes of the whole file.
const FILE_BYTES: u64 = 315_392;

/// Writes the fixture into a directory.
fn copied_fixture() -> (TempDir, File) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join(FLASH_FILE_NAME);
    std::fs::copy(FIXTURE, &path).unwrap();
    let copied = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    copied.set_len(FILE_BYTES).unwrap();
    (directory, copied)
}

#[test]
fn a_file_of_version_1_opens_and_is_never_changed() {
    for way in io_paths() {
        let (directory, _) = copied_fixture();
        let before = std::fs::read(directory.path().join(FLASH_FILE_NAME)).unwrap();
        let mut media = FileMedia::open(directory.path(), way.options).unwrap();
        assert_eq!(media.geometry(), FlashGeometry::with_blocks(1));
        assert_eq!(media.uuid(), UUID);
        assert_eq!(media.version_1_session(), Some(1));
        let traits = media.traits();
        assert_eq!((traits.version, traits.cells, traits.checksum_seed), (MediumVersion::One, (0, 0), 0));
        let refused = RefusalReason::Rule(NandRule::ReadOnly);
        assert_eq!(refusal(&mut media, MediaOp::Erase { block: BlockId(0) }), refused);
        assert_eq!(refusal(&mut media, program(page(0, 3), 1)), refused);
        let (cell, frame) = (CellNumber(0), MediaFrame::zeroed());
        assert_eq!(refusal(&mut media, MediaOp::WriteCell { cell, frame }), refused);
        let (cell, frame) = (CellNumber(0), MediaFrame::zeroed());
        let outside = RefusalReason::Rule(NandRule::OutsideGeometry);
        assert_eq!(refusal(&mut media, MediaOp::ReadCell { cell, frame }), outside);
        for number in 0..64 {
            let expected = (number < 3).then_some(number + 1);
            assert_eq!(read(&mut media, page(0, number)), expected, "{way:?}");
        }
        flush(&mut media);
        drop(media);
        assert!(std::fs::read(directory.path().join(FLASH_FILE_NAME)).unwrap() == before);
    }
}

#[test]
fn a_longer_file_of_version_1_opens_and_a_shorter_one_does_not() {
    let (directory, file) = copied_fixture();
    file.set_len(FILE_BYTES + 300_000).unwrap();
    FileMedia::open(directory.path(), FileOptions::default()).unwrap();
    file.set_len(FILE_BYTES - 1).unwrap();
    let error = FileMedia::open(directory.path(), FileOptions::default()).unwrap_err();
    assert!(matches!(error, FileMediaError::Length { expected_bytes: FILE_BYTES, .. }), "{error}");
}

#[test]
fn damage_to_a_file_of_version_1_is_reported() {
    let open = |damaged: &[u64]| {
        let (directory, file) = copied_fixture();
        for &at in damaged {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
        }
        FileMedia::open(directory.path(), FileOptions::default()).map(|media| (directory, media))
    };
    assert!(matches!(open(&[100]), Err(FileMediaError::SuperblockDamaged { .. })));
    assert!(matches!(open(&[4_096, 8_192]), Err(FileMediaError::SessionDamaged { .. })));
    assert!(matches!(open(&[12_300, 16_396]), Err(FileMediaError::TableDamaged { number: 0, .. })));
    // One copy of each is enough, and a page without its stamp is blank.
    let (_directory, mut media) = open(&[4_096, 12_300, 20_480 + 4_224]).unwrap();
    assert_eq!(read(&mut media, page(0, 0)), None);
    assert_eq!(read(&mut media, page(0, 1)), Some(2));
}
