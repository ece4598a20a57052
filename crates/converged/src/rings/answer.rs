//! From a completion of the device to dword 0 and status of an NVMe completion.
//!
//! In: what the device made of a command. Out: two numbers, and for a list its bytes in client memory. Invariant: a list
//! never writes more than its client's buffer holds, and only complete keys.

use crate::command::{Command, Completion, ListPosition, NamespaceId};
use crate::limits::LIST_KEYS_MAX;
use headwater_dma::iova::Segments;
use headwater_nvme::spec::kv::{KV_KEY_BYTES_MAX, LIST_HEADER_BYTES, ListEncoder};
use headwater_nvme::spec::status::Status;

/// Bytes of one list answer at most, however large the buffer: its client asks again from the last key.
pub(super) const LIST_BYTES_MAX: usize = 1 << 20;

/// What a completion must say.
#[derive(Debug)]
pub(super) enum Answer {
    /// The status.
    Status,
    /// The status, but a key that was not there is no failure (KV 1.0d: EDNEK is 0 here).
    Removal,
    /// The status, and the value's length in dword 0.
    Length,
    /// The status, when all keys are gathered.
    List(Box<ListAnswer>),
}

impl Answer {
    /// Dword 0 and status.
    #[inline]
    pub(super) fn close(self, completion: &Completion) -> (u32, Status) {
        let status = completion.status;
        match self {
            Self::Removal if status == Status::KEY_DOES_NOT_EXIST => (0, Status::SUCCESS),
            Self::Length if status.is_success() => (completion.value_bytes, status),
            Self::Status | Self::Removal | Self::Length => (0, status),
            Self::List(list) if status.is_success() => (0, list.close()),
            Self::List(_) => (0, status),
        }
    }
}

/// A list on its way.
#[derive(Debug)]
pub(super) struct ListAnswer {
    namespace: NamespaceId,
    encoder: ListEncoder,
    /// What is left of the client's buffer.
    bytes_left: usize,
    into: Segments,
    from: ListPosition,
}

impl ListAnswer {
    /// A list for this buffer, or `None` when not even the count fits.
    pub(super) fn new(namespace: NamespaceId, from: ListPosition, into: Segments) -> Option<Self> {
        let bytes = into.bytes().min(LIST_BYTES_MAX);
        Some(Self {
            namespace,
            encoder: ListEncoder::new(bytes)?,
            bytes_left: bytes - LIST_HEADER_BYTES,
            into,
            from,
        })
    }

    /// Asks the device for about as many keys as fit.
    pub(super) fn next_command(&self) -> (NamespaceId, Command) {
        let keys = self.bytes_left / entry_bytes(KV_KEY_BYTES_MAX) + 1;
        let command = Command::List {
            from: self.from,
            keys_max: u32::try_from(keys).unwrap_or(LIST_KEYS_MAX).min(LIST_KEYS_MAX),
        };
        (self.namespace, command)
    }

    /// Takes the keys that fit. True when there is room for more, and more to come.
    pub(super) fn wants_more_than(&mut self, completion: &Completion) -> bool {
        if !completion.status.is_success() {
            return false;
        }
        for listed in &completion.keys {
            // The command set has no words for a longer key.
            if listed.key.len() > KV_KEY_BYTES_MAX {
                continue;
            }
            if self.encoder.push(&listed.key).is_err() {
                return false;
            }
            self.bytes_left = self.bytes_left.saturating_sub(entry_bytes(listed.key.len()));
        }
        match completion.next {
            Some(next) if self.bytes_left >= entry_bytes(1) => {
                self.from = next;
                true
            }
            _ => false,
        }
    }

    /// Writes the answer to the client's buffer.
    fn close(self) -> Status {
        let bytes = self.encoder.finish();
        if self.into.copy_out(0, &bytes) == bytes.len() {
            Status::SUCCESS
        } else {
            Status::DATA_TRANSFER_ERROR
        }
    }
}

/// Bytes of a key in a list answer: its length, itself, and padding (KV 1.0d figure 16).
const fn entry_bytes(key_bytes: usize) -> usize {
    (2 + key_bytes).next_multiple_of(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_key_is_no_failure_of_a_delete_only() {
        let missing = Completion::new(0, Status::KEY_DOES_NOT_EXIST);
        assert_eq!(Answer::Removal.close(&missing), (0, Status::SUCCESS));
        assert_eq!(Answer::Status.close(&missing).1, Status::KEY_DOES_NOT_EXIST);
        assert_eq!(Answer::Length.close(&missing).1, Status::KEY_DOES_NOT_EXIST);
        let damaged = Completion::new(0, Status::UNRECOVERED_ERROR);
        assert_eq!(Answer::Removal.close(&damaged).1, Status::UNRECOVERED_ERROR);
    }

    #[test]
    fn a_length_is_told_with_success_only() {
        let mut completion = Completion::new(0, Status::SUCCESS);
        completion.value_bytes = 77;
        assert_eq!(Answer::Length.close(&completion), (77, Status::SUCCESS));
        assert_eq!(Answer::Status.close(&completion), (0, Status::SUCCESS));
        completion.status = Status::UNRECOVERED_ERROR;
        assert_eq!(Answer::Length.close(&completion).0, 0);
    }
}
