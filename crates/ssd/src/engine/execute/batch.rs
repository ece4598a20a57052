//! Executes a batch: all of its writes, or none.
//!
//! Input: the writes, each with its condition. Output: the outcome of the batch, or the pages and the room that it needs.
//! Invariant: conditions and room are checked for every write before the first one changes anything. A long batch, and one
//! that clears a namespace, is carried out in parts ([`LongBatch`]).

use super::long_batch::{LongBatch, find_all, is_absence_final, is_long};
use super::{
    CommandSubject, ExecutionOutcome, KeyTarget, ReleaseGate, check_kind, record_bytes_of, seen_sequence,
};
use crate::command::{BatchWrite, NamespaceId, NamespaceRun, RecordExpiry, Sequence, SsdCommand};
use crate::engine::batch_namespaces::{BatchNamespaces, NamespaceSet};
use crate::engine::batch_plan::{BatchPlan, record_bytes_of as write_bytes_of};
use crate::engine::operation::{DeviceOperation, OperationWork, StoreProgress};
use crate::ftl::{FoundRecord, Ftl, NewRecord, StallReason};
use crate::index::KeyHash;
use crate::log::RecordSource;
use crate::log::record::{RecordAddress, batch_flags};
use crate::media::Media;
use crate::mutant::{Mutant, mutant};
use headwater_host::width::narrow;
use headwater_nvme::spec::status::Status;

/// One write of a batch with the record it will replace.
type PlannedWrite<'a> = (KeyTarget<'a>, &'a BatchWrite, Option<FoundRecord>);

/// Executes the batch of an operation.
pub(super) fn run<M: Media>(
    ftl: &mut Ftl<M>,
    operation: &mut DeviceOperation,
) -> Result<ExecutionOutcome, StallReason> {
    let progress = (&mut operation.batch_plan, &mut operation.store_progress);
    match &operation.work {
        OperationWork::Command(SsdCommand::Batch { writes }) => {
            batch(ftl, BatchNamespaces::One(operation.namespace), writes, progress)
        }
        OperationWork::Command(SsdCommand::BatchAcross { writes, runs }) => {
            batch_across(ftl, runs, writes, progress)
        }
        _ => unreachable!("an operation without a batch is run as one"),
    }
}

/// Executes a batch over several namespaces, if each has the kind that a batch needs.
#[cold]
pub(super) fn run_across<M: Media>(
    ftl: &mut Ftl<M>,
    operation: &mut DeviceOperation,
) -> Result<ExecutionOutcome, StallReason> {
    let check = |namespace| check_kind(ftl, CommandSubject::Keys, namespace);
    if let Err(status) = operation.batch_namespaces().each().try_for_each(check) {
        return Ok(ExecutionOutcome::status(status, Sequence(0)));
    }
    run(ftl, operation)
}

fn batch<'a, M: Media>(
    ftl: &mut Ftl<M>,
    namespaces: BatchNamespaces<'a>,
    writes: &'a [BatchWrite],
    (plan, drafts): (&mut Option<Box<BatchPlan>>, &mut Option<StoreProgress>),
) -> Result<ExecutionOutcome, StallReason> {
    if plan.is_some() || is_long(ftl, writes.len(), 0) || !namespaces.cleared().is_empty() {
        return LongBatch { namespaces, writes }.run(ftl, plan.get_or_insert_default(), drafts);
    }
    let planned = plan_batch(ftl, namespaces, writes)?;
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
    let absent_for_good = is_absence_final(ftl, namespaces);
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
    if !fits_quotas(ftl, namespaces, &effective) {
        return Ok(ExecutionOutcome::status(Status::CAPACITY_EXCEEDED, Sequence(0)));
    }
    if is_long(ftl, 0, more) {
        return LongBatch { namespaces, writes }.run(ftl, plan.get_or_insert_default(), drafts);
    }
    // A record that does not fit into a block leaves the block's end unused: an eighth more covers it.
    ftl.check_client_room(more + more / 8)?;
    let last = effective.len().saturating_sub(1);
    let mut wrote = seen;
    for (index, (one, write, found)) in effective.into_iter().enumerate() {
        let (value, expiry_ms) = match write {
            BatchWrite::Store { value, .. } => {
                let alive = found.as_ref().filter(|found| !ftl.expired(found));
                (Some(RecordSource::Bytes(value)), one.expiry_ms(alive))
            }
            BatchWrite::Delete { .. } | BatchWrite::Check { .. } => (None, 0),
        };
        let batch = batch_flags(index, last);
        let KeyTarget { namespace, hash, key, .. } = one;
        let record = NewRecord { namespace, hash, key, value, expiry_ms, batch };
        wrote = ftl.write(&record, found);
    }
    Ok(ExecutionOutcome::written(wrote))
}

/// Executes a batch over several namespaces. Its outcome waits for durability if one of them promises it.
fn batch_across<'a, M: Media>(
    ftl: &mut Ftl<M>,
    runs: &'a [NamespaceRun],
    writes: &'a [BatchWrite],
    progress: (&mut Option<Box<BatchPlan>>, &mut Option<StoreProgress>),
) -> Result<ExecutionOutcome, StallReason> {
    let namespaces = BatchNamespaces::Runs(runs);
    let mut outcome = batch(ftl, namespaces, writes, progress)?;
    if let ReleaseGate::IfPromised(sequence) = outcome.gate
        && !mutant(Mutant::FirstDurabilityCounts)
    {
        outcome.gate = ReleaseGate::IfAnyPromised(namespaces.each().collect(), sequence);
    }
    Ok(outcome)
}

/// Returns true if the batch fits the quota of each namespace. Tombstones count against the medium, not against a quota.
fn fits_quotas<M: Media>(ftl: &Ftl<M>, namespaces: BatchNamespaces<'_>, writes: &[PlannedWrite<'_>]) -> bool {
    match namespaces {
        BatchNamespaces::One(namespace) => fits_quota(ftl, namespace, writes.iter()),
        BatchNamespaces::Runs(_) => namespaces.each().collect::<NamespaceSet>().iter().all(|namespace| {
            fits_quota(ftl, namespace, writes.iter().filter(|(one, ..)| one.namespace == namespace))
        }),
    }
}

/// Returns true if the writes of a namespace fit its quota.
fn fits_quota<'a, M: Media>(
    ftl: &Ftl<M>,
    namespace: NamespaceId,
    writes: impl Iterator<Item = &'a PlannedWrite<'a>> + Clone,
) -> bool {
    let stores = writes.clone().filter(|(_, write, _)| matches!(write, BatchWrite::Store { .. }));
    let more = stores.map(|(_, write, _)| write_bytes_of(write)).sum();
    ftl.fits_quota(namespace, more, writes.map(|(_, _, found)| record_bytes_of(found.as_ref())).sum())
}

/// Finds the record that each write of a batch replaces, or stalls for all pages that the lookups need.
fn plan_batch<'a, M: Media>(
    ftl: &Ftl<M>,
    namespaces: BatchNamespaces<'_>,
    writes: &'a [BatchWrite],
) -> Result<Vec<PlannedWrite<'a>>, StallReason> {
    let targets: Vec<KeyTarget<'a>> = match namespaces {
        BatchNamespaces::One(namespace) => {
            let hash = |write| ftl.hasher().hash(namespace, BatchWrite::key(write));
            writes.iter().map(|write| target_of(namespace, hash(write), write)).collect()
        }
        BatchNamespaces::Runs(_) => targets_across(ftl, namespaces, writes),
    };
    let found = find_all(ftl, &targets)?;
    check_unreadable(found.iter().filter_map(|found| *found))?;
    let planned = targets.into_iter().zip(writes).zip(found);
    Ok(planned.map(|((one, write), found)| (one, write, found)).collect())
}

/// Returns the targets of a batch over several namespaces.
#[cold]
fn targets_across<'a, M: Media>(
    ftl: &Ftl<M>,
    namespaces: BatchNamespaces<'_>,
    writes: &'a [BatchWrite],
) -> Vec<KeyTarget<'a>> {
    let target = |(at, write)| {
        let namespace = namespaces.of(at);
        target_of(namespace, ftl.hasher().hash(namespace, BatchWrite::key(write)), write)
    };
    (0..).zip(writes).map(target).collect()
}

/// Returns the target of a write.
pub(super) fn target_of(namespace: NamespaceId, hash: KeyHash, write: &BatchWrite) -> KeyTarget<'_> {
    let expiry = match write {
        BatchWrite::Store { expiry, .. } => *expiry,
        BatchWrite::Delete { .. } | BatchWrite::Check { .. } => RecordExpiry::Never,
    };
    KeyTarget { namespace, hash, key: write.key(), condition: write.condition(), expiry }
}

/// Refuses records of which one cannot be read and is replaced by two writes: their keys have one hash, and which of them the
/// record belongs to is not known.
pub(super) fn check_unreadable(found: impl Iterator<Item = FoundRecord>) -> Result<(), StallReason> {
    let unreadable = found.filter(|found| found.header.is_none());
    let mut addresses: Vec<RecordAddress> = unreadable.map(|found| found.entry.address).collect();
    addresses.sort_unstable();
    match addresses.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(StallReason::Unreadable(pair[0].page())),
        None => Ok(()),
    }
}
