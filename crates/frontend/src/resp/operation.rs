//! Client commands that take several device commands.
//!
//! Input: completions of their device commands. Output: further device commands, and one reply. An operation keeps the
//! state to submit a step again, because the device may have no room for it: `drive` submits the steps that are due and
//! can be called at any time; `accept` only changes state. Each operation stands in a file of its own, on
//! [`OperationContext`] and [`DriveResult`]; this file is the list of them.
//!
//! ```text
//!            drive: Waiting           completion: accept
//!   begin ------------------> waiting ------------------> drive --> Done(reply)
//!     +---- drive: Busy ----> busy list ---- next turn ----> drive
//! ```

use super::atomic_writes::AtomicWrites;
use super::bit_operation::BitOperation;
use super::client_lines::ClientLines;
use super::edit::KeyEdit;
use super::gather::KeyGather;
use super::key_count::KeyCount;
use super::lcs_operation::LcsOperation;
use super::listing::KeyListing;
use super::locks::ClientIndex;
use super::operation_step::{DriveResult, OperationContext};
use super::relocate::KeyRelocation;
use super::reply::{RespReply, RespVersion};
use super::state::{OperationRef, RespState};
use super::sweep::NamespaceSweep;
use super::transaction_run::TransactionRun;
use super::value_stream::ValueStream;
use super::watch::KeyWatch;
use crate::core_device::CoreDevice;
use bytes::Bytes;
use headwater_host::clock::Nanos;
use headwater_host::width::narrow;
use headwater_ssd::command::{NamespaceId, SsdCompletion};

/// A client command that takes several device commands.
#[derive(Debug)]
pub(crate) enum RespOperation {
    /// A read-modify-write of one key.
    Edit(KeyEdit),
    /// The same read or delete for many keys.
    Gather(KeyGather),
    /// A long value that is sent while it is read.
    Stream(ValueStream),
    /// An atomic batch of writes.
    Writes(AtomicWrites),
    /// A rename or copy of a key.
    Relocate(KeyRelocation),
    /// A combination of the bits of several values.
    Bits(Box<BitOperation>),
    /// A comparison of two values.
    Lcs(LcsOperation),
    /// A listing of a namespace's keys.
    Listing(KeyListing),
    /// A list of many clients.
    Clients(Box<ClientLines>),
    /// A count of a namespace's keys.
    Count(KeyCount),
    /// A clear or flush of whole namespaces.
    Sweep(NamespaceSweep),
    /// A watch of keys.
    Watch(KeyWatch),
    /// The commands of a transaction.
    Transaction(Box<TransactionRun>),
    /// A sleep until a point in time.
    Sleep(Nanos),
}

impl RespOperation {
    /// Submits the device commands that are due.
    pub(crate) fn drive<S: CoreDevice>(&mut self, context: &mut OperationContext<'_, S>) -> DriveResult {
        match self {
            Self::Edit(operation) => operation.drive(context),
            Self::Gather(operation) => operation.drive(context),
            Self::Stream(operation) => operation.drive(context),
            Self::Writes(operation) => operation.drive(context),
            Self::Relocate(operation) => operation.drive(context),
            Self::Bits(operation) => operation.drive(context),
            Self::Lcs(operation) => operation.drive(context),
            Self::Listing(operation) => operation.drive(context),
            Self::Clients(lines) => lines.drive(context.protocol),
            Self::Count(operation) => operation.drive(context),
            Self::Sweep(operation) => operation.drive(context),
            Self::Watch(operation) => operation.drive(context),
            Self::Transaction(operation) => operation.drive(context),
            Self::Sleep(until) if context.shared.now < *until => DriveResult::Until(*until),
            Self::Sleep(_) => DriveResult::Done(RespReply::Ok),
        }
    }

    /// Applies a completion to the state.
    pub(crate) fn accept(&mut self, completion: SsdCompletion, shared: &mut RespState) {
        let part = narrow(completion.token & 0xFF_FFFF);
        match self {
            Self::Edit(operation) => operation.accept(completion, shared.wall),
            Self::Gather(operation) => operation.accept(part, completion, shared),
            Self::Stream(operation) => operation.accept(completion, shared),
            Self::Writes(operation) => operation.accept(&completion),
            Self::Relocate(operation) => operation.accept(completion),
            Self::Bits(operation) => operation.accept(part, completion),
            Self::Lcs(operation) => operation.accept(part, completion),
            Self::Listing(operation) => operation.accept(completion),
            Self::Sweep(operation) => operation.accept(&completion, shared),
            Self::Watch(operation) => operation.accept(part, &completion),
            Self::Transaction(operation) => operation.accept(part, completion, shared),
            Self::Clients(_) | Self::Count(_) | Self::Sleep(_) => {}
        }
    }

    /// Returns the bytes that the operation holds until its client has received the reply, if they are known when it
    /// starts; `length` returns the length of a key's value.
    pub(crate) fn bytes_at_start(&self, length: impl Fn(NamespaceId, &Bytes) -> usize) -> usize {
        match self {
            Self::Relocate(operation) => {
                let (namespace, key) = operation.source();
                length(namespace, key)
            }
            Self::Lcs(operation) => operation.bytes_at_start(length),
            Self::Bits(operation) => operation.bytes_at_start(length),
            _ => 0,
        }
    }

    /// Returns the bytes of its reply that the operation holds or has asked for, if they change while it runs.
    pub(crate) fn reply_bytes(&self) -> Option<usize> {
        match self {
            Self::Gather(operation) => Some(operation.reply_bytes()),
            Self::Stream(operation) => Some(operation.reply_bytes()),
            Self::Listing(operation) => Some(operation.reply_bytes()),
            Self::Clients(operation) => Some(operation.reply_bytes()),
            Self::Transaction(operation) => Some(operation.reply_bytes()),
            _ => None,
        }
    }

    /// Takes the part of the reply that can be sent before the operation is done, if there is any.
    pub(crate) fn take_part(&mut self, protocol: RespVersion) -> Option<RespReply> {
        match self {
            Self::Gather(operation) => operation.take_part(protocol),
            Self::Stream(operation) => operation.take_part(protocol).map(RespReply::Parts),
            _ => None,
        }
    }

    /// Returns the time at which the operation began to send its reply, if it sends while it runs.
    pub(crate) fn sent_from(&self) -> Option<Nanos> {
        match self {
            Self::Stream(operation) => operation.sent_from(),
            _ => None,
        }
    }

    /// Returns the database that the operation has selected for the connection, if it is done and has selected one.
    pub(crate) fn selected(&self) -> Option<u8> {
        match self {
            Self::Transaction(operation) => operation.selected(),
            _ => None,
        }
    }

    /// Returns true if later commands of the connection must wait.
    pub(crate) fn holds_connection(&self) -> bool {
        match self {
            Self::Edit(_) => false,
            Self::Gather(operation) => operation.holds_connection(),
            _ => true,
        }
    }

    /// Takes the number of bytes by which what the operation holds grew, other than by completions.
    pub(crate) fn take_grown(&mut self) -> usize {
        match self {
            Self::Transaction(operation) => operation.take_grown(),
            _ => 0,
        }
    }

    /// Returns the key that the operation has locked; after a disconnect the caller must unlock it.
    pub(crate) fn locked_key(&self) -> Option<(NamespaceId, &[u8])> {
        match self {
            Self::Edit(operation) => operation.locked_key(),
            _ => None,
        }
    }
}

/// Returns the reference by which an operation is driven again.
pub(crate) fn operation_ref(client: ClientIndex, id: u64, slot: u64) -> OperationRef {
    OperationRef { client, id, slot }
}
