//! A hardware queue of an NVMe controller, driven by this process.
//!
//! Input: commands. Output: one completion each: the controller's, or [`Status::ABORTED_BY_HOST`] after a reset, or
//! [`Status::HOST_PATHING_ERROR`] after the end of the controller. The fast path of a command takes no lock, makes no
//! system call and does not read the clock. Invariant: the data of a command is held until the controller has completed
//! it or certainly no longer accesses it.
//!
//! # After a reset
//! The next command creates the queue again. The outcome of the commands that were in flight is unknown; the caller
//! decides whether to send them again.

use super::queue_owner::{OwnedQueue, QueueOwner};
use super::validation::check;
use crate::backend::{CommandContext, ArmResult, CompletedCommand, IoLimits, QueueTransport};
use crate::buffer::Buffer;
use crate::client_namespace::ClientNamespace;
use crate::command::Command;
use crate::error::{IoError, RejectedCommand, SubmitError};
use headwater_dma::iova::{Iova, IovaRange};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::wake::WakeDescriptor;
use headwater_nvme::driver::{DataPointerError, IoQueueState, SubmitFault};
use headwater_nvme::spec::status::Status;
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd as _, BorrowedFd};

/// Maximum buffers of one command.
const SEGMENTS_MAX: usize = 256;
/// Alignment of data addresses (NVMe Base 2.0 section 4.1.1).
const MEMORY_ALIGN: usize = 4;
/// Empty polls between two readings of the clock; a power of two.
const IDLE_LOOKS: u32 = 256;
/// Interval between two polls of the controller itself while commands are in flight.
const CONTROLLER_LOOK: Nanos = Nanos::from_millis(20);
/// Longest sleep with commands in flight: the controller is polled at least this often.
const SLEEP_MAX: Nanos = Nanos::from_millis(500);
/// Duration of one sleep without interrupts.
const NAP: Nanos = Nanos::from_micros(50);

/// A hardware queue of a controller.
pub struct NvmeQueue<K: QueueOwner> {
    keeper: K,
    /// `None` after a reset, until the next command.
    queue: Option<Box<OwnedQueue<K>>>,
    depth: u32,
    /// Completions of commands that the controller will not complete.
    lost: VecDeque<CompletedCommand>,
    namespaces: Vec<ClientNamespace>,
    transfer_bytes_max: usize,
    runs: Vec<IovaRange>,
    bell: WakeDescriptor,
    connected: bool,
    idle: u32,
    next_look: Nanos,
}

impl<K: QueueOwner> NvmeQueue<K> {
    /// Creates a queue for up to `depth` commands in flight.
    ///
    /// # Errors
    /// [`IoError::Device`] when the controller has no free queue, does not support the depth, or is gone.
    pub fn open(mut keeper: K, depth: u32) -> Result<Self, IoError> {
        let bell = WakeDescriptor::new()?;
        let queue = keeper.make_queue(depth)?;
        Ok(Self {
            depth,
            lost: VecDeque::new(),
            namespaces: keeper.namespaces(),
            transfer_bytes_max: usize::try_from(queue.transfer_bytes_max()).unwrap_or(usize::MAX),
            queue: Some(queue),
            keeper,
            runs: Vec::new(),
            bell,
            connected: false,
            idle: 0,
            next_look: Nanos::ZERO,
        })
    }

    /// Validates a command; the namespaces are read again before it is refused.
    #[inline]
    fn judge(&mut self, command: &Command) -> Result<(), SubmitError> {
        if check(command, &self.namespaces).is_ok() {
            return Ok(());
        }
        self.namespaces = self.keeper.namespaces();
        check(command, &self.namespaces)
    }

    /// Creates the queue again after a reset, once every command of the old one has its completion.
    fn remake(&mut self) -> Result<(), SubmitError> {
        self.settle();
        if self.queue.is_some() {
            return Ok(());
        }
        self.queue = Some(self.keeper.make_queue(self.depth).map_err(|_| SubmitError::Gone)?);
        self.connected = false;
        Ok(())
    }

    /// Polls the controller until this queue is live or given up.
    fn settle(&mut self) {
        while let Some(queue) = &self.queue {
            match queue.fate() {
                IoQueueState::Live => return,
                IoQueueState::Waiting => {
                    self.keeper.look(self.keeper.now());
                    Clock::sleep(NAP);
                }
                IoQueueState::Lost | IoQueueState::Dead => self.give_up(),
            }
        }
    }

    /// Completes every command of a lost or dead queue, first with the completions that the controller posted before
    /// the end.
    fn give_up(&mut self) {
        let Some(mut queue) = self.queue.take() else { return };
        let is_dead = queue.fate() == IoQueueState::Dead;
        while let Some(done) = queue.reap() {
            self.lost.push_back(done.context.complete(done.result, done.status));
        }
        let commands = match queue.abandon() {
            Ok(commands) => commands,
            Err(queue) => {
                self.queue = Some(queue);
                return;
            }
        };
        let status = if is_dead { Status::HOST_PATHING_ERROR } else { Status::ABORTED_BY_HOST };
        let is_quiet = !is_dead || self.keeper.is_quiet();
        for command in commands {
            if !is_quiet {
                // The caller gets its handle back; the memory is never reused.
                command.data.clone().forget();
            }
            self.lost.push_back(command.complete(0, status));
        }
    }

    /// Checks for overdue commands and polls the controller, after no completion arrived for a while.
    #[cold]
    fn look(&mut self, now: Nanos) {
        self.next_look = now.after(CONTROLLER_LOOK);
        let Self { queue: Some(queue), keeper, .. } = self else { return };
        match queue.fate() {
            IoQueueState::Live => {
                let id = queue.id();
                queue.watch(now, |overdue| keeper.overdue(id, overdue, now));
                if let Some(fault) = queue.fault() {
                    keeper.broken(id, fault, now);
                }
                keeper.look(now);
            }
            IoQueueState::Waiting => {
                self.next_look = now;
                keeper.look(now);
            }
            IoQueueState::Lost | IoQueueState::Dead => self.give_up(),
        }
    }

    /// Counts an empty poll, and polls the controller now and then.
    #[inline]
    fn found_nothing(&mut self) {
        self.idle = self.idle.wrapping_add(1);
        if !self.idle.is_multiple_of(IDLE_LOOKS) || self.commands() == 0 {
            return;
        }
        let now = self.keeper.now();
        let is_live = self.queue.as_ref().is_some_and(|queue| queue.fate() == IoQueueState::Live);
        if !is_live || now >= self.next_look {
            self.look(now);
        }
    }

    /// Connects completions to the wake descriptor, at the first wait. Returns false if there are no interrupts.
    fn connect(&mut self) -> Result<bool, IoError> {
        if !self.keeper.has_interrupts() {
            return Ok(false);
        }
        if let Some(queue) = &self.queue
            && !self.connected
        {
            self.keeper.connect(queue.id(), &self.bell)?;
            self.connected = true;
        }
        Ok(self.keeper.has_interrupts())
    }

    /// Returns the number of accepted commands without a completion.
    #[inline]
    fn commands(&self) -> u32 {
        let lost = u32::try_from(self.lost.len()).unwrap_or(u32::MAX);
        self.queue.as_ref().map_or(0, |queue| queue.in_flight()).saturating_add(lost)
    }

    #[inline]
    fn has_work(&self) -> bool {
        !self.lost.is_empty() || self.queue.as_ref().is_none_or(|queue| queue.has_work())
    }
}

#[inline]
fn run_of(buffer: &Buffer) -> Option<IovaRange> {
    Some(IovaRange { start: Iova(buffer.address()), bytes: u32::try_from(buffer.bytes()).ok()? })
}

fn reason_of(fault: SubmitFault) -> SubmitError {
    let what = match fault {
        SubmitFault::Full => return SubmitError::Full,
        SubmitFault::NotLive => return SubmitError::Gone,
        SubmitFault::TooLong { .. } | SubmitFault::Data(DataPointerError::TooLong { .. }) => {
            "more data than the queue's transfer_bytes_max; split the command"
        }
        SubmitFault::Data(DataPointerError::Gap { .. }) => {
            "several buffers that do not meet at page boundaries, for a controller without SGLs; send one at a time"
        }
        _ => "the address of a buffer is not a multiple of the queue's memory_align",
    };
    SubmitError::Unfit { what }
}

impl<K: QueueOwner> QueueTransport for NvmeQueue<K> {
    fn limits(&self) -> IoLimits {
        IoLimits {
            transfer_bytes_max: self.transfer_bytes_max,
            segments_max: SEGMENTS_MAX,
            memory_align: MEMORY_ALIGN,
        }
    }

    fn submit(&mut self, command: Command, token: u64) -> Result<(), RejectedCommand> {
        if self.commands() >= self.depth {
            return Err(RejectedCommand { command, reason: SubmitError::Full });
        }
        if let Err(reason) = self.judge(&command) {
            return Err(RejectedCommand { command, reason });
        }
        let buffers = command.data.buffers();
        self.runs.clear();
        self.runs.extend(buffers.iter().filter(|buffer| buffer.bytes() > 0).map_while(run_of));
        if buffers.len() > SEGMENTS_MAX {
            let what = "more buffers than the queue's segments_max";
            return Err(RejectedCommand { command, reason: SubmitError::Unfit { what } });
        }
        if let Err(reason) = self.keeper.device_addresses(&mut self.runs) {
            return Err(RejectedCommand { command, reason });
        }
        let Command { entry, data } = command;
        let mut context = CommandContext { token, data };
        loop {
            let submitted = match &mut self.queue {
                Some(queue) => queue.submit(entry, &self.runs, context),
                None => Err((SubmitFault::NotLive, context)),
            };
            let (fault, refused) = match submitted {
                Ok(_) => return Ok(()),
                Err(refused) => refused,
            };
            let reason = match fault {
                SubmitFault::NotLive => match self.remake() {
                    Ok(()) => {
                        context = refused;
                        continue;
                    }
                    Err(reason) => reason,
                },
                fault => reason_of(fault),
            };
            return Err(RejectedCommand { command: Command { entry, data: refused.data }, reason });
        }
    }

    #[inline]
    fn ring(&mut self) -> Result<(), IoError> {
        if let Some(queue) = &mut self.queue {
            queue.ring();
        }
        Ok(())
    }

    #[inline]
    fn reap(&mut self) -> Result<Option<CompletedCommand>, IoError> {
        if let Some(queue) = &mut self.queue
            && let Some(done) = queue.reap()
        {
            return Ok(Some(done.context.complete(done.result, done.status)));
        }
        if let Some(answer) = self.lost.pop_front() {
            return Ok(Some(answer));
        }
        self.found_nothing();
        Ok(self.lost.pop_front())
    }

    fn sleep(&mut self, longest: Option<Nanos>) -> Result<(), IoError> {
        let longest = longest.unwrap_or(SLEEP_MAX).min(SLEEP_MAX);
        match self.connect()? {
            true => {
                if self.arm()? == ArmResult::Waiting {
                    self.bell.wait(Some(longest))?;
                }
            }
            false if self.has_work() => {}
            false => Clock::sleep(longest.min(NAP)),
        }
        if !self.has_work() {
            let now = self.keeper.now();
            if now >= self.next_look {
                self.look(now);
            }
        }
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.keeper.has_interrupts().then(|| self.bell.as_fd())
    }

    fn arm(&mut self) -> Result<ArmResult, IoError> {
        self.ring()?;
        if !self.connect()? {
            return Err(IoError::Refused {
                reason: "the controller has no interrupt vector left for this queue; poll it".to_owned(),
            });
        }
        // Discards earlier notifications; a completion that arrives after the check below signals again.
        self.bell.take()?;
        Ok(if self.has_work() { ArmResult::Ready } else { ArmResult::Waiting })
    }

    fn cancel(&mut self, token: u64) -> Result<(), IoError> {
        let named = |queue: &OwnedQueue<K>| {
            queue.commands().find(|(_, context)| context.token == token).map(|(command, _)| command)
        };
        let command = self.queue.as_deref().and_then(named);
        let (Some(command), Some(queue)) = (command, &mut self.queue) else {
            let answered = self.lost.iter().any(|answer| answer.completion.token == token);
            let reason = format!("no command of token {token} is in flight");
            return if answered { Ok(()) } else { Err(IoError::Refused { reason }) };
        };
        queue.ring();
        self.keeper.abort(queue.id(), command)
    }

    fn visit_tokens(&mut self, visit: &mut dyn FnMut(&mut u64)) {
        if let Some(queue) = &mut self.queue {
            queue.commands_mut().for_each(|(_, command)| visit(&mut command.token));
        }
        self.lost.iter_mut().for_each(|done| visit(&mut done.completion.token));
    }

    fn in_flight(&self) -> u32 {
        self.commands()
    }

    fn depth(&self) -> u32 {
        self.depth
    }
}

impl<K: QueueOwner> Drop for NvmeQueue<K> {
    /// Deletes the queue at the controller. Commands that remain in flight after that keep their memory forever.
    fn drop(&mut self) {
        let is_over = self.queue.as_ref().is_none_or(|queue| self.keeper.delete_queue(queue));
        if !is_over {
            let held = self.queue.iter_mut().flat_map(|queue| queue.take_contexts());
            held.for_each(|command| command.data.forget());
        }
    }
}

impl<K: QueueOwner> fmt::Debug for NvmeQueue<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NvmeQueue")
            .field("keeper", &self.keeper)
            .field("depth", &self.depth)
            .finish_non_exhaustive()
    }
}
