//! One I/O queue pair of a controller, for one thread: submits, rings, reaps, and finds overdue commands.
//!
//! Input: entries with the address runs of their data. Output: exactly one result for each accepted command: its
//! completion from [`reap`](IoQueue::reap), or its loss from [`abandon`](IoQueue::abandon). The command path reads no
//! clock and allocates nothing. Invariant: a command holds its list pages until it is completed or certainly lost.
//!
//! Time is counted in ticks of a quarter of the timeout. [`check_timeouts`](IoQueue::check_timeouts), called periodically, advances the
//! tick. A command records the tick in which it was submitted.

use super::lifecycle::{IoQueueState, SharedLifecycle};
use super::list_pages::{ListPages, PageChain};
use super::pointer_builder::{DataPointerError, SglUse, build_data_pointer};
use super::ring_pair::{ReapedEntry, RingPair};
use crate::queue_pair::{CommandCompletion, CommandId};
use crate::spec::command::SubmissionEntry;
use headwater_dma::iova::IovaRange;
use headwater_host::clock::Nanos;
use headwater_host::registers::DeviceRegisters;
use headwater_host::ring_memory::RingMemory;

/// Ticks per timeout.
const TICKS: u32 = 4;
/// Stray completions after which the queue reports a fault.
const STRAYS_MAX: u32 = 16;

/// A rejected submission; the queue is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitFault {
    /// The queue holds its maximum of commands in flight, or no list page is free.
    #[error("the queue is full; take completions and submit again")]
    Full,
    /// The controller is being reset, or was reset: see [`IoQueue::state`].
    #[error("the queue is not live because its controller was reset or failed; create the queue again")]
    NotLive,
    /// No data pointer can describe the data.
    #[error(transparent)]
    Data(#[from] DataPointerError),
    /// The command has more data than the controller accepts in one command.
    #[error("the command has {bytes} bytes of data; this controller accepts at most {max}: split it")]
    TooLong {
        /// Bytes of data in the command.
        bytes: u64,
        /// Most bytes that the controller accepts.
        max: u64,
    },
}

/// An overdue command that [`IoQueue::check_timeouts`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverdueCommand {
    /// The command exceeded the timeout: send an Abort for it.
    Abort(CommandId),
    /// The command exceeded a second timeout after its abort: reset the controller.
    Stuck(CommandId),
}

/// A violation of the protocol by the controller that belongs to no command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueueFault {
    /// Too many completions name commands that are not in flight.
    #[error("{count} completions named no command in flight; reset the controller")]
    StrayCompletions {
        /// Stray completions so far.
        count: u32,
    },
    /// A completion carries an impossible submission head.
    #[error("a completion named the impossible submission head {head}; reset the controller")]
    Head {
        /// The submission head in the completion.
        head: u16,
    },
}

/// The limit and the kind of data pointer for a command's data.
#[derive(Clone, Copy, Debug)]
pub(super) struct TransferRules {
    pub(super) sgl: SglUse,
    pub(super) transfer_bytes_max: u64,
}

/// A command in flight: the driver's part, and the context of its owner.
#[derive(Debug)]
pub(super) struct InFlightSlot<C> {
    chain: PageChain,
    /// The tick of its submission, or of its last report by `check_timeouts`.
    tick: u32,
    aborting: bool,
    context: C,
}

/// An I/O queue pair of one thread.
#[derive(Debug)]
pub struct IoQueue<M, R, C = ()> {
    pair: RingPair<M, R, InFlightSlot<C>>,
    lists: ListPages<M>,
    rules: TransferRules,
    lifecycle: SharedLifecycle,
    epoch: u32,
    stray_completions: u32,
    tick: u32,
    /// Start of the present tick.
    tick_start: Nanos,
    tick_span: Nanos,
}

impl<M: RingMemory, R: DeviceRegisters> IoQueue<M, R> {
    pub(super) fn new(
        pair: RingPair<M, R, InFlightSlot<()>>,
        lists: ListPages<M>,
        rules: TransferRules,
        lifecycle: SharedLifecycle,
        timeout: Nanos,
        now: Nanos,
    ) -> Self {
        Self {
            pair,
            lists,
            rules,
            epoch: lifecycle.epoch(),
            lifecycle,
            stray_completions: 0,
            tick: 0,
            tick_start: now,
            tick_span: Nanos((timeout.0 / u64::from(TICKS)).max(1)),
        }
    }

    /// Returns the same queue for commands with a context of the owner's: what it needs at their completion.
    ///
    /// # Panics
    /// If commands are in flight.
    #[must_use]
    pub fn carrying<C>(self) -> IoQueue<M, R, C> {
        let Self { pair, lists, rules, lifecycle, epoch, stray_completions, tick, tick_start, tick_span } =
            self;
        IoQueue {
            pair: pair.carrying(),
            lists,
            rules,
            lifecycle,
            epoch,
            stray_completions,
            tick,
            tick_start,
            tick_span,
        }
    }
}

impl<M: RingMemory, R: DeviceRegisters, C> IoQueue<M, R, C> {
    /// Returns the queue identifier.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.pair.queue()
    }

    /// Returns the state of the queue.
    #[must_use]
    pub fn state(&self) -> IoQueueState {
        self.lifecycle.queue_state(self.epoch)
    }

    /// Returns the most bytes of data in one command.
    #[must_use]
    pub fn transfer_bytes_max(&self) -> u64 {
        self.rules.transfer_bytes_max
    }

    /// Accepts a command and builds its data pointer; the controller sees it after [`ring`](Self::ring). The data must
    /// stay valid until the completion. `Ok` means that exactly one result follows, with the context, from
    /// [`reap`](Self::reap) or [`abandon`](Self::abandon).
    ///
    /// # Errors
    /// [`SubmitFault`] with the context: the queue is unchanged.
    #[inline]
    pub fn submit(
        &mut self,
        mut entry: SubmissionEntry,
        data: &[IovaRange],
        context: C,
    ) -> Result<CommandId, (SubmitFault, C)> {
        let chain = match self.describe_data(&mut entry, data) {
            Ok(chain) => chain,
            Err(fault) => return Err((fault, context)),
        };
        let command = InFlightSlot { chain, tick: self.tick, aborting: false, context };
        self.pair.submit(entry, command).map_err(|full| {
            self.lists.release(full.context.chain);
            (SubmitFault::Full, full.context.context)
        })
    }

    /// Builds the data pointer of an entry, if the queue can take it.
    #[inline]
    fn describe_data(
        &mut self,
        entry: &mut SubmissionEntry,
        data: &[IovaRange],
    ) -> Result<PageChain, SubmitFault> {
        if !self.lifecycle.is_live(self.epoch) {
            return Err(SubmitFault::NotLive);
        }
        if !self.pair.has_room() {
            return Err(SubmitFault::Full);
        }
        let bytes = data.iter().fold(0, |sum: u64, run| sum.saturating_add(u64::from(run.bytes)));
        if bytes > self.rules.transfer_bytes_max {
            return Err(SubmitFault::TooLong { bytes, max: self.rules.transfer_bytes_max });
        }
        match build_data_pointer(entry, data, self.rules.sgl, &mut self.lists) {
            Ok(chain) => Ok(chain),
            Err(DataPointerError::NoListPages) => Err(SubmitFault::Full),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the command's slot in a table of [`depth`](Self::depth) entries; no other command has it until
    /// completion.
    #[must_use]
    #[inline]
    pub fn slot(&self, command: CommandId) -> usize {
        self.pair.slot(command)
    }

    /// Rings the doorbells: publishes submitted commands, and frees completion slots.
    #[inline]
    pub fn ring(&mut self) {
        if self.lifecycle.is_live(self.epoch) {
            self.pair.ring();
        }
    }

    /// Returns the next completion. Drops and counts completions of no command in flight: see [`fault`](Self::fault).
    #[inline]
    pub fn reap(&mut self) -> Option<CommandCompletion<C>> {
        for _ in 0..STRAYS_MAX {
            match self.pair.reap()? {
                ReapedEntry::Completed(CommandCompletion {
                    command,
                    slot,
                    context: reaped,
                    result,
                    status,
                }) => {
                    let InFlightSlot { chain, context, .. } = reaped;
                    if !chain.is_none() {
                        self.lists.release(chain);
                    }
                    return Some(CommandCompletion { command, slot, context, result, status });
                }
                ReapedEntry::Stray => self.stray_completions = self.stray_completions.saturating_add(1),
            }
        }
        None
    }

    /// Iterates over the commands in flight and their contexts.
    pub fn commands(&self) -> impl Iterator<Item = (CommandId, &C)> {
        self.pair.commands().map(|(command, slot)| (command, &slot.context))
    }

    /// Iterates over the commands in flight, to change their contexts.
    pub fn commands_mut(&mut self) -> impl Iterator<Item = (CommandId, &mut C)> {
        self.pair.commands_mut().map(|(command, slot)| (command, &mut slot.context))
    }

    /// Removes the contexts of the commands in flight: the queue is deleted, and no result follows.
    pub fn take_contexts(&mut self) -> impl Iterator<Item = C> {
        self.pair.take_contexts().map(|slot| slot.context)
    }

    /// Returns true if [`reap`](Self::reap) may return a completion.
    #[must_use]
    #[inline]
    pub fn has_work(&self) -> bool {
        self.pair.has_work()
    }

    /// Returns how the controller violated the protocol on this queue, if it did; it should be reset.
    #[must_use]
    pub fn fault(&self) -> Option<QueueFault> {
        if self.stray_completions >= STRAYS_MAX {
            return Some(QueueFault::StrayCompletions { count: self.stray_completions });
        }
        self.pair.fault().map(|fault| QueueFault::Head { head: fault.head })
    }

    /// Returns the number of completions so far that named no command in flight.
    #[must_use]
    pub fn stray_completions(&self) -> u32 {
        self.stray_completions
    }

    /// Reports overdue commands to `found`, if a tick has passed since the last search.
    pub fn check_timeouts(&mut self, now: Nanos, mut found: impl FnMut(OverdueCommand)) {
        if now.since(self.tick_start) < self.tick_span {
            return;
        }
        self.tick_start = now;
        self.tick = self.tick.wrapping_add(1);
        if self.pair.in_flight() == 0 {
            return;
        }
        let now = self.tick;
        for (command, slot) in self.pair.commands_mut() {
            // The submission may lie late in its tick, so a timeout takes one tick more.
            if now.wrapping_sub(slot.tick) <= TICKS {
                continue;
            }
            slot.tick = now;
            if std::mem::replace(&mut slot.aborting, true) {
                found(OverdueCommand::Stuck(command));
            } else {
                found(OverdueCommand::Abort(command));
            }
        }
    }

    /// Returns the time at which to call [`check_timeouts`](Self::check_timeouts) again.
    #[must_use]
    pub fn next_timeout_check(&self) -> Nanos {
        self.tick_start.after(self.tick_span)
    }

    /// Discards a queue that a reset invalidated or whose controller is dead, and returns the contexts of the commands in
    /// flight. The controller completes none of them any more, and their data may be reused, unless a dead controller
    /// has not [stopped its DMA](super::NvmeDriver::is_dma_stopped). Reap first: completions posted before the reset are still in the
    /// ring.
    ///
    /// # Errors
    /// The queue itself, if it is neither lost nor dead.
    pub fn abandon(mut self) -> Result<Vec<C>, Box<Self>> {
        match self.state() {
            IoQueueState::Lost | IoQueueState::Dead => Ok(self.take_contexts().collect()),
            IoQueueState::Live | IoQueueState::Waiting => Err(Box::new(self)),
        }
    }

    /// Returns the number of commands accepted and not yet completed.
    #[must_use]
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.pair.in_flight()
    }

    /// Returns the most commands in flight.
    #[must_use]
    #[inline]
    pub fn depth(&self) -> u32 {
        self.pair.depth()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
