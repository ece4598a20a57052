//! A channel to a DSA work queue. **Not yet run on silicon.**
//!
//! ```text
//!  submit --> round of operations --> device --> settled: next round | done | abandoned --poll--> mover
//!                 full: refused        |  page fault, error, no record: the CPU does these bytes
//!                                      |  overdue: drain --> what is lost is abandoned
//!                                      |  no answer to the drain: stop begun --> stopped: all is abandoned
//! ```
//! Input: checked jobs. Output: the jobs, done, or abandoned behind some steps. Invariant: a job and its memories belong to the
//! queue from its submission until the device cannot write to them any more, so that a late write never meets memory that was
//! freed or used again; each job returns once.
//!
//! A job is done in rounds: each is one descriptor, a batch, or some descriptors side by side. What the device did not do of a
//! round, the CPU does, in the order of the steps; so the next round finds what it needs.
//!
//! # What is trusted
//! The device writes the record of a batch last, and ends a batch at a fence behind a failure, as its specification says. A
//! partly computed CRC is not used: the CPU repeats that piece.
//!
//! A work queue can permit a part of the operations of its device. A job with none of them is refused; in one with some of them the
//! CPU does the steps between.
//!
//! # What this does not do
//! It takes no job back, and it does not wake a sleeping owner: user work queues have no interrupts. An owner with jobs in flight
//! polls.

mod counters;
mod round;
mod settle;

pub use counters::{DsaCounters, DsaCountersReader};

use super::MoveJob;
use super::channel::{ChannelRefusal, EndedJob, JobEnd, MoveChannel, PageFaultCounters, RefusedJob};
use super::channel_job::ChannelJob;
use super::policy::{CacheWrites, ChannelTraits, MoveOperation, OperationSet};
use super::prefault::{prefault_sources, prefault_targets};
use headwater_host::clock::Nanos;
use headwater_host::dsa::{
    DsaInstructions, DsaOpcode, DsaOpcodeSet, DsaQueue, OpenQueueError, QueuedOperation, SoftwarePortal,
    SubmissionWay, WorkQueueInfo, WorkRefusal,
};
use headwater_host::numa::NodeId;
use headwater_host::wake::{WakeDescriptor, WakeError};
use round::{RoundPlan, RoundPlanner};
use std::collections::VecDeque;
use std::os::fd::{AsFd as _, BorrowedFd};

/// The time that a device gets beside [`DsaConfig::patience`] for each byte: a slow one moves a byte in a nanosecond.
const PATIENCE_PER_BYTE: Nanos = Nanos(10);

/// The bytes of a job's lent targets, and of its lent sources, that are made present at its submission, which the submitting
/// thread waits for. Vectors count apart: all of what the device is to write of them is, as the CPU fills that with zeroes.
const PREFAULT_BYTES_MAX: usize = 1 << 20;

/// The settings of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DsaConfig {
    /// The times that a submission to a full queue is repeated at once.
    pub full_retries: u32,
    /// The time after which an operation without a record is looked for by a drain, and a drain without one by a stop.
    pub patience: Nanos,
}

impl Default for DsaConfig {
    fn default() -> Self {
        Self { full_retries: 32, patience: Nanos::from_millis(2_000) }
    }
}

/// The reason that a channel was not opened.
#[derive(Debug, thiserror::Error)]
pub enum DsaChannelError {
    /// The work queue cannot be opened.
    #[error(transparent)]
    Queue(#[from] OpenQueueError),
    /// The system has no descriptor.
    #[error("a channel to a DSA work queue has no wake descriptor: {0}")]
    Wake(#[from] WakeError),
}

/// A round in flight.
#[derive(Clone, Copy, Debug)]
struct RoundDeadline {
    token: u64,
    at: Nanos,
}

/// A channel to a DSA work queue.
#[derive(Debug)]
pub struct DsaChannel {
    queue: DsaQueue<ChannelJob>,
    opcodes: DsaOpcodeSet,
    node: Option<NodeId>,
    config: DsaConfig,
    deadlines: Vec<RoundDeadline>,
    /// Jobs whose first piece the CPU must do.
    unplanned: VecDeque<(u64, ChannelJob)>,
    ended: VecDeque<EndedJob>,
    /// The time until which a drain must have ended.
    drain_until: Option<Nanos>,
    /// True behind an error after which the device is not used any more.
    is_failing: bool,
    counters: DsaCountersReader,
    /// Never signalled.
    wake: WakeDescriptor,
}

impl DsaChannel {
    /// Opens a channel to a work queue of a device. Not yet run on silicon.
    ///
    /// # Errors
    /// [`DsaChannelError`] names the cause and the remedy.
    pub fn open(
        queue: &WorkQueueInfo,
        instructions: DsaInstructions,
        config: DsaConfig,
    ) -> Result<Self, DsaChannelError> {
        let opened = DsaQueue::open(queue, instructions)?;
        Ok(Self::new(opened, queue.opcodes, queue.node, config)?)
    }

    /// Takes a software portal as the device.
    ///
    /// # Errors
    /// [`DsaChannelError`] if the system has no descriptor left.
    pub fn software(portal: SoftwarePortal, config: DsaConfig) -> Result<Self, DsaChannelError> {
        let opcodes = portal.opcodes();
        Ok(Self::new(DsaQueue::software(portal), opcodes, None, config)?)
    }

    fn new(
        queue: DsaQueue<ChannelJob>,
        opcodes: DsaOpcodeSet,
        node: Option<NodeId>,
        config: DsaConfig,
    ) -> Result<Self, WakeError> {
        Ok(Self {
            queue,
            opcodes,
            node,
            config,
            deadlines: Vec::new(),
            unplanned: VecDeque::new(),
            ended: VecDeque::new(),
            drain_until: None,
            is_failing: false,
            counters: DsaCountersReader::default(),
            wake: WakeDescriptor::new()?,
        })
    }

    /// Returns a reader of the counters, which stays valid when the channel belongs to a mover.
    #[must_use]
    pub fn counters(&self) -> DsaCountersReader {
        self.counters.clone()
    }

    /// Returns the way by which descriptors reach the device.
    #[must_use]
    pub fn way(&self) -> SubmissionWay {
        self.queue.way()
    }

    /// Returns true if the channel takes no job any more.
    fn is_dead(&self) -> bool {
        self.is_failing || self.queue.is_stopped()
    }

    /// Returns true if the device does the operation: by its opcode, or a dualcast by two copies of one round.
    fn can_do(&self, operation: MoveOperation) -> bool {
        let limits = self.queue.limits();
        let is_by_copies = operation == MoveOperation::Dualcast
            && self.opcodes.contains(DsaOpcode::MemoryMove)
            && limits.entries.max(limits.batch_max) > 1;
        is_by_copies || self.opcodes.contains(opcode_of(operation))
    }

    /// Submits a round, again while the queue is full. Returns the job if the queue does not take it.
    fn submit_round(
        &mut self,
        token: u64,
        mut work: ChannelJob,
        operations: &[QueuedOperation],
        now: Nanos,
    ) -> Option<ChannelJob> {
        let bytes = operations.iter().fold(0, |sum, queued| sum + u64::from(queued.operation.bytes()));
        let patience = self.config.patience.after(Nanos(bytes.saturating_mul(PATIENCE_PER_BYTE.0)));
        let mut retries = self.config.full_retries;
        loop {
            let refused = match self.queue.submit(token, work, operations) {
                Ok(()) => {
                    self.counters.update(|counters| counters.rounds += 1);
                    self.deadlines.push(RoundDeadline { token, at: now.after(patience) });
                    return None;
                }
                Err(refused) => refused,
            };
            work = refused.work;
            if refused.reason != WorkRefusal::Full || retries == 0 {
                self.counters.update(|counters| counters.refused += 1);
                // The kernel refuses every other descriptor too.
                self.is_failing |= matches!(refused.reason, WorkRefusal::Kernel(_));
                return Some(work);
            }
            retries -= 1;
            self.counters.update(|counters| counters.full_retries += 1);
            std::hint::spin_loop();
        }
    }

    /// Brings a job on: to its next round, or to its end.
    fn bring_on(&mut self, token: u64, mut work: ChannelJob, now: Nanos) {
        loop {
            if work.is_done() || self.is_dead() {
                return self.end(token, work, now);
            }
            match RoundPlanner::new(&mut work, self.queue.limits(), self.opcodes).plan() {
                RoundPlan::CpuFirst(bytes) => {
                    let is_permitted = self.can_do(work.job.steps[work.step()].operation());
                    self.counters.update(|counters| {
                        let reason = if is_permitted {
                            &mut counters.unreachable
                        } else {
                            &mut counters.not_permitted
                        };
                        *reason += 1;
                    });
                    work.do_by_cpu(bytes);
                }
                RoundPlan::Operations(operations) => {
                    if let Some(refused) = self.submit_round(token, work, &operations, now) {
                        self.end(token, refused, now);
                    }
                    return;
                }
            }
        }
    }

    /// Ends a job, and counts one that is abandoned.
    fn end(&mut self, token: u64, work: ChannelJob, now: Nanos) {
        let ended = work.into_ended(token, now);
        if ended.end == JobEnd::Abandoned {
            self.counters.update(|counters| counters.abandoned += 1);
        }
        self.ended.push_back(ended);
    }

    /// Takes the rounds that the device is done with.
    fn collect(&mut self, now: Nanos) {
        while let Some(ended) = self.queue.poll() {
            self.deadlines.retain(|deadline| deadline.token != ended.token);
            let mut work = ended.work;
            let settled = work.settle(&ended.outcomes);
            self.is_failing |= settled.is_failing;
            self.counters.update(|counters| counters.add(&settled));
            if settled.has_progress {
                self.bring_on(ended.token, work, now);
            } else {
                self.end(ended.token, work, now);
            }
        }
        while let Some((token, work)) = self.unplanned.pop_front() {
            self.bring_on(token, work, now);
        }
    }

    /// Looks for rounds that are overdue: drains the queue, and begins to stop the device if that does not help. Its jobs return
    /// when it writes no more, which later polls find: the kernel may wait long for a device that hangs.
    fn check_overdue(&mut self, now: Nanos) {
        if self.queue.is_stopped() {
            return;
        }
        let is_overdue = |more: Nanos| self.deadlines.iter().any(|deadline| deadline.at.after(more) <= now);
        let is_late = is_overdue(Nanos::ZERO);
        let must_stop = match self.drain_until {
            Some(until) if self.queue.is_draining() => until <= now,
            // The drain has ended, and what it covered has returned.
            Some(_) => {
                self.drain_until = None;
                is_late
            }
            // A queue that permits no drain cannot say what was lost: each round gets as much time again.
            None if !self.opcodes.contains(DsaOpcode::Drain) => is_overdue(self.config.patience),
            None if is_late => {
                self.counters.update(|counters| counters.drains += 1);
                self.drain_until = Some(now.after(self.config.patience));
                self.queue.drain().is_err()
            }
            None => false,
        };
        if must_stop {
            self.counters.update(|counters| counters.stops += 1);
            self.drain_until = None;
            self.queue.begin_stop();
            self.collect(now);
        }
    }
}

/// Returns the opcode of an operation.
const fn opcode_of(operation: MoveOperation) -> DsaOpcode {
    match operation {
        MoveOperation::Copy => DsaOpcode::MemoryMove,
        MoveOperation::CopyCrc32c => DsaOpcode::CopyCrc,
        MoveOperation::Dualcast => DsaOpcode::Dualcast,
        MoveOperation::Fill => DsaOpcode::Fill,
        MoveOperation::Compare => DsaOpcode::Compare,
        MoveOperation::Crc32c => DsaOpcode::CrcGeneration,
        MoveOperation::Flush => DsaOpcode::CacheFlush,
    }
}

impl MoveChannel for DsaChannel {
    fn traits(&self) -> ChannelTraits {
        let can_do = |operation: &MoveOperation| self.can_do(*operation);
        let known: Vec<MoveOperation> = MoveOperation::ALL.into_iter().filter(can_do).collect();
        ChannelTraits {
            node: self.node,
            depth: self.queue.limits().entries,
            cache_writes: CacheWrites::Unknown,
            operations: OperationSet::of(&known),
        }
    }

    fn submit(&mut self, token: u64, mut job: MoveJob, now: Nanos) -> Result<(), RefusedJob> {
        if self.is_dead() {
            return Err(RefusedJob { job, reason: ChannelRefusal::Dead });
        }
        if !job.steps.is_empty() && !job.steps.iter().any(|step| self.can_do(step.operation())) {
            return Err(RefusedJob { job, reason: ChannelRefusal::NotPermitted });
        }
        // The device ends an operation at an absent page, and leaves the rest of it to the CPU. A full queue refuses the job.
        if self.queue.entries_in_use() < self.queue.limits().entries {
            prefault_targets(&mut job.memories, &job.steps, PREFAULT_BYTES_MAX);
            prefault_sources(&job.memories, &job.steps, PREFAULT_BYTES_MAX);
        }
        let mut work = ChannelJob::new(job, now);
        if work.is_done() {
            self.end(token, work, now);
            return Ok(());
        }
        match RoundPlanner::new(&mut work, self.queue.limits(), self.opcodes).plan() {
            // A job that the CPU has begun could not be refused any more.
            RoundPlan::CpuFirst(_) => {
                self.unplanned.push_back((token, work));
                Ok(())
            }
            RoundPlan::Operations(operations) => {
                let refused = self.submit_round(token, work, &operations, now);
                refused.map_or(Ok(()), |work| {
                    let reason = if self.is_dead() { ChannelRefusal::Dead } else { ChannelRefusal::Full };
                    Err(RefusedJob { job: work.into_unchanged(), reason })
                })
            }
        }
    }

    fn poll(&mut self, now: Nanos) -> Option<EndedJob> {
        if self.ended.is_empty() {
            self.collect(now);
            self.check_overdue(now);
        }
        self.ended.pop_front()
    }

    fn take_back(&mut self, token: u64) -> Option<MoveJob> {
        let at = self.unplanned.iter().position(|(waiting, _)| *waiting == token)?;
        let (_, work) = self.unplanned.remove(at)?;
        Some(work.into_unchanged())
    }

    fn page_faults(&self) -> PageFaultCounters {
        let counters = self.counters.read();
        PageFaultCounters { faults: counters.page_faults, finished_bytes: counters.finished_bytes }
    }

    fn prepare_sleep(&mut self) -> bool {
        self.queue.is_idle() && self.unplanned.is_empty() && self.ended.is_empty()
    }

    fn wake_descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wake.as_fd())
    }
}
