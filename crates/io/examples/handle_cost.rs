//! What a 4 KiB read costs through a handle on the null device, and what it costs without one.
//!
//! In: nothing, or one of `pair`, `queue`, `handle` for a profiler. Out: nanoseconds of CPU a read, the least of several
//! rounds, at depth 1 and 32: the floor (a queue pair and its controller's end alone, no buffers, no handle), the queue
//! alone (with buffers), and a handle (policies chosen at run time, buffer lent and returned). All on one thread.
//!
//! Run with `cargo run --release -p headwater-io --example handle_cost`.
#![expect(clippy::print_stdout, reason = "the figures are what this program is for")]

use headwater_host::clock::Clock;
use headwater_io::backend::Backend as _;
use headwater_io::command::{Command, Data};
use headwater_io::completion::CompletionPolicy;
use headwater_io::model::{Model, ModelSettings};
use headwater_io::scheduler::Scheduling;
use headwater_io::{Buffer, Handle, IoError, Queue, Request};
use headwater_nvme::controller::{Fetch, IoQueue, QueueId, QueueKind};
use headwater_nvme::queue_pair::QueuePair;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::status::Status;
use std::error::Error;
use std::hint::black_box;

const ROUNDS: u32 = 200;
const READS: u32 = 20_000;
const SIZE: u64 = 1 << 30;

fn main() -> Result<(), Box<dyn Error>> {
    let only = std::env::args().nth(1);
    for depth in [1, 32] {
        for what in ["pair", "queue", "handle"] {
            if only.as_ref().is_some_and(|only| only != what) {
                continue;
            }
            let cost = match what {
                "pair" => least(pair_round(depth)?)?,
                "queue" => least(queue_round(depth)?)?,
                _ => least(handle_round(depth)?)?,
            };
            println!("depth {depth:2}, {what:6}: {}.{} ns of CPU a read", cost / 10, cost % 10);
        }
    }
    Ok(())
}

/// The least of several rounds, in tenths of a nanosecond of CPU a read.
fn least(mut round: impl FnMut() -> Result<(), IoError>) -> Result<u64, IoError> {
    let mut least = u64::MAX;
    for _ in 0..ROUNDS {
        let before = Clock::thread_cpu();
        round()?;
        least = least.min(Clock::thread_cpu().since(before).0 * 10 / u64::from(READS));
    }
    Ok(least)
}

fn pair_round(depth: u32) -> Result<impl FnMut() -> Result<(), IoError>, Box<dyn Error>> {
    let (mut host, end) = QueuePair::new(depth)?;
    let mut device = IoQueue::new(QueueId(1), QueueKind::Standard, end);
    Ok(move || {
        let mut done = 0;
        while done < READS {
            for _ in 0..depth {
                let _ = black_box(host.submit(SubmissionEntry::default()));
            }
            let _ = host.ring();
            while let Fetch::Command(fetched) = device.fetch() {
                device.complete(fetched.token, 0, Status::SUCCESS);
            }
            while let Some(completion) = host.reap()? {
                done += u32::from(black_box(completion).status.is_success());
            }
        }
        Ok(())
    })
}

fn buffers(model: &mut Model, depth: u32) -> Result<Vec<Buffer>, IoError> {
    (0..depth).map(|_| model.region(4_096)).collect()
}

fn queue_round(depth: u32) -> Result<impl FnMut() -> Result<(), IoError>, Box<dyn Error>> {
    let mut model = Model::new(ModelSettings::null(SIZE))?;
    let mut queue = Queue::over(model.queue(depth)?);
    let mut free = buffers(&mut model, depth)?;
    Ok(move || {
        let mut done = 0;
        while done < READS {
            while let Some(buffer) = free.pop() {
                let lba = u64::from(done) * 8;
                queue.submit(Command::read(1, lba, 512, buffer)?, lba)?;
            }
            while let Some(answer) = queue.poll_with()? {
                done += u32::from(answer.completion.status.is_success());
                if let Data::FromDevice(buffer) = answer.data {
                    free.push(buffer);
                }
            }
        }
        Ok(())
    })
}

fn handle_round(depth: u32) -> Result<impl FnMut() -> Result<(), IoError>, Box<dyn Error>> {
    let mut model = Model::new(ModelSettings::null(SIZE))?;
    let queue = Queue::over(model.queue(depth)?);
    let mut handle = Handle::builder(model.facts()).queue(queue).build()?;
    // Chosen at run time, so that nothing of it is known to the compiler.
    handle.set_scheduling(black_box(Scheduling::Fifo));
    handle.set_completion(black_box(CompletionPolicy::Inline))?;
    let mut free = buffers(&mut model, depth)?;
    Ok(move || {
        let mut done = 0;
        while done < READS {
            while let Some(buffer) = free.pop() {
                let offset = u64::from(done) * 4_096;
                handle.submit(Request::read(offset, buffer), offset)?;
            }
            while let Some(answer) = handle.poll()? {
                done += u32::from(answer.completion.status.is_success());
                if let Data::FromDevice(buffer) = answer.data {
                    free.push(buffer);
                }
            }
        }
        Ok(())
    })
}
