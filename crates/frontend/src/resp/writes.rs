//! MSET and MSETNX: many writes, all or nothing, also across a power cut.
//!
//! In: writes of one namespace, no key twice. Out: one batch, one answer.

use super::errors::{self, Failure};
use super::operation::{Drive, Lane};
use super::reply::Reply;
use super::request::Request;
use crate::core_device::CoreDevice;
use bytes::Bytes;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{BatchWrite, Command, Completion, Condition, Expiry, NamespaceId, SubmitError};
use headwater_ssd::limits::{BATCH_BYTES_MAX, BATCH_WRITES_MAX};
use std::collections::BTreeMap;

/// Bytes of a record beside key and value, rounding included.
const RECORD_OVERHEAD_BYTES: usize = 64;

/// One all-or-nothing write.
#[derive(Debug)]
pub(crate) struct Writes {
    namespace: NamespaceId,
    writes: Vec<BatchWrite>,
    condition: Condition,
    done: Option<Reply>,
    submitted: bool,
}

impl Writes {
    /// Reads keys and values in turns. Of a key that is named twice the last value counts.
    pub(crate) fn parse(
        request: &Request<'_>,
        namespace: NamespaceId,
        condition: Condition,
    ) -> Result<Self, Failure> {
        let mut last: BTreeMap<Bytes, usize> = BTreeMap::new();
        for at in (1..request.len()).step_by(2) {
            last.insert(request.bytes(at), at + 1);
        }
        let bytes: usize =
            last.iter().map(|(key, &at)| key.len() + request.arg(at).len() + RECORD_OVERHEAD_BYTES).sum();
        if last.len() > BATCH_WRITES_MAX || bytes > BATCH_BYTES_MAX {
            return Err(errors::BATCH_TOO_LARGE);
        }
        let writes = last
            .into_iter()
            .map(|(key, at)| BatchWrite::Store {
                key,
                value: request.bytes(at),
                condition,
                expiry: Expiry::Never,
            })
            .collect();
        Ok(Self { namespace, writes, condition, done: None, submitted: false })
    }

    /// Submits what is due.
    pub(crate) fn drive<S: CoreDevice>(&mut self, lane: &mut Lane<'_, S>) -> Drive {
        if let Some(reply) = self.done.take() {
            return Drive::Done(reply);
        }
        if self.submitted {
            return Drive::Waiting;
        }
        let writes = self.writes.clone();
        match lane.submit(0, self.namespace, Command::Batch { writes }) {
            Ok(()) => {
                self.submitted = true;
                self.writes = Vec::new();
                Drive::Waiting
            }
            Err(SubmitError::Busy(_)) => Drive::Busy,
            Err(SubmitError::Refused(status)) => Drive::Done(errors::from_status(status).into()),
        }
    }

    /// Takes in the completion.
    pub(crate) fn accept(&mut self, completion: &Completion) {
        let only_new = self.condition == Condition::IfAbsent;
        self.done = Some(match completion.status {
            Status::SUCCESS if only_new => Reply::Integer(1),
            Status::SUCCESS => Reply::Ok,
            Status::KEY_EXISTS if only_new => Reply::Integer(0),
            other => errors::from_status(other).into(),
        });
    }
}
