//! Executes each command in one run, once all pages and the room that it needs are available.
//!
//! Input: an operation whose keys no other operation works on. Output: its [`ExecutionOutcome`], or the [`StallReason`]
//! that must end before the operation is run again from the start. A run that returns a stall has changed nothing but
//! the progress of a list or of a command on many blocks.
//! Invariant: the outcome's gate covers every sequence the command wrote or saw.

mod batch;
mod block_batch;
mod block_namespace;
mod block_read;
mod block_write;
mod extent_store;
mod extent_value;
mod list;
mod long_batch;
mod long_store;
mod long_value;
mod namespace;
mod staged_value;
mod value_parts;

pub(crate) use block_batch::BlockBatch;

use crate::command::{
    NamespaceId, ReadRelease, RecordExpiry, Sequence, SsdCommand, SsdCompletion, ValueSink, ValueSource,
    WriteCondition,
};
use crate::engine::batch_namespaces::NamespaceSet;
use crate::engine::operation::{
    CommandSubject, DeviceOperation, OperationWork, StoreProgress, ValueProgress,
};
use crate::ftl::namespace_table::NamespaceDefinition;
use crate::ftl::{ExtentStore, FoundRecord, Ftl, NewRecord, RecordPart, SinkRange, StallReason};
use crate::index::{KeyHash, RecordIndex};
use crate::limits::LIST_KEYS_MAX;
use crate::log::RecordSource;
use crate::log::record::{FLAGS_BATCH, RecordAddress, RecordHeader, UNIT_BYTES};
use crate::media::Media;
use crate::mutant::{Mutant, mutant};
use crate::namespace::NamespaceKind;
use bytes::Bytes;
use headwater_nvme::spec::status::Status;
use long_value::WantedPart;

/// The condition under which a completion may be released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseGate {
    /// This sequence is durable, or the namespace does not promise durability.
    IfPromised(Sequence),
    /// This sequence is durable, or none of these namespaces promises durability.
    IfAnyPromised(NamespaceSet, Sequence),
    /// This sequence is durable, regardless of the namespace's durability.
    Durable(Sequence),
    /// None: it may be released immediately.
    Immediate,
}

/// The result of a command: its completion and the gate of its release.
#[derive(Debug)]
pub(crate) struct ExecutionOutcome {
    pub(crate) completion: SsdCompletion,
    pub(crate) gate: ReleaseGate,
}

impl ExecutionOutcome {
    fn status(status: Status, saw: Sequence) -> Self {
        Self { completion: SsdCompletion::new(0, status), gate: ReleaseGate::IfPromised(saw) }
    }

    fn written(sequence: Sequence) -> Self {
        let mut outcome = Self::status(Status::SUCCESS, sequence);
        outcome.completion.sequence = sequence;
        outcome
    }
}

/// Executes an operation.
pub(crate) fn execute<M: Media>(
    ftl: &mut Ftl<M>,
    operation: &mut DeviceOperation,
) -> Result<ExecutionOutcome, StallReason> {
    let (namespace, hash) = (operation.namespace, operation.span.first);
    if operation.is_write() {
        let read_only = ftl.is_read_only().then_some(Status::NAMESPACE_WRITE_PROTECTED);
        if let Some(status) = ftl.write_refusal().or(read_only) {
            return Ok(ExecutionOutcome::status(status, Sequence(0)));
        }
    }
    if let Err(status) = check_namespace_kind(ftl, operation) {
        return Ok(ExecutionOutcome::status(status, Sequence(0)));
    }
    let front_end = operation.front_end;
    let command = match &mut operation.work {
        OperationWork::Vacant => unreachable!("a slot without operation is never run"),
        OperationWork::Expire { address } => return expire(ftl, hash, *address),
        OperationWork::OpenExtent { receipt } => return open_extent(ftl, *receipt),
        OperationWork::Command(
            SsdCommand::Read { .. } | SsdCommand::Compare { .. } | SsdCommand::Verify { .. },
        ) => {
            return block_read::run(ftl, operation);
        }
        OperationWork::Command(
            SsdCommand::Write { .. } | SsdCommand::Deallocate { .. } | SsdCommand::Copy { .. },
        ) => {
            return block_write::run(ftl, operation);
        }
        OperationWork::Command(SsdCommand::Batch { .. }) => return batch::run(ftl, operation),
        OperationWork::Command(SsdCommand::BatchAcross { .. }) => return batch::run_across(ftl, operation),
        OperationWork::Command(command) => command,
    };
    match command {
        SsdCommand::Store { key, value, condition, expiry } => {
            let write = KeyTarget { namespace, hash, key, condition: *condition, expiry: *expiry };
            store(ftl, &write, value, (&mut operation.store_progress, &mut operation.extent_store))
        }
        SsdCommand::Delete { key, condition } => delete(
            ftl,
            &KeyTarget { condition: *condition, ..KeyTarget::unconditional(namespace, hash, key) },
        ),
        SsdCommand::Retrieve { key, sink, offset, bytes_max, caching, release } => {
            let target = KeyTarget::unconditional(namespace, hash, key);
            let part = WantedPart { offset: *offset, bytes_max: *bytes_max, caching: *caching };
            retrieve(ftl, &target, (sink, part), *release, &mut operation.value_progress)
        }
        SsdCommand::OpenValue { key, reader } => {
            value_parts::open(ftl, &KeyTarget::unconditional(namespace, hash, key), (front_end, reader))
        }
        SsdCommand::ReadPart { reader, offset, sink, bytes_max } => {
            let copied = operation.moves.as_ref().map(|moves| &moves.copied);
            value_parts::read(ftl, (front_end, reader), (sink, *offset, *bytes_max), copied)
        }
        SsdCommand::Exist { key, release } => {
            exist(ftl, &KeyTarget::unconditional(namespace, hash, key), *release)
        }
        SsdCommand::List { keys_max, .. } => {
            let keys_max = (*keys_max).clamp(1, LIST_KEYS_MAX) as usize;
            list::run(ftl, operation, keys_max)
        }
        SsdCommand::Flush => Ok(flush(ftl)),
        SsdCommand::Fence { up_to } => Ok(fence(ftl, *up_to)),
        SsdCommand::Clear => clear(ftl, namespace),
        SsdCommand::Namespace(change) => namespace::apply_change(ftl, namespace, change),
        SsdCommand::Read { .. }
        | SsdCommand::Write { .. }
        | SsdCommand::Deallocate { .. }
        | SsdCommand::Compare { .. }
        | SsdCommand::Verify { .. }
        | SsdCommand::Copy { .. }
        | SsdCommand::Batch { .. }
        | SsdCommand::BatchAcross { .. } => unreachable!("batches and commands on blocks were run above"),
    }
}

/// Goes on with the operation that the log is reserved for. Nothing can refuse it any more but the medium.
pub(crate) fn go_on<M: Media>(
    ftl: &mut Ftl<M>,
    operation: &mut DeviceOperation,
) -> Result<ExecutionOutcome, StallReason> {
    match &operation.work {
        OperationWork::Command(SsdCommand::Batch { .. } | SsdCommand::BatchAcross { .. }) => {
            batch::run(ftl, operation)
        }
        _ => block_write::go_on(ftl, operation),
    }
}

fn open_extent<M: Media>(ftl: &mut Ftl<M>, receipt: u64) -> Result<ExecutionOutcome, StallReason> {
    ftl.open_receipt_extent(receipt)?;
    Ok(ExecutionOutcome::status(Status::SUCCESS, Sequence(0)))
}

fn flush<M: Media>(ftl: &Ftl<M>) -> ExecutionOutcome {
    if mutant(Mutant::FlushGateIgnored) {
        return ExecutionOutcome::status(Status::SUCCESS, Sequence(0));
    }
    let applied = ftl.last_sequence();
    ExecutionOutcome { gate: ReleaseGate::Durable(applied), ..ExecutionOutcome::written(applied) }
}

fn fence<M: Media>(ftl: &Ftl<M>, up_to: Sequence) -> ExecutionOutcome {
    let seen = if mutant(Mutant::FenceGateIgnored) { Sequence(0) } else { up_to.min(ftl.last_sequence()) };
    ExecutionOutcome::status(Status::SUCCESS, seen)
}

/// Checks that the namespace, of a batch over several the first one, has the kind that a command on keys, or on a namespace as
/// a whole, needs.
#[inline]
fn check_namespace_kind<M: Media>(ftl: &Ftl<M>, operation: &DeviceOperation) -> Result<(), Status> {
    let OperationWork::Command(command) = &operation.work else { return Ok(()) };
    check_kind(ftl, command.subject(), operation.namespace)
}

/// Checks that a namespace has the kind that a command on this subject needs.
#[inline]
fn check_kind<M: Media>(ftl: &Ftl<M>, subject: CommandSubject, namespace: NamespaceId) -> Result<(), Status> {
    match (subject, ftl.namespace_table().definition(namespace)) {
        (CommandSubject::NamespaceTable | CommandSubject::Blocks, _)
        | (_, NamespaceDefinition::Implicit)
        | (CommandSubject::Namespace, NamespaceDefinition::Created(_)) => Ok(()),
        (CommandSubject::Keys, NamespaceDefinition::Created(made)) if made.kind == NamespaceKind::Kv => {
            Ok(())
        }
        (_, NamespaceDefinition::Damaged) => Err(Status::NAMESPACE_NOT_READY),
        (CommandSubject::Keys, NamespaceDefinition::Created(_)) => Err(Status::INVALID_NAMESPACE),
    }
}

fn clear<M: Media>(ftl: &mut Ftl<M>, namespace: NamespaceId) -> Result<ExecutionOutcome, StallReason> {
    ftl.check_client_room(UNIT_BYTES * 3)?;
    let (sequence, removed) = ftl.clear(namespace, 0);
    let mut outcome = ExecutionOutcome::written(sequence);
    outcome.completion.position = u32::try_from(removed).unwrap_or(u32::MAX);
    Ok(outcome)
}

/// One key of one namespace, with the condition and the expiry of a write to it.
struct KeyTarget<'a> {
    namespace: NamespaceId,
    hash: KeyHash,
    key: &'a Bytes,
    condition: WriteCondition,
    expiry: RecordExpiry,
}

impl<'a> KeyTarget<'a> {
    fn unconditional(namespace: NamespaceId, hash: KeyHash, key: &'a Bytes) -> Self {
        Self { namespace, hash, key, condition: WriteCondition::Always, expiry: RecordExpiry::Never }
    }

    fn find<M: Media>(&self, ftl: &Ftl<M>, reach: RecordPart) -> Result<Option<FoundRecord>, StallReason> {
        ftl.find(self.hash, self.namespace, self.key, reach)
    }

    /// Finds the record that a write of the key replaces, readable or not if the write does not depend on it.
    fn find_replaced<M: Media>(&self, ftl: &Ftl<M>) -> Result<Option<FoundRecord>, StallReason> {
        if self.condition != WriteCondition::Always || self.expiry == RecordExpiry::Keep {
            return self.find(ftl, RecordPart::Key);
        }
        ftl.find_replaced(self.hash, self.namespace, self.key)
    }

    /// Checks the condition against the found record, and returns the status of a failed condition. A record that cannot be
    /// read may have expired and may have any sequence: it decides no condition.
    fn check_condition<M: Media>(&self, ftl: &Ftl<M>, found: Option<&FoundRecord>) -> Result<(), Status> {
        let is_unreadable = found.is_some_and(|found| found.header.is_none());
        if is_unreadable && self.condition != WriteCondition::Always {
            return Err(Status::UNRECOVERED_ERROR);
        }
        let exists = found.filter(|found| !ftl.expired(found));
        match (self.condition, exists) {
            (WriteCondition::Always, _)
            | (WriteCondition::IfExists, Some(_))
            | (WriteCondition::IfAbsent, None) => Ok(()),
            (WriteCondition::IfExists, None) => Err(Status::KEY_DOES_NOT_EXIST),
            (WriteCondition::IfAbsent, Some(_)) => Err(Status::KEY_EXISTS),
            (WriteCondition::IfSequence(wanted), exists) => match exists.and_then(|found| found.header) {
                Some(header) if header.sequence == wanted || mutant(Mutant::ConditionIgnored) => Ok(()),
                _ => Err(Status::SEQUENCE_MISMATCH),
            },
        }
    }

    /// Stalls a write whose condition or kept expiry depends on a batch or clear that is not durable yet: if a power
    /// cut lost the batch but kept the write, part of the batch would have taken effect. Once the write runs, all that
    /// it saw has a lower sequence than its own, so that its acknowledgement covers that too.
    fn require_basis_durable<M: Media>(
        &self,
        ftl: &Ftl<M>,
        found: Option<&FoundRecord>,
    ) -> Result<(), StallReason> {
        if self.condition == WriteCondition::Always && self.expiry != RecordExpiry::Keep {
            return Ok(());
        }
        match found.map(|found| found.header) {
            // Its header cannot be read, so the write depends on nothing in it.
            Some(None) => Ok(()),
            Some(Some(header)) => require_durable(ftl, batch_sequence(&header)),
            None => require_durable(ftl, ftl.last_multi_key_removal()),
        }
    }

    fn expiry_ms(&self, found: Option<&FoundRecord>) -> u64 {
        match self.expiry {
            RecordExpiry::Never => 0,
            RecordExpiry::At(when) => when,
            RecordExpiry::Keep => found.and_then(|found| found.header).map_or(0, |header| header.expiry_ms),
        }
    }
}

/// Returns the sequence that a command saw which found this record, or none.
fn seen_sequence<M: Media>(ftl: &Ftl<M>, found: Option<&FoundRecord>) -> Sequence {
    if found.is_none() && mutant(Mutant::AbsenceGateIgnored) {
        return Sequence(0);
    }
    // Some removal made the key absent; the sequence of the last removal covers it. A damaged header may name a sequence
    // that was never given out, and never becomes durable.
    let seen = found.and_then(|found| found.header).map_or(ftl.last_removal(), |header| header.sequence);
    seen.min(ftl.last_sequence())
}

/// Returns the sequence that must be durable before a copy of the record is written: its own if it is part of a batch.
fn batch_sequence(header: &RecordHeader) -> Sequence {
    if header.flags & FLAGS_BATCH == 0 { Sequence(0) } else { header.sequence }
}

fn require_durable<M: Media>(ftl: &Ftl<M>, sequence: Sequence) -> Result<(), StallReason> {
    let sequence = sequence.min(ftl.last_sequence());
    if sequence <= ftl.durable() { Ok(()) } else { Err(StallReason::NotDurable(sequence)) }
}

fn record_bytes_of(found: Option<&FoundRecord>) -> usize {
    found.map_or(0, |found| found.entry.units as usize * UNIT_BYTES)
}

fn store<M: Media>(
    ftl: &mut Ftl<M>,
    one: &KeyTarget<'_>,
    value: &ValueSource,
    (progress, extent_store): (&mut Option<StoreProgress>, &mut Option<ExtentStore>),
) -> Result<ExecutionOutcome, StallReason> {
    let found = one.find_replaced(ftl)?;
    if let Err(status) = one.check_condition(ftl, found.as_ref()) {
        return Ok(ExecutionOutcome::status(status, seen_sequence(ftl, found.as_ref())));
    }
    one.require_basis_durable(ftl, found.as_ref())?;
    let alive = found.as_ref().filter(|found| !ftl.expired(found));
    let extents = ftl.extents_for(value.len());
    if extents > 0 {
        let expiry_ms = one.expiry_ms(alive);
        return extent_store::store(ftl, one, (value, extents), (found, expiry_ms), extent_store);
    }
    let record = NewRecord {
        namespace: one.namespace,
        hash: one.hash,
        key: one.key,
        value: Some(RecordSource::of(value)),
        expiry_ms: one.expiry_ms(alive),
        batch: 0,
    };
    let (more, less) = (record.bytes(), found.map_or(0, |found| ftl.stored_bytes(found.entry)));
    let quota = ftl.fits_quota(one.namespace, more, less).then_some(()).ok_or(Status::CAPACITY_EXCEEDED);
    if let Err(status) = ftl.check_capacity(more, more, less).and(quota) {
        return Ok(ExecutionOutcome::status(status, Sequence(0)));
    }
    let bytes = long_store::room_of(more, value.len());
    if let Some(draft) = long_store::prepare(ftl, record, bytes, progress)? {
        if staged_value::is_lost(value) {
            ftl.discard_draft(draft);
            return Ok(ExecutionOutcome::status(Status::DATA_TRANSFER_ERROR, Sequence(0)));
        }
        return Ok(ExecutionOutcome::written(ftl.write_draft(&record, draft, found)));
    }
    let value = match staged_value::stage(value) {
        Ok(value) => value,
        Err(status) => return Ok(ExecutionOutcome::status(status, Sequence(0))),
    };
    let record = NewRecord { value: Some(RecordSource::of(&value)), ..record };
    Ok(ExecutionOutcome::written(ftl.write(&record, found)))
}

fn delete<M: Media>(ftl: &mut Ftl<M>, one: &KeyTarget<'_>) -> Result<ExecutionOutcome, StallReason> {
    let found = one.find_replaced(ftl)?;
    if let Err(status) = one.check_condition(ftl, found.as_ref()) {
        return Ok(ExecutionOutcome::status(status, seen_sequence(ftl, found.as_ref())));
    }
    let alive = found.filter(|found| !ftl.expired(found));
    if alive.is_none() && !ftl.doubts().is_in_doubt(one.namespace) {
        return Ok(ExecutionOutcome::status(Status::KEY_DOES_NOT_EXIST, seen_sequence(ftl, found.as_ref())));
    }
    one.require_basis_durable(ftl, alive.as_ref())?;
    // A record of an absent key that is in doubt may be lost: the removal makes the absence certain.
    remove(ftl, one, found)
}

fn remove<M: Media>(
    ftl: &mut Ftl<M>,
    one: &KeyTarget<'_>,
    found: Option<FoundRecord>,
) -> Result<ExecutionOutcome, StallReason> {
    let tombstone = NewRecord {
        namespace: one.namespace,
        hash: one.hash,
        key: one.key,
        value: None,
        expiry_ms: 0,
        batch: 0,
    };
    ftl.check_client_room(tombstone.bytes())?;
    Ok(ExecutionOutcome::written(ftl.write(&tombstone, found)))
}

fn expire<M: Media>(
    ftl: &mut Ftl<M>,
    hash: KeyHash,
    address: RecordAddress,
) -> Result<ExecutionOutcome, StallReason> {
    let nothing =
        ExecutionOutcome { completion: SsdCompletion::new(0, Status::SUCCESS), gate: ReleaseGate::Immediate };
    let entry = (0..).map_while(|nth| ftl.index().find(hash, nth)).find(|entry| entry.address == address);
    let Some(entry) = entry.filter(|entry| !ftl.is_clearing(entry.namespace)) else { return Ok(nothing) };
    let Some(header) = ftl.header(entry, RecordPart::Key)? else {
        // The header is damaged: a read of the key reports the damage, and the key leaves the expiry queue.
        ftl.forget_expiry(hash, address);
        return Ok(nothing);
    };
    let found = FoundRecord { entry, header: Some(header) };
    if ftl.is_record_in_doubt(&found) {
        // A tombstone would say that nothing newer is lost.
        ftl.forget_expiry(hash, address);
        return Ok(nothing);
    }
    if !ftl.is_expired(&header) {
        return Ok(nothing);
    }
    let key = Bytes::from(ftl.key_of(entry, &header)?);
    let one = KeyTarget::unconditional(entry.namespace, hash, &key);
    remove(ftl, &one, Some(found))?;
    ftl.count_expired();
    Ok(nothing)
}

/// Makes the outcome of a lookup. An expired record counts as absent, but the outcome's gate still covers that record.
fn lookup_outcome<M: Media>(
    ftl: &Ftl<M>,
    found: Option<&FoundRecord>,
    release: ReadRelease,
) -> ExecutionOutcome {
    let saw = seen_sequence(ftl, found);
    let found = found.filter(|found| !ftl.expired(found));
    // What is not durable when the medium fails never will be, and may be a part of a batch.
    let has_failed = ftl.failure().is_some() && !mutant(Mutant::SpeculativeAfterFailure);
    let is_speculative = release == ReadRelease::Speculative && !has_failed;
    let gate = if is_speculative || mutant(Mutant::ReadGateIgnored) {
        ReleaseGate::Immediate
    } else {
        ReleaseGate::IfPromised(saw)
    };
    let mut completion = match found {
        None => SsdCompletion::new(0, Status::KEY_DOES_NOT_EXIST),
        Some(FoundRecord { header: None, .. }) => SsdCompletion::new(0, Status::UNRECOVERED_ERROR),
        Some(FoundRecord { header: Some(header), .. }) => {
            let mut completion = SsdCompletion::new(0, Status::SUCCESS);
            completion.value_bytes = header.value_len_u32();
            completion.expiry_ms = header.expiry_ms;
            completion
        }
    };
    completion.sequence = saw;
    ExecutionOutcome { completion, gate }
}

fn retrieve<M: Media>(
    ftl: &mut Ftl<M>,
    one: &KeyTarget<'_>,
    (sink, part): (&mut ValueSink, WantedPart),
    release: ReadRelease,
    progress: &mut Option<ValueProgress>,
) -> Result<ExecutionOutcome, StallReason> {
    let found = one.find(ftl, RecordPart::Whole)?;
    let mut outcome = lookup_outcome(ftl, found.as_ref(), release);
    let found = found.filter(|found| !ftl.expired(found));
    if let Some(FoundRecord { entry, header: Some(header) }) = found {
        let intact = if header.extents > 0 {
            extent_value::read_part(ftl, (entry, &header), (sink, part), progress)?
        } else if long_value::is_read_in_parts(&header, sink, progress.as_ref()) {
            long_value::read_part(ftl, (entry, &header), (sink, part), progress)?
        } else {
            ftl.read_value(entry, &header, sink, SinkRange::part(part.offset, part.bytes_max))?
        };
        if !intact {
            outcome.completion.status = Status::UNRECOVERED_ERROR;
        } else if staged_value::has_lost_pages(sink) {
            outcome.completion.status = Status::DATA_TRANSFER_ERROR;
        }
    } else if let (Some(_), ValueSink::Bytes(bytes)) = (progress.take(), sink) {
        // The record expired, or its namespace was cleared, when a part of it was read.
        bytes.clear();
    }
    if outcome.completion.status == Status::UNRECOVERED_ERROR {
        ftl.count_damaged(1);
    }
    Ok(outcome)
}

fn exist<M: Media>(
    ftl: &Ftl<M>,
    one: &KeyTarget<'_>,
    release: ReadRelease,
) -> Result<ExecutionOutcome, StallReason> {
    let found = one.find(ftl, RecordPart::Key)?;
    Ok(lookup_outcome(ftl, found.as_ref(), release))
}
