//! Measures the cost of one command on queue pairs in one process: submit, ring, fetch, complete, ring, reap.
//!
//! Input: none. Output: nanoseconds per command, the minimum of several rounds, for some depths and numbers of queues.
//! Both ends run on one thread, so that neither waits for the other and the figure contains only the work itself.
//!
//! Run with `cargo run --release -p headwater-nvme --example pair_speed`.
#![expect(clippy::print_stdout, reason = "this program prints its figures")]

use headwater_host::clock::Clock;
use headwater_nvme::controller::{ControllerQueuePair, QueueArbiter, QueueId, QueueKind};
use headwater_nvme::queue_pair::QueuePair;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::status::Status;
use std::error::Error;
use std::num::NonZeroU16;

const COMMANDS: u32 = 20_000;
const ROUNDS: usize = 300;

fn main() -> Result<(), Box<dyn Error>> {
    let clock = Clock::start();
    for (queues, depth) in [(1_u16, 1_u32), (1, 32), (4, 32), (64, 8)] {
        let mut arbiter = QueueArbiter::new(NonZeroU16::try_from(32)?);
        let mut hosts = Vec::new();
        for id in 1..=queues {
            let (host, end) = QueuePair::new(depth)?;
            arbiter.add(ControllerQueuePair::new(QueueId(id), QueueKind::Standard, end))?;
            hosts.push(host);
        }
        let mut least = u64::MAX;
        for _ in 0..ROUNDS {
            let start = clock.now();
            let mut done = 0;
            while done < COMMANDS {
                for host in &mut hosts {
                    while host.submit(SubmissionEntry::default(), ()).is_ok() {}
                    let _ = host.ring();
                }
                while let Some(fetched) = arbiter.fetch() {
                    arbiter.complete(fetched.token, 0, Status::SUCCESS);
                }
                arbiter.ring(|_| ());
                for host in &mut hosts {
                    while host.reap()?.is_some() {
                        done += 1;
                    }
                }
            }
            least = least.min(clock.now().since(start).0 * 10 / u64::from(done));
        }
        println!("{queues:3} queues of depth {depth:3}: {}.{} ns per command", least / 10, least % 10);
    }
    Ok(())
}
