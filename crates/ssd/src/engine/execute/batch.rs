//! Executes a batch: all of its writes, or none.
//!
//! Input: the writes, each with its condition. Output: the outcome of the batch, or the pages and the room that it needs.
//! Invariant: conditions and room are checked for every write before the first one changes anything.

use super::{ExecutionOutcome, KeyTarget, long_store, record_bytes_of, seen_sequence};
use crate::command::{BatchWrite, NamespaceId, RecordExpiry, Sequence};
use crate::engine::operation::StoreProgress;
use crate::ftl::{FoundRecord, Ftl, NewRecord, StallReason};
use crate::log::RecordSource;
use crate::log::record::{RecordAddress, UNIT_BYTES, batch_flags, record_units};
use crate::media::{Media, PageAddress};
use crate::mutant::{Mutant, mutant};
use headwater_host::width::narrow;
use headwater_nvme::spec::status::Status;

/// One write of a batch with the record it will replace.
type PlannedWrite<'a> = (KeyTarget<'a>, &'a BatchWrite, Option<FoundRecord>);

/// Executes a batch.
pub(super) fn batch<'a, M: Media>(
    ftl: &mut Ftl<M>,
    namespace: NamespaceId,
    writes: &'a [BatchWrite],
    progress: &mut Option<StoreProgress>,
) -> Result<ExecutionOutcome, StallReason> {
    let planned = plan_batch(ftl, namespace, writes)?;
    let mut seen = ftl.last_removal();
    for (position, (one, write, found)) in planned.iter().enumerate() {
        seen = seen.max(seen_sequence(ftl, found.as_ref()));
        let ignored = !write.is_write() && mutant(Mutant::CheckIgnored);
        if let Err(status) = one.check_condition(ftl, found.as_ref())
            && !ignored
        {
            let mut outcome = ExecutionOutcome::status(status, seen_sequence(ftl, found.as_ref()));
            outcome.completion.position = narrow(position);
            return Ok(outcome);
        }
    }
    if !writes.iter().any(BatchWrite::is_write) {
        return Ok(ExecutionOutcome::written(seen));
    }
    for (one, _, found) in &planned {
        one.require_basis_durable(ftl, found.as_ref())?;
    }
    // A power cut may lose the removal of an absent key and keep this batch, so the batch writes its own tombstone.
    let absent_for_good = ftl.is_absence_final(namespace) || mutant(Mutant::AbsentDeleteSkipped);
    let effective: Vec<PlannedWrite<'a>> = planned
        .into_iter()
        .filter(|(_, write, found)| match write {
            BatchWrite::Store { .. } => true,
            BatchWrite::Delete { .. } => found.is_some() || !absent_for_good,
            BatchWrite::Check { .. } => false,
        })
        .collect();
    let more: usize = effective.iter().map(|(_, write, _)| write_bytes_of(write)).sum();
    let less = effective.iter().map(|(_, _, found)| record_bytes_of(found.as_ref())).sum();
    let largest = effective.iter().map(|(_, write, _)| write_bytes_of(write)).max().unwrap_or(0);
    if let Err(status) = ftl.check_capacity(largest, more, less) {
        return Ok(ExecutionOutcome::status(status, Sequence(0)));
    }
    if !batch_fits_quota(ftl, namespace, &effective) {
        return Ok(ExecutionOutcome::status(Status::CAPACITY_EXCEEDED, Sequence(0)));
    }
    let last = effective.len().saturating_sub(1);
    let record = |index, (one, write, _): &PlannedWrite<'a>| {
        let value = match write {
            BatchWrite::Store { value, .. } => Some(RecordSource::Bytes(value)),
            BatchWrite::Delete { .. } | BatchWrite::Check { .. } => None,
        };
        let batch = batch_flags(index, last);
        NewRecord { namespace, hash: one.hash, key: one.key, value, expiry_ms: 0, batch }
    };
    let records = effective.iter().enumerate().map(|(index, planned)| record(index, planned));
    // A record that does not fit into a block leaves the block's end unused, and a long one the rest of a page: an eighth
    // more covers it.
    let mut drafts = long_store::prepare(ftl, records, more + more / 8, progress)?.into_iter().peekable();
    let mut wrote = seen;
    for (index, planned) in effective.into_iter().enumerate() {
        let mut record = record(index, &planned);
        let (one, write, found) = planned;
        if let BatchWrite::Store { .. } = write {
            record.expiry_ms = one.expiry_ms(found.as_ref().filter(|found| !ftl.expired(found)));
        }
        let is_long = record.value.is_some_and(|value| long_store::is_built_in_parts(value.len()));
        wrote = match drafts.next_if(|_| is_long) {
            Some(draft) => ftl.write_draft(&record, draft, found),
            None => ftl.write(&record, found),
        };
    }
    Ok(ExecutionOutcome::written(wrote))
}

/// Returns true if the batch fits the namespace's quota. Tombstones count against the medium, not against the quota.
fn batch_fits_quota<M: Media>(ftl: &Ftl<M>, namespace: NamespaceId, writes: &[PlannedWrite<'_>]) -> bool {
    let stores = writes.iter().filter(|(_, write, _)| matches!(write, BatchWrite::Store { .. }));
    let more = stores.map(|(_, write, _)| write_bytes_of(write)).sum();
    ftl.fits_quota(namespace, more, writes.iter().map(|(_, _, found)| record_bytes_of(found.as_ref())).sum())
}

fn write_bytes_of(write: &BatchWrite) -> usize {
    let (key, value) = match write {
        BatchWrite::Store { key, value, .. } => (key.len(), value.len()),
        BatchWrite::Delete { key, .. } | BatchWrite::Check { key, .. } => (key.len(), 0),
    };
    record_units(key, value) as usize * UNIT_BYTES
}

/// Finds the record that each write of a batch replaces, or stalls for all pages that the lookups need.
fn plan_batch<'a, M: Media>(
    ftl: &Ftl<M>,
    namespace: NamespaceId,
    writes: &'a [BatchWrite],
) -> Result<Vec<PlannedWrite<'a>>, StallReason> {
    let mut planned = Vec::with_capacity(writes.len());
    let mut missing = Vec::new();
    for write in writes {
        let (key, condition) = match write {
            BatchWrite::Store { key, condition, .. }
            | BatchWrite::Delete { key, condition }
            | BatchWrite::Check { key, condition } => (key, *condition),
        };
        let expiry = match write {
            BatchWrite::Store { expiry, .. } => *expiry,
            BatchWrite::Delete { .. } | BatchWrite::Check { .. } => RecordExpiry::Never,
        };
        let one = KeyTarget { namespace, hash: ftl.hasher().hash(namespace, key), key, condition, expiry };
        match one.find_replaced(ftl) {
            Ok(found) => planned.push((one, write, found)),
            Err(StallReason::Pages(pages)) => missing.extend(pages),
            Err(stall) => return Err(stall),
        }
    }
    if missing.is_empty() {
        return match shared_unreadable(&planned) {
            Some(page) => Err(StallReason::Unreadable(page)),
            None => Ok(planned),
        };
    }
    missing.sort_unstable();
    missing.dedup();
    Err(StallReason::Pages(missing))
}

/// Returns the page of a record that cannot be read and that two writes would replace: their keys have one hash, and which
/// of them the record belongs to is not known.
fn shared_unreadable(planned: &[PlannedWrite<'_>]) -> Option<PageAddress> {
    let unreadable = planned.iter().filter_map(|(.., found)| found.filter(|found| found.header.is_none()));
    let mut addresses: Vec<RecordAddress> = unreadable.map(|found| found.entry.address).collect();
    addresses.sort_unstable();
    addresses.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0].page())
}
