//! A stored file of every format version opens in every later version of the program.

use super::*;
use std::fs::OpenOptions;

/// Writes the fixture again. Run it by hand for a new format version, never again for version 1.
#[test]
#[ignore = "it writes the fixture that the next test opens"]
fn write_the_fixture() {
    let directory = TempDir::new().unwrap();
    let mut media = create(&directory, 1, FileOptions::default());
    for number in 0..3 {
        assert!(complete_one(&mut media, program(page(0, number), number + 1)).result.is_ok());
    }
    flush(&mut media);
    let used = usize::try_from(media.layout.slot_offset(page(0, 3))).unwrap();
    drop(media);
    let whole = std::fs::read(directory.path().join(FLASH_FILE_NAME)).unwrap();
    std::fs::write(FIXTURE, &whole[..used]).unwrap();
}

/// The start of a file of one block and three pages, made by version 1; zeros follow.
const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/flash-file-v1.bin");

#[test]
fn a_file_of_version_1_opens() {
    for way in io_paths() {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join(FLASH_FILE_NAME);
        std::fs::copy(FIXTURE, &path).unwrap();
        let copied = OpenOptions::new().write(true).open(&path).unwrap();
        copied.set_len(315_392).unwrap();
        let mut media = FileMedia::open(directory.path(), way).unwrap();
        assert_eq!(media.geometry(), FlashGeometry::with_blocks(1));
        assert_eq!(media.uuid(), UUID);
        for number in 0..64 {
            let expected = (number < 3).then_some(number + 1);
            assert_eq!(read(&mut media, page(0, number)), expected, "{way:?}");
        }
    }
}
