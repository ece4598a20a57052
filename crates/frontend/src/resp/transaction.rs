//! The transaction of a connection: the commands that MULTI has queued and the keys that WATCH has noted.
//!
//! Input: commands between MULTI and EXEC, keys of WATCH with their sequences on the device. Output: what EXEC runs.
//! Invariant: a queue is bounded in commands and bytes; its arguments are copies, so that it keeps no input alive.

use super::command_table::RespCommand;
use super::errors::ErrorReply;
use super::limits::{TRANSACTION_BYTES_MAX, TRANSACTION_COMMANDS_MAX, WATCHED_BYTES_MAX};
use super::parser::ArgumentSpan;
use super::request::RespRequest;
use super::transaction_errors;
use bytes::{Bytes, BytesMut};
use headwater_host::width::narrow;
use headwater_ssd::command::{NamespaceId, Sequence};
use std::collections::BTreeMap;

/// The bytes of a queued command or a watched key besides its arguments.
const ENTRY_BYTES: usize = 96;

/// A command that waits for EXEC.
#[derive(Debug)]
pub(crate) struct QueuedCommand {
    pub(crate) verb: RespCommand,
    /// The namespace of the database that is selected when it runs.
    pub(crate) namespace: NamespaceId,
    bytes: Bytes,
    spans: Vec<ArgumentSpan>,
}

impl QueuedCommand {
    fn new(verb: RespCommand, namespace: NamespaceId, request: &RespRequest<'_>) -> Self {
        let mut bytes = BytesMut::with_capacity(request.argument_bytes());
        let spans = (0..request.len())
            .map(|at| {
                let start = narrow(bytes.len());
                bytes.extend_from_slice(request.arg(at));
                ArgumentSpan { start, end: narrow(bytes.len()) }
            })
            .collect();
        Self { verb, namespace, bytes: bytes.freeze(), spans }
    }

    /// Returns the command as it was received.
    pub(crate) fn request(&self) -> RespRequest<'_> {
        RespRequest::new(&self.bytes, &self.spans)
    }
}

/// Returns the bytes that a queued request takes.
fn queued_bytes(request: &RespRequest<'_>) -> usize {
    request.argument_bytes() + request.len() * size_of::<ArgumentSpan>() + ENTRY_BYTES
}

/// The commands since MULTI.
#[derive(Debug, Default)]
pub(crate) struct TransactionQueue {
    pub(crate) commands: Vec<QueuedCommand>,
    pub(crate) bytes: usize,
    /// True if a command was refused, so that EXEC refuses all of them.
    pub(crate) refused: bool,
    /// The database that its last SELECT selects; `None` if it has none that can work.
    pub(crate) selected: Option<u8>,
}

/// The keys that WATCH has noted: the sequence of each, or `None` for a key that did not exist.
#[derive(Debug, Default)]
pub(crate) struct WatchedKeys {
    pub(crate) keys: BTreeMap<(NamespaceId, Bytes), Option<Sequence>>,
    pub(crate) bytes: usize,
}

impl WatchedKeys {
    /// Notes a key, unless it is watched already: the first state counts.
    pub(crate) fn note(&mut self, namespace: NamespaceId, key: Bytes, seen: Option<Sequence>) {
        let bytes = key.len() + ENTRY_BYTES;
        self.keys.entry((namespace, key)).or_insert_with(|| {
            self.bytes += bytes;
            seen
        });
    }

    /// Checks that there is room for further keys.
    ///
    /// # Errors
    /// All keys together exceed [`WATCHED_BYTES_MAX`].
    pub(crate) fn check_room(&self, keys: &[Bytes]) -> Result<(), ErrorReply> {
        let more: usize = keys.iter().map(|key| key.len() + ENTRY_BYTES).sum();
        if self.bytes + more > WATCHED_BYTES_MAX { Err(transaction_errors::WATCHED_TOO_MUCH) } else { Ok(()) }
    }
}

/// The transaction of a connection.
#[derive(Debug, Default)]
pub(crate) struct ConnectionTransaction {
    /// The commands since MULTI, or `None` outside of MULTI.
    queue: Option<TransactionQueue>,
    pub(crate) watched: WatchedKeys,
}

impl ConnectionTransaction {
    /// Returns true between MULTI and EXEC.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.queue.is_some()
    }

    /// Returns the number of queued commands, or `None` outside of MULTI.
    pub(crate) fn queued(&self) -> Option<usize> {
        self.queue.as_ref().map(|queue| queue.commands.len())
    }

    /// Returns the bytes that it holds.
    #[inline]
    pub(crate) fn held_bytes(&self) -> usize {
        self.queue.as_ref().map_or(0, |queue| queue.bytes) + self.watched.bytes
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// There is one already.
    pub(crate) fn begin(&mut self) -> Result<(), ErrorReply> {
        if self.is_open() {
            return Err(transaction_errors::NESTED_MULTI);
        }
        self.queue = Some(TransactionQueue::default());
        Ok(())
    }

    /// Makes EXEC refuse the transaction, if there is one: a command of it was refused.
    pub(crate) fn refuse(&mut self) {
        if let Some(queue) = &mut self.queue {
            // The rest of a refused transaction is not executed, so nothing of it is kept.
            *queue = TransactionQueue { refused: true, ..TransactionQueue::default() };
        }
    }

    /// Returns the bytes that a queued command would take, or the error of the limit that it exceeds.
    pub(crate) fn check_room(&self, request: &RespRequest<'_>) -> Result<usize, ErrorReply> {
        let bytes = queued_bytes(request);
        let queue = self.queue.as_ref();
        let (commands, held) = queue.map_or((0, 0), |queue| (queue.commands.len(), queue.bytes));
        if commands >= TRANSACTION_COMMANDS_MAX || held + bytes > TRANSACTION_BYTES_MAX {
            return Err(transaction_errors::QUEUE_TOO_LONG);
        }
        Ok(bytes)
    }

    /// Appends a command of a connection with this database, unless one was refused before.
    pub(crate) fn push(&mut self, verb: RespCommand, request: &RespRequest<'_>, of_connection: u8) {
        if let Some(queue) = self.queue.as_mut().filter(|queue| !queue.refused) {
            let namespace = NamespaceId(queue.selected.unwrap_or(of_connection) + 1);
            if verb == RespCommand::Select {
                queue.selected = request.database(1).ok().or(queue.selected);
            }
            queue.bytes += queued_bytes(request);
            queue.commands.push(QueuedCommand::new(verb, namespace, request));
        }
    }

    /// Ends the transaction and returns its commands and the watched keys; `None` outside of MULTI.
    pub(crate) fn take(&mut self) -> Option<(TransactionQueue, WatchedKeys)> {
        let queue = self.queue.take()?;
        Some((queue, std::mem::take(&mut self.watched)))
    }
}
