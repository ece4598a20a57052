//! Opens a reader of a value, and reads the value part by part: for a client that receives slowly, or a value that is larger
//! than the memory that its reply may take.
//!
//! Input: a key, then the reader. Output: the outcome of an Exist, then bytes of the value in order. Invariant: no part is
//! returned before the record is durable, as far as its namespace promises that; the bytes of all parts are one record's.

use super::{ExecutionOutcome, KeyTarget, ReleaseGate, lookup_outcome};
use crate::command::{FrontEndId, ReadRelease, Sequence, ValueReader};
use crate::ftl::held_values::{HashedKey, PartRead};
use crate::ftl::{FoundRecord, Ftl, RecordPart, StallReason};
use crate::media::Media;
use headwater_nvme::spec::status::Status;
use std::ops::Range;

/// Opens a reader of a key's value.
pub(super) fn open<M: Media>(
    ftl: &mut Ftl<M>,
    one: &KeyTarget<'_>,
    (front_end, reader): (FrontEndId, &ValueReader),
) -> Result<ExecutionOutcome, StallReason> {
    let found = one.find(ftl, RecordPart::Key)?;
    let mut outcome = lookup_outcome(ftl, found.as_ref(), ReadRelease::WhenDurable);
    if let Some(FoundRecord { entry, header: Some(header) }) = found.filter(|found| !ftl.expired(found)) {
        let key = HashedKey { namespace: one.namespace, hash: one.hash, key: one.key.clone() };
        if !ftl.open_value(front_end, reader, key, (entry.address, header))? {
            outcome.completion.status = Status::INVALID_FIELD;
        }
    }
    if outcome.completion.status == Status::UNRECOVERED_ERROR {
        ftl.count_damaged(1);
    }
    Ok(outcome)
}

/// Reads a part of a value, from an offset on and of so many bytes at most, of which `copied` is in the sink already, by jobs of
/// the mover.
pub(super) fn read<M: Media>(
    ftl: &mut Ftl<M>,
    (front_end, reader): (FrontEndId, &ValueReader),
    part: (&mut Vec<u8>, u32, u32),
    copied: Option<&Range<usize>>,
) -> Result<ExecutionOutcome, StallReason> {
    let (status, sequence) = match ftl.read_held_value(front_end, reader, part, copied)? {
        PartRead::Done(sequence) => (Status::SUCCESS, sequence),
        PartRead::Gone => (Status::SEQUENCE_MISMATCH, Sequence(0)),
        PartRead::NotOpen | PartRead::OutOfOrder => (Status::INVALID_FIELD, Sequence(0)),
        PartRead::Damaged => {
            ftl.count_damaged(1);
            (Status::UNRECOVERED_ERROR, Sequence(0))
        }
    };
    let mut outcome = ExecutionOutcome::status(status, sequence);
    // The reader was opened when its record was durable enough.
    outcome.gate = ReleaseGate::Immediate;
    outcome.completion.sequence = sequence;
    Ok(outcome)
}
