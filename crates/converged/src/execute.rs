//! What each command does, in one go, once everything it needs is within reach.
//!
//! In: an operation whose keys nobody else works on. Out: its [`Outcome`], or the [`Stall`] that must end first; then it
//! is run again from the start. Nothing has changed when a stall is returned, except how far a list, or a walk over many
//! blocks, has come.
//! Invariant: the outcome's gate covers every sequence the command wrote or saw.

mod block_read;
mod block_write;
mod extent;
mod namespace;

use crate::command::{
    BatchWrite, Command, Completion, Condition, Expiry, ListPosition, ListedKey, NamespaceId, Payload,
    Release, Sequence, Sink,
};
use crate::index::{Index, KeyHash};
use crate::limits::LIST_KEYS_MAX;
use crate::log::Source;
use crate::media::Media;
use crate::namespace::NamespaceKind;
use crate::namespace::table::Slot;
use crate::operation::{Operation, Subject, Work};
use crate::record::{FLAGS_BATCH, RecordAddress, RecordHeader, UNIT_BYTES, batch_flags, record_units};
use crate::utl::{Found, NewRecord, Reach, Stall, Utl, Window};
use bytes::Bytes;
use headwater_nvme::spec::status::Status;

/// When an outcome may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// When this sequence is durable, if the namespace promises durability.
    Promise(Sequence),
    /// When this sequence is durable, whatever the namespace promises.
    Durable(Sequence),
    /// At once.
    Open,
}

/// What a command came to.
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

/// Runs an operation.
pub(crate) fn execute<M: Media>(utl: &mut Utl<M>, operation: &mut Operation) -> Result<Outcome, Stall> {
    let namespace = operation.namespace;
    let hash = operation.span.first;
    if utl.failed.is_some() && operation.is_write() {
        return Ok(Outcome::status(Status::INTERNAL_ERROR, Sequence(0)));
    }
    if let Err(status) = suits(utl, operation) {
        return Ok(Outcome::status(status, Sequence(0)));
    }
    let command = match &mut operation.work {
        Work::Expire { address } => return expire(utl, hash, *address),
        Work::Command(Command::Read { .. } | Command::Compare { .. } | Command::Verify { .. }) => {
            return block_read::run(utl, operation);
        }
        Work::Command(Command::Write { .. } | Command::Deallocate { .. } | Command::Copy { .. }) => {
            return block_write::run(utl, operation);
        }
        Work::Command(command) => command,
    };
    match command {
        Command::Store { key, value, condition, expiry } => {
            let write = One { namespace, hash, key, condition: *condition, expiry: *expiry };
            store(utl, &write, value)
        }
        Command::Delete { key, condition } => {
            delete(utl, &One { condition: *condition, ..One::any(namespace, hash, key) })
        }
        Command::Retrieve { key, sink, bytes_max, release } => {
            retrieve(utl, &One::any(namespace, hash, key), (sink, *bytes_max), *release)
        }
        Command::Exist { key, release } => exist(utl, &One::any(namespace, hash, key), *release),
        Command::Batch { writes } => batch(utl, namespace, writes),
        Command::List { keys_max, .. } => {
            let keys_max = (*keys_max).clamp(1, LIST_KEYS_MAX) as usize;
            list(utl, operation, keys_max)
        }
        Command::Flush => Ok(Outcome { gate: Gate::Durable(utl.applied()), ..Outcome::wrote(utl.applied()) }),
        Command::Fence { up_to } => Ok(Outcome::status(Status::SUCCESS, (*up_to).min(utl.applied()))),
        Command::Clear => clear(utl, namespace),
        Command::Namespace(change) => namespace::change(utl, namespace, change),
        Command::Read { .. }
        | Command::Write { .. }
        | Command::Deallocate { .. }
        | Command::Compare { .. }
        | Command::Verify { .. }
        | Command::Copy { .. } => unreachable!("commands on blocks were run above"),
    }
}

/// Whether a namespace is one that commands on keys, or on a namespace as a whole, may work on.
#[inline]
fn suits<M: Media>(utl: &Utl<M>, operation: &Operation) -> Result<(), Status> {
    let subject = match &operation.work {
        Work::Command(command) => command.subject(),
        Work::Expire { .. } => return Ok(()),
    };
    match (subject, utl.table.state(operation.namespace)) {
        (Subject::Table | Subject::Blocks, _) | (_, Slot::Implicit) | (Subject::Anything, Slot::Made(_)) => {
            Ok(())
        }
        (Subject::Keys, Slot::Made(made)) if made.kind == NamespaceKind::Kv => Ok(()),
        (_, Slot::Damaged) => Err(Status::NAMESPACE_NOT_READY),
        (Subject::Keys, Slot::Made(_)) => Err(Status::INVALID_NAMESPACE),
    }
}

fn clear<M: Media>(utl: &mut Utl<M>, namespace: NamespaceId) -> Result<Outcome, Stall> {
    utl.client_room(UNIT_BYTES * 3)?;
    let (sequence, removed) = utl.clear(namespace, 0);
    let mut outcome = Outcome::wrote(sequence);
    outcome.completion.position = u32::try_from(removed).unwrap_or(u32::MAX);
    Ok(outcome)
}

/// One key of one namespace, what must hold for it, and when what is stored ceases to exist.
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

    fn find<M: Media>(&self, utl: &Utl<M>, reach: Reach) -> Result<Option<Found>, Stall> {
        utl.find(self.hash, self.namespace, self.key, reach)
    }

    /// Whether the condition holds for what was found, else the status that says why not.
    fn check<M: Media>(&self, utl: &Utl<M>, found: Option<&Found>) -> Result<(), Status> {
        let exists = found.filter(|found| !utl.expired(found));
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

    /// A write that was decided by what a batch or a clear did, or that keeps an expiry it gave, must not outlive it: were a
    /// power cut to take the batch and leave the write, part of the batch would have happened. Once it runs, everything it
    /// saw is below its own sequence, so that its acknowledgement covers that too.
    fn rests_on<M: Media>(&self, utl: &Utl<M>, found: Option<&Found>) -> Result<(), Stall> {
        if self.condition == Condition::Always && self.expiry != Expiry::Keep {
            return Ok(());
        }
        match found.map(|found| found.header) {
            // It cannot be read: nothing of it decides anything.
            Some(None) => Ok(()),
            Some(Some(header)) => must_be_durable(utl, joint_sequence(&header)),
            None => must_be_durable(utl, utl.last_joint_removal),
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

/// What a command saw that found this, or nothing.
fn saw<M: Media>(utl: &Utl<M>, found: Option<&Found>) -> Sequence {
    // Absence was made by some removal; the last one covers it.
    found.and_then(|found| found.header).map_or(utl.last_removal, |header| header.sequence)
}

/// What a copy of a record must not outlive: the batch it is part of.
fn joint_sequence(header: &RecordHeader) -> Sequence {
    if header.flags & FLAGS_BATCH == 0 { Sequence(0) } else { header.sequence }
}

fn must_be_durable<M: Media>(utl: &Utl<M>, sequence: Sequence) -> Result<(), Stall> {
    if sequence <= utl.commit.durable { Ok(()) } else { Err(Stall::Durable(sequence)) }
}

fn units_of(found: Option<&Found>) -> usize {
    found.map_or(0, |found| found.entry.units as usize * UNIT_BYTES)
}

fn store<M: Media>(utl: &mut Utl<M>, one: &One<'_>, value: &Payload) -> Result<Outcome, Stall> {
    let found = one.find(utl, Reach::Key)?;
    if let Err(status) = one.check(utl, found.as_ref()) {
        return Ok(Outcome::status(status, saw(utl, found.as_ref())));
    }
    one.rests_on(utl, found.as_ref())?;
    let alive = found.as_ref().filter(|found| !utl.expired(found));
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
    if !utl.has_capacity(more, more, less) || !utl.has_quota(one.namespace, more, less) {
        return Ok(Outcome::status(Status::CAPACITY_EXCEEDED, Sequence(0)));
    }
    utl.client_room(record.bytes())?;
    Ok(Outcome::wrote(utl.write(&record, found)))
}

fn delete<M: Media>(utl: &mut Utl<M>, one: &One<'_>) -> Result<Outcome, Stall> {
    let found = one.find(utl, Reach::Key)?;
    if let Err(status) = one.check(utl, found.as_ref()) {
        return Ok(Outcome::status(status, saw(utl, found.as_ref())));
    }
    let Some(alive) = found.filter(|found| !utl.expired(found)) else {
        return Ok(Outcome::status(Status::KEY_DOES_NOT_EXIST, saw(utl, found.as_ref())));
    };
    one.rests_on(utl, Some(&alive))?;
    remove(utl, one, alive)
}

fn remove<M: Media>(utl: &mut Utl<M>, one: &One<'_>, found: Found) -> Result<Outcome, Stall> {
    let tombstone = NewRecord {
        namespace: one.namespace,
        hash: one.hash,
        key: one.key,
        value: None,
        expiry_ms: 0,
        batch: 0,
    };
    utl.client_room(tombstone.bytes())?;
    Ok(Outcome::wrote(utl.write(&tombstone, Some(found))))
}

fn expire<M: Media>(utl: &mut Utl<M>, hash: KeyHash, address: RecordAddress) -> Result<Outcome, Stall> {
    let nothing = Outcome { completion: Completion::new(0, Status::SUCCESS), gate: Gate::Open };
    let entry = (0..).map_while(|nth| utl.index.find(hash, nth)).find(|entry| entry.address == address);
    let Some(entry) = entry else { return Ok(nothing) };
    let Some(header) = utl.header(entry, Reach::Key)? else {
        // The header is damaged: the key reports the damage when it is read, and does not come due again.
        utl.expiry.retain(|at, place| (at, place) != (hash, address));
        return Ok(nothing);
    };
    if !header.is_expired(utl.wall_ms) {
        return Ok(nothing);
    }
    let key = Bytes::from(utl.key_of(entry, &header)?);
    let one = One::any(entry.namespace, hash, &key);
    remove(utl, &one, Found { entry, header: Some(header) })?;
    utl.stats.expired += 1;
    Ok(nothing)
}

/// Describes what there is of what was found: an expired record is absent, but its absence rests on that record.
fn describe<M: Media>(utl: &Utl<M>, found: Option<&Found>, release: Release) -> Outcome {
    let saw = saw(utl, found);
    let found = found.filter(|found| !utl.expired(found));
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
    utl: &mut Utl<M>,
    one: &One<'_>,
    (sink, bytes_max): (&mut Sink, u32),
    release: Release,
) -> Result<Outcome, Stall> {
    let found = one.find(utl, Reach::Value)?;
    let mut outcome = describe(utl, found.as_ref(), release);
    let found = found.filter(|found| !utl.expired(found));
    if let Some(Found { entry, header: Some(header) }) = found
        && !utl.read_value(entry, &header, sink, Window::front(bytes_max))?
    {
        outcome.completion.status = Status::UNRECOVERED_ERROR;
    }
    if outcome.completion.status == Status::UNRECOVERED_ERROR {
        utl.stats.damaged += 1;
    }
    Ok(outcome)
}

fn exist<M: Media>(utl: &Utl<M>, one: &One<'_>, release: Release) -> Result<Outcome, Stall> {
    let found = one.find(utl, Reach::Key)?;
    Ok(describe(utl, found.as_ref(), release))
}

/// One write of a batch with the record it will replace.
type Planned<'a> = (One<'a>, &'a BatchWrite, Option<Found>);

fn batch<M: Media>(
    utl: &mut Utl<M>,
    namespace: NamespaceId,
    writes: &[BatchWrite],
) -> Result<Outcome, Stall> {
    let planned = plan(utl, namespace, writes)?;
    let mut seen = utl.last_removal;
    for (position, (one, _, found)) in planned.iter().enumerate() {
        seen = seen.max(saw(utl, found.as_ref()));
        if let Err(status) = one.check(utl, found.as_ref()) {
            let mut outcome = Outcome::status(status, saw(utl, found.as_ref()));
            outcome.completion.position = u32::try_from(position).unwrap_or(u32::MAX);
            return Ok(outcome);
        }
    }
    for (one, _, found) in &planned {
        one.rests_on(utl, found.as_ref())?;
    }
    // What made a key absent may still be lost to a power cut while this batch is not: then the batch says it itself.
    let absent_for_good = utl.last_removal <= utl.commit.durable;
    let effective: Vec<Planned<'_>> = planned
        .into_iter()
        .filter(|(_, write, found)| {
            matches!(write, BatchWrite::Store { .. }) || found.is_some() || !absent_for_good
        })
        .collect();
    let more: usize = effective.iter().map(|(_, write, _)| bytes_of(write)).sum();
    let less = effective.iter().map(|(_, _, found)| units_of(found.as_ref())).sum();
    let largest = effective.iter().map(|(_, write, _)| bytes_of(write)).max().unwrap_or(0);
    if !utl.has_capacity(largest, more, less) || !batch_fits_quota(utl, namespace, &effective) {
        return Ok(Outcome::status(Status::CAPACITY_EXCEEDED, Sequence(0)));
    }
    // Records that do not fit behind one another leave room at the end of a block: an eighth covers it.
    utl.client_room(more + more / 8)?;
    let last = effective.len().saturating_sub(1);
    let mut wrote = seen;
    for (place, (one, write, found)) in effective.into_iter().enumerate() {
        let (value, expiry_ms) = match write {
            BatchWrite::Store { value, .. } => {
                let alive = found.as_ref().filter(|found| !utl.expired(found));
                (Some(Source::Bytes(value)), one.expiry_ms(alive))
            }
            BatchWrite::Delete { .. } => (None, 0),
        };
        let batch = batch_flags(place, last);
        let record = NewRecord { namespace, hash: one.hash, key: one.key, value, expiry_ms, batch };
        wrote = utl.write(&record, found);
    }
    Ok(Outcome::wrote(wrote))
}

/// Tombstones count against the medium, not against a quota.
fn batch_fits_quota<M: Media>(utl: &Utl<M>, namespace: NamespaceId, writes: &[Planned<'_>]) -> bool {
    let stores = writes.iter().filter(|(_, write, _)| matches!(write, BatchWrite::Store { .. }));
    let more = stores.map(|(_, write, _)| bytes_of(write)).sum();
    utl.has_quota(namespace, more, writes.iter().map(|(_, _, found)| units_of(found.as_ref())).sum())
}

fn bytes_of(write: &BatchWrite) -> usize {
    let (key, value) = match write {
        BatchWrite::Store { key, value, .. } => (key.len(), value.len()),
        BatchWrite::Delete { key, .. } => (key.len(), 0),
    };
    record_units(key, value) as usize * UNIT_BYTES
}

/// Finds what every write of a batch would replace, or all the pages that are needed to know.
fn plan<'a, M: Media>(
    utl: &Utl<M>,
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
        let one = One { namespace, hash: utl.hasher.hash(namespace, key), key, condition, expiry };
        match one.find(utl, Reach::Key) {
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

/// Keys whose pages are asked for together while a list waits.
const LIST_AHEAD: usize = 64;

fn list<M: Media>(utl: &Utl<M>, operation: &mut Operation, keys_max: usize) -> Result<Outcome, Stall> {
    let mut next = None;
    while let Some((hash, _)) = utl.index.hashed.next(KeyHash(operation.position.0)) {
        if operation.listed.len() >= keys_max {
            next = Some(ListPosition(hash.0));
            break;
        }
        match list_one(utl, operation.namespace, hash) {
            Ok(keys) => operation.listed.extend(keys),
            Err(Stall::Pages(mut pages)) => {
                list_ahead(utl, operation.namespace, hash, &mut pages);
                operation.position = ListPosition(hash.0);
                return Err(Stall::Pages(pages));
            }
            Err(stall) => return Err(stall),
        }
        operation.position = ListPosition(hash.0 + 1);
    }
    let mut outcome = Outcome::status(Status::SUCCESS, utl.applied());
    outcome.completion.next = next;
    Ok(outcome)
}

/// The keys that share one hash.
fn list_one<M: Media>(utl: &Utl<M>, namespace: NamespaceId, hash: KeyHash) -> Result<Vec<ListedKey>, Stall> {
    let mut keys = Vec::new();
    for entry in (0..).map_while(|nth| utl.index.find(hash, nth)) {
        if entry.namespace != namespace {
            continue;
        }
        let Some(header) = utl.header(entry, Reach::Key)? else {
            continue;
        };
        if !header.is_expired(utl.wall_ms) {
            let key = Bytes::from(utl.key_of(entry, &header)?);
            keys.push(ListedKey { key, value_bytes: header.value_bytes, expiry_ms: header.expiry_ms });
        }
    }
    Ok(keys)
}

/// Adds the pages that the keys after `hash` will need.
fn list_ahead<M: Media>(
    utl: &Utl<M>,
    namespace: NamespaceId,
    hash: KeyHash,
    pages: &mut Vec<crate::media::PageAddress>,
) {
    let mut from = hash.0 + 1;
    for _ in 0..LIST_AHEAD {
        let Some((hash, entry)) = utl.index.hashed.next(KeyHash(from)) else {
            break;
        };
        from = hash.0 + 1;
        let page = entry.address.page();
        if entry.namespace == namespace && utl.page(page).is_none() && !pages.contains(&page) {
            pages.push(page);
        }
    }
}
