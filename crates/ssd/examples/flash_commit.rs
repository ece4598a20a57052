//! Prints the cost of one commit on a flash file: a page, a guard page, a flush; on space never written and on space
//! written before, with and without zero fill. The argument is the directory to work in.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a benchmark that a person runs and reads")]

use headwater_dma::frame::MediaFrame;
use headwater_host::clock::{Clock, Nanos};
use headwater_host::file::DirectChoice;
use headwater_host::uring::UringChoice;
use headwater_ssd::media::file::{FileMedia, FileOptions, ZeroFillMode};
use headwater_ssd::media::{BlockId, FlashGeometry, Media, MediaOp, MediaToken, PageAddress};
use std::error::Error;
use std::path::Path;

const BLOCKS: u32 = 48;

fn drain(media: &mut FileMedia, now: Nanos) -> Result<(), Box<dyn Error>> {
    let mut done = Vec::new();
    while media.in_flight() > 0 {
        media.wait(now);
        media.poll(now, &mut done);
    }
    for answer in done {
        answer.result?;
    }
    Ok(())
}

fn submit(media: &mut FileMedia, op: MediaOp, now: Nanos) -> Result<(), Box<dyn Error>> {
    media.submit(MediaToken(0), op, now).map_err(|refused| format!("{:?}", refused.reason).into())
}

fn pass(media: &mut FileMedia, clock: &Clock) -> Result<Vec<u64>, Box<dyn Error>> {
    let mut spans = Vec::new();
    for block in 0..BLOCKS {
        submit(media, MediaOp::Erase { block: BlockId(block) }, clock.now())?;
        for page in (0..64).step_by(2) {
            let before = clock.now();
            for page in [page, page + 1] {
                let page = PageAddress::new(BlockId(block), page);
                let frame = MediaFrame::zeroed();
                submit(media, MediaOp::Program { page, frame }, before)?;
            }
            drain(media, before)?;
            submit(media, MediaOp::Flush, before)?;
            drain(media, before)?;
            // The first fill region is written when the file is created, which would improve the figures of first use.
            if block >= 16 {
                spans.push(clock.now().since(before).0 / 1_000);
            }
        }
    }
    spans.sort_unstable();
    Ok(spans)
}

/// Reads every page back, as recovery does, and returns pages a second.
fn scan(media: &mut FileMedia, clock: &Clock) -> Result<u64, Box<dyn Error>> {
    let before = clock.now();
    let mut frames: Vec<MediaFrame> = (0..512).map(|_| MediaFrame::zeroed()).collect();
    let mut pages =
        (0..BLOCKS).flat_map(|block| (0..64).map(move |page| PageAddress::new(BlockId(block), page)));
    let mut left = u64::from(BLOCKS) * 64;
    let mut done = Vec::new();
    while left > 0 {
        while let Some(frame) = frames.pop() {
            let Some(page) = pages.next() else { break };
            submit(media, MediaOp::Read { page, frame }, before)?;
        }
        media.wait(before);
        media.poll(before, &mut done);
        for answer in done.drain(..) {
            answer.result?;
            frames.extend(answer.frame);
            left -= 1;
        }
    }
    Ok(u64::from(BLOCKS) * 64 * 1_000_000_000 / clock.now().since(before).0)
}

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args().nth(1).ok_or("give a directory to work in as the argument")?;
    let clock = Clock::start();
    println!("{:<44} {:>8} {:>8} {:>8} us", "", "p50", "p99", "max");
    for uring in [UringChoice::Auto, UringChoice::Never] {
        for direct in [DirectChoice::Auto, DirectChoice::Never] {
            for prepare in [ZeroFillMode::Never, ZeroFillMode::Ahead] {
                let options = FileOptions { direct, uring, zero_fill_mode: prepare };
                let work_directory = tempfile::TempDir::new_in(Path::new(&directory))?;
                let mut media = FileMedia::create(
                    work_directory.path(),
                    FlashGeometry::with_blocks(BLOCKS),
                    [1; 16],
                    options,
                )?;
                for round in ["first use", "overwrite"] {
                    let spans = pass(&mut media, &clock)?;
                    let at = |share: usize| spans[(spans.len() - 1) * share / 100];
                    let label = format!("{:?} {:?} {prepare:?} {round}", media.ring_kind(), media.mode());
                    println!("{label:<44} {:>8} {:>8} {:>8}", at(50), at(99), at(100));
                }
                println!("    scan: {} pages/s", scan(&mut media, &clock)?);
            }
        }
    }
    Ok(())
}
