//! The descriptions of commands, by the keys that they write and check.
//!
//! Input: a command. Output: the command as the checker records it. Invariant: the model does not change.

use super::keys::{RecordLifetime, ValueFingerprint, WriteEffect};
use super::{CheckedCommand, CheckedKind, DeviceChecker, DurabilityPoint, payload_bytes};
use bytes::Bytes;
use headwater_host::clock::UnixMillis;
use headwater_ssd::command::{BatchWrite, NamespaceId, RecordExpiry, SsdCommand, WriteCondition};

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
            SsdCommand::BatchAcross { writes, runs } => {
                let namespaces = (0..).map(|at| runs.iter().find(|run| at < run.end));
                let writes = writes.iter().zip(namespaces.flatten());
                write(writes.map(|(one, run)| self.batch_write(run.namespace, one)).collect(), false)
            }
            SsdCommand::Clear => {
                let keys = self.space(namespace).into_iter().flat_map(|space| space.keys.keys());
                let delete = |key| KeyRequest::delete(namespace, key, WriteCondition::Always);
                write(keys.map(delete).collect(), false)
            }
            SsdCommand::Retrieve { key, bytes_max, release, .. } => {
                CheckedKind::Read { key: key.clone(), whole_below: *bytes_max, release: *release }
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
