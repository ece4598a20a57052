//! Zero fill changes no page, whatever the file holds.

use super::*;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

#[test]
fn zero_fill_never_overwrites_a_programmed_page() {
    for way in io_paths() {
        let directory = way.directory();
        let mut media = create(&directory, 64, way.options);
        // Every fill region is entered while the region before it still requests zeros.
        for block in 0..64 {
            submit(&mut media, u64::from(block), program(page(block, 0), block as u8 + 1));
            if block % 5 == 0 {
                media.poll(Nanos::ZERO, &mut Vec::new());
            }
        }
        drain(&mut media);
        for block in 0..64 {
            assert!(complete_one(&mut media, program(page(block, 1), block as u8 + 101)).result.is_ok());
        }
        for block in 0..64 {
            assert_eq!(read(&mut media, page(block, 0)), Some(block as u8 + 1), "{way:?}");
            assert_eq!(read(&mut media, page(block, 1)), Some(block as u8 + 101), "{way:?}");
        }
    }
}

#[test]
fn zero_fill_leaves_pages_alone_whose_block_lost_its_first_page() {
    for way in io_paths() {
        let directory = way.directory();
        let mut media = create(&directory, 64, way.options);
        for number in 0..3 {
            assert!(complete_one(&mut media, program(page(40, number), number + 1)).result.is_ok());
        }
        flush(&mut media);
        let lost = media.layout.slot_offset(page(40, 0));
        drop(media);
        let file = OpenOptions::new().write(true).open(directory.path().join(FLASH_FILE_NAME)).unwrap();
        file.write_all_at(&[0; layout::SLOT_BYTES], lost).unwrap();
        drop(file);
        let mut media = FileMedia::open(directory.path(), way.options).unwrap();
        assert_eq!(read(&mut media, page(40, 0)), None);
        // The region of block 40 is filled while pages of the region before it are programmed.
        erase(&mut media, 20);
        for number in 0..64 {
            assert!(complete_one(&mut media, program(page(20, number), number + 101)).result.is_ok());
        }
        assert_eq!(read(&mut media, page(40, 1)), Some(2), "{way:?}");
        assert_eq!(read(&mut media, page(40, 2)), Some(3), "{way:?}");
        assert_eq!(read(&mut media, page(40, 3)), None, "{way:?}");
    }
}
