//! Translates completions of the device into the contents of an NVMe completion, and the bytes that go with it.
//!
//! Input: completions of the device. Output: a [`NvmeResult`]: dword 0, status, and bytes for a transport without client
//! memory. Invariant: a list never exceeds its client's buffer, and holds only complete keys.

use crate::command::{ListPosition, NamespaceId, SsdCommand, SsdCompletion};
use crate::limits::LIST_KEYS_MAX;
use crate::namespace::MissingKey;
use headwater_dma::iova::ClientSegments;
use headwater_nvme::spec::kv::{KV_KEY_BYTES_MAX, LIST_HEADER_BYTES, ListEncoder};
use headwater_nvme::spec::status::Status;

/// The contents of a completion queue entry.
#[derive(Debug)]
pub struct NvmeResult {
    /// Dword 0.
    pub result: u32,
    /// Status of the command.
    pub status: Status,
    /// Bytes for the host, if its request was made with [`RequestData::Returned`](super::RequestData::Returned).
    pub data: Vec<u8>,
}

impl NvmeResult {
    fn without_data(result: u32, status: Status) -> Self {
        Self { result, status, data: Vec::new() }
    }
}

/// The rule by which the completions of a command become its answer.
#[derive(Debug)]
pub enum CompletionBuilder {
    /// The status alone.
    Status,
    /// The status, with the result for a missing key (KV 1.0d section 4.1.3.1, EDNEK).
    Delete(MissingKey),
    /// The status, and the value's length in dword 0.
    Length,
    /// The status, once all keys are gathered.
    List(Box<ListBuilder>),
    /// The status of the command that follows a flush, or of the flush if that failed.
    Flushed(Box<FlushedCommand>),
}

/// A command that is submitted when the flush before it is done.
#[derive(Debug)]
pub struct FlushedCommand {
    namespace: NamespaceId,
    command: SsdCommand,
    flushed: bool,
}

impl FlushedCommand {
    pub(super) fn new(namespace: NamespaceId, command: SsdCommand) -> Self {
        Self { namespace, command, flushed: false }
    }

    pub(super) fn command(&self) -> &SsdCommand {
        &self.command
    }
}

impl CompletionBuilder {
    /// Takes a completion. Returns true if [`next_command`](Self::next_command) must be submitted before the answer can
    /// be closed: a list takes several commands, and a command after a flush takes two.
    #[inline]
    pub fn needs_more(&mut self, completion: &SsdCompletion) -> bool {
        match self {
            Self::List(list) => list.needs_more(completion),
            Self::Flushed(first) => {
                completion.status.is_success() && !std::mem::replace(&mut first.flushed, true)
            }
            Self::Status | Self::Delete(_) | Self::Length => false,
        }
    }

    /// Returns the next command; `None` for an answer that needs only one completion. Returns the same command until
    /// the next call of [`needs_more`](Self::needs_more), so that it can be submitted again to a busy device.
    #[must_use]
    pub fn next_command(&self) -> Option<(NamespaceId, SsdCommand)> {
        match self {
            Self::List(list) => Some(list.next_command()),
            Self::Flushed(first) => Some((first.namespace, first.command.clone())),
            Self::Status | Self::Delete(_) | Self::Length => None,
        }
    }

    /// Ends the command, with the completion that was last passed to [`needs_more`](Self::needs_more).
    #[must_use]
    #[inline]
    pub fn build(self, completion: SsdCompletion) -> NvmeResult {
        let status = completion.status;
        match self {
            Self::Delete(MissingKey::Ignored) if status == Status::KEY_DOES_NOT_EXIST => {
                NvmeResult::without_data(0, Status::SUCCESS)
            }
            Self::Length if status.is_success() => {
                NvmeResult { result: completion.value_bytes, status, data: completion.sink }
            }
            Self::List(list) if status.is_success() => list.build(),
            Self::Status | Self::Flushed(_) if status.is_success() => {
                NvmeResult { result: 0, status, data: completion.sink }
            }
            _ => NvmeResult::without_data(0, status),
        }
    }
}

/// A list in progress. Keys are copied to client memory with each completion, so that a list buffers the keys of at
/// most one completion.
#[derive(Debug)]
pub struct ListBuilder {
    namespace: NamespaceId,
    encoder: ListEncoder,
    /// Client memory; `None` if the bytes are returned with the answer.
    memory: Option<ClientSegments>,
    /// Offset in client memory after the last key.
    copied: usize,
    status: Status,
    position: ListPosition,
}

impl ListBuilder {
    /// Creates a list for a buffer of `bytes` bytes, or `None` if not even the count fits.
    pub(super) fn new(
        namespace: NamespaceId,
        position: ListPosition,
        bytes: u32,
        memory: Option<ClientSegments>,
    ) -> Option<Self> {
        let encoder = ListEncoder::new(usize::try_from(bytes).ok()?)?;
        let copied = LIST_HEADER_BYTES;
        Some(Self { namespace, encoder, memory, copied, status: Status::SUCCESS, position })
    }

    /// Returns a command that requests about as many keys as fit.
    pub(super) fn next_command(&self) -> (NamespaceId, SsdCommand) {
        let keys = self.encoder.bytes_left() / entry_bytes(KV_KEY_BYTES_MAX) + 1;
        let command = SsdCommand::List {
            position: self.position,
            keys_max: u32::try_from(keys).unwrap_or(LIST_KEYS_MAX).min(LIST_KEYS_MAX),
        };
        (self.namespace, command)
    }

    /// Takes the keys that fit. Returns true if there is room for more keys and the device has more.
    fn needs_more(&mut self, completion: &SsdCompletion) -> bool {
        if !completion.status.is_success() {
            return false;
        }
        let room = self.encode_keys(completion);
        if let Some(into) = &self.memory {
            let keys = self.encoder.take_keys();
            if into.copy_out(self.copied, &keys) != keys.len() {
                self.status = Status::DATA_TRANSFER_ERROR;
            }
            self.copied += keys.len();
        }
        match completion.next_position {
            Some(next) if room && self.status.is_success() => {
                self.position = next;
                true
            }
            _ => false,
        }
    }

    /// Encodes the keys that fit. Returns true if all did, and there is room for one more.
    fn encode_keys(&mut self, completion: &SsdCompletion) -> bool {
        // The command set cannot express a longer key.
        let encodable = completion.keys.iter().filter(|listed| listed.key.len() <= KV_KEY_BYTES_MAX);
        for listed in encodable {
            if self.encoder.push(&listed.key).is_err() {
                return false;
            }
        }
        self.encoder.bytes_left() >= entry_bytes(1)
    }

    /// Writes the count to the client's buffer, or returns all bytes.
    fn build(self) -> NvmeResult {
        let Some(into) = self.memory else {
            return NvmeResult { result: 0, status: self.status, data: self.encoder.finish() };
        };
        let header = self.encoder.header();
        if into.copy_out(0, &header) == header.len() {
            NvmeResult::without_data(0, self.status)
        } else {
            NvmeResult::without_data(0, Status::DATA_TRANSFER_ERROR)
        }
    }
}

/// Returns the bytes of a key in a list answer: its length, itself, and padding (KV 1.0d figure 16).
const fn entry_bytes(key_bytes: usize) -> usize {
    (2 + key_bytes).next_multiple_of(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closed(answer: CompletionBuilder, status: Status) -> (u32, Status) {
        let completion = SsdCompletion { value_bytes: 77, ..SsdCompletion::new(0, status) };
        let closed = answer.build(completion);
        (closed.result, closed.status)
    }

    #[test]
    fn delete_of_a_missing_key_succeeds_unless_the_namespace_reports_it() {
        let missing = Status::KEY_DOES_NOT_EXIST;
        assert_eq!(closed(CompletionBuilder::Delete(MissingKey::Ignored), missing), (0, Status::SUCCESS));
        assert_eq!(closed(CompletionBuilder::Delete(MissingKey::Reported), missing), (0, missing));
        assert_eq!(closed(CompletionBuilder::Status, missing), (0, missing));
        assert_eq!(closed(CompletionBuilder::Length, missing), (0, missing));
        let damaged = Status::UNRECOVERED_ERROR;
        assert_eq!(closed(CompletionBuilder::Delete(MissingKey::Ignored), damaged), (0, damaged));
    }

    #[test]
    fn length_is_returned_with_success_only() {
        assert_eq!(closed(CompletionBuilder::Length, Status::SUCCESS), (77, Status::SUCCESS));
        assert_eq!(closed(CompletionBuilder::Status, Status::SUCCESS), (0, Status::SUCCESS));
        assert_eq!(closed(CompletionBuilder::Length, Status::UNRECOVERED_ERROR).0, 0);
    }

    #[test]
    fn bytes_are_returned_with_success_only() {
        let bytes = |status| {
            let completion = SsdCompletion { sink: vec![1, 2], ..SsdCompletion::new(0, status) };
            CompletionBuilder::Length.build(completion).data
        };
        assert_eq!(bytes(Status::SUCCESS), [1, 2]);
        assert_eq!(bytes(Status::UNRECOVERED_ERROR), [0_u8; 0]);
    }
}
