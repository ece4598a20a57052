//! Reads of 4 KiB on the null device through a handle, as many as it is told: what `tests/instructions` counts.
//!
//! In: how many reads, how many at a time. Out: nothing, but an error. Its policies are chosen at run time, each buffer is
//! one of the pool's, lent with the request and returned with the answer. It reads no clock, so that a count of its instructions
//! is the same each time.
//!
//! Run with `make test-instructions`, or `cargo run --release -p headwater-io --example null_reads -- 100000 32`.

use headwater_io::backend::Backend as _;
use headwater_io::command::Data;
use headwater_io::completion::CompletionPolicy;
use headwater_io::model::{Model, ModelSettings};
use headwater_io::scheduler::Scheduling;
use headwater_io::{Buffer, Handle, IoError, Queue, Request};
use std::error::Error;
use std::hint::black_box;

const SIZE: u64 = 1 << 30;
const PAGE_BYTES: u64 = 4_096;

fn main() -> Result<(), Box<dyn Error>> {
    let mut numbers = std::env::args().skip(1).map(|number| number.parse::<u32>());
    let (Some(reads), Some(depth)) = (numbers.next().transpose()?, numbers.next().transpose()?) else {
        return Err("null_reads READS DEPTH".into());
    };
    let mut model = Model::new(ModelSettings::null(SIZE))?;
    let queue = Queue::over(model.queue(depth)?);
    let mut handle = Handle::builder(model.facts()).queue(queue).build()?;
    // Chosen at run time, so that nothing of it is known to the compiler.
    handle.set_scheduling(black_box(Scheduling::Fifo));
    handle.set_completion(black_box(CompletionPolicy::Inline))?;
    let free = (0..depth).map(|_| model.region(4_096)).collect::<Result<Vec<_>, _>>()?;
    Ok(read(&mut handle, free, reads)?)
}

/// Fills the queue, takes all answers, and again, until so many reads were answered.
fn read(handle: &mut Handle, mut free: Vec<Buffer>, reads: u32) -> Result<(), IoError> {
    let (mut sent, mut answered) = (0, 0);
    while answered < reads {
        while sent < reads
            && let Some(buffer) = free.pop()
        {
            let offset = u64::from(sent) * PAGE_BYTES % SIZE;
            handle.submit(Request::read(offset, buffer), offset)?;
            sent += 1;
        }
        while let Some(answer) = handle.poll()? {
            answer.completion.ok()?;
            answered += 1;
            if let Data::FromDevice(buffer) = answer.data {
                free.push(buffer);
            }
        }
    }
    Ok(())
}
