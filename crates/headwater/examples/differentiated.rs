//! Figure 4 of the `NVMeDirect` paper on any device: four users of one device, one of them with better service.
//!
//! Input: `differentiated URL SECONDS`. Output: writes a second of each user, a JSON row for each queue layout: a queue
//! for each user (non-boosted), one queue for the first user and one shared by the other three (boosted), and, for a
//! device opened with `weights=`, the same with queues of the classes high and low (boosted, WRR). Each user keeps four
//! random writes of 4 KiB in flight. The contents of the device are lost.
//!
//! The users are four handles that one thread drives in turn, so that the machine's processors do not decide their
//! order.
#![expect(clippy::print_stdout, reason = "the results are the output of this program")]

use headwater::host::clock::{Clock, Nanos};
use headwater::{Device, Handle, IoRequest, QueuePriority, SharedQueue, TransferData, WriteDurability};
use std::error::Error;
use std::process::ExitCode;

type ExampleResult<T> = Result<T, Box<dyn Error + Send + Sync>>;

const USERS: usize = 4;
const IN_FLIGHT: u32 = 4;
const BYTES: usize = 4_096;

/// The assignment of queues to users.
#[derive(Clone, Copy)]
enum QueueLayout {
    NonBoosted,
    Boosted,
    Weighted,
}

impl QueueLayout {
    fn name(self) -> &'static str {
        match self {
            Self::NonBoosted => "non-boosted",
            Self::Boosted => "boosted",
            Self::Weighted => "boosted, WRR",
        }
    }

    /// Creates the handles of the users, the boosted one first.
    fn handles(self, device: &mut Device) -> ExampleResult<Vec<Handle>> {
        let facts = device.namespace().clone();
        let shared_depth = u32::try_from(USERS - 1)? * IN_FLIGHT;
        let (first, shared) = match self {
            Self::NonBoosted => {
                let own = (0..USERS)
                    .map(|_| Ok(Handle::builder(&facts).queue(device.queue(IN_FLIGHT)?).build()?));
                return own.collect();
            }
            Self::Boosted => (device.queue(IN_FLIGHT)?, device.queue(shared_depth)?),
            Self::Weighted => (
                device.queue_of_class(IN_FLIGHT, QueuePriority::High)?,
                device.queue_of_class(shared_depth, QueuePriority::Low)?,
            ),
        };
        let shared = SharedQueue::new(shared);
        let mut handles = vec![Handle::builder(&facts).queue(first).build()?];
        for _ in 1..USERS {
            handles.push(Handle::builder(&facts).queue(shared.clone()).build()?);
        }
        Ok(handles)
    }
}

/// Runs one layout and returns the writes a second of each user.
fn run_layout(way: QueueLayout, device: &mut Device, span: Nanos) -> ExampleResult<[f64; USERS]> {
    let pages = device.namespace().size * u64::from(device.namespace().block_bytes) / BYTES as u64;
    let mut handles = way.handles(device)?;
    let mut free = Vec::new();
    for _ in 0..USERS {
        let buffers = (0..IN_FLIGHT).map(|_| device.buffer(BYTES));
        free.push(buffers.collect::<Result<Vec<_>, _>>()?);
    }
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut counts = [0_u32; USERS];
    let clock = Clock::start();
    while clock.now() < span {
        for ((handle, free), count) in handles.iter_mut().zip(&mut free).zip(&mut counts) {
            while let Some(buffer) = free.pop() {
                random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
                let offset = (random >> 16) % pages * BYTES as u64;
                handle.submit(IoRequest::write(offset, buffer, WriteDurability::NamespaceDefault), 0)?;
            }
            while let Some(answer) = handle.poll()? {
                answer.completion.into_result()?;
                *count += 1;
                if let TransferData::ToDevice(buffer) = answer.data {
                    free.push(buffer);
                }
            }
        }
    }
    let took = clock.now().to_duration();
    Ok(counts.map(|count| f64::from(count) / took.as_secs_f64()))
}

fn run() -> ExampleResult<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, seconds] = &arguments[..] else {
        return Err("differentiated URL SECONDS".into());
    };
    let span = Nanos::from_millis(seconds.parse::<u64>()?.saturating_mul(1_000));
    let mut device = Device::open(url)?;
    let weighted = url.contains("weights=").then_some(QueueLayout::Weighted);
    for way in [QueueLayout::NonBoosted, QueueLayout::Boosted].into_iter().chain(weighted) {
        let [first, rest @ ..] = run_layout(way, &mut device, span)?;
        let best = rest.iter().copied().fold(0.0, f64::max);
        println!(
            "{{\"figure\":\"4\",\"way\":\"{}\",\"first\":{first:.0},\"rest\":[{:.0},{:.0},{:.0}],\"beside_the_best_other\":{:.2}}}",
            way.name(),
            rest[0],
            rest[1],
            rest[2],
            first / best
        );
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}
