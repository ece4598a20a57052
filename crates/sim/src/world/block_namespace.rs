//! The block namespace of a world: its commands, and a model of its entry in the namespace table.
//!
//! Input: random numbers, completions, and the device's namespace table after each start.
//! Output: commands on blocks, changes of the table one at a time, or [`FailureCause::Table`].
//! Invariant: while a change is in flight no command on blocks is submitted, so that a power cut leaves the namespace
//! as it was before the change or as it is after it, with matching blocks.

use super::config::{BLOCK_NAMESPACE, BlockNamespaceConfig};
use super::excuses::MediumPast;
use super::{FailureCause, SimPower, SimWorld};
use crate::checker::{DeviceChecker, WallSpan};
use crate::media::CrashImage;
use crate::simulated_device::SimulatedDevice;
use bytes::Bytes;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{Fua, Lba, LbaRange, ReadRelease, Sequence, SsdCommand, SsdCompletion};
use headwater_ssd::namespace::{BlockFormat, Namespace, NamespaceChange, NamespaceKind, NamespaceLimits};

/// The controller that is attached and detached.
const CONTROLLER: u16 = 1;

/// The namespace's entry in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NamespaceEntry {
    namespace: Namespace,
    /// True if the namespace is attached to [`CONTROLLER`].
    attached: bool,
}

/// The model of the namespace.
#[derive(Debug)]
pub(super) struct BlockNamespaceModel {
    config: BlockNamespaceConfig,
    /// The entry as last acknowledged, or as found after a start.
    current: Option<NamespaceEntry>,
    /// The token of the change in flight, and the entry after it.
    pending_change: Option<(u64, Option<NamespaceEntry>)>,
    /// The last acknowledged change: its sequence, and the entry before it.
    last_change: Option<(Sequence, Option<NamespaceEntry>)>,
    /// The entry after a change that was in flight behind one that a lie may have taken.
    behind_lie: Option<Option<NamespaceEntry>>,
    changes: u32,
}

impl BlockNamespaceModel {
    pub(super) fn new(config: BlockNamespaceConfig) -> Self {
        Self { config, current: None, pending_change: None, last_change: None, behind_lie: None, changes: 0 }
    }

    /// Notes an accepted command.
    pub(super) fn accepted(&mut self, token: u64, change: &Option<NamespaceChange>) {
        if let Some(change) = change {
            self.pending_change = Some((token, self.after(change)));
        }
    }

    /// Applies a completion. A change that was refused, because the medium is full, changed nothing.
    pub(super) fn completed(&mut self, completion: &SsdCompletion) {
        if let Some((token, after)) = self.pending_change
            && token == completion.token
        {
            self.pending_change = None;
            if completion.status.is_success() {
                self.last_change = Some((completion.sequence, self.current));
                self.current = after;
            }
        }
    }

    /// Makes the last acknowledged change one that may have happened or not, if it lies behind a sequence: the medium lost
    /// it. Returns true if a later change was in flight, which happened only if this one did.
    pub(super) fn undo_change_above(&mut self, durable: Sequence) -> bool {
        let Some((_, before)) = self.last_change.take().filter(|(sequence, _)| *sequence > durable) else {
            return false;
        };
        self.behind_lie = self.pending_change.take().map(|(_, after)| after);
        self.pending_change = Some((u64::MAX, self.current));
        self.current = before;
        self.behind_lie.is_some()
    }

    /// Returns the entry after a change.
    fn after(&self, change: &NamespaceChange) -> Option<NamespaceEntry> {
        let now = self.current.unwrap_or(NamespaceEntry { namespace: Namespace::IMPLICIT, attached: true });
        let current = now.namespace;
        let with = |namespace| Some(NamespaceEntry { namespace, ..now });
        match change {
            NamespaceChange::Create(namespace) => {
                Some(NamespaceEntry { namespace: *namespace, attached: true })
            }
            NamespaceChange::CreateDetached(namespace) => {
                Some(NamespaceEntry { namespace: *namespace, attached: false })
            }
            NamespaceChange::Delete => None,
            NamespaceChange::Resize(size) => with(Namespace { size: *size, ..current }),
            NamespaceChange::Format(kind) => {
                let bytes = |kind: NamespaceKind| match kind {
                    NamespaceKind::Kv => 1,
                    NamespaceKind::Block(format) => format.bytes() as u64,
                };
                let size = current.size * bytes(current.kind) / bytes(*kind);
                with(Namespace { kind: *kind, size, ..current })
            }
            NamespaceChange::Durability(durability) => with(Namespace { durability: *durability, ..current }),
            NamespaceChange::Limits(limits) => with(Namespace { limits: *limits, ..current }),
            NamespaceChange::MissingKey(missing_key) => {
                with(Namespace { missing_key: *missing_key, ..current })
            }
            NamespaceChange::Attach(controllers) => {
                Some(NamespaceEntry { attached: now.attached || controllers.contains(&CONTROLLER), ..now })
            }
            NamespaceChange::Detach(controllers) => {
                Some(NamespaceEntry { attached: now.attached && !controllers.contains(&CONTROLLER), ..now })
            }
            NamespaceChange::DetachAll => Some(NamespaceEntry { attached: false, ..now }),
            // Concerns the whole device; this world never submits it.
            NamespaceChange::Sanitize(_) => self.current,
        }
    }

    fn block_bytes(&self) -> usize {
        match self.current.map(|seen| seen.namespace.kind) {
            Some(NamespaceKind::Block(format)) => format.bytes(),
            _ => 0,
        }
    }

    /// Returns the next change. While the namespace does not exist, it is its creation.
    fn next_change(&mut self, rng: &mut fastrand::Rng) -> NamespaceChange {
        self.changes += 1;
        let Some(NamespaceEntry { namespace: made, attached }) = self.current else {
            let format = self.config.format;
            // The size is a multiple of the larger format's block, so that a Format keeps it exact.
            let larger = (BlockFormat::B4096.bytes() / format.bytes()) as u64;
            let mut uuid = [0; 16];
            uuid[..4].copy_from_slice(&self.changes.to_le_bytes());
            let made = Namespace {
                kind: NamespaceKind::Block(format),
                size: u64::from(self.config.blocks) * larger,
                uuid,
                ..Namespace::IMPLICIT
            };
            return if self.changes.is_multiple_of(2) {
                NamespaceChange::CreateDetached(made)
            } else {
                NamespaceChange::Create(made)
            };
        };
        match rng.u8(0..10) {
            8 if attached => NamespaceChange::Detach(vec![CONTROLLER]),
            8 => NamespaceChange::Attach(vec![CONTROLLER]),
            9 => NamespaceChange::DetachAll,
            0 => NamespaceChange::Delete,
            1..=3 => {
                let other = if made.kind == NamespaceKind::Block(BlockFormat::B512) {
                    BlockFormat::B4096
                } else {
                    BlockFormat::B512
                };
                NamespaceChange::Format(NamespaceKind::Block(other))
            }
            // A burst alone limits nothing; it only makes the change visible.
            4 => NamespaceChange::Limits(NamespaceLimits { burst: self.changes, ..made.limits }),
            5 => NamespaceChange::Resize(8 * rng.u64(1..=u64::from(self.config.blocks))),
            _ => NamespaceChange::Resize(8 * rng.u64(1..=u64::from(self.config.blocks.div_ceil(8)))),
        }
    }

    /// Returns the next command on blocks.
    fn next_command(&self, rng: &mut fastrand::Rng) -> Option<SsdCommand> {
        let size = self.current?.namespace.size.min(u64::from(self.config.blocks));
        let blocks = match rng.u8(0..16) {
            0..=7 => 1,
            8..=14 => rng.u64(1..=size.min(8)),
            _ => rng.u64(1..=size.min(60)),
        };
        let start = rng.u64(0..=size - blocks);
        let range = LbaRange { start: Lba(start), blocks: u32::try_from(blocks).unwrap_or(1) };
        let fua = if rng.u8(0..6) == 0 { Fua::Yes } else { Fua::No };
        Some(match rng.u8(0..40) {
            0..=17 => SsdCommand::Write { start: Lba(start), data: self.data(rng, range.blocks).into(), fua },
            18..=22 => {
                let other = LbaRange { start: Lba(rng.u64(0..size)), blocks: 1 };
                let ranges = if rng.bool() { vec![range] } else { vec![range, other] };
                SsdCommand::Deallocate { ranges, fua }
            }
            23 => {
                let all = LbaRange {
                    start: Lba(0),
                    blocks: u32::try_from(self.current?.namespace.size).unwrap_or(1),
                };
                SsdCommand::Deallocate { ranges: vec![all], fua }
            }
            24 => SsdCommand::Compare { start: Lba(start), data: self.data(rng, range.blocks).into() },
            25 => {
                let zeroes = vec![0; range.blocks as usize * self.block_bytes()];
                SsdCommand::Compare { start: Lba(start), data: zeroes.into() }
            }
            26 => SsdCommand::Verify { range },
            27 | 28 => SsdCommand::Flush,
            _ => SsdCommand::Read { range, sink: Vec::new().into() },
        })
    }

    fn data(&self, rng: &mut fastrand::Rng, blocks: u32) -> Vec<u8> {
        let mut data = vec![0; blocks as usize * self.block_bytes()];
        rng.fill(&mut data);
        data
    }
}

impl<E: SimulatedDevice> SimWorld<'_, E> {
    /// Returns the next command for the block namespace; `None` if the next command is for a key.
    pub(super) fn next_block_command(&mut self) -> Option<SsdCommand> {
        let disk = self.disk.as_mut()?;
        if disk.pending_change.is_some() || self.rng.u8(0..3) == 0 {
            return None;
        }
        self.checker.set_block_bytes(disk.block_bytes());
        if disk.current.is_none() || self.rng.u32(0..disk.config.changes_every) == 0 {
            return Some(SsdCommand::Namespace(disk.next_change(&mut self.rng)));
        }
        disk.next_command(&mut self.rng)
    }

    /// Gives the block namespace up if the device says that its record is lost: from then on every command of it fails.
    pub(super) fn check_damaged_namespace(
        &mut self,
        engine: &mut E,
        image: &CrashImage,
    ) -> Result<SimPower, FailureCause> {
        let is_gone = engine.namespace(BLOCK_NAMESPACE).is_none();
        if self.past == MediumPast::Honest || self.disk.is_none() || !is_gone {
            return Ok(SimPower::On);
        }
        let probe = SsdCommand::Exist { key: Bytes::from_static(b"?"), release: ReadRelease::WhenDurable };
        let token = self.next_token;
        if engine.submit(BLOCK_NAMESPACE, token, probe.clone()).is_err() {
            return Ok(SimPower::On);
        }
        self.next_token += 1;
        let asked = self.checker.prepare(BLOCK_NAMESPACE, &probe, self.wall());
        self.checker.accepted(token, asked)?;
        self.completions.clear();
        if self.drain(engine, image)? == SimPower::PowerLost {
            return Ok(SimPower::PowerLost);
        }
        let answer = self.completions.pop().map(|(completion, _)| completion.status);
        if answer == Some(Status::NAMESPACE_NOT_READY) {
            self.disk = None;
        }
        Ok(SimPower::On)
    }

    /// Checks after a start that the table holds what was acknowledged, or what was in flight at the power cut.
    pub(super) fn check_table(&mut self, engine: &E) -> Result<(), FailureCause> {
        let Some(disk) = &mut self.disk else {
            return Ok(());
        };
        let seen = engine.namespace(BLOCK_NAMESPACE).map(|namespace| NamespaceEntry {
            namespace,
            attached: engine.is_attached(BLOCK_NAMESPACE, CONTROLLER),
        });
        let changing = disk.pending_change.take();
        disk.last_change = None;
        let happened_behind = disk.behind_lie.take().is_some_and(|after| after == seen);
        let happened = changing.is_some_and(|(_, after)| after == seen) || happened_behind;
        if seen != disk.current && !happened {
            return Err(FailureCause::Table {
                seen: format!("{seen:?}"),
                expected: format!("{:?} or {changing:?}", disk.current),
            });
        }
        // A change without a visible effect may have happened or not.
        if changing.is_none_or(|(_, after)| after != disk.current) {
            self.checker.resolve_change(happened);
        }
        disk.current = seen;
        self.checker.set_block_bytes(disk.block_bytes());
        Ok(())
    }

    /// Checks after a start one block that was used before.
    pub(super) fn check_block(
        &mut self,
        engine: &mut E,
        image: &CrashImage,
        key: &Bytes,
    ) -> Result<SimPower, FailureCause> {
        let lba = DeviceChecker::block_of(key);
        let size = self.disk.as_ref().and_then(|disk| disk.current).map_or(0, |seen| seen.namespace.size);
        if lba >= size {
            return Ok(SimPower::On);
        }
        let range = LbaRange { start: Lba(lba), blocks: 1 };
        let asked = self.wall();
        let read = SsdCommand::Read { range, sink: Vec::new().into() };
        let Some((completion, answered)) = self.submit_and_wait(engine, image, BLOCK_NAMESPACE, read)? else {
            return Ok(SimPower::PowerLost);
        };
        if self.is_excused(&completion) {
            return Ok(SimPower::On);
        }
        self.checker.check_recovered_block(
            BLOCK_NAMESPACE,
            lba,
            &completion,
            WallSpan { asked, answered },
        )?;
        Ok(SimPower::On)
    }
}
