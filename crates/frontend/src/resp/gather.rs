//! One question about many keys: MGET, and DEL, UNLINK, EXISTS and TOUCH of several.
//!
//! In: keys. Out: their values or how many there were. The keys are asked for side by side, a window at a time; once the last
//! is submitted the connection may go on, because the device keeps the order of each key.

use super::errors;
use super::limits::WINDOW_MAX;
use super::operation::{Drive, Lane};
use super::reply::{Encoder, Reply};
use super::shared::Shared;
use crate::core_device::CoreDevice;
use bytes::Bytes;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{Command, Completion, Condition, NamespaceId, Release, SubmitError};

/// What is asked of each key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// Its value.
    Value,
    /// Whether it is there.
    Exists,
    /// To go.
    Delete,
}

/// One question about many keys.
#[derive(Debug)]
pub(crate) struct Gather {
    namespace: NamespaceId,
    question: Question,
    keys: Vec<Bytes>,
    submitted: usize,
    outstanding: usize,
    found: i64,
    values: Vec<Option<Vec<u8>>>,
    failed: Option<Status>,
}

impl Gather {
    /// Asks about keys.
    pub(crate) fn new(namespace: NamespaceId, question: Question, keys: Vec<Bytes>) -> Self {
        let values =
            if question == Question::Value { keys.iter().map(|_| None).collect() } else { Vec::new() };
        Self { namespace, question, keys, submitted: 0, outstanding: 0, found: 0, values, failed: None }
    }

    /// Whether some keys have not been asked for yet.
    pub(crate) fn is_submitting(&self) -> bool {
        self.submitted < self.keys.len() && self.failed.is_none()
    }

    /// Submits what is due.
    pub(crate) fn drive<S: CoreDevice>(&mut self, lane: &mut Lane<'_, S>) -> Drive {
        while self.is_submitting() && self.outstanding < WINDOW_MAX {
            let command = self.command(lane.shared);
            let part = u32::try_from(self.submitted).unwrap_or(u32::MAX);
            match lane.submit(part, self.namespace, command) {
                Ok(()) => {
                    self.submitted += 1;
                    self.outstanding += 1;
                }
                Err(SubmitError::Busy(_)) if self.outstanding > 0 => return Drive::Waiting,
                Err(SubmitError::Busy(_)) => return Drive::Busy,
                Err(SubmitError::Refused(status)) => self.failed = Some(status),
            }
        }
        if self.outstanding > 0 {
            return Drive::Waiting;
        }
        Drive::Done(match self.failed {
            Some(status) => errors::from_status(status).into(),
            None if self.question == Question::Value => self.array(lane),
            None => Reply::Integer(self.found),
        })
    }

    /// Takes in a completion.
    pub(crate) fn accept(&mut self, part: u32, completion: Completion, shared: &mut Shared) {
        self.outstanding -= 1;
        match completion.status {
            Status::SUCCESS => {
                self.found += 1;
                let place = usize::try_from(part).unwrap_or(usize::MAX);
                if let Some(value) = self.values.get_mut(place) {
                    shared.counters.hits += 1;
                    *value = Some(completion.sink);
                    return;
                }
            }
            Status::KEY_DOES_NOT_EXIST => {
                shared.counters.misses += u64::from(self.question == Question::Value);
            }
            other => self.failed = Some(other),
        }
        shared.sinks.put_back(completion.sink);
    }

    fn command(&self, shared: &mut Shared) -> Command {
        let key = self.keys[self.submitted].clone();
        let release = Release::WhenDurable;
        match self.question {
            Question::Value => {
                Command::Retrieve { key, sink: shared.sinks.take().into(), bytes_max: u32::MAX, release }
            }
            Question::Exists => Command::Exist { key, release },
            Question::Delete => Command::Delete { key, condition: Condition::Always },
        }
    }

    fn array<S: CoreDevice>(&mut self, lane: &mut Lane<'_, S>) -> Reply {
        let total: usize = self.values.iter().flatten().map(Vec::len).sum();
        let mut out = Vec::with_capacity(total + self.values.len() * 16);
        let mut encoder = Encoder::new(&mut out, lane.protocol);
        encoder.array(self.values.len());
        for value in self.values.drain(..) {
            match value {
                Some(value) => {
                    encoder.bulk(&value);
                    lane.shared.sinks.put_back(value);
                }
                None => encoder.null(),
            }
        }
        Reply::Encoded(out)
    }
}
