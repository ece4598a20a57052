//! The checker's model of blocks: each block is a key, and a block of zeroes is an absent key.
//!
//! Input: commands on blocks and changes of the namespace table, with their completions.
//! Output: the model that keys have, so that every rule for keys holds for blocks: acknowledged writes stay, removed
//! blocks do not come back, a write of several blocks is present as a whole or not at all.
//! Invariant: a change that removes every block is one group, independent of their number.

use super::CheckedCommand;
use super::keys::{KeyObservation, ObservationSpan, RecordLifetime, WriteEffect};
use super::{
    CheckedKind, DeviceChecker, DurabilityPoint, KeyRequest, PromiseViolation, ValueFingerprint, WallSpan,
    payload_bytes, unexpected,
};
use bytes::Bytes;
use headwater_host::copy::is_zero;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    Fua, LbaRange, NamespaceId, ReadRelease, SsdCommand, SsdCompletion, WriteCondition,
};
use headwater_ssd::namespace::NamespaceChange;

/// A check of a run of blocks.
#[derive(Clone, Debug)]
pub(super) enum BlockCheck {
    /// Reads their bytes.
    Read { blocks: u32 },
    /// Compares them with values; `None` for zeroes.
    Compare { values: Vec<Option<ValueFingerprint>> },
    /// Verifies that they can be read.
    Verify,
}

impl BlockCheck {
    /// Returns the number of blocks whose bytes it needs; 0 if that is not known.
    pub(super) fn count(&self) -> u64 {
        match self {
            Self::Read { blocks } => u64::from(*blocks),
            Self::Compare { values } => values.len() as u64,
            Self::Verify => 0,
        }
    }
}

/// Returns the key that represents a block in the checker.
#[must_use]
pub fn block_key(lba: u64) -> Bytes {
    Bytes::copy_from_slice(&lba.to_le_bytes())
}

/// Returns the block of such a key.
fn lba_of(key: &Bytes) -> u64 {
    key.as_ref().try_into().map_or(u64::MAX, u64::from_le_bytes)
}

/// Returns a block's value; `None` for zeroes.
fn value_of(block: &[u8]) -> Option<ValueFingerprint> {
    (!is_zero(block)).then(|| ValueFingerprint::of(block))
}

impl CheckedCommand {
    /// Returns true if it writes one key and its completion carries the sequence.
    pub(super) fn writes_one_key(&self) -> bool {
        matches!(self.kind, CheckedKind::Write { alone: true, .. })
    }

    /// Returns true if it is durable once it is acknowledged, in every durability mode.
    pub(super) fn is_durable_when_acked(&self) -> bool {
        matches!(self.kind, CheckedKind::Write { durable: DurabilityPoint::Immediate, .. })
    }
}

impl DeviceChecker {
    /// Sets the size of a block from now on; 0 while there is no block namespace.
    pub fn set_block_bytes(&mut self, bytes: usize) {
        self.block_bytes = bytes;
    }

    pub(super) fn prepare_blocks(&self, namespace: NamespaceId, command: &SsdCommand) -> CheckedKind {
        let block_bytes = self.block_bytes.max(1);
        let forced =
            |fua: &Fua| if *fua == Fua::Yes { DurabilityPoint::Immediate } else { DurabilityPoint::Promised };
        let write = |keys: Vec<KeyRequest>, durable| {
            let alone = matches!(&keys[..], [KeyRequest { effect: Some(WriteEffect::Store(..)), .. }]);
            CheckedKind::Write { group: 0, keys, alone, durable }
        };
        let delete = |key: &Bytes| KeyRequest::delete(namespace, key, WriteCondition::Always);
        match command {
            SsdCommand::Write { start, data, fua } => {
                let blocks = (start.0..).zip(payload_bytes(data).chunks(block_bytes));
                let keys = blocks.map(|(lba, block)| {
                    let effect = match value_of(block) {
                        Some(value) => WriteEffect::Store(value, RecordLifetime::Until(0)),
                        None => WriteEffect::Delete,
                    };
                    let condition = WriteCondition::Always;
                    KeyRequest { namespace, key: block_key(lba), condition, effect: Some(effect) }
                });
                write(keys.collect(), forced(fua))
            }
            SsdCommand::Deallocate { ranges, fua } => {
                let blocks = |range: &LbaRange| range.start.0..range.start.0 + u64::from(range.blocks);
                let mut blocks: Vec<u64> = ranges.iter().flat_map(blocks).collect();
                blocks.sort_unstable();
                blocks.dedup();
                write(blocks.into_iter().map(|lba| delete(&block_key(lba))).collect(), forced(fua))
            }
            SsdCommand::Namespace(change) => {
                let end = match change {
                    NamespaceChange::Delete | NamespaceChange::Format(_) => 0,
                    NamespaceChange::Resize(size) => *size,
                    _ => u64::MAX,
                };
                let keys = self.space(namespace).into_iter().flat_map(|space| space.keys.keys());
                let gone = keys.filter(|key| lba_of(key) >= end).map(delete);
                write(gone.collect(), DurabilityPoint::Immediate)
            }
            SsdCommand::Read { range, .. } => CheckedKind::Blocks {
                start: range.start.0,
                blocks: BlockCheck::Read { blocks: range.blocks },
            },
            SsdCommand::Verify { range } => {
                CheckedKind::Blocks { start: range.start.0, blocks: BlockCheck::Verify }
            }
            SsdCommand::Compare { start, data } => {
                let values = payload_bytes(data).chunks(block_bytes).map(value_of).collect();
                CheckedKind::Blocks { start: start.0, blocks: BlockCheck::Compare { values } }
            }
            other => panic!("the checker does not support the command {other:?}"),
        }
    }

    pub(super) fn blocks_completed(
        &mut self,
        (namespace, start, look): (NamespaceId, u64, &BlockCheck),
        completion: &SsdCompletion,
        when: ObservationSpan,
    ) -> Result<(), PromiseViolation> {
        let values: Vec<Option<ValueFingerprint>> = match (look, completion.status) {
            (BlockCheck::Compare { .. }, Status::COMPARE_FAILURE) | (BlockCheck::Verify, Status::SUCCESS) => {
                return Ok(());
            }
            (_, status) if !status.is_success() => return Err(unexpected(completion)),
            (BlockCheck::Read { blocks: 1 }, _) => {
                let one = as_key_completion(completion);
                let hash = ValueFingerprint::of(&one.sink).hash;
                let key = (namespace, &block_key(start), ReadRelease::WhenDurable);
                return self.read_completed(key, &one, Some(hash), when);
            }
            (BlockCheck::Read { blocks }, _) => {
                let values: Vec<_> = completion.sink.chunks(self.block_bytes.max(1)).map(value_of).collect();
                if values.len() != *blocks as usize {
                    return Err(unexpected(completion));
                }
                values
            }
            (BlockCheck::Compare { values }, _) => values.clone(),
            (BlockCheck::Verify, _) => return Ok(()),
        };
        for (lba, value) in (start..).zip(values) {
            let seen = value.map_or(KeyObservation::Absent, KeyObservation::Content);
            self.check_observation((namespace, &block_key(lba), ReadRelease::WhenDurable), seen, when)?;
        }
        Ok(())
    }

    /// Checks a read of one block as [`Self::check_recovered_key`] checks a key.
    ///
    /// # Errors
    /// The promise that the state found breaks.
    pub fn check_recovered_block(
        &mut self,
        namespace: NamespaceId,
        lba: u64,
        completion: &SsdCompletion,
        wall: WallSpan,
    ) -> Result<(), PromiseViolation> {
        self.check_recovered_key(namespace, &block_key(lba), &as_key_completion(completion), wall)
    }

    /// Resolves, after a recovery, the change of the namespace table that was in flight at the power cut.
    pub fn resolve_change(&mut self, happened: bool) {
        let Some((namespace, id)) = self.change.take() else { return };
        if happened {
            self.tick += 1;
            if let Some(group) = self.groups.get_mut(id) {
                (group.done, group.certain, group.kept) = (Some(self.tick), true, true);
            }
        } else {
            let keys: Vec<KeyRequest> = self
                .space(namespace)
                .into_iter()
                .flat_map(|space| space.keys.keys())
                .map(|key| KeyRequest::delete(namespace, key, WriteCondition::Always))
                .collect();
            self.remove_group(id, &keys);
        }
    }

    /// Returns the number of the block that a key represents.
    #[must_use]
    pub fn block_of(key: &Bytes) -> u64 {
        lba_of(key)
    }
}

/// Converts the completion of a read of one block into that of a Retrieve of one key.
fn as_key_completion(completion: &SsdCompletion) -> SsdCompletion {
    let mut one = SsdCompletion::new(completion.token, completion.status);
    one.sequence = completion.sequence;
    if completion.status.is_success() && is_zero(&completion.sink) {
        one.status = Status::KEY_DOES_NOT_EXIST;
    } else {
        one.value_bytes = completion.value_bytes;
        one.sink.clone_from(&completion.sink);
    }
    one
}
