//! Tests of the flash file on every I/O path.

#![expect(clippy::cast_possible_truncation, reason = "block and page numbers of small media")]

mod cells;
mod damage;
mod fixture;
mod model;
mod superblock;
mod zero_fill;

use super::super::{CellNumber, MediaOp, NandRule, PAGES_PER_BLOCK};
use super::*;
use headwater_host::copy::crc32c;
use tempfile::TempDir;

const UUID: [u8; 16] = *b"0123456789abcdef";
const PAGE_BYTES: usize = PAGE_DATA_BYTES + PAGE_SPARE_BYTES;

/// An I/O path to the file.
#[derive(Clone, Copy, Debug)]
struct IoPath {
    options: FileOptions,
    in_memory: bool,
}

impl IoPath {
    fn directory(self) -> TempDir {
        match self.in_memory {
            true => TempDir::new_in("/dev/shm").unwrap(),
            false => TempDir::new().unwrap(),
        }
    }
}

/// Returns every I/O path to the file.
fn io_paths() -> [IoPath; 5] {
    let way = |direct, uring, in_memory| {
        let options = FileOptions { direct, uring, zero_fill_mode: ZeroFillMode::Ahead };
        IoPath { options, in_memory }
    };
    [
        way(DirectChoice::Auto, UringChoice::Auto, false),
        way(DirectChoice::Auto, UringChoice::Never, false),
        way(DirectChoice::Never, UringChoice::Auto, false),
        way(DirectChoice::Never, UringChoice::Never, false),
        way(DirectChoice::Auto, UringChoice::Auto, true),
    ]
}

fn create(directory: &TempDir, blocks: u32, options: FileOptions) -> FileMedia {
    FileMedia::create(directory.path(), FlashGeometry::with_blocks(blocks), UUID, options).unwrap()
}

fn page(block: u32, page: u8) -> PageAddress {
    PageAddress::new(BlockId(block), page)
}

fn program(page: PageAddress, fill: u8) -> MediaOp {
    let mut frame = MediaFrame::zeroed();
    frame[..PAGE_BYTES].fill(fill);
    MediaOp::Program { page, frame }
}

fn submit(media: &mut FileMedia, token: u64, op: MediaOp) {
    media.submit(MediaToken(token), op, Nanos::ZERO).unwrap();
}

fn drain(media: &mut FileMedia) -> Vec<MediaCompletion> {
    let mut done = Vec::new();
    while media.in_flight() > 0 {
        media.wait(Nanos::ZERO);
        media.poll(Nanos::ZERO, &mut done);
    }
    done
}

fn complete_one(media: &mut FileMedia, op: MediaOp) -> MediaCompletion {
    submit(media, 5, op);
    let mut done = drain(media);
    assert_eq!(done.len(), 1);
    assert_eq!(done[0].token, MediaToken(5));
    done.pop().unwrap()
}

/// Reads a page: returns the byte it was filled with, or `None` when it is blank.
fn read(media: &mut FileMedia, page: PageAddress) -> Option<u8> {
    let mut frame = MediaFrame::zeroed();
    frame.fill(0xEE);
    let done = complete_one(media, MediaOp::Read { page, frame });
    let frame = done.frame.unwrap();
    match done.result.unwrap() {
        PageState::Blank => None,
        PageState::Programmed => {
            assert!(frame[..PAGE_BYTES].iter().all(|&byte| byte == frame[0]));
            Some(frame[0])
        }
    }
}

fn flush(media: &mut FileMedia) {
    assert_eq!(complete_one(media, MediaOp::Flush).result, Ok(PageState::Programmed));
}

fn erase(media: &mut FileMedia, block: u32) {
    let block = BlockId(block);
    assert_eq!(complete_one(media, MediaOp::Erase { block }).result, Ok(PageState::Programmed));
}

fn refusal(media: &mut FileMedia, op: MediaOp) -> RefusalReason {
    media.submit(MediaToken(1), op, Nanos::ZERO).unwrap_err().reason
}

#[test]
fn programmed_pages_survive_reopening_and_an_erase_only_lasts_until_then() {
    for way in io_paths() {
        let directory = way.directory();
        let mut media = create(&directory, 20, way.options);
        for number in 0..PAGES_PER_BLOCK as u8 {
            submit(&mut media, u64::from(number), program(page(3, number), number + 1));
        }
        submit(&mut media, 99, program(page(19, 0), 200));
        assert!(drain(&mut media).iter().all(|done| done.result.is_ok() && done.frame.is_some()));
        flush(&mut media);
        erase(&mut media, 19);
        assert_eq!(read(&mut media, page(19, 0)), None);
        flush(&mut media);
        drop(media);
        let mut media = FileMedia::open(directory.path(), way.options).unwrap();
        assert_eq!(media.uuid(), UUID);
        assert_eq!(media.geometry(), FlashGeometry::with_blocks(20));
        for number in 0..PAGES_PER_BLOCK as u8 {
            assert_eq!(read(&mut media, page(3, number)), Some(number + 1), "{way:?}");
        }
        assert_eq!(read(&mut media, page(19, 0)), Some(200));
        assert_eq!(read(&mut media, page(19, 1)), None);
        assert_eq!(read(&mut media, page(0, 0)), None);
    }
}

#[test]
fn a_flush_that_may_block_is_complete_at_the_next_poll() {
    for way in io_paths() {
        let directory = way.directory();
        let mut media = create(&directory, 4, way.options);
        assert!(complete_one(&mut media, program(page(0, 0), 9)).result.is_ok());
        flush(&mut media);
        assert_eq!(media.blocking_flushes(), 0);
        media.allow_blocking_flush(true);
        submit(&mut media, 1, MediaOp::Flush);
        submit(&mut media, 2, MediaOp::Flush);
        let mut done = Vec::new();
        media.poll(Nanos::ZERO, &mut done);
        assert_eq!(done.iter().map(|done| done.token.0).collect::<Vec<_>>(), [1, 2], "{way:?}");
        assert!(done.iter().all(|done| done.result == Ok(PageState::Programmed)));
        assert_eq!((media.blocking_flushes(), media.in_flight()), (1, 0));
        media.allow_blocking_flush(false);
        flush(&mut media);
        assert_eq!(media.blocking_flushes(), 1);
        drop(media);
        let mut media = FileMedia::open(directory.path(), way.options).unwrap();
        assert_eq!(read(&mut media, page(0, 0)), Some(9));
    }
}

#[test]
fn a_slow_flush_keeps_the_thread_from_waiting_for_the_next_ones() {
    let mut requests = FlushRequests::default();
    assert!(!requests.is_blocking());
    requests.allow_blocking(true);
    assert!(requests.is_blocking());
    requests.note_blocking(Nanos::from_micros(500));
    assert!(requests.is_blocking());
    requests.note_blocking(Nanos::from_micros(501));
    assert_eq!((0..2_000).take_while(|_| !requests.is_blocking()).count(), 1_024);
    requests.note_blocking(Nanos::from_millis(10));
    assert!((0..2_000).all(|_| !requests.is_blocking()), "the thread waits again after a flush of 10 ms");
}

#[test]
fn operations_against_nand_rules_are_refused() {
    for way in io_paths() {
        let directory = way.directory();
        let mut media = create(&directory, 2, way.options);
        let rule = RefusalReason::Rule;
        assert_eq!(refusal(&mut media, program(page(0, 1), 1)), rule(NandRule::OutOfOrder));
        assert!(complete_one(&mut media, program(page(0, 0), 1)).result.is_ok());
        assert_eq!(refusal(&mut media, program(page(0, 0), 1)), rule(NandRule::ProgrammedTwice));
        assert_eq!(refusal(&mut media, program(page(2, 0), 1)), rule(NandRule::OutsideGeometry));
        assert_eq!(refusal(&mut media, program(page(0, 64), 1)), rule(NandRule::OutsideGeometry));
        let block = BlockId(2);
        assert_eq!(refusal(&mut media, MediaOp::Erase { block }), rule(NandRule::OutsideGeometry));
        let outside = MediaOp::Read { page: page(0, 64), frame: MediaFrame::zeroed() };
        assert_eq!(refusal(&mut media, outside), rule(NandRule::OutsideGeometry));
        flush(&mut media);
        drop(media);
        let mut media = FileMedia::open(directory.path(), way.options).unwrap();
        assert_eq!(refusal(&mut media, program(page(0, 1), 1)), rule(NandRule::NotErased));
        erase(&mut media, 0);
        assert_eq!(read(&mut media, page(0, 0)), None);
        assert!(complete_one(&mut media, program(page(0, 0), 2)).result.is_ok());
        assert_eq!(read(&mut media, page(0, 0)), Some(2));
    }
}

#[test]
fn a_block_is_not_erased_while_a_program_is_in_flight() {
    let directory = TempDir::new().unwrap();
    let mut media = create(&directory, 2, FileOptions::default());
    submit(&mut media, 1, program(page(0, 0), 1));
    let block = BlockId(0);
    assert_eq!(refusal(&mut media, MediaOp::Erase { block }), RefusalReason::QueueFull);
    assert_eq!(drain(&mut media).len(), 1);
    erase(&mut media, 0);
}

#[test]
fn a_full_queue_is_an_error_and_every_accepted_operation_completes_once() {
    for way in io_paths() {
        let directory = way.directory();
        let mut media = create(&directory, 40, way.options);
        let queue_max = media.traits().queue_max as u64;
        for token in 0..queue_max {
            let at = page(token as u32 / 64, (token % 64) as u8);
            submit(&mut media, token, program(at, token as u8 | 1));
        }
        assert_eq!(refusal(&mut media, MediaOp::Flush), RefusalReason::QueueFull);
        let mut tokens: Vec<_> = drain(&mut media)
            .into_iter()
            .inspect(|done| assert!(done.result.is_ok()))
            .map(|done| done.token.0)
            .collect();
        tokens.sort_unstable();
        assert!(tokens.into_iter().eq(0..queue_max));
        for token in [0, 63, 64, 640, queue_max - 1] {
            let at = page(token as u32 / 64, (token % 64) as u8);
            assert_eq!(read(&mut media, at), Some(token as u8 | 1));
        }
    }
}

#[test]
fn a_second_open_is_refused_while_the_first_is_open() {
    let directory = TempDir::new().unwrap();
    let media = create(&directory, 2, FileOptions::default());
    let again = FileMedia::open(directory.path(), FileOptions::default());
    assert!(matches!(again, Err(FileMediaError::InUse { .. })));
    drop(media);
    FileMedia::open(directory.path(), FileOptions::default()).unwrap();
}
