//! A queue of the latency model.
//!
//! Input: commands. Output: completions, at the end of the model's service time. Invariant: the device receives a
//! command at the time of the doorbell, not before.

use super::contents::{ModelBlocks, locked};
use super::device::ModelCore;
use super::null::{entry_of, fits};
use crate::backend::{CommandContext, ArmResult, CompletedCommand, IoLimits, QueueTransport};
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
    news: bool,
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
        let (id, host) = locked(&core).add(depth, priority)?;
        Ok(Self { id, host, limits, core, blocks, time, news: false })
    }
}

impl QueueTransport for TimedQueue {
    fn limits(&self) -> IoLimits {
        self.limits
    }

    fn submit(&mut self, command: Command, token: u64) -> Result<(), RejectedCommand> {
        if let Err(reason) = fits(&command, &self.limits) {
            return Err(RejectedCommand { command, reason });
        }
        let pointed = entry_of(&command);
        let moves = locked(&self.blocks).keeps() || !matches!(command.data, TransferData::FromDevice(_));
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
            locked(&self.core).moves(self.id, id.number(), data);
        }
        self.news = true;
        Ok(())
    }

    fn ring(&mut self) -> Result<(), IoError> {
        if self.news {
            self.news = false;
            let mut core = locked(&self.core);
            let mut blocks = locked(&self.blocks);
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
            locked(&self.core).advance(self.time.now(), &mut locked(&self.blocks));
            answer = self.host.reap()?;
        }
        Ok(answer.map(|done| done.context.complete(done.result, done.status)))
    }

    fn sleep(&mut self, longest: Option<Nanos>) -> Result<(), IoError> {
        self.ring()?;
        let end = locked(&self.core).next_end();
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
        Err(IoError::Refused {
            reason: "a model has no descriptor; poll it, or start a completion thread".to_owned(),
        })
    }

    fn cancel(&mut self, token: u64) -> Result<(), IoError> {
        self.ring()?;
        if let Some((id, _)) = self.host.commands().find(|(_, command)| command.token == token) {
            locked(&self.core).abort(self.id, id.number());
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
        locked(&self.core).abandon(self.id);
    }
}
