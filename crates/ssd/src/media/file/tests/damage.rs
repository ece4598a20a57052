//! Damage to a flash file is reported as an error and never panics.

use super::super::layout;
use super::super::layout::{CopyNumber, PIECE_BYTES, STAMP_OFFSET};
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
fn a_damaged_superblock_is_reported() {
    for at in [8, 12, 16, 20, 40, 56, 100, 4_095] {
        let (directory, _) = created_file();
        flip(&file(&directory), at);
        assert!(matches!(open_error(&directory), FileMediaError::SuperblockDamaged { .. }), "{at}");
    }
    let (directory, _) = created_file();
    flip(&file(&directory), 3);
    assert!(matches!(open_error(&directory), FileMediaError::NotFlash { .. }));
}

#[test]
fn an_unknown_version_is_reported_with_both_numbers() {
    let (directory, _) = created_file();
    let file = file(&directory);
    let mut piece = [0; PIECE_BYTES];
    file.read_exact_at(&mut piece, 0).unwrap();
    piece[8] = 9;
    let crc = headwater_host::copy::crc32c(0, &piece[..PIECE_BYTES - 4]);
    piece[PIECE_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    file.write_all_at(&piece, 0).unwrap();
    assert!(matches!(open_error(&directory), FileMediaError::Version { found: 9, known: 1, .. }));
}

#[test]
fn an_invalid_geometry_is_refused_although_its_check_passes() {
    let (directory, _) = created_file();
    let file = file(&directory);
    let mut piece = [0; PIECE_BYTES];
    file.read_exact_at(&mut piece, 0).unwrap();
    piece[12..16].fill(0xFF);
    let crc = headwater_host::copy::crc32c(0, &piece[..PIECE_BYTES - 4]);
    piece[PIECE_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    file.write_all_at(&piece, 0).unwrap();
    assert!(matches!(open_error(&directory), FileMediaError::SuperblockDamaged { .. }));
}

#[test]
fn a_truncated_file_is_reported_with_its_length() {
    let (directory, layout) = created_file();
    let whole = layout.file_bytes();
    for length in [0, 100, PIECE_BYTES as u64, whole - 1] {
        file(&directory).set_len(length).unwrap();
        let error = open_error(&directory);
        let FileMediaError::Length { found_bytes, .. } = error else {
            // Truncated bytes come back as zeros, and a file of zeros is not a flash file.
            assert!(matches!(error, FileMediaError::NotFlash { .. }), "{length}: {error}");
            continue;
        };
        assert_eq!(found_bytes, length);
    }
}

#[test]
fn one_torn_copy_of_the_erase_table_is_replaced_by_the_other() {
    let (directory, layout) = created_file();
    let mut media = FileMedia::open(directory.path(), FileOptions::default()).unwrap();
    erase(&mut media, 1);
    assert!(complete_one(&mut media, program(page(1, 0), 7)).result.is_ok());
    flush(&mut media);
    drop(media);
    // The first write of a new file goes to the first copy; the write above went to the second.
    flip(&file(&directory), layout.table_offset(0, CopyNumber::First) + 20);
    let mut media = FileMedia::open(directory.path(), FileOptions::default()).unwrap();
    assert_eq!(read(&mut media, page(1, 0)), Some(7));
    drop(media);
    flip(&file(&directory), layout.table_offset(0, CopyNumber::Second) + 20);
    let error = open_error(&directory);
    assert!(matches!(error, FileMediaError::TableDamaged { number: 0, .. }));
    assert!(error.to_string().contains("erase table"));
}

#[test]
fn sessions_survive_one_damaged_record_and_not_two() {
    let (directory, _) = created_file();
    flip(&file(&directory), FlashLayout::session_offset(CopyNumber::First));
    FileMedia::open(directory.path(), FileOptions::default()).unwrap();
    for copy in CopyNumber::BOTH {
        file(&directory).write_all_at(&[0; 16], FlashLayout::session_offset(copy)).unwrap();
    }
    assert!(matches!(open_error(&directory), FileMediaError::SessionDamaged { .. }));
}

#[test]
fn pages_of_an_erase_lost_in_a_power_cut_never_appear() {
    let (directory, layout) = created_file();
    let mut media = FileMedia::open(directory.path(), FileOptions::default()).unwrap();
    erase(&mut media, 0);
    assert!(complete_one(&mut media, program(page(0, 0), 1)).result.is_ok());
    flush(&mut media);
    let table = |copy| {
        let mut piece = vec![0; PIECE_BYTES];
        file(&directory).read_exact_at(&mut piece, layout.table_offset(0, copy)).unwrap();
        piece
    };
    let before = CopyNumber::BOTH.map(table);
    // The erase and the program reach the disk; the table does not.
    erase(&mut media, 0);
    assert!(complete_one(&mut media, program(page(0, 0), 2)).result.is_ok());
    assert!(complete_one(&mut media, program(page(0, 1), 3)).result.is_ok());
    drop(media);
    assert_eq!(before, CopyNumber::BOTH.map(table), "an erase is not written before a flush");
    let mut media = FileMedia::open(directory.path(), FileOptions::default()).unwrap();
    assert_eq!(read(&mut media, page(0, 0)), None);
    erase(&mut media, 0);
    assert_eq!(read(&mut media, page(0, 1)), None);
    assert!(complete_one(&mut media, program(page(0, 0), 4)).result.is_ok());
    flush(&mut media);
    drop(media);
    let mut media = FileMedia::open(directory.path(), FileOptions::default()).unwrap();
    assert_eq!(read(&mut media, page(0, 0)), Some(4));
    assert_eq!(read(&mut media, page(0, 1)), None);
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
    // Without its stamp the page reads as blank.
    flip(&file(&directory), slot + STAMP_OFFSET as u64 + 8);
    let mut media = FileMedia::open(directory.path(), FileOptions::default()).unwrap();
    assert_eq!(read(&mut media, page(2, 0)), None);
}

#[test]
fn truncation_of_an_open_file_makes_pages_unreadable() {
    for way in io_paths() {
        let directory = TempDir::new().unwrap();
        let mut media = create(&directory, 4, way);
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
        let directory = TempDir::new().unwrap();
        let mut media = create(&directory, 4, way);
        for number in 0..8 {
            submit(&mut media, 0, program(page(3, number), number));
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
            assert!(number >= 5 || done.frame.as_ref().unwrap()[100] == number);
        }
        assert_eq!(done.len(), 8);
    }
}

#[test]
fn a_failed_write_returns_the_errno_and_the_frame() {
    for way in io_paths() {
        let directory = TempDir::new().unwrap();
        let mut media = create(&directory, 4, way);
        let read_only = File::open(media.path()).unwrap();
        media.ring.ring = FileRing::open(read_only, RING_ENTRIES, way.uring).unwrap();
        submit(&mut media, 1, program(page(0, 0), 1));
        submit(&mut media, 2, program(page(0, 1), 1));
        let done = drain(&mut media);
        assert_eq!(done.len(), 2);
        for (done, number) in done.iter().zip(0..) {
            let page = page(0, number);
            assert_eq!(done.result, Err(MediaError::Io { errno: 9, page }), "{way:?}");
            assert!(done.frame.is_some());
        }
        // The erase table cannot be written either, and every flush fails.
        for _ in 0..2 {
            assert!(matches!(
                complete_one(&mut media, MediaOp::Flush).result,
                Err(MediaError::Io { errno: 9, .. })
            ));
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
