//! Reads 4 KiB blocks on the null device through a handle, for `tests/instructions` to count instructions.
//!
//! Input: the number of reads, and the number in flight. Output: none except errors. The policies are chosen at run
//! time; each buffer is from the pool, lent with the request and returned with the completion. It reads no clock, so
//! that its instruction count is the same each time.
//!
//! Run with `make test-instructions`, or `cargo run --release -p headwater-io --example null_reads -- 100000 32`.

use headwater_io::backend::DeviceBackend as _;
use headwater_io::command::TransferData;
use headwater_io::completion::CompletionPolicy;
use headwater_io::model::{ModelDevice, ModelSettings};
use headwater_io::scheduler::SchedulingPolicy;
use headwater_io::{Buffer, Handle, IoError, IoRequest, Queue};
use std::error::Error;
use std::hint::black_box;

const SIZE: u64 = 1 << 30;
const PAGE_BYTES: u64 = 4_096;

fn main() -> Result<(), Box<dyn Error>> {
    let mut numbers = std::env::args().skip(1).map(|number| number.parse::<u32>());
    let (Some(reads), Some(depth)) = (numbers.next().transpose()?, numbers.next().transpose()?) else {
        return Err("null_reads READS DEPTH".into());
    };
    let mut model = ModelDevice::new(ModelSettings::null_device(SIZE))?;
    let queue = Queue::over(model.queue(depth)?);
    let mut handle = Handle::builder(model.facts()).queue(queue).build()?;
    // Chosen at run time, so that the compiler cannot specialise for the policies.
    handle.set_scheduling(black_box(SchedulingPolicy::Fifo));
    handle.set_completion(black_box(CompletionPolicy::Inline))?;
    let free = (0..depth).map(|_| model.region(4_096)).collect::<Result<Vec<_>, _>>()?;
    Ok(read(&mut handle, free, reads)?)
}

/// Fills the queue and takes all completions, until this many reads have completed.
fn read(handle: &mut Handle, mut free: Vec<Buffer>, reads: u32) -> Result<(), IoError> {
    let (mut sent, mut answered) = (0, 0);
    while answered < reads {
        while sent < reads
            && let Some(buffer) = free.pop()
        {
            let offset = u64::from(sent) * PAGE_BYTES % SIZE;
            handle.submit(IoRequest::read(offset, buffer), offset)?;
            sent += 1;
        }
        while let Some(answer) = handle.poll()? {
            answer.completion.into_result()?;
            answered += 1;
            if let TransferData::FromDevice(buffer) = answer.data {
                free.push(buffer);
            }
        }
    }
    Ok(())
}
