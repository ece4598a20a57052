//! From a completion of the device to what an NVMe completion says, and the bytes that go with it.
//!
//! In: what the device made of a command. Out: a [`Closed`]: dword 0, status, and bytes for a transport that has no client
//! memory. Invariant: a list never takes more than its client's buffer holds, and only complete keys.

use crate::command::{Command, Completion, ListPosition, NamespaceId};
use crate::limits::LIST_KEYS_MAX;
use crate::namespace::MissingKey;
use headwater_dma::iova::Segments;
use headwater_nvme::spec::kv::{KV_KEY_BYTES_MAX, LIST_HEADER_BYTES, ListEncoder};
use headwater_nvme::spec::status::Status;

/// What the completion queue entry must say.
#[derive(Debug)]
pub struct Closed {
    /// Dword 0.
    pub result: u32,
    /// What became of the command.
    pub status: Status,
    /// The bytes for the host, if its request was made with [`Data::Room`](super::Data::Room).
    pub data: Vec<u8>,
}

impl Closed {
    fn plain(result: u32, status: Status) -> Self {
        Self { result, status, data: Vec::new() }
    }
}

/// How the completion of a command is told.
#[derive(Debug)]
pub enum Answer {
    /// The status.
    Status,
    /// The status, and what a key means that was not there (KV 1.0d section 4.1.3.1, EDNEK).
    Removal(MissingKey),
    /// The status, and the value's length in dword 0.
    Length,
    /// The status, when all keys are gathered.
    List(Box<ListAnswer>),
    /// The status of the command that follows a flush, or of the flush if that failed.
    Flushed(Box<Flushed>),
}

/// A command that is submitted when the flush before it is over.
#[derive(Debug)]
pub struct Flushed {
    namespace: NamespaceId,
    command: Command,
    flushed: bool,
}

impl Flushed {
    pub(super) fn new(namespace: NamespaceId, command: Command) -> Self {
        Self { namespace, command, flushed: false }
    }

    pub(super) fn command(&self) -> &Command {
        &self.command
    }
}

impl Answer {
    /// Takes a completion that may not be the last: true when [`next_command`](Self::next_command) must be submitted
    /// before the answer can be closed. Lists take several commands, and what is flushed first takes two.
    #[inline]
    pub fn wants_more_than(&mut self, completion: &Completion) -> bool {
        match self {
            Self::List(list) => list.wants_more_than(completion),
            Self::Flushed(first) => {
                completion.status.is_success() && !std::mem::replace(&mut first.flushed, true)
            }
            Self::Status | Self::Removal(_) | Self::Length => false,
        }
    }

    /// The command that comes next; `None` for what is answered by one completion. The same until
    /// [`wants_more_than`](Self::wants_more_than) is asked again, so a busy device may be asked twice.
    #[must_use]
    pub fn next_command(&self) -> Option<(NamespaceId, Command)> {
        match self {
            Self::List(list) => Some(list.next_command()),
            Self::Flushed(first) => Some((first.namespace, first.command.clone())),
            Self::Status | Self::Removal(_) | Self::Length => None,
        }
    }

    /// The end of the command, with the completion that [`wants_more_than`](Self::wants_more_than) was shown last.
    #[must_use]
    #[inline]
    pub fn close(self, completion: Completion) -> Closed {
        let status = completion.status;
        match self {
            Self::Removal(MissingKey::Ignored) if status == Status::KEY_DOES_NOT_EXIST => {
                Closed::plain(0, Status::SUCCESS)
            }
            Self::Length if status.is_success() => {
                Closed { result: completion.value_bytes, status, data: completion.sink }
            }
            Self::List(list) if status.is_success() => list.close(),
            Self::Status | Self::Flushed(_) if status.is_success() => {
                Closed { result: 0, status, data: completion.sink }
            }
            _ => Closed::plain(0, status),
        }
    }
}

/// A list on its way. What goes to client memory is copied there as it comes, so a list keeps no more than one
/// completion's keys.
#[derive(Debug)]
pub struct ListAnswer {
    namespace: NamespaceId,
    encoder: ListEncoder,
    /// `None` when the bytes go back with the answer.
    into: Option<Segments>,
    /// Bytes of client memory behind the last key.
    copied: usize,
    status: Status,
    from: ListPosition,
}

impl ListAnswer {
    /// A list for a buffer of so many bytes, or `None` when not even the count fits.
    pub(super) fn new(
        namespace: NamespaceId,
        from: ListPosition,
        bytes: u32,
        into: Option<Segments>,
    ) -> Option<Self> {
        let encoder = ListEncoder::new(usize::try_from(bytes).ok()?)?;
        let copied = LIST_HEADER_BYTES;
        Some(Self { namespace, encoder, into, copied, status: Status::SUCCESS, from })
    }

    /// Asks the device for about as many keys as fit.
    pub(super) fn next_command(&self) -> (NamespaceId, Command) {
        let keys = self.encoder.bytes_left() / entry_bytes(KV_KEY_BYTES_MAX) + 1;
        let command = Command::List {
            from: self.from,
            keys_max: u32::try_from(keys).unwrap_or(LIST_KEYS_MAX).min(LIST_KEYS_MAX),
        };
        (self.namespace, command)
    }

    /// Takes the keys that fit. True when there is room for more, and more to come.
    fn wants_more_than(&mut self, completion: &Completion) -> bool {
        if !completion.status.is_success() {
            return false;
        }
        let room = self.gather(completion);
        if let Some(into) = &self.into {
            let keys = self.encoder.take();
            if into.copy_out(self.copied, &keys) != keys.len() {
                self.status = Status::DATA_TRANSFER_ERROR;
            }
            self.copied += keys.len();
        }
        match completion.next {
            Some(next) if room && self.status.is_success() => {
                self.from = next;
                true
            }
            _ => false,
        }
    }

    /// Whether all keys fit, and there is room for one more.
    fn gather(&mut self, completion: &Completion) -> bool {
        // The command set has no words for a longer key.
        let sayable = completion.keys.iter().filter(|listed| listed.key.len() <= KV_KEY_BYTES_MAX);
        for listed in sayable {
            if self.encoder.push(&listed.key).is_err() {
                return false;
            }
        }
        self.encoder.bytes_left() >= entry_bytes(1)
    }

    /// Writes the count to the client's buffer, or hands all over.
    fn close(self) -> Closed {
        let Some(into) = self.into else {
            return Closed { result: 0, status: self.status, data: self.encoder.finish() };
        };
        let header = self.encoder.header();
        if into.copy_out(0, &header) == header.len() {
            Closed::plain(0, self.status)
        } else {
            Closed::plain(0, Status::DATA_TRANSFER_ERROR)
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

    fn told(answer: Answer, status: Status) -> (u32, Status) {
        let completion = Completion { value_bytes: 77, ..Completion::new(0, status) };
        let closed = answer.close(completion);
        (closed.result, closed.status)
    }

    #[test]
    fn a_missing_key_is_no_failure_of_a_delete_unless_the_namespace_says_so() {
        let missing = Status::KEY_DOES_NOT_EXIST;
        assert_eq!(told(Answer::Removal(MissingKey::Ignored), missing), (0, Status::SUCCESS));
        assert_eq!(told(Answer::Removal(MissingKey::Told), missing), (0, missing));
        assert_eq!(told(Answer::Status, missing), (0, missing));
        assert_eq!(told(Answer::Length, missing), (0, missing));
        let damaged = Status::UNRECOVERED_ERROR;
        assert_eq!(told(Answer::Removal(MissingKey::Ignored), damaged), (0, damaged));
    }

    #[test]
    fn a_length_is_told_with_success_only() {
        assert_eq!(told(Answer::Length, Status::SUCCESS), (77, Status::SUCCESS));
        assert_eq!(told(Answer::Status, Status::SUCCESS), (0, Status::SUCCESS));
        assert_eq!(told(Answer::Length, Status::UNRECOVERED_ERROR).0, 0);
    }

    #[test]
    fn bytes_come_back_with_success_only() {
        let bytes = |status| {
            let completion = Completion { sink: vec![1, 2], ..Completion::new(0, status) };
            Answer::Length.close(completion).data
        };
        assert_eq!(bytes(Status::SUCCESS), [1, 2]);
        assert_eq!(bytes(Status::UNRECOVERED_ERROR), [0_u8; 0]);
    }
}
