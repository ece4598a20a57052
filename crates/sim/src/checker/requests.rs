//! The descriptions of commands, by the keys that they write and check.
//!
//! Input: a command. Output: the command as the checker records it. Invariant: the model does not change.

use super::keys::{RecordLifetime, ValueFingerprint, WriteEffect};
use super::read_ranges::ReadRange;
use super::{CheckedCommand, CheckedKind, DeviceChecker, DurabilityPoint, payload_bytes};
use bytes::Bytes;
use headwater_host::clock::UnixMillis;
use headwater_ssd::command::{
    BatchClear, BatchWrite, NamespaceId, NamespaceRun, RecordExpiry, SsdCommand, WriteCondition,
};
use std::collections::BTreeSet;

/// A write or a check of one key.
#[derive(Clone, Debug)]
pub(super) struct KeyRequest {
    pub(super) namespace: NamespaceId,
    pub(super) key: Bytes,
    pub(super) condition: WriteCondition,
    /// Its effect on the key; `None` for a check.
    pub(super) effect: Option<WriteEffect>,
}

impl KeyRequest {
    /// Describes a delete of a key.
    pub(super) fn delete(namespace: NamespaceId, key: &Bytes, condition: WriteCondition) -> Self {
        Self { namespace, key: key.clone(), condition, effect: Some(WriteEffect::Delete) }
    }
}

impl DeviceChecker {
    /// Describes a command before its submission. The checker records nothing until [`Self::accepted`].
    #[must_use]
    pub fn prepare(&self, namespace: NamespaceId, command: &SsdCommand, wall: UnixMillis) -> CheckedCommand {
        let write = |keys: Vec<KeyRequest>, alone| CheckedKind::Write {
            group: 0,
            keys,
            alone,
            durable: DurabilityPoint::Promised,
        };
        let kind = match command {
            SsdCommand::Store { key, value, condition, expiry } => {
                let value = (payload_bytes(value), *expiry);
                write(vec![self.store(namespace, key, value, *condition)], true)
            }
            SsdCommand::Delete { key, condition } => {
                write(vec![KeyRequest::delete(namespace, key, *condition)], true)
            }
            SsdCommand::Batch { writes } => {
                write(writes.iter().map(|one| self.batch_write(namespace, one)).collect(), false)
            }
            SsdCommand::BatchAcross { writes, runs } => write(self.batch_across(writes, runs), false),
            SsdCommand::Clear => write(self.clear(namespace).collect(), false),
            SsdCommand::Retrieve { key, offset, bytes_max, release, .. } => {
                let range = ReadRange { offset: *offset, bytes_max: *bytes_max };
                CheckedKind::Read { key: key.clone(), range, release: *release }
            }
            SsdCommand::Exist { key, release } => CheckedKind::Exist { key: key.clone(), release: *release },
            SsdCommand::List { .. } => CheckedKind::List,
            SsdCommand::Flush => CheckedKind::Flush,
            SsdCommand::Fence { up_to } => CheckedKind::Fence(*up_to),
            on_blocks => self.prepare_blocks(namespace, on_blocks),
        };
        {
            let changes_table = matches!(command, SsdCommand::Namespace(_));
            CheckedCommand { namespace, kind, tick: 0, wall, highest_acked: 0, changes_table }
        }
    }

    /// Describes a store of a key.
    fn store(
        &self,
        namespace: NamespaceId,
        key: &Bytes,
        (value, expiry): (&[u8], RecordExpiry),
        condition: WriteCondition,
    ) -> KeyRequest {
        let lifetime = self.lifetime(namespace, key, expiry);
        let effect = Some(WriteEffect::Store(ValueFingerprint::of(value), lifetime));
        KeyRequest { namespace, key: key.clone(), condition, effect }
    }

    /// Describes a write or a check of a batch.
    fn batch_write(&self, namespace: NamespaceId, one: &BatchWrite) -> KeyRequest {
        match one {
            BatchWrite::Store { key, value, condition, expiry } => {
                self.store(namespace, key, (value, *expiry), *condition)
            }
            BatchWrite::Delete { key, condition } => KeyRequest::delete(namespace, key, *condition),
            BatchWrite::Check { key, condition } => {
                KeyRequest { namespace, key: key.clone(), condition: *condition, effect: None }
            }
        }
    }

    /// Describes a clear: it deletes every key that is known.
    fn clear(&self, namespace: NamespaceId) -> impl Iterator<Item = KeyRequest> {
        let keys = self.space(namespace).into_iter().flat_map(|space| space.keys.keys());
        keys.map(move |key| KeyRequest::delete(namespace, key, WriteCondition::Always))
    }

    /// Describes a batch over several namespaces. In one that it clears, a check deletes its key, and so do all keys that the
    /// batch does not name; they come behind those that it names, whose positions a refusal tells.
    fn batch_across(&self, writes: &[BatchWrite], runs: &[NamespaceRun]) -> Vec<KeyRequest> {
        let cleared: BTreeSet<NamespaceId> =
            runs.iter().filter(|run| run.clear != BatchClear::No).map(|run| run.namespace).collect();
        let run_of = |at: usize| runs.iter().find(|run| at < run.end);
        let mut keys: Vec<KeyRequest> = Vec::new();
        for (one, run) in writes.iter().zip((0..).map(run_of)) {
            let Some(run) = run else { continue };
            let mut request = self.batch_write(run.namespace, one);
            if request.effect.is_none() && cleared.contains(&run.namespace) {
                request.effect = Some(WriteEffect::Delete);
            }
            keys.push(request);
        }
        let named: BTreeSet<(NamespaceId, Bytes)> =
            keys.iter().map(|one| (one.namespace, one.key.clone())).collect();
        let rest = cleared.into_iter().flat_map(|namespace| self.clear(namespace));
        keys.extend(rest.filter(|one| !named.contains(&(one.namespace, one.key.clone()))));
        keys
    }

    fn lifetime(&self, namespace: NamespaceId, key: &Bytes, expiry: RecordExpiry) -> RecordLifetime {
        match expiry {
            RecordExpiry::Never => RecordLifetime::Until(0),
            RecordExpiry::At(end) => RecordLifetime::Until(end),
            RecordExpiry::Keep => {
                let writes = self.space(namespace).and_then(|space| space.keys.get(key));
                let writes = writes.map_or(&[][..], |history| &history.writes);
                let ends = writes.iter().map(|write| match write.effect {
                    WriteEffect::Delete => Some(0),
                    WriteEffect::Store(_, RecordLifetime::Until(end)) => Some(end),
                    WriteEffect::Store(_, RecordLifetime::Inherited(known)) => known,
                });
                let all_for_ever = ends.into_iter().all(|end| end == Some(0));
                RecordLifetime::Inherited(all_for_ever.then_some(0))
            }
        }
    }
}
