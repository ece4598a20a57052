//! A channel to the copy engines of a GPU. **Not yet run on a GPU.**
//!
//! ```text
//!  submit --> round of transfers --> engine --> ended: next round | done --poll--> mover
//!                 full: refused         |  an error of the driver, overdue: engine stopped --> all is abandoned
//! ```
//! Input: checked jobs. Output: the jobs, done, or abandoned behind some steps. Invariant: a job and its memories belong to the
//! engine from its submission until the GPU cannot write to them any more, so that a late write never meets memory that was
//! freed or used again; each job returns once.
//!
//! Copies, dualcasts and fills between registered memories go through slots of GPU memory. Every other step, and every range that
//! is not registered, the CPU does here, in the order of the steps. A job whose first or last step names memory that is not
//! registered is not offered to the channel at all, and is counted; a shared region is registered behind its first such job.
//!
//! # What is trusted
//! The GPU and the bus transfer what they were given: no checksum is made of it.
//!
//! # What this does not do
//! It takes no job back that the engine has, and it does not wake a sleeping owner. An owner with jobs in flight polls. It does
//! not move between memories of GPUs.

mod counters;
mod round;

pub use counters::{GpuCounters, GpuCountersReader};

use super::MoveJob;
use super::channel::{ChannelRefusal, EndedJob, JobEnd, MoveChannel, RefusedJob};
use super::channel_job::ChannelJob;
use super::job::MemoryRange;
use super::memory::MoveMemory;
use super::policy::{CacheWrites, ChannelTraits, MoveOperation, OperationSet};
use headwater_host::clock::Nanos;
use headwater_host::gpu::{
    GpuDriver, GpuEngine, GpuEngineConfig, GpuTransfer, HostRegistrations, OpenGpuError, TransferRefusal,
};
use headwater_host::numa::NodeId;
use headwater_host::wake::{WakeDescriptor, WakeError};
use round::{RoundPlan, plan_round};
use std::collections::VecDeque;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;

/// The time that a GPU gets beside [`GpuConfig::patience`] for each byte: a slow bus moves a byte in a nanosecond.
const PATIENCE_PER_BYTE: Nanos = Nanos(10);

/// The settings of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuConfig {
    /// The time after which transfers that have not ended make the channel stop the engine.
    pub patience: Nanos,
    /// The settings of the engine.
    pub engine: GpuEngineConfig,
}

impl Default for GpuConfig {
    fn default() -> Self {
        Self { patience: Nanos::from_millis(2_000), engine: GpuEngineConfig::default() }
    }
}

/// The reason that a channel was not opened.
#[derive(Debug, thiserror::Error)]
pub enum GpuChannelError {
    /// The engine cannot be opened.
    #[error(transparent)]
    Engine(#[from] OpenGpuError),
    /// The system has no descriptor.
    #[error("a channel to a GPU has no wake descriptor: {0}")]
    Wake(#[from] WakeError),
}

/// A round in flight.
#[derive(Clone, Copy, Debug)]
struct RoundDeadline {
    token: u64,
    at: Nanos,
}

/// A channel to the copy engines of a GPU.
#[derive(Debug)]
pub struct GpuChannel {
    engine: GpuEngine<ChannelJob>,
    node: Option<NodeId>,
    patience: Nanos,
    deadlines: Vec<RoundDeadline>,
    /// Jobs whose first bytes the CPU must do.
    unplanned: VecDeque<(u64, ChannelJob)>,
    ended: VecDeque<EndedJob>,
    counters: GpuCountersReader,
    /// Never signalled.
    wake: WakeDescriptor,
}

impl GpuChannel {
    /// Opens a channel to the GPU of a number, for memory of these registrations. Not yet run on a GPU.
    ///
    /// # Errors
    /// [`GpuChannelError`] names the cause and the remedy.
    pub fn open(
        driver: &Arc<GpuDriver>,
        gpu: usize,
        registrations: HostRegistrations,
        config: GpuConfig,
    ) -> Result<Self, GpuChannelError> {
        let node = driver.gpu(gpu)?.node;
        Ok(Self {
            engine: GpuEngine::open(driver, gpu, registrations, config.engine)?,
            node,
            patience: config.patience,
            deadlines: Vec::new(),
            unplanned: VecDeque::new(),
            ended: VecDeque::new(),
            counters: GpuCountersReader::default(),
            wake: WakeDescriptor::new()?,
        })
    }

    /// Returns a reader of the counters, which stays valid when the channel belongs to a mover.
    #[must_use]
    pub fn counters(&self) -> GpuCountersReader {
        self.counters.clone()
    }

    /// Plans the next round of a job.
    fn plan(&self, work: &mut ChannelJob) -> RoundPlan {
        plan_round(work, self.engine.config(), &self.engine.registrations().lookup())
    }

    /// Submits a round. Returns the job if the engine does not take it.
    fn submit_round(
        &mut self,
        token: u64,
        work: ChannelJob,
        transfers: &[GpuTransfer],
        now: Nanos,
    ) -> Option<(ChannelJob, ChannelRefusal)> {
        let bytes = transfers.iter().fold(0, |sum, transfer| sum + transfer.bytes as u64);
        let patience = self.patience.after(Nanos(bytes.saturating_mul(PATIENCE_PER_BYTE.0)));
        let refused = match self.engine.submit(token, work, transfers) {
            Ok(()) => {
                self.deadlines.push(RoundDeadline { token, at: now.after(patience) });
                self.counters.update(|counters| {
                    counters.rounds += 1;
                    counters.bytes += bytes;
                });
                return None;
            }
            Err(refused) => refused,
        };
        self.counters.update(|counters| counters.refused += 1);
        let reason = match refused.reason {
            TransferRefusal::Stopped => ChannelRefusal::Dead,
            _ => ChannelRefusal::Full,
        };
        Some((refused.work, reason))
    }

    /// Brings a job on: to its next round, or to its end.
    fn bring_on(&mut self, token: u64, mut work: ChannelJob, now: Nanos) {
        loop {
            if work.is_done() || self.engine.is_stopped() {
                return self.end(token, work, now);
            }
            match self.plan(&mut work) {
                RoundPlan::CpuFirst(bytes) => {
                    self.counters.update(|counters| {
                        counters.cpu_pieces += 1;
                        counters.cpu_bytes += bytes as u64;
                    });
                    work.do_by_cpu(bytes);
                }
                RoundPlan::Transfers(transfers) => {
                    if let Some((refused, _)) = self.submit_round(token, work, &transfers, now) {
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

    /// Takes the rounds that the GPU is done with.
    fn collect(&mut self, now: Nanos) {
        while let Some(ended) = self.engine.poll() {
            self.deadlines.retain(|deadline| deadline.token != ended.token);
            let mut work = ended.work;
            if ended.is_done {
                work.take_round();
            }
            self.bring_on(ended.token, work, now);
        }
        while let Some((token, work)) = self.unplanned.pop_front() {
            self.bring_on(token, work, now);
        }
        if let Some(failure) = self.engine.failure() {
            self.counters.note_failure(failure);
        }
    }

    /// Stops the engine if a round is overdue. Its jobs return when the GPU writes no more.
    fn check_overdue(&mut self, now: Nanos) {
        if !self.engine.is_stopped() && self.deadlines.iter().any(|deadline| deadline.at <= now) {
            self.counters.update(|counters| counters.overdue += 1);
            self.engine.stop();
        }
    }

    /// Returns true if the first byte of a range is registered. Asks for the registration of a shared region.
    fn is_registered(&self, memories: &[MoveMemory], range: MemoryRange) -> bool {
        let registrations = self.engine.registrations();
        let offset = range.start.offset;
        match memories.get(range.start.memory) {
            Some(MoveMemory::Shared(region)) => registrations.request(region),
            Some(MoveMemory::Client(segments)) => {
                segments.region_piece_at(offset).is_some_and(|piece| registrations.request(piece.region))
            }
            Some(own) => own
                .own_bytes()
                .and_then(|bytes| bytes.get(offset))
                .is_some_and(|byte| registrations.lookup().bytes_from(std::ptr::from_ref(byte).addr()) > 0),
            None => false,
        }
    }
}

impl ChannelJob {
    /// Takes a round that the GPU did.
    fn take_round(&mut self) {
        for piece in std::mem::take(&mut self.round) {
            self.advance(piece.at + piece.bytes);
        }
    }
}

impl MoveChannel for GpuChannel {
    fn traits(&self) -> ChannelTraits {
        use MoveOperation::{Copy, Dualcast, Fill};
        ChannelTraits {
            node: self.node,
            depth: self.engine.config().depth,
            cache_writes: CacheWrites::Unknown,
            operations: OperationSet::of(&[Copy, Dualcast, Fill]),
        }
    }

    fn submit(&mut self, token: u64, job: MoveJob, now: Nanos) -> Result<(), RefusedJob> {
        if self.engine.is_stopped() {
            return Err(RefusedJob { job, reason: ChannelRefusal::Dead });
        }
        let mut work = ChannelJob::new(job, now);
        if work.is_done() {
            self.end(token, work, now);
            return Ok(());
        }
        match self.plan(&mut work) {
            // A job that the CPU has begun could not be refused any more.
            RoundPlan::CpuFirst(_) => {
                self.unplanned.push_back((token, work));
                Ok(())
            }
            RoundPlan::Transfers(transfers) => {
                let refused = self.submit_round(token, work, &transfers, now);
                refused
                    .map_or(Ok(()), |(work, reason)| Err(RefusedJob { job: work.into_unchanged(), reason }))
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

    fn can_reach(&mut self, job: &MoveJob) -> bool {
        let mut can_reach = true;
        let mut check = |range| can_reach &= self.is_registered(&job.memories, range);
        for step in job.steps.first().into_iter().chain(job.steps.last()) {
            step.for_each_read(&mut check);
            step.for_each_write(&mut check);
        }
        if !can_reach {
            self.counters.update(|counters| counters.unregistered_jobs += 1);
        }
        can_reach
    }

    fn prepare_sleep(&mut self) -> bool {
        self.engine.is_idle() && self.unplanned.is_empty() && self.ended.is_empty()
    }

    fn wake_descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wake.as_fd())
    }
}
