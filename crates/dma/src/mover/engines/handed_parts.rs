//! The parts of a job: handed to channels that can do them, or kept for the CPU.
//!
//! Input: a job, and the shares of a plan. Output: the job with the first steps, which the CPU does, and the parts behind it, the
//! last one first. Invariant: every step is in one part, or in the job; a part of a job that may be split has operations alone that
//! its channel can do.

use super::MoveEngines;
use crate::mover::MoveJob;
use crate::mover::job::MoveStep;
use crate::mover::policy::{ChannelLoad, JobSplit, MovePlan};
use crate::mover::split::JobRest;
use headwater_host::clock::Nanos;
use std::ops::Range;

/// A part of a job that was split off.
#[derive(Debug)]
pub(super) enum HandedPart {
    /// A channel does it.
    OnChannel(PartInFlight),
    /// The CPU does it: steps behind those of a channel, which cannot do them.
    Kept { job: MoveJob, rest: JobRest },
}

/// A part of a job on a channel.
#[derive(Debug)]
pub(super) struct PartInFlight {
    pub(super) token: u64,
    pub(super) channel: usize,
    pub(super) bytes: u64,
    pub(super) ahead: ChannelLoad,
    pub(super) rest: JobRest,
}

impl MoveEngines {
    /// Gives the parts of a plan to their channels, the last steps first. The job keeps what the CPU does.
    ///
    /// A part with an operation that its channel cannot do goes to a channel whose part stands before it, which gets that one
    /// instead, if this one can do it all. Else the channel gets the last steps in a row that it can do: the CPU keeps those
    /// behind them, and those before them belong to the next part. A job that cannot be split goes to its channel as it is, which
    /// leaves some of its steps to the CPU.
    pub(super) fn hand_out(
        &mut self,
        job: &mut MoveJob,
        plan: &MovePlan,
        split: JobSplit,
        now: Nanos,
    ) -> Vec<HandedPart> {
        let mut parts = Vec::new();
        let mut before = job.bytes() as u64;
        let (mut channels, shares): (Vec<usize>, Vec<u64>) = plan.channel_parts().unzip();
        for nth in (0..channels.len()).rev() {
            before = before.saturating_sub(shares[nth]);
            let planned = step_at(job, before)..job.steps().len();
            if planned.is_empty() {
                continue;
            }
            let given = match split {
                JobSplit::Allowed => self.choose_channel(job, &planned, &mut channels[..=nth]),
                JobSplit::Forbidden => planned.clone(),
            };
            if given.is_empty() {
                continue;
            }
            // What stands before a part that is not split off is not split off either: its channel would get these steps too.
            if given.end < planned.end {
                let Some((kept, rest)) = self.split(job, given.end) else { break };
                parts.push(HandedPart::Kept { job: kept, rest });
            }
            let Some((part, rest)) = self.split(job, given.start) else { break };
            let channel = channels[nth];
            let (token, bytes, ahead) = (self.token(), part.bytes() as u64, self.channels[channel].load);
            if let Some(refused) = self.submit(channel, part, plan, (token, now)) {
                job.join(refused, rest);
                break;
            }
            parts.push(HandedPart::OnChannel(PartInFlight { token, channel, bytes, ahead, rest }));
        }
        parts
    }

    /// Does what the CPU has of a job: its first steps, and the parts that no channel got. Returns their bytes.
    pub(super) fn run_kept(&self, job: &mut MoveJob, parts: &mut [HandedPart]) -> u64 {
        let mut bytes = job.bytes() as u64;
        self.clock.run_by_cpu(job);
        for part in parts {
            if let HandedPart::Kept { job, .. } = part {
                bytes += job.bytes() as u64;
                self.clock.run_by_cpu(job);
            }
        }
        bytes
    }

    /// Returns the steps of a planned part that the last one of `channels` gets, which changes its place with the first one in front
    /// of it that can do the whole part, if it cannot.
    fn choose_channel(
        &mut self,
        job: &MoveJob,
        planned: &Range<usize>,
        channels: &mut [usize],
    ) -> Range<usize> {
        let Some((chosen, earlier)) = channels.split_last_mut() else { return 0..0 };
        let given = self.permitted_steps(job, planned, *chosen);
        if given == *planned {
            return given;
        }
        self.counters.not_permitted += 1;
        let can_do = |channel: &&mut usize| self.permitted_steps(job, planned, **channel) == *planned;
        match earlier.iter_mut().rev().find(can_do) {
            Some(able) => {
                std::mem::swap(chosen, able);
                planned.clone()
            }
            None => given,
        }
    }

    /// Returns the last steps in a row of a planned part that a channel can do.
    fn permitted_steps(&self, job: &MoveJob, planned: &Range<usize>, channel: usize) -> Range<usize> {
        let operations = self.policy.operations(channel);
        let can_do = |step: &MoveStep| operations.contains(step.operation());
        let steps = &job.steps()[planned.clone()];
        let end = steps.iter().rposition(can_do).map_or(0, |last| last + 1);
        let start = steps[..end].iter().rposition(|step| !can_do(step)).map_or(0, |last| last + 1);
        planned.start + start..planned.start + end
    }

    /// Splits the steps from `at` on off, and counts a job with which that cannot be done.
    fn split(&mut self, job: &mut MoveJob, at: usize) -> Option<(MoveJob, JobRest)> {
        let split = job.split_off(at);
        self.counters.not_split += u64::from(split.is_none());
        split
    }
}

/// Returns the number of the step whose begin is closest to `bytes` bytes of the job.
fn step_at(job: &MoveJob, bytes: u64) -> usize {
    let mut before = 0;
    for (nth, step) in job.steps().iter().enumerate() {
        let after = before + step.bytes() as u64;
        if after > bytes {
            return if bytes - before <= after - bytes { nth } else { nth + 1 };
        }
        before = after;
    }
    job.steps().len()
}
