//! Commands of several steps.
//!
//! In: completions of their device commands. Out: further device commands, and in the end one reply. An operation keeps what it
//! needs to submit a step again, because the device may have no room for it: `drive` submits whatever is due and can be called
//! at any time, `accept` only changes state.
//!
//! ```text
//!            drive: Waiting           completion: accept
//!   begin ------------------> waiting ------------------> drive --> Done(reply)
//!     +---- drive: Busy ----> busy list ---- next turn ----> drive
//! ```

use super::edit::Edit;
use super::gather::Gather;
use super::listing::Listing;
use super::locks::ClientIndex;
use super::pair::Pair;
use super::relocate::Relocate;
use super::reply::{Protocol, Reply};
use super::shared::{Again, Shared};
use super::sweep::Sweep;
use super::writes::Writes;
use crate::core_device::CoreDevice;
use headwater_host::clock::Nanos;
use headwater_ssd::command::{Command, Completion, NamespaceId, SubmitError};

/// Where an operation stands after it was driven.
#[derive(Debug)]
pub(crate) enum Drive {
    /// A completion will come.
    Waiting,
    /// The device had no room; drive again later.
    Busy,
    /// Nothing happens before this time.
    Until(Nanos),
    /// Finished.
    Done(Reply),
}

/// What an operation may touch while it is driven.
pub(crate) struct Lane<'a, S> {
    pub(crate) store: &'a mut S,
    pub(crate) shared: &'a mut Shared,
    pub(crate) in_flight: &'a mut u32,
    pub(crate) locks: &'a mut u32,
    pub(crate) token: u64,
    pub(crate) protocol: Protocol,
}

impl<S: CoreDevice> Lane<'_, S> {
    /// Submits one part of the operation; its completion comes back with the part's number.
    pub(crate) fn submit(
        &mut self,
        part: u32,
        namespace: NamespaceId,
        command: Command,
    ) -> Result<(), SubmitError> {
        let limit = super::limits::IN_FLIGHT_MAX;
        if self.shared.in_flight >= limit {
            return Err(SubmitError::Busy(limit));
        }
        self.store.submit(self.shared.face, namespace, self.token | u64::from(part), command)?;
        self.shared.in_flight += 1;
        *self.in_flight += 1;
        Ok(())
    }

    /// Gives back a key that was locked for this operation.
    pub(crate) fn unlock(&mut self, namespace: NamespaceId, key: &[u8]) {
        *self.locks -= 1;
        self.shared.unlock(namespace, key);
    }
}

/// A command of several steps.
#[derive(Debug)]
pub(crate) enum Operation {
    /// Read, decide, write.
    Edit(Edit),
    /// The same question about many keys.
    Gather(Gather),
    /// Many writes, all or nothing.
    Writes(Writes),
    /// A value goes to another key.
    Relocate(Relocate),
    /// Two values at a time.
    Pair(Pair),
    /// Keys of a namespace.
    Listing(Listing),
    /// Something done to whole namespaces.
    Sweep(Sweep),
    /// Nothing, for a while.
    Sleep(Nanos),
}

impl Operation {
    /// Submits what is due.
    pub(crate) fn drive<S: CoreDevice>(&mut self, lane: &mut Lane<'_, S>) -> Drive {
        match self {
            Self::Edit(operation) => operation.drive(lane),
            Self::Gather(operation) => operation.drive(lane),
            Self::Writes(operation) => operation.drive(lane),
            Self::Relocate(operation) => operation.drive(lane),
            Self::Pair(operation) => operation.drive(lane),
            Self::Listing(operation) => operation.drive(lane),
            Self::Sweep(operation) => operation.drive(lane),
            Self::Sleep(until) if lane.shared.now < *until => Drive::Until(*until),
            Self::Sleep(_) => Drive::Done(Reply::Ok),
        }
    }

    /// Takes in a completion.
    pub(crate) fn accept(&mut self, completion: Completion, shared: &mut Shared) {
        let part = u32::try_from(completion.token & 0xFF_FFFF).unwrap_or(u32::MAX);
        match self {
            Self::Edit(operation) => operation.accept(completion, shared.wall),
            Self::Gather(operation) => operation.accept(part, completion, shared),
            Self::Writes(operation) => operation.accept(&completion),
            Self::Relocate(operation) => operation.accept(completion),
            Self::Pair(operation) => operation.accept(part, completion),
            Self::Listing(operation) => operation.accept(completion, shared),
            Self::Sweep(operation) => operation.accept(&completion, shared),
            Self::Sleep(_) => {}
        }
    }

    /// Whether commands behind it on the connection must wait.
    pub(crate) fn holds_connection(&self) -> bool {
        match self {
            Self::Edit(_) => false,
            Self::Gather(operation) => operation.is_submitting(),
            _ => true,
        }
    }

    /// Its client is gone: what it has locked must be freed by the caller.
    pub(crate) fn locked_key(&self) -> Option<(NamespaceId, &[u8])> {
        match self {
            Self::Edit(operation) => operation.locked_key(),
            _ => None,
        }
    }
}

/// Notes that an operation is to be driven again.
pub(crate) fn again(client: ClientIndex, id: u64, slot: u64) -> Again {
    Again { client, id, slot }
}
