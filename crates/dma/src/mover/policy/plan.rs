//! The decision about a job, and its reason.

use super::channel_traits::CHANNELS_MAX;
use headwater_host::clock::Nanos;

/// The reason of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DecisionReason {
    /// The job is shorter than the threshold of its direction. It is not counted.
    BelowThreshold,
    /// No channel can do the operation.
    NoChannel,
    /// Every channel that can do it has as many jobs as its depth: the CPU does the job.
    AllBusy,
    /// The CPU alone is faster.
    CpuFaster,
    /// One channel does all of it.
    ChannelAlone,
    /// The CPU and one channel each do a part.
    Split,
    /// Several channels do it.
    Scattered,
    /// The CPU and several channels each do a part.
    SplitScattered,
    /// It is done in a way that was not observed for long, so that an engine that became faster is found.
    Explored,
    /// Another way than the fastest, which might end behind the deadline of the job.
    Deadline,
    /// No way is expected to meet the deadline of the job for certain: it is done in the fastest.
    DeadlineMissed,
}

impl DecisionReason {
    /// Every reason.
    pub const ALL: [Self; 11] = [
        Self::BelowThreshold,
        Self::NoChannel,
        Self::AllBusy,
        Self::CpuFaster,
        Self::ChannelAlone,
        Self::Split,
        Self::Scattered,
        Self::SplitScattered,
        Self::Explored,
        Self::Deadline,
        Self::DeadlineMissed,
    ];

    /// Returns the reason as text, for metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BelowThreshold => "below_threshold",
            Self::NoChannel => "no_channel",
            Self::AllBusy => "all_busy",
            Self::CpuFaster => "cpu_faster",
            Self::ChannelAlone => "channel_alone",
            Self::Split => "split",
            Self::Scattered => "scattered",
            Self::SplitScattered => "split_scattered",
            Self::Explored => "explored",
            Self::Deadline => "deadline",
            Self::DeadlineMissed => "deadline_missed",
        }
    }
}

/// The bytes of a job that each engine moves. The CPU has the first ones, the channels follow in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovePlan {
    pub(super) cpu_bytes: u64,
    pub(super) channel_bytes: [u64; CHANNELS_MAX],
    pub(super) flushes: u16,
    pub(super) together: usize,
    pub(super) predicted: Nanos,
    pub(super) reason: DecisionReason,
}

impl MovePlan {
    pub(super) const fn cpu(bytes: u64, predicted: Nanos, reason: DecisionReason) -> Self {
        Self {
            cpu_bytes: bytes,
            channel_bytes: [0; CHANNELS_MAX],
            flushes: 0,
            together: 1,
            predicted,
            reason,
        }
    }

    /// Returns the bytes that the CPU moves.
    #[must_use]
    pub const fn cpu_bytes(&self) -> u64 {
        self.cpu_bytes
    }

    /// Returns the bytes that a channel moves; 0 for a channel that does not exist.
    #[must_use]
    pub fn channel_bytes(&self, channel: usize) -> u64 {
        self.channel_bytes.get(channel).copied().unwrap_or(0)
    }

    /// Returns the channels that move bytes, with their bytes.
    pub fn channel_parts(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.channel_bytes.iter().copied().enumerate().filter(|(_, bytes)| *bytes > 0)
    }

    /// Returns true if what the channel writes must be flushed before it is persistent.
    #[must_use]
    pub const fn needs_flush(&self, channel: usize) -> bool {
        channel < CHANNELS_MAX && self.flushes >> channel & 1 != 0
    }

    /// Returns the engines that move bytes at the time of the job: those of the job, and channels with other jobs in
    /// flight. An [observation](super::MoveObservation) of a part returns it to the policy.
    #[must_use]
    pub const fn together(&self) -> usize {
        self.together
    }

    /// Returns the time in which the policy expects the job to be done; 0 if it was not estimated.
    #[must_use]
    pub const fn predicted(&self) -> Nanos {
        self.predicted
    }

    /// Returns the reason.
    #[must_use]
    pub const fn reason(&self) -> DecisionReason {
        self.reason
    }
}

/// The decisions that a policy took, those below a threshold excepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecisionCounters {
    by_reason: [u64; DecisionReason::ALL.len()],
    /// Decisions while the policy was frozen, which have a reason too.
    pub frozen: u64,
    /// Bytes that the CPU was given.
    pub cpu_bytes: u64,
    /// Bytes that channels were given.
    pub channel_bytes: u64,
}

impl DecisionCounters {
    /// Returns the decisions with a reason.
    #[must_use]
    pub const fn of(&self, reason: DecisionReason) -> u64 {
        self.by_reason[reason as usize]
    }

    /// Returns all decisions.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.by_reason.iter().sum()
    }

    pub(super) fn count(&mut self, plan: &MovePlan, bytes: u64) {
        self.by_reason[plan.reason as usize] += 1;
        self.cpu_bytes += plan.cpu_bytes;
        self.channel_bytes += bytes - plan.cpu_bytes;
    }
}
