//! LCS: two values read side by side, then compared.
//!
//! In: two keys and how to tell the result. Out: what the values have in common. A missing key is an empty value.

use super::errors::{self, Failure};
use super::lcs::{self, Common};
use super::limits::LCS_CELLS_MAX;
use super::operation::{Drive, Lane};
use super::parser::integer;
use super::reply::{Encoder, Protocol, Reply};
use super::request::Request;
use crate::core_device::CoreDevice;
use bytes::Bytes;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{Command, Completion, NamespaceId, Release, SubmitError};

/// How the result is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tell {
    Bytes,
    Length,
    Runs { shortest: i64, lengths: bool },
}

/// One LCS.
#[derive(Debug)]
pub(crate) struct Pair {
    namespace: NamespaceId,
    keys: [Bytes; 2],
    values: [Vec<u8>; 2],
    tell: Tell,
    submitted: usize,
    outstanding: usize,
    failed: Option<Status>,
}

impl Pair {
    /// Reads LCS's arguments.
    pub(crate) fn parse(request: &Request<'_>, namespace: NamespaceId) -> Result<Self, Failure> {
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
            return Err(Failure::fixed("ERR If you want both the length and indexes, please just use IDX."));
        }
        let tell = match (runs, length) {
            (true, _) => Tell::Runs { shortest, lengths },
            (_, true) => Tell::Length,
            _ => Tell::Bytes,
        };
        Ok(Self {
            namespace,
            keys: [request.bytes(1), request.bytes(2)],
            values: [Vec::new(), Vec::new()],
            tell,
            submitted: 0,
            outstanding: 0,
            failed: None,
        })
    }

    /// Submits what is due.
    pub(crate) fn drive<S: CoreDevice>(&mut self, lane: &mut Lane<'_, S>) -> Drive {
        while self.submitted < 2 && self.failed.is_none() {
            let command = Command::Retrieve {
                key: self.keys[self.submitted].clone(),
                sink: lane.shared.sinks.take().into(),
                bytes_max: u32::MAX,
                release: Release::WhenDurable,
            };
            let part = u32::try_from(self.submitted).unwrap_or(0);
            match lane.submit(part, self.namespace, command) {
                Ok(()) => {
                    self.submitted += 1;
                    self.outstanding += 1;
                }
                Err(SubmitError::Busy(_)) => return Drive::Busy,
                Err(SubmitError::Refused(status)) => self.failed = Some(status),
            }
        }
        if self.outstanding > 0 {
            return Drive::Waiting;
        }
        Drive::Done(match self.failed {
            Some(status) => errors::from_status(status).into(),
            None => self.compare(lane.protocol),
        })
    }

    /// Takes in a completion.
    pub(crate) fn accept(&mut self, part: u32, completion: Completion) {
        self.outstanding -= 1;
        match completion.status {
            Status::SUCCESS => self.values[usize::from(part > 0)] = completion.sink,
            Status::KEY_DOES_NOT_EXIST => {}
            other => self.failed = Some(other),
        }
    }

    fn compare(&self, protocol: Protocol) -> Reply {
        let [left, right] = &self.values;
        if (left.len() + 1).saturating_mul(right.len() + 1) > LCS_CELLS_MAX {
            return Failure::fixed(
                "ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len",
            )
            .into();
        }
        let found = lcs::common(left, right);
        match self.tell {
            Tell::Bytes => Reply::Bulk(found.bytes),
            Tell::Length => super::change::length_reply(found.bytes.len()),
            Tell::Runs { shortest, lengths } => {
                let mut out = Vec::new();
                write_runs(&found, shortest, lengths, &mut Encoder::new(&mut out, protocol));
                Reply::Encoded(out)
            }
        }
    }
}

fn write_runs(found: &Common, shortest: i64, lengths: bool, out: &mut Encoder<'_>) {
    let shortest = usize::try_from(shortest).unwrap_or(0);
    let told = || found.runs.iter().filter(|run| run.len() >= shortest);
    out.map(2);
    out.text("matches");
    out.array(told().count());
    for run in told() {
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
