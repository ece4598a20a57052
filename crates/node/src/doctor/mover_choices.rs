//! The choices of a mover on this machine: the time of each channel by size, and the engine that the policy chooses, with its
//! reason.
//!
//! Input: a number of threads, and the work queues of DSA devices and GPUs that this process can open. Output: one row a size.
//! Invariant: the policy has the settings of a node's, learns from jobs of this process alone, and is frozen before it is asked.

use super::mover::{SIZES, SPIN, time_of};
use crate::config::ByteSize;
use crate::daemon::node_gpus::NodeGpus;
use crate::daemon::node_mover::{open_work_queues, policy_config};
use bytes::Bytes;
use headwater_dma::mover::policy::{DecisionReason, MovePlan, WorkShape};
use headwater_dma::mover::{
    ChannelStartError, JobEnd, MemoryPlace, MoveChannel, MoveJob, MoveStep, Mover, SoftwareChannel,
};
use headwater_dma::pool::{Pool, PoolConfig};
use headwater_host::clock::{Clock, Nanos};
use serde::Serialize;
use std::fmt;

/// Jobs have a piece for each page, as those of a node.
const PAGE_BYTES: usize = 4_096;
/// The bytes of the pool that has the memories of all jobs.
const POOL_BYTES: usize = 64 << 20;
/// The time for which the policy learns each size.
const LEARN: Nanos = Nanos::from_millis(12);

/// The engine for one size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChoiceRow {
    /// The size.
    pub bytes: u64,
    /// The time of the CPU alone, in nanoseconds.
    pub cpu_ns: u64,
    /// The time of each channel alone; `None` for one that did not do the job.
    pub channel_ns: Vec<Option<u64>>,
    /// The time of the mover.
    pub mover_ns: u64,
    /// The share of the bytes that channels were given while the mover was timed, in percent: less than the choice if one rests
    /// because it held up its owner.
    pub channels_percent: u64,
    /// The bytes that the CPU moves.
    pub cpu_bytes: u64,
    /// The bytes that each channel moves.
    pub channel_bytes: Vec<u64>,
    /// The reason of the decision: the label of `headwater_move_decisions_total`.
    pub reason: &'static str,
    /// The reason as a sentence.
    pub why: &'static str,
}

/// The choices of a mover with the channels of this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MoverChoices {
    /// The names of the channels.
    pub channels: Vec<String>,
    /// One row for each size.
    pub rows: Vec<ChoiceRow>,
}

impl MoverChoices {
    /// Measures the channels alone, then lets a mover with all of them learn. Returns `None` without a channel.
    ///
    /// # Errors
    /// [`ChannelStartError`] if the system has no thread for one of the channels.
    pub fn measure(threads: u8, clock: Clock) -> Result<Option<Self>, ChannelStartError> {
        let mut channels: Vec<Box<dyn MoveChannel>> = Vec::new();
        let mut names = Vec::new();
        for thread in 0..threads {
            channels.push(Box::new(SoftwareChannel::start(clock, SPIN)?));
            names.push(format!("thread {thread}"));
        }
        // The findings of the report say why there is no work queue and no GPU.
        let queues = open_work_queues(&mut channels).unwrap_or_default();
        let gpus = NodeGpus::open_all().ok();
        let opened =
            gpus.as_ref().and_then(|gpus| gpus.open_channels(&mut channels).ok()).unwrap_or_default();
        let config = policy_config(threads, !queues.is_empty(), !opened.is_empty());
        names.extend(queues.into_iter().chain(opened));
        if channels.is_empty() {
            return Ok(None);
        }
        let pool = gpus.as_ref().and_then(registered_pool);
        let job_in_pages = |bytes| job_in_pages(bytes, pool.as_ref());
        let alone = SIZES.map(|bytes| {
            channels
                .iter_mut()
                .map(|channel| channel_time(channel.as_mut(), clock, job_in_pages(bytes)))
                .collect()
        });
        let mut mover = Mover::with_channels(channels, config, clock);
        let mut jobs = SIZES.map(job_in_pages);
        for job in &mut jobs {
            let begun = clock.now();
            while clock.now().since(begun) < LEARN {
                run(&mut mover, job);
            }
        }
        if let Some(policy) = mover.policy_mut() {
            policy.freeze();
        }
        let rows = SIZES.iter().zip(&mut jobs).zip(alone).map(|((bytes, job), channel_ns)| {
            let (mut runs, given) = (0, mover.channel_counters().channel_bytes);
            let mover_ns = time_of(clock, || {
                run(&mut mover, job);
                runs += 1;
            });
            let given = mover.channel_counters().channel_bytes - given;
            let channels_percent = given * 100 / (runs * *bytes as u64).max(1);
            let cpu_ns = time_of(clock, || run(&mut Mover::default(), job));
            let plan =
                mover.policy().map(|policy| policy.clone().decide(&WorkShape::copy(*bytes as u64), &[]));
            let row = ChoiceRow::new(*bytes as u64, (cpu_ns, mover_ns), channel_ns, plan.as_ref());
            ChoiceRow { channels_percent, ..row }
        });
        let rows = rows.collect();
        Ok(Some(Self { channels: names, rows }))
    }
}

impl ChoiceRow {
    fn new(
        bytes: u64,
        (cpu_ns, mover_ns): (u64, u64),
        channel_ns: Vec<Option<u64>>,
        plan: Option<&MovePlan>,
    ) -> Self {
        let reason = plan.map_or(DecisionReason::NoChannel, MovePlan::reason);
        Self {
            bytes,
            cpu_ns,
            mover_ns,
            channels_percent: 0,
            cpu_bytes: plan.map_or(bytes, MovePlan::cpu_bytes),
            channel_bytes: (0..channel_ns.len())
                .map(|channel| plan.map_or(0, |plan| plan.channel_bytes(channel)))
                .collect(),
            channel_ns,
            reason: reason.name(),
            why: sentence(reason),
        }
    }
}

impl ChoiceRow {
    /// Returns true if channels moved a part, and the mover took longer than the CPU alone by a fifth.
    fn is_slower(&self) -> bool {
        self.channels_percent > 0 && self.mover_ns > self.cpu_ns + self.cpu_ns / 5
    }
}

const fn sentence(reason: DecisionReason) -> &'static str {
    match reason {
        DecisionReason::BelowThreshold => "shorter than the threshold",
        DecisionReason::NoChannel => "no channel does copies",
        DecisionReason::AllBusy => "every channel is busy",
        DecisionReason::CpuFaster => "the CPU alone ends first",
        DecisionReason::ChannelAlone => "one channel alone ends first",
        DecisionReason::Split => "the CPU and one channel together end first",
        DecisionReason::Scattered => "several channels together end first",
        DecisionReason::SplitScattered => "the CPU and several channels together end first",
        DecisionReason::Explored => "another way is tried",
        DecisionReason::Deadline => "an engine might miss the deadline",
        DecisionReason::DeadlineMissed => "no engine meets the deadline",
    }
}

fn run(mover: &mut Mover, job: &mut MoveJob) {
    mover.run(job).expect("the steps of the job name ranges of its memories");
}

/// Returns a pool whose memory GPUs can reach; `None` if the driver refuses it.
fn registered_pool(gpus: &NodeGpus) -> Option<Pool> {
    let config = PoolConfig { cap: POOL_BYTES, cap_max: POOL_BYTES, ..PoolConfig::default() };
    let pool = Pool::open(gpus.pool_config(config)).ok()?;
    pool.buffer(PAGE_BYTES).is_ok().then_some(pool)
}

/// Returns a job of so many bytes, from one memory to pages: of the pool, as far as there is one with room.
fn job_in_pages(bytes: usize, pool: Option<&Pool>) -> MoveJob {
    let buffer = |bytes| pool.and_then(|pool| pool.buffer(bytes).ok());
    let mut job = MoveJob::new();
    let from = match buffer(bytes) {
        Some(registered) => job.add_memory(registered),
        None => job.add_memory(Bytes::from(vec![1; bytes])),
    };
    for at in (0..bytes).step_by(PAGE_BYTES) {
        let to = match buffer(PAGE_BYTES) {
            Some(registered) => job.add_memory(registered),
            None => job.add_memory(vec![0; PAGE_BYTES]),
        };
        let from = MemoryPlace::new(from, at).range(PAGE_BYTES);
        job.add_step(MoveStep::Copy { from, to: MemoryPlace::new(to, 0) });
    }
    job
}

/// Returns a job of one copy of so many bytes.
pub(super) fn whole_job(bytes: usize) -> MoveJob {
    let mut job = MoveJob::new();
    job.add_memory(vec![1; bytes]);
    job.add_memory(vec![0; bytes]);
    job.add_step(MoveStep::Copy { from: MemoryPlace::new(0, 0).range(bytes), to: MemoryPlace::new(1, 0) });
    job
}

/// Returns the time of a job on a channel, from the submission to its end; `None` if the channel refused or abandoned it.
pub(super) fn channel_time(channel: &mut dyn MoveChannel, clock: Clock, job: MoveJob) -> Option<u64> {
    let steps = job.steps().to_vec();
    let (mut job, mut is_done) = (Some(job), true);
    let nanos = time_of(clock, || {
        let Some(mut next) = job.take() else { return };
        // A channel gets jobs without results.
        let memories: Vec<_> = next.drain_memories().collect();
        memories.into_iter().for_each(|memory| {
            next.add_memory(memory);
        });
        steps.iter().for_each(|step| next.add_step(*step));
        job = match channel.submit(0, next, clock.now()) {
            Ok(()) => loop {
                if let Some(ended) = channel.poll(clock.now()) {
                    is_done &= ended.end == JobEnd::Done;
                    break Some(ended.job);
                }
                std::hint::spin_loop();
            },
            Err(refused) => {
                is_done = false;
                Some(refused.job)
            }
        };
    });
    is_done.then_some(nanos)
}

impl fmt::Display for MoverChoices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "Choices of a mover with these channels for a copy in pages of 4 KiB; times in microseconds. On channels: the share that \
             they were given while the mover was timed; one that holds up its owner rests for a while."
        )?;
        write!(f, "{:>10}{:>12}", "size", "CPU alone")?;
        for name in &self.channels {
            write!(f, "{name:>12}")?;
        }
        writeln!(f, "{:>12}{:>13}  choice", "mover", "on channels")?;
        for row in &self.rows {
            write!(f, "{:>10}{:>12}", ByteSize(row.bytes).to_string(), micros(row.cpu_ns))?;
            for nanos in &row.channel_ns {
                write!(f, "{:>12}", nanos.map_or_else(|| "-".to_owned(), micros))?;
            }
            write!(f, "{:>12}{:>11} %  ", micros(row.mover_ns), row.channels_percent)?;
            let channels = self.channels.iter().map(String::as_str).zip(row.channel_bytes.iter().copied());
            let parts = std::iter::once(("CPU", row.cpu_bytes)).chain(channels);
            let parts = parts.filter(|(_, bytes)| *bytes > 0);
            let parts: Vec<String> =
                parts.map(|(name, bytes)| format!("{name} {} %", bytes * 100 / row.bytes.max(1))).collect();
            let slower = if row.is_slower() { "; SLOWER than the CPU alone now" } else { "" };
            writeln!(f, "{}: {}{slower}", parts.join(", "), row.why)?;
        }
        if self.rows.iter().any(ChoiceRow::is_slower) {
            writeln!(
                f,
                "  slower: the policy expects what a channel takes when it has its engine; threads without an idle core do not"
            )?;
        }
        Ok(())
    }
}

/// Returns a time in microseconds, with two digits.
fn micros(nanos: u64) -> String {
    format!("{}.{:02}", nanos / 1_000, nanos % 1_000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_sim::move_model::policy_run::channel_traits;
    use headwater_sim::move_model::study_machines::{NO_CEILING, dsa_setup};
    use headwater_sim::move_model::{ChannelFaults, ModelledMachine};

    #[test]
    fn choices_of_a_mover_with_threads_have_every_byte_and_a_reason() {
        let choices = MoverChoices::measure(2, Clock::start()).unwrap().unwrap();
        assert_eq!(choices.channels, ["thread 0", "thread 1"]);
        assert_eq!(choices.rows.len(), SIZES.len());
        for row in &choices.rows {
            let sum = row.cpu_bytes + row.channel_bytes.iter().sum::<u64>();
            assert_eq!((sum, row.channel_ns.len()), (row.bytes, 2), "{row:?}");
            assert!(row.channel_ns.iter().all(Option::is_some), "{row:?}");
            assert_eq!(row.reason == "below_threshold", row.bytes < 16_384, "{row:?}");
            let most = if row.bytes < 16_384 { 0 } else { 100 };
            assert!(row.channels_percent <= most, "{row:?}");
            let known = DecisionReason::ALL.into_iter().find(|reason| reason.name() == row.reason).unwrap();
            assert_eq!(row.why, sentence(known));
        }
        let text = choices.to_string();
        for what in ["thread 1", "4 KiB", "4 MiB", "CPU 100 %: shorter than the threshold"] {
            assert!(text.contains(what), "{what} is missing in\n{text}");
        }
    }

    #[test]
    fn shares_of_engines_are_written_beside_the_reason() {
        let row = ChoiceRow {
            bytes: 65_536,
            cpu_ns: 12_340,
            channel_ns: vec![Some(20_000), None],
            mover_ns: 9_009,
            channels_percent: 24,
            cpu_bytes: 49_152,
            channel_bytes: vec![16_384, 0],
            reason: "split",
            why: sentence(DecisionReason::Split),
        };
        let text =
            MoverChoices { channels: vec!["thread 0".into(), "wq0.0".into()], rows: vec![row.clone()] }
                .to_string();
        let line = text.lines().last().unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        let expected = "64 KiB 12.34 20.00 - 9.00 24 % CPU 75 %, thread 0 25 %: the CPU and one channel together end first";
        assert_eq!(line, expected);
        let slow = ChoiceRow { mover_ns: 15_000, ..row.clone() };
        let all = ChoiceRow { channels_percent: 0, ..slow.clone() };
        assert_eq!([row.is_slower(), slow.is_slower(), all.is_slower()], [false, true, false]);
        let text =
            MoverChoices { channels: vec!["thread 0".into(), "wq0.0".into()], rows: vec![slow] }.to_string();
        assert!(
            text.contains("SLOWER than the CPU alone now") && text.contains("threads without an idle core"),
            "{text}"
        );
    }

    #[test]
    fn channel_that_refuses_has_no_time() {
        let setup = dsa_setup(1, NO_CEILING);
        let machine = ModelledMachine::new(setup.machine.clone(), setup.costs, 1);
        let time = |refused_share| {
            let faults = ChannelFaults { refused_share, ..ChannelFaults::default() };
            let traits = |channel: usize| channel_traits(&setup.machine.channels[channel]);
            let mut channels = machine.channels(traits, faults, 1);
            channel_time(channels[0].as_mut(), Clock::start(), job_in_pages(16_384, None))
        };
        assert_eq!(time(1.0), None);
        assert!(time(0.0).is_some());
    }

    #[test]
    fn report_without_channels_has_no_choices() {
        assert_eq!(MoverChoices::measure(0, Clock::start()).unwrap(), None);
    }
}
