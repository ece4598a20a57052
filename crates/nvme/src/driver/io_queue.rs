//! One I/O queue pair of a controller, for one thread: submit, ring, reap, and watch for commands that take too long.
//!
//! In: entries with the runs of their data. Out: for each accepted one exactly one answer: the controller's by
//! [`reap`](IoQueue::reap), or that it is lost by [`abandon`](IoQueue::abandon). No clock is read and nothing is allocated
//! on the way of a command. Invariant: a command's list pages stay its own until it is answered or certainly lost.
//!
//! Time is counted in ticks of a quarter of the timeout: [`watch`](IoQueue::watch), called now and then, moves them on. A
//! command gets the number of the tick in which it was submitted.

use super::describe::{DescribeError, SglUse, describe};
use super::life::{Fate, Life};
use super::list_pages::{Chain, ListPages};
use super::pair::{Pair, Reaped};
use crate::queue_pair::{CommandId, Completion};
use crate::spec::command::SubmissionEntry;
use headwater_dma::iova::IovaRange;
use headwater_host::clock::Nanos;
use headwater_host::registers::Registers;
use headwater_host::ring_memory::RingMemory;

/// Ticks of a timeout.
const TICKS: u32 = 4;
/// Answers to nothing after which a controller is not believed any more.
const STRAYS_MAX: u32 = 16;

/// Why a command was not accepted: nothing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitFault {
    /// As many commands are in flight as the queue takes, or no list page is free.
    #[error("the queue is full; take completions and submit again")]
    Full,
    /// The controller is being reset, or was: see [`IoQueue::fate`].
    #[error("the queue does not stand any more; make it again")]
    NotLive,
    /// The data cannot be described.
    #[error(transparent)]
    Data(#[from] DescribeError),
    /// More data than the controller takes in one command.
    #[error("{bytes} bytes in one command; this controller takes at most {most}")]
    TooLong {
        /// What was given.
        bytes: u64,
        /// The most.
        most: u64,
    },
}

/// What [`IoQueue::watch`] found of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overdue {
    /// It takes longer than the timeout: ask the controller to give it up.
    Abort(CommandId),
    /// It was asked to, and a timeout later there is still no answer: only a reset helps.
    Stuck(CommandId),
}

/// The controller broke the protocol in a way that is no command's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueueFault {
    /// Answers to commands that are not in flight, too many of them.
    #[error("{count} completions named no command in flight")]
    Strays {
        /// How many.
        count: u32,
    },
    /// An answer with an impossible submission head.
    #[error("a completion named submission head {head}, which the controller cannot have reached")]
    Head {
        /// What it said.
        head: u16,
    },
}

/// What data a command may carry, and how it is described.
#[derive(Clone, Copy, Debug)]
pub(super) struct DataRules {
    pub(super) sgl: SglUse,
    pub(super) transfer_bytes_max: u64,
}

/// A command in flight.
#[derive(Debug)]
struct Place {
    chain: Chain,
    /// The tick in which it was submitted, or asked to be aborted.
    tick: u32,
    aborting: bool,
}

/// The queue.
#[derive(Debug)]
pub struct IoQueue<M, R> {
    pair: Pair<M, R>,
    lists: ListPages<M>,
    places: Box<[Place]>,
    rules: DataRules,
    life: Life,
    epoch: u32,
    strays: u32,
    tick: u32,
    /// When the present tick began.
    ticked: Nanos,
    tick_span: Nanos,
}

impl<M: RingMemory, R: Registers> IoQueue<M, R> {
    pub(super) fn new(
        pair: Pair<M, R>,
        lists: ListPages<M>,
        rules: DataRules,
        life: Life,
        timeout: Nanos,
        now: Nanos,
    ) -> Self {
        let place = |_| Place { chain: Chain::NONE, tick: 0, aborting: false };
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

    /// Its number at the controller.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.pair.queue()
    }

    /// Whether it stands.
    #[must_use]
    pub fn fate(&self) -> Fate {
        self.life.fate(self.epoch)
    }

    /// Most bytes of data in one command.
    #[must_use]
    pub fn transfer_bytes_max(&self) -> u64 {
        self.rules.transfer_bytes_max
    }

    /// Takes a command and describes its data: the controller sees it after [`ring`](Self::ring). The data stays lent until
    /// its answer. `Ok` means that exactly one answer follows, from [`reap`](Self::reap) or [`abandon`](Self::abandon).
    ///
    /// # Errors
    /// [`SubmitFault`]: nothing happened.
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
            Err(DescribeError::NoListPages) => return Err(SubmitFault::Full),
            Err(error) => return Err(error.into()),
        };
        let Ok(command) = self.pair.submit(entry) else {
            self.lists.give_back(chain);
            return Err(SubmitFault::Full);
        };
        let slot = self.pair.slot(command);
        self.places[slot] = Place { chain, tick: self.tick, aborting: false };
        Ok(command)
    }

    /// The place of a command in a table of [`depth`](Self::depth) entries; its own until it is answered.
    #[must_use]
    #[inline]
    pub fn slot(&self, command: CommandId) -> usize {
        self.pair.slot(command)
    }

    /// Shows what was submitted to the controller, and gives it room for answers.
    #[inline]
    pub fn ring(&mut self) {
        if self.life.is_live(self.epoch) {
            self.pair.ring();
        }
    }

    /// Takes the next answer. What answers no command in flight is dropped and counted: see [`fault`](Self::fault).
    #[inline]
    pub fn reap(&mut self) -> Option<Completion> {
        for _ in 0..STRAYS_MAX {
            match self.pair.reap()? {
                Reaped::Answer(completion) => {
                    let chain = std::mem::replace(&mut self.places[completion.slot].chain, Chain::NONE);
                    if !chain.is_none() {
                        self.lists.give_back(chain);
                    }
                    return Some(completion);
                }
                Reaped::Stray => self.strays = self.strays.saturating_add(1),
            }
        }
        None
    }

    /// Whether [`reap`](Self::reap) might return something.
    #[must_use]
    #[inline]
    pub fn has_work(&self) -> bool {
        self.pair.has_work()
    }

    /// How the controller broke the protocol here, if it did: it should be reset.
    #[must_use]
    pub fn fault(&self) -> Option<QueueFault> {
        if self.strays >= STRAYS_MAX {
            return Some(QueueFault::Strays { count: self.strays });
        }
        self.pair.fault().map(|fault| QueueFault::Head { head: fault.head })
    }

    /// Answers that named no command in flight, so far.
    #[must_use]
    pub fn strays(&self) -> u32 {
        self.strays
    }

    /// Looks for commands that take too long, if a tick has passed since the last look.
    pub fn watch(&mut self, now: Nanos, mut found: impl FnMut(Overdue)) {
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
            // The tick of the submission was not a whole one.
            if self.tick.wrapping_sub(place.tick) <= TICKS {
                continue;
            }
            place.tick = self.tick;
            if std::mem::replace(&mut place.aborting, true) {
                found(Overdue::Stuck(command));
            } else {
                found(Overdue::Abort(command));
            }
        }
    }

    /// When [`watch`](Self::watch) has something to do again.
    #[must_use]
    pub fn next_watch(&self) -> Nanos {
        self.ticked.after(self.tick_span)
    }

    /// Gives up a queue that a reset forgot, or whose controller is dead: the slots of the commands that were in flight.
    /// None of them is answered by the controller any more, and their data is free again, unless a dead controller is not
    /// [quiet](super::Controller::is_quiet). Reap first: what was answered before the reset is there still.
    ///
    /// # Errors
    /// The queue itself, when it is neither lost nor dead.
    pub fn abandon(self) -> Result<Vec<usize>, Box<Self>> {
        match self.fate() {
            Fate::Lost | Fate::Dead => {
                Ok((0..self.places.len()).filter(|&slot| self.pair.in_slot(slot).is_some()).collect())
            }
            Fate::Live | Fate::Waiting => Err(Box::new(self)),
        }
    }

    /// Commands accepted and not yet answered.
    #[must_use]
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.pair.in_flight()
    }

    /// Most commands in flight.
    #[must_use]
    #[inline]
    pub fn depth(&self) -> u32 {
        self.pair.depth()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
