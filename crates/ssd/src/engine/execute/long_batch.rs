//! Executes a long batch in parts: all of its writes, or none.
//!
//! Input: the writes, and the plan of the batch. Output: the outcome of the batch, or the stall after which it goes on.
//!
//! ```text
//!  plan, part by part --> conditions, capacity, quota --> long values --room--> reserve the log
//!                                                                                    |
//!    end <-- append, part by part <-- conditions, capacity, quota <-- renew, part by part
//! ```
//!
//! Invariant: the batch holds its keys from its first part on, and the log is reserved from before its first record until
//! behind its last one.
//!
//! What the plan found does not change, because the keys are held, but three things may happen to it. The collector moves
//! records: once the log is reserved they stay, and what was moved is found again. A clear removes them: it needs no keys, so
//! the plan begins anew; once the log is reserved there is no clear. They expire: conditions are decided in one step,
//! immediately before the first record. After that step the batch cannot fail, except with the medium, so nothing is ever
//! taken back: blocks for all records were ready, nothing else takes one, and frames return as pages are written.
//!
//! # Clears
//!
//! A batch may clear namespaces before its writes. Each clear is a record of the batch, and all of them lie in front of the
//! records of the writes, so that a power cut takes or leaves them together, and recovery removes by them what has a lower
//! sequence: the old records, and not those of the batch. The plan finds the records of a cleared namespace for conditions
//! only: a write there replaces nothing, a removal writes nothing, and the bytes that the clear sets free count as replaced.
//!
//! The entries of the old records leave the index in parts (`ftl/clear_walks.rs`), and until then the namespace may have no
//! new one. The first write to a namespace that is still walked waits, with the log reserved, so that nothing comes between
//! the clear and it: writes of other clients wait too. A walk takes as long as there are keys of all namespaces, so that what
//! was acknowledged before is made durable first. Reads of keys that exist do not wait; of a missing key they wait, where a
//! reply is durable, as for any removal that is not durable yet. A batch that writes nothing there does not wait. A reader sees no part of the batch: its keys are held, every other key of a cleared namespace is absent
//! from the first record on, and that absence is released only when the whole batch is durable.
//!
//! A record that was moved is found by its hash alone if no other record of the namespace has it: the record exists. Its
//! address would not tell, because another record with its hash may lie there now.

use super::batch::{check_unreadable, target_of};
use super::{ExecutionOutcome, KeyTarget, long_store, require_durable, seen_sequence};
use crate::command::{BatchWrite, NamespaceId, Sequence, WriteCondition};
use crate::engine::batch_namespaces::{BatchNamespaces, NamespaceSet};
use crate::engine::batch_plan::{BatchPlan, NamespaceGrowth, OpenBatch, PlannedWrite, record_bytes_of};
use crate::engine::operation::StoreProgress;
use crate::ftl::{FoundRecord, Ftl, NewRecord, StallReason};
use crate::index::{KeyHash, RecordIndex};
use crate::limits::COPY_PART_BYTES;
use crate::log::RecordSource;
use crate::log::flash_log::AppendSize;
use crate::log::record::batch_flags;
use crate::media::{Media, PAGE_DATA_BYTES};
use crate::mutant::{Mutant, mutant};
use headwater_host::width::{narrow, to_usize};
use headwater_nvme::spec::status::Status;
use std::ops::Range;

/// Returns true if a batch of this many writes and bytes is carried out in parts.
pub(super) fn is_long<M: Media>(ftl: &Ftl<M>, writes: usize, bytes: usize) -> bool {
    writes > ftl.part_writes() || bytes > COPY_PART_BYTES
}

/// Returns true if the removal of an absent key needs no record, whichever of these namespaces it is of. A power cut may lose
/// the removal of such a key and keep the batch, so otherwise the batch writes its own tombstone.
pub(super) fn is_absence_final<M: Media>(ftl: &Ftl<M>, namespaces: BatchNamespaces<'_>) -> bool {
    let is_final = match namespaces {
        BatchNamespaces::One(namespace) => ftl.is_absence_final(namespace),
        BatchNamespaces::Runs(runs) => runs.iter().all(|run| ftl.is_absence_final(run.namespace)),
    };
    is_final || mutant(Mutant::AbsentDeleteSkipped)
}

/// A batch with its namespaces.
#[derive(Clone, Copy, Debug)]
pub(super) struct LongBatch<'a> {
    pub(super) namespaces: BatchNamespaces<'a>,
    pub(super) writes: &'a [BatchWrite],
}

impl<'a> LongBatch<'a> {
    /// Does the next part.
    pub(super) fn run<M: Media>(
        &self,
        ftl: &mut Ftl<M>,
        plan: &mut BatchPlan,
        drafts: &mut Option<StoreProgress>,
    ) -> Result<ExecutionOutcome, StallReason> {
        if plan.open.is_some() {
            return self.append_part(ftl, plan, drafts);
        }
        // A batch that only checks runs beside another one that the log is reserved for, and ends when it is planned.
        if !ftl.is_log_reserved() || self.only_checks() {
            self.plan_part(ftl, plan)?;
            if let Some(outcome) = self.decide(ftl, plan)? {
                return Ok(outcome);
            }
            require_durable(ftl, plan.basis)?;
            self.prepare_room(ftl, plan, drafts)?;
            ftl.reserve_log();
            plan.renewed = if plan.moved_bytes == ftl.moved_bytes() { self.writes.len() } else { 0 };
            return Err(StallReason::Turn);
        }
        if plan.renewed < self.writes.len() && !mutant(Mutant::PlanNotRenewed) {
            return Err(self.renew_part(ftl, plan).err().unwrap_or(StallReason::Turn));
        }
        if self.waits_for_walk()
            && let Some(sequence) = ftl.settle_before_append()
        {
            return Err(StallReason::NotDurable(sequence));
        }
        if let Some(outcome) = self.decide(ftl, plan)? {
            return Ok(outcome);
        }
        self.prepare_room(ftl, plan, drafts)?;
        let is_absence_final = is_absence_final(ftl, self.namespaces);
        plan.open = Some(OpenBatch {
            last: plan.appended(is_absence_final).records.saturating_sub(1),
            is_absence_final,
            next: 0,
            appended: 0,
            wrote: plan.seen.max(ftl.last_removal()),
        });
        self.append_part(ftl, plan, drafts)
    }

    /// Returns true if a write waits for the walk of a clear of the batch.
    fn waits_for_walk(&self) -> bool {
        let clears = self.namespaces.cleared();
        let is_store = |index: &usize| matches!(self.writes[*index], BatchWrite::Store { .. });
        let mut stores = (0..self.writes.len()).filter(is_store);
        !clears.is_empty() && stores.any(|index| clears.contains(self.namespaces.of(index)))
    }

    fn only_checks(&self) -> bool {
        self.namespaces.cleared().is_empty() && !self.writes.iter().any(BatchWrite::is_write)
    }

    fn target(&self, index: usize, hash: KeyHash) -> KeyTarget<'a> {
        target_of(self.namespaces.of(index), hash, &self.writes[index])
    }

    /// Finds the records that the next writes replace. Stalls until all are planned.
    fn plan_part<M: Media>(&self, ftl: &Ftl<M>, plan: &mut BatchPlan) -> Result<(), StallReason> {
        let cleared = |namespace: NamespaceId| ftl.counts()[namespace.index()].cleared;
        let cleared = self.namespaces.each().map(cleared).max().unwrap_or_default();
        if plan.writes.is_empty() || plan.cleared != cleared {
            let (moved_bytes, clears) = (ftl.moved_bytes(), self.namespaces.cleared());
            *plan = BatchPlan { cleared, moved_bytes, clears, ..BatchPlan::default() };
            plan.writes.reserve_exact(self.writes.len());
        }
        let first = plan.writes.len();
        let part = first..self.writes.len().min(first + ftl.part_writes());
        if part.is_empty() {
            return Ok(());
        }
        let hash = |index| ftl.hasher().hash(self.namespaces.of(index), self.writes[index].key());
        let hashes: Vec<KeyHash> = part.clone().map(hash).collect();
        hashes.iter().for_each(|hash| ftl.index().prefetch(*hash));
        for hash in &hashes {
            let _ = ftl.prefetch_record(*hash);
        }
        let targets = part.clone().zip(hashes).map(|(index, hash)| self.target(index, hash));
        let targets: Vec<KeyTarget<'_>> = targets.collect();
        let found = self.find_part(ftl, &targets)?;
        for ((write, one), found) in self.writes[part].iter().zip(targets).zip(found) {
            if let Err(StallReason::NotDurable(basis)) = one.require_basis_durable(ftl, found.as_ref()) {
                plan.basis = plan.basis.max(basis);
            }
            plan.seen = plan.seen.max(seen_sequence(ftl, found.as_ref()));
            let is_long = matches!(write, BatchWrite::Store { value, .. } if long_store::is_built_in_parts(value.len()));
            plan.push((one.namespace, write), PlannedWrite { hash: one.hash, found }, is_long);
        }
        if plan.writes.len() < self.writes.len() { Err(StallReason::Turn) } else { Ok(()) }
    }

    /// Finds the records of the keys of a part. A write without a condition to a namespace that the batch clears needs none.
    fn find_part<M: Media>(
        &self,
        ftl: &Ftl<M>,
        targets: &[KeyTarget<'_>],
    ) -> Result<Vec<Option<FoundRecord>>, StallReason> {
        let clears = self.namespaces.cleared();
        if clears.is_empty() {
            return find_all(ftl, targets);
        }
        let is_needed =
            |one: &&KeyTarget<'_>| !clears.contains(one.namespace) || one.condition != WriteCondition::Always;
        let mut found = find_each(ftl, targets.iter().filter(is_needed))?.into_iter();
        Ok(targets.iter().map(|one| if is_needed(&one) { found.next().flatten() } else { None }).collect())
    }

    /// Decides whether the batch is carried out. Returns its outcome if it is not.
    fn decide<M: Media>(
        &self,
        ftl: &mut Ftl<M>,
        plan: &BatchPlan,
    ) -> Result<Option<ExecutionOutcome>, StallReason> {
        if plan.has_unreadable {
            check_unreadable(plan.writes.iter().filter_map(|planned| planned.found))?;
        }
        for &index in &plan.conditional {
            let (write, PlannedWrite { hash, found }) = (&self.writes[index], &plan.writes[index]);
            let is_ignored = !write.is_write() && mutant(Mutant::CheckIgnored);
            if let Err(status) = self.target(index, *hash).check_condition(ftl, found.as_ref())
                && !is_ignored
            {
                let mut outcome = ExecutionOutcome::status(status, seen_sequence(ftl, found.as_ref()));
                outcome.completion.position = narrow(index);
                return Ok(Some(outcome));
            }
        }
        let BatchPlan { replaced, clears, .. } = plan;
        if plan.appended(false).records == 0 {
            return Ok(Some(ExecutionOutcome::written(plan.seen.max(ftl.last_removal()))));
        }
        let more = plan.appended(is_absence_final(ftl, self.namespaces)).bytes;
        let cleared: usize = clears.iter().map(|namespace| bytes_of(ftl, namespace)).sum();
        if let Err(status) = ftl.check_capacity(plan.largest, more, replaced.bytes + cleared) {
            return Ok(Some(ExecutionOutcome::status(status, Sequence(0))));
        }
        // Tombstones count against the medium, not against the quota.
        let fits = |namespace: NamespaceId| {
            let NamespaceGrowth { more, less } = plan.growth[namespace.index()];
            let cleared = if clears.contains(namespace) { bytes_of(ftl, namespace) } else { 0 };
            ftl.fits_quota(namespace, more, less + cleared)
        };
        if !self.namespaces.each().all(fits) {
            return Ok(Some(ExecutionOutcome::status(Status::CAPACITY_EXCEEDED, Sequence(0))));
        }
        Ok(None)
    }

    /// Builds the records of long values, and checks that all records can be appended: that there are blocks for all of
    /// them, and frames for a part.
    fn prepare_room<M: Media>(
        &self,
        ftl: &mut Ftl<M>,
        plan: &BatchPlan,
        drafts: &mut Option<StoreProgress>,
    ) -> Result<(), StallReason> {
        let more = plan.appended(is_absence_final(ftl, self.namespaces)).bytes;
        // A record that does not fit into a block leaves the block's end unused, and a long one the rest of a page: an eighth
        // more covers it.
        let bytes = more + more / 8;
        let frames = frame_bytes(more.min(COPY_PART_BYTES));
        if !plan.long.is_empty() {
            let long = plan.long.iter().map(|&index| self.record(index, plan.writes[index].hash));
            long_store::build(ftl, long, bytes, drafts)?;
        }
        ftl.check_client_append(AppendSize { bytes, drafted: bytes })?;
        ftl.check_draft_room(frames)
    }

    /// Returns the record of a write without expiry and flags.
    fn record(&self, index: usize, hash: KeyHash) -> NewRecord<'a> {
        let (namespace, write) = (self.namespaces.of(index), &self.writes[index]);
        let value = match write {
            BatchWrite::Store { value, .. } => Some(RecordSource::Bytes(value)),
            BatchWrite::Delete { .. } | BatchWrite::Check { .. } => None,
        };
        NewRecord { namespace, hash, key: write.key(), value, expiry_ms: 0, batch: 0 }
    }

    /// Finds the next planned records again, which collection may have moved since the plan began. The log is reserved, so
    /// that they stay.
    fn renew_part<M: Media>(&self, ftl: &Ftl<M>, plan: &mut BatchPlan) -> Result<(), StallReason> {
        let part = plan.renewed..self.writes.len().min(plan.renewed + ftl.part_writes());
        let mut several = Vec::new();
        for index in part.clone() {
            let PlannedWrite { hash, found: Some(found) } = &mut plan.writes[index] else { continue };
            let entries = (0..).map_while(|nth| ftl.index().find(*hash, nth));
            let namespace = self.namespaces.of(index);
            let mut entries = entries.filter(|entry| entry.namespace == namespace);
            match (entries.next(), entries.next()) {
                (Some(entry), None) => found.entry = entry,
                _ => several.push(index),
            }
        }
        let targets = several.iter().map(|&index| self.target(index, plan.writes[index].hash));
        let found = find_all(ftl, &targets.collect::<Vec<_>>())?;
        for (index, found) in several.into_iter().zip(found) {
            assert!(found.is_some(), "a record is gone whose key is held");
            plan.has_unreadable |= found.is_some_and(|found| found.header.is_none());
            plan.writes[index].found = found;
        }
        plan.renewed = part.end;
        Ok(())
    }

    /// Appends the records of the next writes. Stalls until all are appended.
    fn append_part<M: Media>(
        &self,
        ftl: &mut Ftl<M>,
        plan: &mut BatchPlan,
        drafts: &mut Option<StoreProgress>,
    ) -> Result<ExecutionOutcome, StallReason> {
        let BatchPlan { writes: planned, open: Some(open), clears, .. } = plan else {
            unreachable!("records are appended to a batch that is not open")
        };
        if ftl.failure().is_some() {
            return Ok(ExecutionOutcome::status(Status::MEDIUM_FAILED, Sequence(0)));
        }
        if open.next == 0 && open.appended == 0 {
            append_clears(ftl, *clears, open);
        }
        let end = self.end_of_part(open.next, ftl.part_writes());
        let end = self.end_at_walked(ftl, *clears, open.next..end);
        if end == open.next && end < self.writes.len() {
            return Err(StallReason::Turn);
        }
        let part = open.next..end;
        ftl.check_draft_room(frame_bytes(part.clone().map(|index| self.short_bytes(index)).sum()))?;
        planned[part.clone()].iter().for_each(|planned| ftl.index().prefetch(planned.hash));
        for index in part {
            let (write, PlannedWrite { hash, found }) = (&self.writes[index], planned[index]);
            let is_cleared = clears.contains(self.namespaces.of(index));
            let found = found.filter(|_| !is_cleared);
            let is_effective = match write {
                BatchWrite::Store { .. } => true,
                BatchWrite::Delete { .. } => !is_cleared && (found.is_some() || !open.is_absence_final),
                BatchWrite::Check { .. } => false,
            };
            if !is_effective {
                continue;
            }
            let mut record = self.record(index, hash);
            record.batch = batch_flags(open.appended, open.last);
            if let BatchWrite::Store { .. } = write {
                let alive = found.as_ref().filter(|found| !ftl.expired(found));
                record.expiry_ms = self.target(index, hash).expiry_ms(alive);
            }
            let is_long = record.value.is_some_and(|value| long_store::is_built_in_parts(value.len()));
            open.wrote = if is_long {
                ftl.write_draft(&record, long_store::take_next(drafts), found)
            } else {
                ftl.write(&record, found)
            };
            open.appended += 1;
        }
        open.next = end;
        if end < self.writes.len() {
            Err(StallReason::Turn)
        } else {
            Ok(ExecutionOutcome::written(open.wrote))
        }
    }

    /// Returns the end of a part: in front of the first write to a namespace whose old entries are still in the index.
    fn end_at_walked<M: Media>(&self, ftl: &Ftl<M>, clears: NamespaceSet, mut part: Range<usize>) -> usize {
        if clears.is_empty() || !ftl.is_clearing_any() || mutant(Mutant::BatchClearNotAwaited) {
            return part.end;
        }
        let is_walked = |index: &usize| ftl.is_clearing(self.namespaces.of(*index));
        let end = part.end;
        part.find(is_walked).unwrap_or(end)
    }

    /// Returns the end of the part that begins with a write.
    fn end_of_part(&self, first: usize, writes_max: usize) -> usize {
        let mut bytes = 0;
        let fits = |index: &usize| {
            bytes += self.short_bytes(*index);
            *index == first || bytes <= COPY_PART_BYTES
        };
        first + (first..self.writes.len()).take(writes_max).take_while(fits).count()
    }

    /// Returns the bytes that are copied for a write: none of a long value, whose pages are built.
    fn short_bytes(&self, index: usize) -> usize {
        match &self.writes[index] {
            BatchWrite::Store { value, .. } if long_store::is_built_in_parts(value.len()) => PAGE_DATA_BYTES,
            write => record_bytes_of(write),
        }
    }
}

/// Returns the bytes of frames that records of `bytes` may take: those at the end of a block leave a rest.
const fn frame_bytes(bytes: usize) -> usize {
    bytes + bytes / 8 + 4 * PAGE_DATA_BYTES
}

/// Returns the bytes of the records of a namespace.
fn bytes_of<M: Media>(ftl: &Ftl<M>, namespace: NamespaceId) -> usize {
    to_usize(ftl.counts()[namespace.index()].bytes)
}

/// Appends the clears of a batch, which are its first records.
fn append_clears<M: Media>(ftl: &mut Ftl<M>, clears: NamespaceSet, open: &mut OpenBatch) {
    for namespace in clears.iter() {
        open.wrote = ftl.clear(namespace, batch_flags(open.appended, open.last)).0;
        open.appended += 1;
    }
}

/// Finds the record that each write replaces, or stalls for all pages that the lookups need.
pub(super) fn find_all<M: Media>(
    ftl: &Ftl<M>,
    targets: &[KeyTarget<'_>],
) -> Result<Vec<Option<FoundRecord>>, StallReason> {
    find_each(ftl, targets.iter())
}

fn find_each<'a, M: Media>(
    ftl: &Ftl<M>,
    targets: impl Iterator<Item = &'a KeyTarget<'a>>,
) -> Result<Vec<Option<FoundRecord>>, StallReason> {
    let mut missing = Vec::new();
    let mut all = Vec::with_capacity(targets.size_hint().1.unwrap_or(0));
    for one in targets {
        match one.find_replaced(ftl) {
            Ok(found) => all.push(found),
            Err(StallReason::Pages(pages)) => missing.extend(pages),
            Err(stall) => return Err(stall),
        }
    }
    if missing.is_empty() {
        return Ok(all);
    }
    missing.sort_unstable();
    missing.dedup();
    Err(StallReason::Pages(missing))
}
