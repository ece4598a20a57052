//! The command BITOP: combines the bits of several values and stores the result.
//!
//! Input: keys. Output: the value under the target key, by one batch under the condition that no source has changed since
//! it was read; then the operation starts again. Values are combined as they arrive, so that one of them is held at a time.

use super::errors::{self, ErrorReply};
use super::limits::RETRIES_MAX;
use super::operation_step::{DriveResult, OperationContext};
use super::reply::RespReply;
use super::request::RespRequest;
use crate::core_device::CoreDevice;
use bytes::Bytes;
use headwater_host::width::narrow;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    BatchWrite, NamespaceId, ReadRelease, RecordExpiry, Sequence, SsdCommand, SsdCompletion, SubmitError,
    WriteCondition,
};

/// Values that are read at a time; a few, because each may be long.
const IN_FLIGHT_MAX: usize = 3;

/// The combination of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BitCombination {
    And,
    Or,
    Xor,
    Not,
}

impl BitCombination {
    /// Combines a value with the ones before; the shorter one continues with zeroes.
    fn add(self, combined: &mut Option<Vec<u8>>, value: Vec<u8>) {
        let Some(combined) = combined else {
            *combined = Some(value);
            return;
        };
        if combined.len() < value.len() {
            combined.resize(value.len(), 0);
        }
        let (front, rest) = combined.split_at_mut(value.len());
        let pairs = front.iter_mut().zip(&value);
        match self {
            Self::And => {
                pairs.for_each(|(byte, other)| *byte &= other);
                rest.fill(0);
            }
            Self::Or => pairs.for_each(|(byte, other)| *byte |= other),
            Self::Xor | Self::Not => pairs.for_each(|(byte, other)| *byte ^= other),
        }
    }
}

#[derive(Debug)]
enum CombineStage {
    Read,
    Write(Vec<BatchWrite>),
    Writing,
    Done(RespReply),
}

/// A combination of values.
#[derive(Debug)]
pub(crate) struct BitOperation {
    namespace: NamespaceId,
    combination: BitCombination,
    target: Bytes,
    /// The sources, each once.
    sources: Vec<Bytes>,
    /// Number of times that each source is given, of which XOR needs to know if it is odd.
    times: Vec<usize>,
    seen: Vec<Option<Sequence>>,
    combined: Option<Vec<u8>>,
    submitted: usize,
    outstanding: usize,
    length: usize,
    failed: Option<ErrorReply>,
    retries: u32,
    stage: CombineStage,
}

impl BitOperation {
    /// Parses the arguments of BITOP.
    pub(crate) fn parse(request: &RespRequest<'_>, namespace: NamespaceId) -> Result<Self, ErrorReply> {
        let combination = match &request.lower(1)[..] {
            b"and" => BitCombination::And,
            b"or" => BitCombination::Or,
            b"xor" => BitCombination::Xor,
            b"not" => BitCombination::Not,
            _ => return Err(errors::SYNTAX),
        };
        if combination == BitCombination::Not && request.len() != 4 {
            return Err(errors::BITOP_NOT);
        }
        let mut given: Vec<Bytes> = (3..request.len()).map(|at| request.bytes(at)).collect();
        given.sort_unstable();
        let (sources, times) =
            given.chunk_by(|left, right| left == right).map(|same| (same[0].clone(), same.len())).unzip();
        Ok(Self {
            namespace,
            combination,
            target: request.bytes(2),
            sources,
            times,
            seen: Vec::new(),
            combined: None,
            submitted: 0,
            outstanding: 0,
            length: 0,
            failed: None,
            retries: 0,
            stage: CombineStage::Read,
        })
    }

    /// Returns the bytes of values that it holds at the most: the combined one, and those that are being read.
    pub(crate) fn bytes_at_start(&self, length: impl Fn(NamespaceId, &Bytes) -> usize) -> usize {
        let longest = self.sources.iter().map(|key| length(self.namespace, key)).max().unwrap_or(0);
        longest * (1 + self.sources.len().min(IN_FLIGHT_MAX))
    }

    /// Submits the device commands that are due.
    pub(crate) fn drive<S: CoreDevice>(&mut self, context: &mut OperationContext<'_, S>) -> DriveResult {
        if matches!(self.stage, CombineStage::Read) {
            if let Some(result) = self.read(context) {
                return result;
            }
            self.stage = match self.failed.take() {
                Some(failed) => CombineStage::Done(failed.into()),
                None => CombineStage::Write(self.writes()),
            };
        }
        match std::mem::replace(&mut self.stage, CombineStage::Writing) {
            CombineStage::Write(writes) => {
                match context.submit(0, self.namespace, SsdCommand::Batch { writes: writes.clone() }) {
                    Ok(()) => DriveResult::Waiting,
                    Err(SubmitError::Busy(_)) => {
                        self.stage = CombineStage::Write(writes);
                        DriveResult::Busy
                    }
                    Err(SubmitError::Refused(status)) => {
                        DriveResult::Done(errors::from_status(status).into())
                    }
                }
            }
            CombineStage::Done(reply) => DriveResult::Done(reply),
            _ => DriveResult::Waiting,
        }
    }

    /// Submits reads; returns `None` when all sources are read.
    fn read<S: CoreDevice>(&mut self, context: &mut OperationContext<'_, S>) -> Option<DriveResult> {
        self.seen.resize(self.sources.len(), None);
        while self.submitted < self.sources.len() && self.outstanding < IN_FLIGHT_MAX && self.failed.is_none()
        {
            // The batch waits until the values are durable.
            let command = SsdCommand::retrieve_whole(
                self.sources[self.submitted].clone(),
                context.shared.value_buffers.take().into(),
                ReadRelease::Speculative,
            );
            match context.submit(narrow(self.submitted), self.namespace, command) {
                Ok(()) => {
                    self.submitted += 1;
                    self.outstanding += 1;
                }
                Err(SubmitError::Busy(_)) if self.outstanding > 0 => return Some(DriveResult::Waiting),
                Err(SubmitError::Busy(_)) => return Some(DriveResult::Busy),
                Err(SubmitError::Refused(status)) => self.failed = Some(errors::from_status(status)),
            }
        }
        (self.outstanding > 0).then_some(DriveResult::Waiting)
    }

    /// Applies a completion to the state.
    pub(crate) fn accept(&mut self, part: u32, completion: SsdCompletion) {
        if matches!(self.stage, CombineStage::Read) {
            self.accept_value(part as usize, completion);
            return;
        }
        self.stage = match completion.status {
            Status::SUCCESS => CombineStage::Done(RespReply::count(self.length as u64)),
            Status::SEQUENCE_MISMATCH | Status::KEY_EXISTS if self.retries < RETRIES_MAX => {
                self.retries += 1;
                self.submitted = 0;
                self.combined = None;
                self.seen.clear();
                CombineStage::Read
            }
            Status::SEQUENCE_MISMATCH | Status::KEY_EXISTS => CombineStage::Done(errors::CONTENDED.into()),
            other => CombineStage::Done(errors::from_status(other).into()),
        };
    }

    fn accept_value(&mut self, part: usize, completion: SsdCompletion) {
        self.outstanding -= 1;
        let value = match completion.status {
            Status::SUCCESS => {
                self.seen[part] = Some(completion.sequence);
                completion.sink
            }
            Status::KEY_DOES_NOT_EXIST => Vec::new(),
            other => {
                self.failed = Some(errors::from_status(other));
                return;
            }
        };
        if self.combination == BitCombination::Xor && self.times[part].is_multiple_of(2) {
            // It combines with itself to zeroes of its length.
            self.combination.add(&mut self.combined, vec![0; value.len()]);
        } else {
            self.combination.add(&mut self.combined, value);
        }
    }

    /// Returns the batch that stores the combined value, if no source has changed.
    fn writes(&mut self) -> Vec<BatchWrite> {
        let mut value = self.combined.take().unwrap_or_default();
        if self.combination == BitCombination::Not {
            value.iter_mut().for_each(|byte| *byte = !*byte);
        }
        self.length = value.len();
        let unchanged =
            |seen: Option<Sequence>| seen.map_or(WriteCondition::IfAbsent, WriteCondition::IfSequence);
        let mut condition = WriteCondition::Always;
        let mut writes = Vec::new();
        for (key, seen) in self.sources.iter().zip(&self.seen) {
            if *key == self.target {
                condition = unchanged(*seen);
            } else {
                writes.push(BatchWrite::Check { key: key.clone(), condition: unchanged(*seen) });
            }
        }
        let key = self.target.clone();
        writes.push(if value.is_empty() {
            BatchWrite::Delete { key, condition }
        } else {
            BatchWrite::Store { key, value: value.into(), condition, expiry: RecordExpiry::Never }
        });
        writes
    }
}
