//! Stores a value whose whole blocks lie in extents: they are filled in parts, then its record is appended.
//!
//! Input: a store whose key no other operation works on, and its progress. Output: its outcome, or a stall. Invariant: the
//! record is appended only when every page of its extents is on the medium; an operation that ends without a record gives its
//! extents back, or returns them to their receipt.

use super::{ExecutionOutcome, KeyTarget, staged_value};
use crate::command::{Sequence, ValueSource};
use crate::ftl::{ExtentStore, FoundRecord, Ftl, NewRecord, StallReason};
use crate::log::RecordSource;
use crate::media::Media;
use crate::media::geometry::BLOCK_DATA_BYTES;
use headwater_nvme::spec::status::Status;
use std::borrow::Cow;

/// Stores a value with so many extents in place of `found`, with this expiry.
pub(super) fn store<M: Media>(
    ftl: &mut Ftl<M>,
    one: &KeyTarget<'_>,
    (value, extents): (&ValueSource, usize),
    (found, expiry_ms): (Option<FoundRecord>, u64),
    progress: &mut Option<ExtentStore>,
) -> Result<ExecutionOutcome, StallReason> {
    let failed = |status| Ok(ExecutionOutcome::status(status, Sequence(0)));
    let in_log = Ftl::<M>::extent_record_bytes(one.key.len(), value.len(), extents);
    let is_received = matches!(value, ValueSource::Received { .. });
    if progress.is_none() || is_received {
        let more = in_log + extents * BLOCK_DATA_BYTES;
        let less = found.map_or(0, |found| ftl.stored_bytes(found.entry));
        let quota = ftl.fits_quota(one.namespace, more, less).then_some(()).ok_or(Status::CAPACITY_EXCEEDED);
        // The extents of a received value count already. The old value keeps its place until the new one is durable.
        let grows = if is_received { in_log } else { more };
        if let Err(status) = ftl.check_capacity(in_log, grows, 0).and(quota) {
            return failed(status);
        }
    }
    let store = progress.get_or_insert_with(|| ftl.begin_extents(extents));
    ftl.fill_extents(store, value)?;
    ftl.check_client_room(in_log)?;
    let rest = rest_of(value, extents * BLOCK_DATA_BYTES);
    if staged_value::is_lost(value) {
        return failed(Status::DATA_TRANSFER_ERROR);
    }
    let record = NewRecord {
        namespace: one.namespace,
        hash: one.hash,
        key: one.key,
        value: Some(RecordSource::of(value)),
        expiry_ms,
        batch: 0,
    };
    let store = progress.take().expect("the store has begun");
    Ok(ExecutionOutcome::written(ftl.write_extents(&record, store, RecordSource::Bytes(&rest), found)))
}

/// Returns what lies behind the extents of a value. Client memory is copied, because a started append cannot fail.
fn rest_of(value: &ValueSource, from: usize) -> Cow<'_, [u8]> {
    match value {
        ValueSource::Bytes(bytes) => Cow::Borrowed(&bytes[from..]),
        ValueSource::Received { rest, .. } => Cow::Borrowed(rest),
        ValueSource::Client(segments) => {
            let mut rest = vec![0; segments.bytes() - from];
            segments.copy_in(from, &mut rest);
            Cow::Owned(rest)
        }
    }
}
