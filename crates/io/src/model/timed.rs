//! A queue of the latency model.
//!
//! Input: commands. Output: completions, at the end of the model's service time. Invariant: the device receives a
//! command at the time of the doorbell, not before.

use super::contents::{ModelBlocks, lock_any};
use super::device::ModelCore;
use super::null::{check_limits, entry_of};
use crate::backend::{ArmResult, CommandContext, CompletedCommand, IoLimits, QueueTransport};
use crate::clock::IoClock;
use crate::command::{Command, TransferData};
use crate::error::{IoError, RejectedCommand, SubmitError};
use headwater_host::clock::Nanos;
use headwater_host::ring_memory::HeapWords;
use headwater_host::sync::Mutex;
use headwater_nvme::controller::QueueId;
use headwater_nvme::queue_pair::QueuePair;
use headwater_nvme::spec::priority::QueuePriority;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct TimedQueue {
    id: QueueId,
    host: QueuePair<HeapWords, CommandContext>,
    limits: IoLimits,
    core: Arc<Mutex<ModelCore>>,
    blocks: Arc<Mutex<ModelBlocks>>,
    time: IoClock,
    /// True if a command was submitted since the doorbell was rung.
    doorbell_pending: bool,
}

impl TimedQueue {
    pub(super) fn new(
        depth: u32,
        priority: QueuePriority,
        limits: IoLimits,
        core: Arc<Mutex<ModelCore>>,
        blocks: Arc<Mutex<ModelBlocks>>,
        time: IoClock,
    ) -> Result<Self, IoError> {
        let (id, host) = lock_any(&core).add(depth, priority)?;
        Ok(Self { id, host, limits, core, blocks, time, doorbell_pending: false })
    }
}

impl QueueTransport for TimedQueue {
    fn limits(&self) -> IoLimits {
        self.limits
    }

    fn submit(&mut self, command: Command, token: u64) -> Result<(), RejectedCommand> {
        if let Err(reason) = check_limits(&command, &self.limits) {
            return Err(RejectedCommand { command, reason });
        }
        let pointed = entry_of(&command);
        let moves =
            lock_any(&self.blocks).keeps_data() || !matches!(command.data, TransferData::FromDevice(_));
        let moved = moves.then(|| command.data.clone());
        let Command { entry, data } = command;
        let id = match self.host.submit(pointed, CommandContext { token, data }) {
            Ok(id) => id,
            Err(full) => {
                let command = Command { entry, data: full.context.data };
                return Err(RejectedCommand { command, reason: SubmitError::Full });
            }
        };
        if let Some(data) = moved {
            lock_any(&self.core).store_data(self.id, id.number(), data);
        }
        self.doorbell_pending = true;
        Ok(())
    }

    fn ring(&mut self) -> Result<(), IoError> {
        if self.doorbell_pending {
            self.doorbell_pending = false;
            let mut core = lock_any(&self.core);
            let mut blocks = lock_any(&self.blocks);
            let now = self.time.now();
            core.advance(now, &mut blocks);
            let _ = self.host.ring();
            core.advance(now, &mut blocks);
        }
        Ok(())
    }

    fn reap(&mut self) -> Result<Option<CompletedCommand>, IoError> {
        let mut answer = self.host.reap()?;
        if answer.is_none() {
            lock_any(&self.core).advance(self.time.now(), &mut lock_any(&self.blocks));
            answer = self.host.reap()?;
        }
        Ok(answer.map(|done| done.context.complete(done.result, done.status)))
    }

    fn sleep(&mut self, longest: Option<Nanos>) -> Result<(), IoError> {
        self.ring()?;
        let end = lock_any(&self.core).next_end();
        let until = end.map(|at| at.since(self.time.now()));
        if let Some(span) = until.into_iter().chain(longest).min()
            && span > Nanos::ZERO
        {
            self.time.sleep(span);
        }
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn arm(&mut self) -> Result<ArmResult, IoError> {
        Err(IoError::Unsupported {
            reason: "a queue of a model has no descriptor; poll it, or start a completion thread".to_owned(),
        })
    }

    fn cancel(&mut self, token: u64) -> Result<(), IoError> {
        self.ring()?;
        if let Some((id, _)) = self.host.commands().find(|(_, command)| command.token == token) {
            lock_any(&self.core).abort(self.id, id.number());
        }
        Ok(())
    }

    fn visit_tokens(&mut self, visit: &mut dyn FnMut(&mut u64)) {
        self.host.commands_mut().for_each(|(_, command)| visit(&mut command.token));
    }

    fn in_flight(&self) -> u32 {
        self.host.in_flight()
    }

    fn depth(&self) -> u32 {
        self.host.depth()
    }
}

impl Drop for TimedQueue {
    fn drop(&mut self) {
        lock_any(&self.core).abandon(self.id);
    }
}
