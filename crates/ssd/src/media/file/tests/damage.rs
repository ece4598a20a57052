//! Damage to a flash file is reported as an error and never panics.

use super::super::layout;
use super::super::layout::PIECE_BYTES;
use super::*;
use headwater_host::uring::FileRing;
use std::fs::File;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

fn file(directory: &TempDir) -> File {
    let path = directory.path().join(FLASH_FILE_NAME);
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn flip(file: &File, at: u64) {
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

fn created_file() -> (TempDir, FlashLayout) {
    let directory = TempDir::new().unwrap();
    let media = create(&directory, 4, FileOptions::default());
    let layout = media.layout;
    (directory, layout)
}

fn open_error(directory: &TempDir) -> FileMediaError {
    FileMedia::open(directory.path(), FileOptions::default()).unwrap_err()
}

#[test]
fn a_file_of_another_length_is_reported_with_both() {
    let whole = created_file().1.file_bytes;
    for length in
        [0, 100, PIECE_BYTES as u64, 8_192, whole - PIECE_BYTES as u64, whole - 1, whole + 1, 2 * whole]
    {
        let (directory, _) = created_file();
        file(&directory).set_len(length).unwrap();
        let error = open_error(&directory);
        let FileMediaError::Length { found_bytes, expected_bytes, .. } = error else {
            panic!("{length}: {error}");
        };
        assert_eq!(found_bytes, length);
        assert!(expected_bytes == whole || length < PIECE_BYTES as u64);
    }
}

#[test]
fn a_file_without_a_superblock_is_not_taken_for_one() {
    let (directory, layout) = created_file();
    let path = directory.path().join(FLASH_FILE_NAME);
    std::fs::write(&path, vec![0; usize::try_from(layout.file_bytes).unwrap()]).unwrap();
    assert!(matches!(open_error(&directory), FileMediaError::NotFlash { .. }));
}

#[test]
fn damaged_bytes_of_a_page_are_returned_unchanged() {
    let (directory, layout) = created_file();
    let mut media = FileMedia::open(directory.path(), FileOptions::default()).unwrap();
    erase(&mut media, 2);
    assert!(complete_one(&mut media, program(page(2, 0), 6)).result.is_ok());
    flush(&mut media);
    drop(media);
    let slot = layout.slot_offset(page(2, 0));
    flip(&file(&directory), slot + 9);
    let mut media = FileMedia::open(directory.path(), FileOptions::default()).unwrap();
    let op = MediaOp::Read { page: page(2, 0), frame: MediaFrame::zeroed() };
    let done = complete_one(&mut media, op);
    assert_eq!(done.result, Ok(PageState::Programmed));
    assert_eq!(done.frame.unwrap()[8..11], [6, 6 ^ 0x10, 6]);
    drop(media);
    // A page without its spare is still returned; one that was never written, or is all zeros, is blank.
    let file = file(&directory);
    file.write_all_at(&[0; PAGE_SPARE_BYTES], slot + PAGE_DATA_BYTES as u64).unwrap();
    let mut media = FileMedia::open(directory.path(), FileOptions::default()).unwrap();
    let op = MediaOp::Read { page: page(2, 0), frame: MediaFrame::zeroed() };
    assert_eq!(complete_one(&mut media, op).result, Ok(PageState::Programmed));
    drop(media);
    file.write_all_at(&[0; PAGE_DATA_BYTES], slot).unwrap();
    let mut media = FileMedia::open(directory.path(), FileOptions::default()).unwrap();
    assert_eq!(read(&mut media, page(2, 0)), None);
}

#[test]
fn truncation_of_an_open_file_makes_pages_unreadable() {
    for way in io_paths() {
        let directory = way.directory();
        let mut media = create(&directory, 4, way.options);
        assert!(complete_one(&mut media, program(page(3, 0), 6)).result.is_ok());
        flush(&mut media);
        file(&directory).set_len(PIECE_BYTES as u64).unwrap();
        let at = page(3, 0);
        let done = complete_one(&mut media, MediaOp::Read { page: at, frame: MediaFrame::zeroed() });
        assert_eq!(done.result, Err(MediaError::Io { errno: 5, page: at }), "{way:?}");
        assert!(done.frame.is_some());
    }
}

#[test]
fn an_unreadable_page_does_not_fail_other_pages() {
    for way in io_paths() {
        let directory = way.directory();
        let mut media = create(&directory, 4, way.options);
        for number in 0..8 {
            submit(&mut media, 0, program(page(3, number), number + 1));
        }
        drain(&mut media);
        flush(&mut media);
        // The file ends within the sixth page.
        let end = media.layout.slot_offset(page(3, 5)) + 512;
        file(&directory).set_len(end).unwrap();
        for number in 0..8 {
            let op = MediaOp::Read { page: page(3, number), frame: MediaFrame::zeroed() };
            submit(&mut media, u64::from(number), op);
        }
        let mut done = drain(&mut media);
        done.sort_by_key(|done| done.token);
        for (done, number) in done.iter().zip(0..8) {
            let page = page(3, number);
            let expected =
                if number < 5 { Ok(PageState::Programmed) } else { Err(MediaError::Io { errno: 5, page }) };
            assert_eq!(done.result, expected, "{way:?} {number}");
            assert_eq!(done.frame.as_ref().map(|frame| frame.len()), Some(layout::SLOT_BYTES));
            assert!(number >= 5 || done.frame.as_ref().unwrap()[100] == number + 1);
        }
        assert_eq!(done.len(), 8);
    }
}

#[test]
fn a_failed_write_returns_the_errno_and_the_frame() {
    for way in io_paths() {
        let directory = way.directory();
        let mut media = create(&directory, 4, way.options);
        let read_only = File::open(media.path()).unwrap();
        media.ring.ring = FileRing::open(read_only, RING_ENTRIES, way.options.uring).unwrap();
        submit(&mut media, 1, program(page(0, 0), 1));
        submit(&mut media, 2, program(page(0, 1), 1));
        let done = drain(&mut media);
        assert_eq!(done.len(), 2);
        for (done, number) in done.iter().zip(0..) {
            let page = page(0, number);
            assert_eq!(done.result, Err(MediaError::Io { errno: 9, page }), "{way:?}");
            assert!(done.frame.is_some());
        }
    }
}

#[test]
fn too_little_space_reports_both_sizes_and_leaves_no_file() {
    let directory = TempDir::new().unwrap();
    let geometry = FlashGeometry::with_blocks(1 << 26);
    let error = FileMedia::create(directory.path(), geometry, UUID, FileOptions::default()).unwrap_err();
    assert!(
        matches!(error, FileMediaError::NoSpace { needed_bytes, free_bytes, .. } if needed_bytes > free_bytes)
    );
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn creation_refuses_invalid_geometry_and_an_existing_file() {
    let directory = TempDir::new().unwrap();
    for blocks in [0, u32::MAX] {
        let geometry = FlashGeometry::with_blocks(blocks);
        let error = FileMedia::create(directory.path(), geometry, UUID, FileOptions::default()).unwrap_err();
        assert!(matches!(error, FileMediaError::Geometry { .. }));
    }
    assert!(!FileMedia::exists(directory.path()));
    drop(create(&directory, 1, FileOptions::default()));
    assert!(FileMedia::exists(directory.path()));
    let geometry = FlashGeometry::with_blocks(1);
    let error = FileMedia::create(directory.path(), geometry, UUID, FileOptions::default()).unwrap_err();
    assert!(matches!(error, FileMediaError::Exists { .. }));
    let nowhere = directory.path().join("nowhere");
    let error = FileMedia::open(&nowhere, FileOptions::default()).unwrap_err();
    assert!(matches!(error, FileMediaError::System { .. }));
}
