//! The command LCS: reads two values concurrently and compares them.
//!
//! Input: two keys and the form of the result. Output: the longest common subsequence. A missing key is an empty value.

use super::errors::{self, ErrorReply};
use super::lcs::{CommonSubsequence, LcsComputation};
use super::limits::{LCS_CELLS_MAX, LONG_STEPS_MAX};
use super::operation_step::{DriveResult, OperationContext};
use super::output_queue::ReplyEncoder;
use super::parser::integer;
use super::reply::{RespReply, RespVersion};
use super::request::RespRequest;
use crate::core_device::CoreDevice;
use bytes::Bytes;
use headwater_host::width::narrow;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{NamespaceId, ReadRelease, SsdCommand, SsdCompletion, SubmitError};

/// The form of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LcsForm {
    Bytes,
    Length,
    Runs { shortest: i64, lengths: bool },
}

/// The state of one LCS command.
#[derive(Debug)]
pub(crate) struct LcsOperation {
    namespace: NamespaceId,
    keys: [Bytes; 2],
    values: [Vec<u8>; 2],
    computation: Option<LcsComputation>,
    form: LcsForm,
    submitted: usize,
    outstanding: usize,
    failed: Option<Status>,
}

impl LcsOperation {
    /// Parses LCS's arguments.
    pub(crate) fn parse(request: &RespRequest<'_>, namespace: NamespaceId) -> Result<Self, ErrorReply> {
        let (mut length, mut runs, mut lengths, mut shortest) = (false, false, false, 0);
        let mut at = 3;
        while at < request.len() {
            match &request.lower(at)[..] {
                b"idx" => runs = true,
                b"len" => length = true,
                b"withmatchlen" => lengths = true,
                b"minmatchlen" if at + 1 < request.len() => {
                    at += 1;
                    shortest = integer(request.arg(at)).ok_or(errors::NOT_AN_INTEGER)?.max(0);
                }
                _ => return Err(errors::SYNTAX),
            }
            at += 1;
        }
        if length && runs {
            return Err(ErrorReply::fixed(
                "ERR If you want both the length and indexes, please just use IDX.",
            ));
        }
        let form = match (runs, length) {
            (true, _) => LcsForm::Runs { shortest, lengths },
            (_, true) => LcsForm::Length,
            _ => LcsForm::Bytes,
        };
        Ok(Self {
            namespace,
            keys: [request.bytes(1), request.bytes(2)],
            values: [Vec::new(), Vec::new()],
            computation: None,
            form,
            submitted: 0,
            outstanding: 0,
            failed: None,
        })
    }

    /// Submits the device commands that are due.
    pub(crate) fn drive<S: CoreDevice>(&mut self, context: &mut OperationContext<'_, S>) -> DriveResult {
        while self.submitted < 2 && self.failed.is_none() {
            let command = SsdCommand::retrieve_whole(
                self.keys[self.submitted].clone(),
                context.shared.value_buffers.take().into(),
                ReadRelease::WhenDurable,
            );
            let part = narrow(self.submitted);
            match context.submit(part, self.namespace, command) {
                Ok(()) => {
                    self.submitted += 1;
                    self.outstanding += 1;
                }
                Err(SubmitError::Busy(_)) => return DriveResult::Busy,
                Err(SubmitError::Refused(status)) => self.failed = Some(status),
            }
        }
        if self.outstanding > 0 {
            return DriveResult::Waiting;
        }
        match self.failed {
            Some(status) => DriveResult::Done(errors::from_status(status).into()),
            None => self.compare(context.protocol),
        }
    }

    /// Returns the bytes of both values and of the table, if the table is not too large to be made.
    pub(crate) fn bytes_at_start(&self, length: impl Fn(NamespaceId, &Bytes) -> usize) -> usize {
        let [left, right] = [0, 1].map(|at: usize| length(self.namespace, &self.keys[at]));
        let table = LcsComputation::table_bytes(left, right);
        left + right + table.min(LCS_CELLS_MAX)
    }

    /// Applies a completion to the state.
    pub(crate) fn accept(&mut self, part: u32, completion: SsdCompletion) {
        self.outstanding -= 1;
        match completion.status {
            Status::SUCCESS => self.values[usize::from(part > 0)] = completion.sink,
            Status::KEY_DOES_NOT_EXIST => {}
            other => self.failed = Some(other),
        }
    }

    /// Goes on with the computation.
    fn compare(&mut self, protocol: RespVersion) -> DriveResult {
        if self.computation.is_none() {
            let [left, right] = std::mem::take(&mut self.values);
            if (left.len() + 1).saturating_mul(right.len() + 1) > LCS_CELLS_MAX {
                let failure = ErrorReply::fixed(
                    "ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len",
                );
                return DriveResult::Done(failure.into());
            }
            self.computation = Some(LcsComputation::new(left, right));
        }
        let Some(computation) = &mut self.computation else { return DriveResult::Again };
        if !computation.advance(LONG_STEPS_MAX, self.form == LcsForm::Length) {
            return DriveResult::Again;
        }
        DriveResult::Done(match self.form {
            LcsForm::Bytes => RespReply::Bulk(computation.take().bytes),
            LcsForm::Length => super::change::length_reply(computation.length()),
            LcsForm::Runs { shortest, lengths } => {
                let mut out = Vec::new();
                let found = computation.take();
                write_runs(&found, shortest, lengths, &mut ReplyEncoder::new(&mut out, protocol));
                RespReply::Encoded(out)
            }
        })
    }
}

fn write_runs(found: &CommonSubsequence, shortest: i64, lengths: bool, out: &mut ReplyEncoder<'_>) {
    let shortest = usize::try_from(shortest).unwrap_or(0);
    let reported = || found.runs.iter().filter(|run| run.len() >= shortest);
    out.map(2);
    out.text("matches");
    out.array(reported().count());
    for run in reported() {
        out.array(if lengths { 3 } else { 2 });
        for (first, last) in [run.left, run.right] {
            out.array(2);
            out.count(first as u64);
            out.count(last as u64);
        }
        if lengths {
            out.count(run.len() as u64);
        }
    }
    out.text("len");
    out.count(found.bytes.len() as u64);
}
