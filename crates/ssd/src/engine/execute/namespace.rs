//! Changes of the namespace table.
//!
//! Input: a change. Output: one all-or-nothing batch of the log: the table's record, and the removals that belong to
//! the change. Invariant: no power cut leaves a namespace that was changed but not emptied, or emptied but not changed.

use super::{ExecutionOutcome, ReleaseGate};
use crate::command::{Lba, NamespaceId, Sequence};
use crate::ftl::namespace_table::{NamespaceDefinition, encode, record_position};
use crate::ftl::sanitize_mark::{self, SANITIZE_BYTES};
use crate::ftl::{FoundRecord, Ftl, NewRecord, StallReason};
use crate::index::{KeyHash, RecordIndex};
use crate::limits::{BATCH_WRITES_MAX, NAMESPACE_BLOCKS_MAX, NAMESPACES};
use crate::log::RecordSource;
use crate::log::record::{HEADER_BYTES, LBA_BYTES, UNIT_BYTES, batch_flags, record_units};
use crate::media::Media;
use crate::mutant::{Mutant, mutant};
use crate::namespace::attachment::NamespaceAttachment;
use crate::namespace::sanitize::SanitizeMark;
use crate::namespace::{Namespace, NamespaceChange, NamespaceKind};
use headwater_nvme::spec::status::Status;

/// The effects of a change.
struct ChangePlan {
    number: NamespaceId,
    slot: NamespaceDefinition,
    /// The controllers that it is attached to.
    attachment: NamespaceAttachment,
    /// The data that is removed with it.
    removal: RemovalScope,
}

enum RemovalScope {
    Nothing,
    Everything,
    /// These blocks, which lie after the new end.
    Blocks(Vec<Lba>),
}

/// Carries out a change.
pub(super) fn apply_change<M: Media>(
    ftl: &mut Ftl<M>,
    namespace: NamespaceId,
    change: &NamespaceChange,
) -> Result<ExecutionOutcome, StallReason> {
    if let NamespaceChange::Sanitize(mark) = change {
        return mark_sanitize(ftl, *mark);
    }
    let plan = match plan_change(ftl, namespace, change) {
        Ok(plan) => plan,
        Err(status) => return Ok(ExecutionOutcome::status(status, Sequence(0))),
    };
    let old =
        ftl.index().find(record_position(plan.number), 0).map(|entry| FoundRecord { entry, header: None });
    let record = plan.slot != NamespaceDefinition::Implicit || old.is_some();
    let (blocks, clear) = match &plan.removal {
        RemovalScope::Nothing => (&[][..], false),
        RemovalScope::Everything => (&[][..], true),
        RemovalScope::Blocks(blocks) => (&blocks[..], false),
    };
    let value = match &plan.slot {
        NamespaceDefinition::Created(namespace) => Some(encode(namespace, &plan.attachment)),
        NamespaceDefinition::Implicit | NamespaceDefinition::Damaged => None,
    };
    let value_bytes = value.as_ref().map_or(0, Vec::len);
    let bytes = usize::from(record) * record_units(LBA_BYTES, value_bytes) as usize * UNIT_BYTES
        + blocks.len() * record_units(LBA_BYTES, 0) as usize * UNIT_BYTES
        + usize::from(clear) * HEADER_BYTES;
    ftl.check_client_room(bytes + bytes / 8)?;
    let last = (usize::from(record) + blocks.len() + usize::from(clear)).saturating_sub(1);
    let mut at = 0;
    let mut sequence = ftl.last_sequence();
    let mut next = || {
        at += 1;
        batch_flags(at - 1, last)
    };
    if record {
        let value = value.as_ref().map(|value| RecordSource::Bytes(&value[..]));
        sequence = write(ftl, record_position(plan.number), value, old, next());
    }
    for lba in blocks {
        let block = KeyHash::of_block(plan.number, *lba);
        let found = ftl.index().find(block, 0).map(|entry| FoundRecord { entry, header: None });
        sequence = write(ftl, block, None, found, next());
    }
    if clear {
        sequence = ftl.clear(plan.number, next()).0;
    }
    ftl.change_namespace(plan.number, plan.slot, plan.attachment, sequence);
    let gate = if mutant(Mutant::ChangeGateIgnored) { Sequence(0) } else { sequence };
    let mut outcome =
        ExecutionOutcome { gate: ReleaseGate::Durable(gate), ..ExecutionOutcome::written(sequence) };
    outcome.completion.position = u32::from(plan.number.0);
    Ok(outcome)
}

/// Writes the phase of a sanitize operation.
fn mark_sanitize<M: Media>(ftl: &mut Ftl<M>, mark: SanitizeMark) -> Result<ExecutionOutcome, StallReason> {
    let bytes = record_units(LBA_BYTES, SANITIZE_BYTES) as usize * UNIT_BYTES;
    ftl.check_client_room(bytes + bytes / 8)?;
    let hash = sanitize_mark::mark_position();
    let old = ftl.index().find(hash, 0).map(|entry| FoundRecord { entry, header: None });
    let sequence =
        write(ftl, hash, Some(RecordSource::Bytes(&sanitize_mark::encode(mark))), old, batch_flags(0, 0));
    Ok(ExecutionOutcome { gate: ReleaseGate::Durable(sequence), ..ExecutionOutcome::written(sequence) })
}

/// Writes the record of one block, or its tombstone.
fn write<M: Media>(
    ftl: &mut Ftl<M>,
    hash: KeyHash,
    value: Option<RecordSource<'_>>,
    old: Option<FoundRecord>,
    batch: u8,
) -> Sequence {
    let (namespace, lba) = hash.namespace_and_lba();
    let key = lba.0.to_le_bytes();
    ftl.write(&NewRecord { namespace, hash, key: &key, value, expiry_ms: 0, batch }, old)
}

fn plan_change<M: Media>(
    ftl: &Ftl<M>,
    number: NamespaceId,
    change: &NamespaceChange,
) -> Result<ChangePlan, Status> {
    let keys = ftl.counts().get(number.index()).map_or(0, |state| state.keys);
    let here = match ftl.namespace_table().get(number) {
        NamespaceDefinition::Implicit => Some(Namespace::IMPLICIT),
        NamespaceDefinition::Created(namespace) => Some(namespace),
        NamespaceDefinition::Damaged => None,
    };
    let exists = ftl.namespace_table().get(number) != NamespaceDefinition::Implicit
        || number == NamespaceId::FIRST
        || keys > 0;
    let settings = || here.ok_or(Status::NAMESPACE_NOT_READY);
    let attachment = ftl.namespace_table().attachment(number);
    let plan = |slot, attachment, removal| Ok(ChangePlan { number, slot, attachment, removal });
    let made =
        |namespace, removal| plan(NamespaceDefinition::Created(namespace), attachment.clone(), removal);
    let attached =
        |attachment| plan(NamespaceDefinition::Created(settings()?), attachment, RemovalScope::Nothing);
    let needs_one = matches!(
        change,
        NamespaceChange::Delete
            | NamespaceChange::Format(_)
            | NamespaceChange::Attach(_)
            | NamespaceChange::Detach(_)
    );
    match change {
        NamespaceChange::Create(namespace) => create(ftl, namespace, NamespaceAttachment::ALL_CONTROLLERS),
        NamespaceChange::CreateDetached(namespace) => {
            create(ftl, namespace, NamespaceAttachment::NO_CONTROLLERS)
        }
        _ if needs_one && !exists => Err(Status::INVALID_NAMESPACE),
        NamespaceChange::Delete => {
            let attachment = NamespaceAttachment::ALL_CONTROLLERS;
            plan(NamespaceDefinition::Implicit, attachment, RemovalScope::Everything)
        }
        NamespaceChange::Attach(controllers) => attached(attachment.clone().with(controllers)),
        NamespaceChange::Detach(controllers) => attached(attachment.clone().without(controllers)),
        NamespaceChange::DetachAll => attached(NamespaceAttachment::NO_CONTROLLERS),
        // Handled by `mark_sanitize`: it changes no namespace.
        NamespaceChange::Sanitize(_) => Err(Status::INVALID_FIELD),
        NamespaceChange::Format(kind) => {
            let namespace = formatted(settings()?, *kind);
            check_size(&namespace).map_err(|_| Status::INVALID_FORMAT)?;
            let keeps = mutant(Mutant::FormattedBlocksKept);
            made(namespace, if keeps { RemovalScope::Nothing } else { RemovalScope::Everything })
        }
        NamespaceChange::Resize(size) => {
            let old = settings()?;
            let namespace = Namespace { size: *size, ..old };
            check_size(&namespace)?;
            // A power cut may have restored blocks that an earlier shrink removed after its end.
            let removal = match old.kind {
                NamespaceKind::Kv => RemovalScope::Nothing,
                NamespaceKind::Block(_) => removal_after(ftl, number, old.size.min(*size))?,
            };
            made(namespace, removal)
        }
        NamespaceChange::Durability(durability) => {
            made(Namespace { durability: *durability, ..settings()? }, RemovalScope::Nothing)
        }
        NamespaceChange::Limits(limits) => {
            made(Namespace { limits: *limits, ..settings()? }, RemovalScope::Nothing)
        }
        NamespaceChange::MissingKey(missing_key) => {
            made(Namespace { missing_key: *missing_key, ..settings()? }, RemovalScope::Nothing)
        }
    }
}

fn create<M: Media>(
    ftl: &Ftl<M>,
    namespace: &Namespace,
    attachment: NamespaceAttachment,
) -> Result<ChangePlan, Status> {
    check_size(namespace)?;
    let number = free_number(ftl).ok_or(Status::NAMESPACE_ID_UNAVAILABLE)?;
    Ok(ChangePlan {
        number,
        slot: NamespaceDefinition::Created(*namespace),
        attachment,
        removal: RemovalScope::Everything,
    })
}

/// Checks the size of a namespace against the limits.
fn check_size(namespace: &Namespace) -> Result<(), Status> {
    match namespace.kind {
        NamespaceKind::Block(_) if !(1..=NAMESPACE_BLOCKS_MAX).contains(&namespace.size) => {
            Err(Status::INVALID_FIELD)
        }
        _ => Ok(()),
    }
}

/// Returns the lowest unused number: no namespace was created under it, and it holds no keys. The first namespace
/// always exists.
fn free_number<M: Media>(ftl: &Ftl<M>) -> Option<NamespaceId> {
    let numbers = (1..).take(NAMESPACES).map(NamespaceId).filter(|number| *number != NamespaceId::FIRST);
    let is_free = |number: &NamespaceId| {
        ftl.namespace_table().get(*number) == NamespaceDefinition::Implicit
            && ftl.counts()[number.index()].keys == 0
    };
    numbers.into_iter().find(is_free)
}

/// Returns the namespace with this kind, and with as many bytes as before.
fn formatted(namespace: Namespace, kind: NamespaceKind) -> Namespace {
    let bytes = |kind: NamespaceKind| match kind {
        NamespaceKind::Kv => 1,
        NamespaceKind::Block(format) => format.bytes() as u64,
    };
    let size = namespace.size.saturating_mul(bytes(namespace.kind)) / bytes(kind);
    Namespace { kind, size, ..namespace }
}

/// Returns the removal of all blocks after a new end; fails if one batch cannot remove them.
fn removal_after<M: Media>(ftl: &Ftl<M>, number: NamespaceId, end: u64) -> Result<RemovalScope, Status> {
    let mut blocks = Vec::new();
    let mut from = KeyHash::of_block(number, Lba(end));
    while let Some((block, _)) = ftl.index().next(from).filter(|(_, entry)| entry.namespace == number) {
        if blocks.len() + 1 == BATCH_WRITES_MAX {
            return Err(Status::COMMAND_SIZE_LIMIT);
        }
        blocks.push(block.namespace_and_lba().1);
        from = KeyHash(block.0 + 1);
    }
    Ok(RemovalScope::Blocks(blocks))
}
