//! Measures the cost of polling paces: reads of several sizes on the latency model, in the machine's time.
//!
//! Input: none. Output: for each size and pace, completions a second, CPU time as a percentage of one processor, and
//! the last sleep. The first pace never sleeps and is the baseline.
//!
//! Run with `cargo run --release -p headwater-io --example polling_period`.
#![expect(clippy::print_stdout, reason = "this program prints its results")]

use headwater_host::clock::{Clock, Nanos};
use headwater_io::backend::DeviceBackend as _;
use headwater_io::command::TransferData;
use headwater_io::completion::{CompletionAggregation, CompletionPolicy, PollPace};
use headwater_io::model::{ModelDevice, ModelSettings, ServiceTimes};
use headwater_io::{Handle, IoRequest, Queue};
use std::error::Error;

const RUN_TIME: Nanos = Nanos::from_millis(400);

fn main() -> Result<(), Box<dyn Error>> {
    for (kib, fixed_us) in [(4, 8), (8, 60), (16, 60), (32, 60), (64, 60)] {
        let service = ServiceTimes {
            fixed: Nanos::from_micros(fixed_us),
            jitter_percent: 5,
            ..ServiceTimes::default()
        };
        for (name, policy) in [
            ("busy", CompletionPolicy::Paced(PollPace::Busy)),
            ("adaptive", CompletionPolicy::Paced(PollPace::Adaptive)),
            ("half, then busy", CompletionPolicy::Paced(PollPace::Part(50))),
            ("every 100 us", CompletionPolicy::Paced(PollPace::Fixed(Nanos::from_micros(100)))),
            ("thread, adaptive", CompletionPolicy::Thread(PollPace::Adaptive, CompletionAggregation::NONE)),
        ] {
            for depth in [1, 8] {
                let (answers, cpu, slept) = run(kib << 10, service, policy, depth)?;
                let second = answers * 1_000_000_000 / RUN_TIME.0;
                let percent = cpu.0 * 100 / RUN_TIME.0;
                println!(
                    "{kib:2} KiB, depth {depth}, {name:16}: {second:6} a second, {percent:3} % of a CPU, slept {slept}"
                );
            }
        }
    }
    Ok(())
}

fn run(
    bytes: usize,
    service: ServiceTimes,
    policy: CompletionPolicy,
    depth: u64,
) -> Result<(u64, Nanos, Nanos), Box<dyn Error>> {
    let mut model = ModelDevice::new(ModelSettings::latency_model(1 << 30, service))?;
    let queue = Queue::over(model.queue(32)?);
    let mut handle = Handle::builder(model.facts()).queue(queue).completion(policy).build()?;
    for token in 0..depth {
        handle.submit(IoRequest::read(0, model.region(bytes)?), token)?;
    }
    let (clock, before) = (Clock::start(), Clock::process_cpu());
    let mut answers = 0;
    while clock.now() < RUN_TIME {
        if let Some(answer) = handle.wait(Some(RUN_TIME))?
            && let TransferData::FromDevice(buffer) = answer.data
        {
            answers += 1;
            handle.submit(IoRequest::read(0, buffer), answer.completion.token)?;
        }
    }
    Ok((answers, Clock::process_cpu().since(before), handle.period()))
}
