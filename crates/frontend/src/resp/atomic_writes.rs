//! The commands MSET and MSETNX: a batch of writes that is atomic, also across a power cut.
//!
//! Input: keys and values of one namespace. Output: one batch, in which each key occurs once, and one reply.

use super::errors::{self, ErrorReply};
use super::operation_step::{DriveResult, OperationContext};
use super::reply::RespReply;
use super::request::RespRequest;
use crate::core_device::CoreDevice;
use bytes::Bytes;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    BatchWrite, NamespaceId, RecordExpiry, SsdCommand, SsdCompletion, SubmitError, WriteCondition,
};
use headwater_ssd::limits::BATCH_WRITES_MAX;
use std::collections::BTreeMap;

/// An atomic batch of writes.
#[derive(Debug)]
pub(crate) struct AtomicWrites {
    namespace: NamespaceId,
    writes: Vec<BatchWrite>,
    condition: WriteCondition,
    done: Option<RespReply>,
    submitted: bool,
}

impl AtomicWrites {
    /// Parses alternating keys and values. The last value of a repeated key is used.
    pub(crate) fn parse(
        request: &RespRequest<'_>,
        namespace: NamespaceId,
        condition: WriteCondition,
    ) -> Result<Self, ErrorReply> {
        let mut last: BTreeMap<Bytes, usize> = BTreeMap::new();
        for at in (1..request.len()).step_by(2) {
            last.insert(request.bytes(at), at + 1);
        }
        if last.len() > BATCH_WRITES_MAX {
            return Err(errors::batch_of_too_many(last.len()));
        }
        let writes = last
            .into_iter()
            .map(|(key, at)| BatchWrite::Store {
                key,
                value: request.bytes(at),
                condition,
                expiry: RecordExpiry::Never,
            })
            .collect();
        Ok(Self { namespace, writes, condition, done: None, submitted: false })
    }

    /// Submits the device commands that are due.
    pub(crate) fn drive<S: CoreDevice>(&mut self, context: &mut OperationContext<'_, S>) -> DriveResult {
        if let Some(reply) = self.done.take() {
            return DriveResult::Done(reply);
        }
        if self.submitted {
            return DriveResult::Waiting;
        }
        let (bytes, bytes_max) =
            (self.writes.iter().map(BatchWrite::bytes).sum(), context.device.batch_bytes_max());
        if bytes > bytes_max {
            return DriveResult::Done(errors::batch_too_large(bytes, bytes_max).into());
        }
        let writes = self.writes.clone();
        match context.submit(0, self.namespace, SsdCommand::Batch { writes }) {
            Ok(()) => {
                self.submitted = true;
                self.writes = Vec::new();
                DriveResult::Waiting
            }
            Err(SubmitError::Busy(_)) => DriveResult::Busy,
            Err(SubmitError::Refused(status)) => DriveResult::Done(errors::from_status(status).into()),
        }
    }

    /// Sets the reply from the completion.
    pub(crate) fn accept(&mut self, completion: &SsdCompletion) {
        let only_new = self.condition == WriteCondition::IfAbsent;
        self.done = Some(match completion.status {
            Status::SUCCESS if only_new => RespReply::Integer(1),
            Status::SUCCESS => RespReply::Ok,
            Status::KEY_EXISTS if only_new => RespReply::Integer(0),
            other => errors::from_status(other).into(),
        });
    }
}
