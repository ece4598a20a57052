//! Commit cells: they survive, they are refused where they must be, and their errors name them.

use super::*;
use crate::media::CELL_BYTES;
use headwater_host::uring::FileRing;
use std::fs::File;

const CELLS: u16 = 64;

fn write_cell(cell: u16, fill: u8) -> MediaOp {
    let mut frame = MediaFrame::zeroed();
    frame[..CELL_BYTES].fill(fill);
    MediaOp::WriteCell { cell: CellNumber(cell), frame }
}

fn read_op(cell: u16) -> MediaOp {
    MediaOp::ReadCell { cell: CellNumber(cell), frame: MediaFrame::zeroed() }
}

/// Reads a cell and returns the byte that fills it.
fn read_cell(media: &mut FileMedia, cell: u16) -> u8 {
    let done = complete_one(media, read_op(cell));
    assert_eq!(done.result, Ok(PageState::Programmed));
    let frame = done.frame.unwrap();
    assert!(frame[..CELL_BYTES].iter().all(|&byte| byte == frame[0]));
    frame[0]
}

#[test]
fn cells_survive_reopening_and_touch_neither_pages_nor_superblocks() {
    for way in io_paths() {
        let directory = way.directory();
        let mut media = create(&directory, 2, way.options);
        assert_eq!(media.traits().cells, (32, 32));
        for at in [page(0, 0), page(0, 1), page(1, 0)] {
            assert!(complete_one(&mut media, program(at, 7)).result.is_ok());
        }
        for cell in 0..CELLS {
            assert_eq!(read_cell(&mut media, cell), 0);
        }
        for cell in 0..CELLS {
            submit(&mut media, u64::from(cell), write_cell(cell, cell as u8 + 1));
        }
        let done = drain(&mut media);
        assert!(done.iter().all(|done| done.result.is_ok() && done.frame.is_some()));
        assert_eq!(done.len(), usize::from(CELLS));
        // Cells are overwritten in place.
        assert!(complete_one(&mut media, write_cell(40, 200)).result.is_ok());
        flush(&mut media);
        drop(media);
        let mut media = FileMedia::open(directory.path(), way.options).unwrap();
        assert_eq!(media.bad_superblocks(), []);
        for cell in 0..CELLS {
            let expected = if cell == 40 { 200 } else { cell as u8 + 1 };
            assert_eq!(read_cell(&mut media, cell), expected, "{way:?}");
        }
        for at in [page(0, 0), page(0, 1), page(1, 0)] {
            assert_eq!(read(&mut media, at), Some(7));
        }
        assert_eq!(read(&mut media, page(1, 63)), None);
    }
}

#[test]
fn consecutive_records_lie_on_different_sides_of_the_blocks() {
    let directory = TempDir::new().unwrap();
    let media = create(&directory, 2, FileOptions::default());
    let traits = media.traits();
    assert_eq!(traits.version, MediumVersion::Two);
    assert_eq!(traits.checksum_seed, crc32c(0, &UUID));
    let offset = |number| media.layout.cell_offset(traits.cell_of(number)).unwrap();
    for number in 0..200 {
        let front = offset(number) < media.layout.slots_offset;
        assert_eq!(front, number % 2 == 0);
        assert_eq!(front, offset(number) < media.layout.tail_offset());
    }
    assert_eq!(media.layout.cell_offset(CellNumber(CELLS)), None);
}

#[test]
fn cells_that_do_not_exist_and_races_are_refused() {
    let directory = TempDir::new().unwrap();
    let mut media = create(&directory, 2, FileOptions::default());
    let outside = RefusalReason::Rule(NandRule::OutsideGeometry);
    assert_eq!(refusal(&mut media, write_cell(CELLS, 1)), outside);
    assert_eq!(refusal(&mut media, read_op(u16::MAX)), outside);
    submit(&mut media, 1, write_cell(3, 1));
    assert_eq!(refusal(&mut media, write_cell(3, 2)), RefusalReason::QueueFull);
    assert_eq!(refusal(&mut media, read_op(3)), RefusalReason::QueueFull);
    submit(&mut media, 2, read_op(4));
    submit(&mut media, 3, read_op(4));
    assert_eq!(drain(&mut media).len(), 3);
    assert_eq!(read_cell(&mut media, 3), 1);
}

#[test]
fn a_file_opened_read_only_refuses_to_write_cells() {
    let directory = TempDir::new().unwrap();
    drop(create(&directory, 2, FileOptions::default()));
    let mut media = FileMedia::open_read_only(directory.path(), FileOptions::default()).unwrap();
    assert_eq!(refusal(&mut media, write_cell(0, 1)), RefusalReason::Rule(NandRule::ReadOnly));
    assert_eq!(read_cell(&mut media, 0), 0);
}

#[test]
fn errors_name_the_cell() {
    for way in io_paths() {
        let directory = way.directory();
        let mut media = create(&directory, 2, way.options);
        let read_only = File::open(media.path()).unwrap();
        media.ring.ring = FileRing::open(read_only, RING_ENTRIES, way.options.uring).unwrap();
        let done = complete_one(&mut media, write_cell(33, 1));
        let cell = CellNumber(33);
        assert_eq!(done.result, Err(MediaError::Cell { errno: 9, cell }), "{way:?}");
        assert!(done.frame.is_some());
        let end = media.layout.cell_offset(cell).unwrap() + 512;
        let writable = std::fs::OpenOptions::new().write(true).open(media.path()).unwrap();
        writable.set_len(end).unwrap();
        let done = complete_one(&mut media, read_op(33));
        assert_eq!(done.result, Err(MediaError::Cell { errno: 5, cell }), "{way:?}");
        assert!(done.frame.is_some());
        assert_eq!(read_cell(&mut media, 32), 0);
    }
}

#[test]
fn cells_read_together_fail_alone() {
    for way in io_paths() {
        let directory = way.directory();
        let mut media = create(&directory, 2, way.options);
        for cell in 0..CELLS {
            submit(&mut media, u64::from(cell), write_cell(cell, cell as u8 + 1));
        }
        assert_eq!(drain(&mut media).len(), usize::from(CELLS));
        let writable = std::fs::OpenOptions::new().write(true).open(media.path()).unwrap();
        writable.set_len(media.layout.cell_offset(CellNumber(40)).unwrap() + 512).unwrap();
        // Backwards each cell is a transfer, forwards each side.
        for cell in (0..CELLS).rev().chain(0..CELLS) {
            submit(&mut media, u64::from(cell), read_op(cell));
        }
        let done = drain(&mut media);
        assert_eq!(done.len(), 2 * usize::from(CELLS), "{way:?}");
        for MediaCompletion { token, frame, result } in done {
            let (cell, frame) = (CellNumber(token.0 as u16), frame.unwrap());
            if cell.0 < 40 {
                assert_eq!(result, Ok(PageState::Programmed), "{way:?} {cell:?}");
                assert!(frame[..CELL_BYTES].iter().all(|&byte| byte == cell.0 as u8 + 1), "{way:?} {cell:?}");
            } else {
                assert_eq!(result, Err(MediaError::Cell { errno: 5, cell }), "{way:?}");
            }
        }
    }
}
