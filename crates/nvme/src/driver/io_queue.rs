//! One I/O queue pair of a controller, for one thread: submits, rings, reaps, and finds overdue commands.
//!
//! Input: entries with the address runs of their data. Output: exactly one result for each accepted command: its
//! completion from [`reap`](IoQueue::reap), or its loss from [`abandon`](IoQueue::abandon). The command path reads no
//! clock and allocates nothing. Invariant: a command holds its list pages until it is completed or certainly lost.
//!
//! Time is counted in ticks of a quarter of the timeout. [`watch`](IoQueue::watch), called periodically, advances the
//! tick. A command records the tick in which it was submitted.

use super::lifecycle::{IoQueueState, SharedLifecycle};
use super::list_pages::{ListPages, PageChain};
use super::pointer_builder::{DataPointerError, SglUse, describe};
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
    /// The controller is being reset, or was reset: see [`IoQueue::fate`].
    #[error("the queue is not live because its controller was reset or failed; create the queue again")]
    NotLive,
    /// No data pointer can describe the data.
    #[error(transparent)]
    Data(#[from] DataPointerError),
    /// The command has more data than the controller accepts in one command.
    #[error("the command has {bytes} bytes of data; this controller accepts at most {most}: split it")]
    TooLong {
        /// Bytes of data in the command.
        bytes: u64,
        /// Most bytes that the controller accepts.
        most: u64,
    },
}

/// An overdue command that [`IoQueue::watch`] found.
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
    Strays {
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

/// A command in flight.
#[derive(Debug)]
struct InFlightSlot {
    chain: PageChain,
    /// The tick of its submission, or of its last report by `watch`.
    tick: u32,
    aborting: bool,
}

/// An I/O queue pair of one thread.
#[derive(Debug)]
pub struct IoQueue<M, R> {
    pair: RingPair<M, R>,
    lists: ListPages<M>,
    places: Box<[InFlightSlot]>,
    rules: TransferRules,
    life: SharedLifecycle,
    epoch: u32,
    strays: u32,
    tick: u32,
    /// Start of the present tick.
    ticked: Nanos,
    tick_span: Nanos,
}

impl<M: RingMemory, R: DeviceRegisters> IoQueue<M, R> {
    pub(super) fn new(
        pair: RingPair<M, R>,
        lists: ListPages<M>,
        rules: TransferRules,
        life: SharedLifecycle,
        timeout: Nanos,
        now: Nanos,
    ) -> Self {
        let place = |_| InFlightSlot { chain: PageChain::NONE, tick: 0, aborting: false };
        Self {
            places: (0..pair.depth()).map(place).collect(),
            pair,
            lists,
            rules,
            epoch: life.epoch(),
            life,
            strays: 0,
            tick: 0,
            ticked: now,
            tick_span: Nanos((timeout.0 / u64::from(TICKS)).max(1)),
        }
    }

    /// Returns the queue identifier.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.pair.queue()
    }

    /// Returns the state of the queue.
    #[must_use]
    pub fn fate(&self) -> IoQueueState {
        self.life.fate(self.epoch)
    }

    /// Returns the most bytes of data in one command.
    #[must_use]
    pub fn transfer_bytes_max(&self) -> u64 {
        self.rules.transfer_bytes_max
    }

    /// Accepts a command and builds its data pointer; the controller sees it after [`ring`](Self::ring). The data must
    /// stay valid until the completion. `Ok` means that exactly one result follows, from [`reap`](Self::reap) or
    /// [`abandon`](Self::abandon).
    ///
    /// # Errors
    /// [`SubmitFault`]: the queue is unchanged.
    #[inline]
    pub fn submit(
        &mut self,
        mut entry: SubmissionEntry,
        data: &[IovaRange],
    ) -> Result<CommandId, SubmitFault> {
        if !self.life.is_live(self.epoch) {
            return Err(SubmitFault::NotLive);
        }
        if self.pair.in_flight() == self.pair.depth() {
            return Err(SubmitFault::Full);
        }
        let bytes = data.iter().fold(0, |sum: u64, run| sum.saturating_add(u64::from(run.bytes)));
        if bytes > self.rules.transfer_bytes_max {
            return Err(SubmitFault::TooLong { bytes, most: self.rules.transfer_bytes_max });
        }
        let chain = match describe(&mut entry, data, self.rules.sgl, &mut self.lists) {
            Ok(chain) => chain,
            Err(DataPointerError::NoListPages) => return Err(SubmitFault::Full),
            Err(error) => return Err(error.into()),
        };
        let Ok(command) = self.pair.submit(entry) else {
            self.lists.give_back(chain);
            return Err(SubmitFault::Full);
        };
        let slot = self.pair.slot(command);
        self.places[slot] = InFlightSlot { chain, tick: self.tick, aborting: false };
        Ok(command)
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
        if self.life.is_live(self.epoch) {
            self.pair.ring();
        }
    }

    /// Returns the next completion. Drops and counts completions of no command in flight: see [`fault`](Self::fault).
    #[inline]
    pub fn reap(&mut self) -> Option<CommandCompletion> {
        for _ in 0..STRAYS_MAX {
            match self.pair.reap()? {
                ReapedEntry::Answer(completion) => {
                    let chain = std::mem::replace(&mut self.places[completion.slot].chain, PageChain::NONE);
                    if !chain.is_none() {
                        self.lists.give_back(chain);
                    }
                    return Some(completion);
                }
                ReapedEntry::Stray => self.strays = self.strays.saturating_add(1),
            }
        }
        None
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
        if self.strays >= STRAYS_MAX {
            return Some(QueueFault::Strays { count: self.strays });
        }
        self.pair.fault().map(|fault| QueueFault::Head { head: fault.head })
    }

    /// Returns the number of completions so far that named no command in flight.
    #[must_use]
    pub fn strays(&self) -> u32 {
        self.strays
    }

    /// Reports overdue commands to `found`, if a tick has passed since the last search.
    pub fn watch(&mut self, now: Nanos, mut found: impl FnMut(OverdueCommand)) {
        if now.since(self.ticked) < self.tick_span {
            return;
        }
        self.ticked = now;
        self.tick = self.tick.wrapping_add(1);
        if self.pair.in_flight() == 0 {
            return;
        }
        for (slot, place) in self.places.iter_mut().enumerate() {
            let Some(command) = self.pair.in_slot(slot) else { continue };
            // The submission may lie late in its tick, so a timeout takes one tick more.
            if self.tick.wrapping_sub(place.tick) <= TICKS {
                continue;
            }
            place.tick = self.tick;
            if std::mem::replace(&mut place.aborting, true) {
                found(OverdueCommand::Stuck(command));
            } else {
                found(OverdueCommand::Abort(command));
            }
        }
    }

    /// Returns the time at which to call [`watch`](Self::watch) again.
    #[must_use]
    pub fn next_watch(&self) -> Nanos {
        self.ticked.after(self.tick_span)
    }

    /// Discards a queue that a reset invalidated or whose controller is dead, and returns the slots of the commands in
    /// flight. The controller completes none of them any more, and their data may be reused, unless a dead controller
    /// is not [quiet](super::Controller::is_quiet). Reap first: completions posted before the reset are still in the
    /// ring.
    ///
    /// # Errors
    /// The queue itself, if it is neither lost nor dead.
    pub fn abandon(self) -> Result<Vec<usize>, Box<Self>> {
        match self.fate() {
            IoQueueState::Lost | IoQueueState::Dead => {
                Ok((0..self.places.len()).filter(|&slot| self.pair.in_slot(slot).is_some()).collect())
            }
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
