//! A list of copies as one job of a mover with a thread beside the caller: gathered, checked, and with one completion.
//!
//! Input: none. Output: the checksum of what was gathered, and the number of parts that the thread did. `mover` copies 16
//! pieces of 64 KiB that lie apart into one buffer, once while it waits, and once while it could do other work.
#![expect(clippy::print_stdout, reason = "this program reports its observations")]

use headwater_dma::mover::policy::PolicyConfig;
use headwater_dma::mover::{MemoryPlace, MoveChannel, MoveMemory};
use headwater_dma::mover::{MoveJob, MoveStep, Mover, SoftwareChannel};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::copy::crc32c;
use std::error::Error;

const PIECES: usize = 16;
const PIECE_BYTES: usize = 64 << 10;
const SPIN: Nanos = Nanos(20_000);
const LONGEST: Nanos = Nanos(1_000_000_000);

/// Describes the gather: every second piece of `source`, one after the other, into `target`.
fn gather(source: Vec<u8>, target: Vec<u8>) -> MoveJob {
    let mut job = MoveJob::new();
    let (source, target) = (job.add_memory(source), job.add_memory(target));
    for piece in 0..PIECES {
        let from = MemoryPlace::new(source, 2 * piece * PIECE_BYTES).range(PIECE_BYTES);
        job.add_step(MoveStep::Copy { from, to: MemoryPlace::new(target, piece * PIECE_BYTES) });
    }
    job
}

/// Takes the memories of a job that has ended: the source and the target.
fn memories(job: MoveJob) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut memories = job.into_memories().into_iter().map(MoveMemory::into_vec);
    Some((memories.next()??, memories.next()??))
}

fn main() -> Result<(), Box<dyn Error>> {
    let clock = Clock::start();
    let thread: Box<dyn MoveChannel> = Box::new(SoftwareChannel::start(clock, SPIN)?);
    let mut mover = Mover::with_channels(vec![thread], PolicyConfig::default(), clock);
    let source: Vec<u8> = (0..251_u8).cycle().take(2 * PIECES * PIECE_BYTES).collect();
    let expected =
        (0..PIECES).fold(0, |crc, piece| crc32c(crc, &source[2 * piece * PIECE_BYTES..][..PIECE_BYTES]));

    // The caller and the thread share the steps; the call returns when all are done.
    let mut job = gather(source, vec![0; PIECES * PIECE_BYTES]);
    mover.run(&mut job)?;
    let (source, mut target) = memories(job).ok_or("a job returns its memories")?;
    assert_eq!(crc32c(0, &target), expected);

    // One engine does the job; the caller may poll the ticket, or wait for it.
    target.fill(0);
    let ticket = mover.start(gather(source, target))?;
    let job = mover.wait(&ticket, LONGEST).ok_or("the job has not ended after a second")?;
    let (_, target) = memories(job).ok_or("a job returns its memories")?;
    assert_eq!(crc32c(0, &target), expected);
    println!("gathered {} bytes twice, CRC-32C {expected:08x}", target.len());
    println!("channels: {:?}", mover.channel_counters());
    Ok(())
}
