//! Executes each command in one run, once all pages and the room that it needs are available.
//!
//! Input: an operation whose keys no other operation works on. Output: its [`Outcome`], or the [`Stall`] that must end
//! before the operation is run again from the start. A run that returns a stall has changed nothing but the progress of a
//! list or of a command on many blocks.
//! Invariant: the outcome's gate covers every sequence the command wrote or saw.

mod block_read;
mod block_write;
mod extent;
mod namespace;

use crate::command::{
    BatchWrite, Command, Completion, Condition, Expiry, ListPosition, ListedKey, NamespaceId, Payload,
    Release, Sequence, Sink,
};
use crate::engine::operation::{Operation, Subject, Work};
use crate::ftl::namespace_table::Slot;
use crate::ftl::{Found, Ftl, NewRecord, Reach, Stall, Window};
use crate::index::{Index, KeyHash};
use crate::limits::LIST_KEYS_MAX;
use crate::log::Source;
use crate::log::record::{FLAGS_BATCH, RecordAddress, RecordHeader, UNIT_BYTES, batch_flags, record_units};
use crate::media::Media;
use crate::namespace::NamespaceKind;
use bytes::Bytes;
use headwater_nvme::spec::status::Status;

/// The condition under which a completion may be released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// This sequence is durable, or the namespace does not promise durability.
    Promise(Sequence),
    /// This sequence is durable, regardless of the namespace's durability.
    Durable(Sequence),
    /// None: it may be released immediately.
    Open,
}

/// The result of a command: its completion and the gate of its release.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) completion: Completion,
    pub(crate) gate: Gate,
}

impl Outcome {
    fn status(status: Status, saw: Sequence) -> Self {
        Self { completion: Completion::new(0, status), gate: Gate::Promise(saw) }
    }

    fn wrote(sequence: Sequence) -> Self {
        let mut outcome = Self::status(Status::SUCCESS, sequence);
        outcome.completion.sequence = sequence;
        outcome
    }
}

/// Executes an operation.
pub(crate) fn execute<M: Media>(ftl: &mut Ftl<M>, operation: &mut Operation) -> Result<Outcome, Stall> {
    let namespace = operation.namespace;
    let hash = operation.span.first;
    if ftl.failed.is_some() && operation.is_write() {
        return Ok(Outcome::status(Status::INTERNAL_ERROR, Sequence(0)));
    }
    if let Err(status) = suits(ftl, operation) {
        return Ok(Outcome::status(status, Sequence(0)));
    }
    let command = match &mut operation.work {
        Work::Expire { address } => return expire(ftl, hash, *address),
        Work::Command(Command::Read { .. } | Command::Compare { .. } | Command::Verify { .. }) => {
            return block_read::run(ftl, operation);
        }
        Work::Command(Command::Write { .. } | Command::Deallocate { .. } | Command::Copy { .. }) => {
            return block_write::run(ftl, operation);
        }
        Work::Command(command) => command,
    };
    match command {
        Command::Store { key, value, condition, expiry } => {
            let write = One { namespace, hash, key, condition: *condition, expiry: *expiry };
            store(ftl, &write, value)
        }
        Command::Delete { key, condition } => {
            delete(ftl, &One { condition: *condition, ..One::any(namespace, hash, key) })
        }
        Command::Retrieve { key, sink, bytes_max, release } => {
            retrieve(ftl, &One::any(namespace, hash, key), (sink, *bytes_max), *release)
        }
        Command::Exist { key, release } => exist(ftl, &One::any(namespace, hash, key), *release),
        Command::Batch { writes } => batch(ftl, namespace, writes),
        Command::List { keys_max, .. } => {
            let keys_max = (*keys_max).clamp(1, LIST_KEYS_MAX) as usize;
            list(ftl, operation, keys_max)
        }
        Command::Flush => Ok(Outcome { gate: Gate::Durable(ftl.applied()), ..Outcome::wrote(ftl.applied()) }),
        Command::Fence { up_to } => Ok(Outcome::status(Status::SUCCESS, (*up_to).min(ftl.applied()))),
        Command::Clear => clear(ftl, namespace),
        Command::Namespace(change) => namespace::change(ftl, namespace, change),
        Command::Read { .. }
        | Command::Write { .. }
        | Command::Deallocate { .. }
        | Command::Compare { .. }
        | Command::Verify { .. }
        | Command::Copy { .. } => unreachable!("commands on blocks were run above"),
    }
}

/// Checks that the namespace has the kind that a command on keys, or on a namespace as a whole, needs.
#[inline]
fn suits<M: Media>(ftl: &Ftl<M>, operation: &Operation) -> Result<(), Status> {
    let subject = match &operation.work {
        Work::Command(command) => command.subject(),
        Work::Expire { .. } => return Ok(()),
    };
    match (subject, ftl.table.state(operation.namespace)) {
        (Subject::Table | Subject::Blocks, _) | (_, Slot::Implicit) | (Subject::Anything, Slot::Made(_)) => {
            Ok(())
        }
        (Subject::Keys, Slot::Made(made)) if made.kind == NamespaceKind::Kv => Ok(()),
        (_, Slot::Damaged) => Err(Status::NAMESPACE_NOT_READY),
        (Subject::Keys, Slot::Made(_)) => Err(Status::INVALID_NAMESPACE),
    }
}

fn clear<M: Media>(ftl: &mut Ftl<M>, namespace: NamespaceId) -> Result<Outcome, Stall> {
    ftl.client_room(UNIT_BYTES * 3)?;
    let (sequence, removed) = ftl.clear(namespace, 0);
    let mut outcome = Outcome::wrote(sequence);
    outcome.completion.position = u32::try_from(removed).unwrap_or(u32::MAX);
    Ok(outcome)
}

/// One key of one namespace, with the condition and the expiry of a write to it.
struct One<'a> {
    namespace: NamespaceId,
    hash: KeyHash,
    key: &'a Bytes,
    condition: Condition,
    expiry: Expiry,
}

impl<'a> One<'a> {
    fn any(namespace: NamespaceId, hash: KeyHash, key: &'a Bytes) -> Self {
        Self { namespace, hash, key, condition: Condition::Always, expiry: Expiry::Never }
    }

    fn find<M: Media>(&self, ftl: &Ftl<M>, reach: Reach) -> Result<Option<Found>, Stall> {
        ftl.find(self.hash, self.namespace, self.key, reach)
    }

    /// Checks the condition against the found record, and returns the status of a failed condition.
    fn check<M: Media>(&self, ftl: &Ftl<M>, found: Option<&Found>) -> Result<(), Status> {
        let exists = found.filter(|found| !ftl.expired(found));
        match (self.condition, exists) {
            (Condition::Always, _) | (Condition::IfExists, Some(_)) | (Condition::IfAbsent, None) => Ok(()),
            (Condition::IfExists, None) => Err(Status::KEY_DOES_NOT_EXIST),
            (Condition::IfAbsent, Some(_)) => Err(Status::KEY_EXISTS),
            (Condition::IfSequence(wanted), exists) => match exists.and_then(|found| found.header) {
                Some(header) if header.sequence == wanted => Ok(()),
                _ => Err(Status::SEQUENCE_MISMATCH),
            },
        }
    }

    /// Stalls a write whose condition or kept expiry depends on a batch or clear that is not durable yet: if a power cut
    /// lost the batch but kept the write, part of the batch would have taken effect. Once the write runs, all that it saw
    /// has a lower sequence than its own, so that its acknowledgement covers that too.
    fn rests_on<M: Media>(&self, ftl: &Ftl<M>, found: Option<&Found>) -> Result<(), Stall> {
        if self.condition == Condition::Always && self.expiry != Expiry::Keep {
            return Ok(());
        }
        match found.map(|found| found.header) {
            // Its header cannot be read, so the write depends on nothing in it.
            Some(None) => Ok(()),
            Some(Some(header)) => must_be_durable(ftl, joint_sequence(&header)),
            None => must_be_durable(ftl, ftl.last_joint_removal),
        }
    }

    fn expiry_ms(&self, found: Option<&Found>) -> u64 {
        match self.expiry {
            Expiry::Never => 0,
            Expiry::At(when) => when,
            Expiry::Keep => found.and_then(|found| found.header).map_or(0, |header| header.expiry_ms),
        }
    }
}

/// Returns the sequence that a command saw which found this record, or none.
fn saw<M: Media>(ftl: &Ftl<M>, found: Option<&Found>) -> Sequence {
    // Some removal made the key absent; the sequence of the last removal covers it.
    found.and_then(|found| found.header).map_or(ftl.last_removal, |header| header.sequence)
}

/// Returns the sequence that must be durable before a copy of the record is written: its own if it is part of a batch.
fn joint_sequence(header: &RecordHeader) -> Sequence {
    if header.flags & FLAGS_BATCH == 0 { Sequence(0) } else { header.sequence }
}

fn must_be_durable<M: Media>(ftl: &Ftl<M>, sequence: Sequence) -> Result<(), Stall> {
    if sequence <= ftl.commit.durable { Ok(()) } else { Err(Stall::Durable(sequence)) }
}

fn units_of(found: Option<&Found>) -> usize {
    found.map_or(0, |found| found.entry.units as usize * UNIT_BYTES)
}

fn store<M: Media>(ftl: &mut Ftl<M>, one: &One<'_>, value: &Payload) -> Result<Outcome, Stall> {
    let found = one.find(ftl, Reach::Key)?;
    if let Err(status) = one.check(ftl, found.as_ref()) {
        return Ok(Outcome::status(status, saw(ftl, found.as_ref())));
    }
    one.rests_on(ftl, found.as_ref())?;
    let alive = found.as_ref().filter(|found| !ftl.expired(found));
    let record = NewRecord {
        namespace: one.namespace,
        hash: one.hash,
        key: one.key,
        value: Some(match value {
            Payload::Bytes(bytes) => Source::Bytes(bytes),
            Payload::Client(segments) => Source::Client(segments),
        }),
        expiry_ms: one.expiry_ms(alive),
        batch: 0,
    };
    let (more, less) = (record.bytes(), units_of(found.as_ref()));
    if !ftl.has_capacity(more, more, less) || !ftl.has_quota(one.namespace, more, less) {
        return Ok(Outcome::status(Status::CAPACITY_EXCEEDED, Sequence(0)));
    }
    ftl.client_room(record.bytes())?;
    Ok(Outcome::wrote(ftl.write(&record, found)))
}

fn delete<M: Media>(ftl: &mut Ftl<M>, one: &One<'_>) -> Result<Outcome, Stall> {
    let found = one.find(ftl, Reach::Key)?;
    if let Err(status) = one.check(ftl, found.as_ref()) {
        return Ok(Outcome::status(status, saw(ftl, found.as_ref())));
    }
    let Some(alive) = found.filter(|found| !ftl.expired(found)) else {
        return Ok(Outcome::status(Status::KEY_DOES_NOT_EXIST, saw(ftl, found.as_ref())));
    };
    one.rests_on(ftl, Some(&alive))?;
    remove(ftl, one, alive)
}

fn remove<M: Media>(ftl: &mut Ftl<M>, one: &One<'_>, found: Found) -> Result<Outcome, Stall> {
    let tombstone = NewRecord {
        namespace: one.namespace,
        hash: one.hash,
        key: one.key,
        value: None,
        expiry_ms: 0,
        batch: 0,
    };
    ftl.client_room(tombstone.bytes())?;
    Ok(Outcome::wrote(ftl.write(&tombstone, Some(found))))
}

fn expire<M: Media>(ftl: &mut Ftl<M>, hash: KeyHash, address: RecordAddress) -> Result<Outcome, Stall> {
    let nothing = Outcome { completion: Completion::new(0, Status::SUCCESS), gate: Gate::Open };
    let entry = (0..).map_while(|nth| ftl.index.find(hash, nth)).find(|entry| entry.address == address);
    let Some(entry) = entry else { return Ok(nothing) };
    let Some(header) = ftl.header(entry, Reach::Key)? else {
        // The header is damaged: a read of the key reports the damage, and the key leaves the expiry queue.
        ftl.expiry.retain(|at, place| (at, place) != (hash, address));
        return Ok(nothing);
    };
    if !header.is_expired(ftl.wall_ms) {
        return Ok(nothing);
    }
    let key = Bytes::from(ftl.key_of(entry, &header)?);
    let one = One::any(entry.namespace, hash, &key);
    remove(ftl, &one, Found { entry, header: Some(header) })?;
    ftl.stats.expired += 1;
    Ok(nothing)
}

/// Makes the outcome of a lookup. An expired record counts as absent, but the outcome's gate still covers that record.
fn describe<M: Media>(ftl: &Ftl<M>, found: Option<&Found>, release: Release) -> Outcome {
    let saw = saw(ftl, found);
    let found = found.filter(|found| !ftl.expired(found));
    let gate = if release == Release::Speculative { Gate::Open } else { Gate::Promise(saw) };
    let mut completion = match found {
        None => Completion::new(0, Status::KEY_DOES_NOT_EXIST),
        Some(Found { header: None, .. }) => Completion::new(0, Status::UNRECOVERED_ERROR),
        Some(Found { header: Some(header), .. }) => {
            let mut completion = Completion::new(0, Status::SUCCESS);
            completion.value_bytes = header.value_bytes;
            completion.expiry_ms = header.expiry_ms;
            completion
        }
    };
    completion.sequence = saw;
    Outcome { completion, gate }
}

fn retrieve<M: Media>(
    ftl: &mut Ftl<M>,
    one: &One<'_>,
    (sink, bytes_max): (&mut Sink, u32),
    release: Release,
) -> Result<Outcome, Stall> {
    let found = one.find(ftl, Reach::Value)?;
    let mut outcome = describe(ftl, found.as_ref(), release);
    let found = found.filter(|found| !ftl.expired(found));
    if let Some(Found { entry, header: Some(header) }) = found
        && !ftl.read_value(entry, &header, sink, Window::front(bytes_max))?
    {
        outcome.completion.status = Status::UNRECOVERED_ERROR;
    }
    if outcome.completion.status == Status::UNRECOVERED_ERROR {
        ftl.stats.damaged += 1;
    }
    Ok(outcome)
}

fn exist<M: Media>(ftl: &Ftl<M>, one: &One<'_>, release: Release) -> Result<Outcome, Stall> {
    let found = one.find(ftl, Reach::Key)?;
    Ok(describe(ftl, found.as_ref(), release))
}

/// One write of a batch with the record it will replace.
type Planned<'a> = (One<'a>, &'a BatchWrite, Option<Found>);

fn batch<M: Media>(
    ftl: &mut Ftl<M>,
    namespace: NamespaceId,
    writes: &[BatchWrite],
) -> Result<Outcome, Stall> {
    let planned = plan(ftl, namespace, writes)?;
    let mut seen = ftl.last_removal;
    for (position, (one, _, found)) in planned.iter().enumerate() {
        seen = seen.max(saw(ftl, found.as_ref()));
        if let Err(status) = one.check(ftl, found.as_ref()) {
            let mut outcome = Outcome::status(status, saw(ftl, found.as_ref()));
            outcome.completion.position = u32::try_from(position).unwrap_or(u32::MAX);
            return Ok(outcome);
        }
    }
    for (one, _, found) in &planned {
        one.rests_on(ftl, found.as_ref())?;
    }
    // A power cut may lose the removal of an absent key and keep this batch, so the batch then writes its own tombstone.
    let absent_for_good = ftl.last_removal <= ftl.commit.durable;
    let effective: Vec<Planned<'_>> = planned
        .into_iter()
        .filter(|(_, write, found)| {
            matches!(write, BatchWrite::Store { .. }) || found.is_some() || !absent_for_good
        })
        .collect();
    let more: usize = effective.iter().map(|(_, write, _)| bytes_of(write)).sum();
    let less = effective.iter().map(|(_, _, found)| units_of(found.as_ref())).sum();
    let largest = effective.iter().map(|(_, write, _)| bytes_of(write)).max().unwrap_or(0);
    if !ftl.has_capacity(largest, more, less) || !batch_fits_quota(ftl, namespace, &effective) {
        return Ok(Outcome::status(Status::CAPACITY_EXCEEDED, Sequence(0)));
    }
    // A record that does not fit into a block leaves the block's end unused: an eighth more covers it.
    ftl.client_room(more + more / 8)?;
    let last = effective.len().saturating_sub(1);
    let mut wrote = seen;
    for (index, (one, write, found)) in effective.into_iter().enumerate() {
        let (value, expiry_ms) = match write {
            BatchWrite::Store { value, .. } => {
                let alive = found.as_ref().filter(|found| !ftl.expired(found));
                (Some(Source::Bytes(value)), one.expiry_ms(alive))
            }
            BatchWrite::Delete { .. } => (None, 0),
        };
        let batch = batch_flags(index, last);
        let record = NewRecord { namespace, hash: one.hash, key: one.key, value, expiry_ms, batch };
        wrote = ftl.write(&record, found);
    }
    Ok(Outcome::wrote(wrote))
}

/// Returns true if the batch fits the namespace's quota. Tombstones count against the medium, not against the quota.
fn batch_fits_quota<M: Media>(ftl: &Ftl<M>, namespace: NamespaceId, writes: &[Planned<'_>]) -> bool {
    let stores = writes.iter().filter(|(_, write, _)| matches!(write, BatchWrite::Store { .. }));
    let more = stores.map(|(_, write, _)| bytes_of(write)).sum();
    ftl.has_quota(namespace, more, writes.iter().map(|(_, _, found)| units_of(found.as_ref())).sum())
}

fn bytes_of(write: &BatchWrite) -> usize {
    let (key, value) = match write {
        BatchWrite::Store { key, value, .. } => (key.len(), value.len()),
        BatchWrite::Delete { key, .. } => (key.len(), 0),
    };
    record_units(key, value) as usize * UNIT_BYTES
}

/// Finds the record that each write of a batch replaces, or stalls for all pages that the lookups need.
fn plan<'a, M: Media>(
    ftl: &Ftl<M>,
    namespace: NamespaceId,
    writes: &'a [BatchWrite],
) -> Result<Vec<Planned<'a>>, Stall> {
    let mut planned = Vec::with_capacity(writes.len());
    let mut missing = Vec::new();
    for write in writes {
        let (key, condition) = match write {
            BatchWrite::Store { key, condition, .. } | BatchWrite::Delete { key, condition } => {
                (key, *condition)
            }
        };
        let expiry = match write {
            BatchWrite::Store { expiry, .. } => *expiry,
            BatchWrite::Delete { .. } => Expiry::Never,
        };
        let one = One { namespace, hash: ftl.hasher.hash(namespace, key), key, condition, expiry };
        match one.find(ftl, Reach::Key) {
            Ok(found) => planned.push((one, write, found)),
            Err(Stall::Pages(pages)) => missing.extend(pages),
            Err(stall) => return Err(stall),
        }
    }
    if missing.is_empty() {
        return Ok(planned);
    }
    missing.sort_unstable();
    missing.dedup();
    Err(Stall::Pages(missing))
}

/// Number of keys whose pages a waiting list requests together.
const LIST_AHEAD: usize = 64;

fn list<M: Media>(ftl: &Ftl<M>, operation: &mut Operation, keys_max: usize) -> Result<Outcome, Stall> {
    let mut next = None;
    while let Some((hash, _)) = ftl.index.hashed.next(KeyHash(operation.position.0)) {
        if operation.listed.len() >= keys_max {
            next = Some(ListPosition(hash.0));
            break;
        }
        match list_one(ftl, operation.namespace, hash) {
            Ok(keys) => operation.listed.extend(keys),
            Err(Stall::Pages(mut pages)) => {
                list_ahead(ftl, operation.namespace, hash, &mut pages);
                operation.position = ListPosition(hash.0);
                return Err(Stall::Pages(pages));
            }
            Err(stall) => return Err(stall),
        }
        operation.position = ListPosition(hash.0 + 1);
    }
    let mut outcome = Outcome::status(Status::SUCCESS, ftl.applied());
    outcome.completion.next = next;
    Ok(outcome)
}

/// Returns the keys that share one hash.
fn list_one<M: Media>(ftl: &Ftl<M>, namespace: NamespaceId, hash: KeyHash) -> Result<Vec<ListedKey>, Stall> {
    let mut keys = Vec::new();
    for entry in (0..).map_while(|nth| ftl.index.find(hash, nth)) {
        if entry.namespace != namespace {
            continue;
        }
        let Some(header) = ftl.header(entry, Reach::Key)? else {
            continue;
        };
        if !header.is_expired(ftl.wall_ms) {
            let key = Bytes::from(ftl.key_of(entry, &header)?);
            keys.push(ListedKey { key, value_bytes: header.value_bytes, expiry_ms: header.expiry_ms });
        }
    }
    Ok(keys)
}

/// Adds the missing pages of the keys after `hash`.
fn list_ahead<M: Media>(
    ftl: &Ftl<M>,
    namespace: NamespaceId,
    hash: KeyHash,
    pages: &mut Vec<crate::media::PageAddress>,
) {
    let mut from = hash.0 + 1;
    for _ in 0..LIST_AHEAD {
        let Some((hash, entry)) = ftl.index.hashed.next(KeyHash(from)) else {
            break;
        };
        from = hash.0 + 1;
        let page = entry.address.page();
        if entry.namespace == namespace && ftl.page(page).is_none() && !pages.contains(&page) {
            pages.push(page);
        }
    }
}
