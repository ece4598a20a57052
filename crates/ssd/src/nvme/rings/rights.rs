//! Access rights of ring clients, checked for every command on the device's side.
//!
//! Input: a namespace and a command whose addresses are resolved. Output: nothing, or the status that refuses it.
//! Invariant: rights are checked when a command is fetched, so a change takes effect with the next command.

use crate::command::{Lba, NamespaceId, SsdCommand, ValueSource};
use crate::limits::NAMESPACES;
use crate::namespace::{Namespace, NamespaceKind};
use headwater_nvme::spec::status::Status;
use std::ops::Range;

/// The level of access to a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLevel {
    /// Reads only.
    Read,
    /// Reads and writes.
    Write,
}

/// The rights of a client in one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceRights {
    /// Level of access.
    pub access: AccessLevel,
    /// In a block namespace the permitted blocks; `None` for all blocks.
    pub blocks: Option<Range<u64>>,
}

/// The rights of a client in all namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientRights {
    namespaces: [Option<NamespaceRights>; NAMESPACES],
}

impl ClientRights {
    /// Grants write access to all namespaces.
    #[must_use]
    pub fn all() -> Self {
        let all = NamespaceRights { access: AccessLevel::Write, blocks: None };
        Self { namespaces: std::array::from_fn(|_| Some(all.clone())) }
    }

    /// Grants no access to any namespace.
    #[must_use]
    pub fn none() -> Self {
        Self { namespaces: [const { None }; NAMESPACES] }
    }

    /// Replaces the rights in one namespace. Ignores a namespace number that cannot exist.
    #[must_use]
    pub fn with_namespace(mut self, namespace: NamespaceId, rights: NamespaceRights) -> Self {
        if let Some(slot) = self.namespaces.get_mut(namespace.index()) {
            *slot = Some(rights);
        }
        self
    }

    /// Returns the rights in a namespace, if there are any.
    #[must_use]
    #[inline]
    pub fn rights_in(&self, namespace: NamespaceId) -> Option<&NamespaceRights> {
        self.namespaces.get(namespace.index())?.as_ref()
    }

    /// Checks a command. `facts` is called only if the rights are limited to a range of blocks.
    ///
    /// # Errors
    /// [`Status::ACCESS_DENIED`] if the rights do not permit the command, [`Status::INVALID_NAMESPACE`] if `facts`
    /// returns no namespace.
    #[inline]
    pub fn check(
        &self,
        namespace: NamespaceId,
        command: &SsdCommand,
        settings: impl FnOnce() -> Option<Namespace>,
    ) -> Result<(), Status> {
        let rights = self.rights_in(namespace).ok_or(Status::ACCESS_DENIED)?;
        let needs = required_access(command).ok_or(Status::ACCESS_DENIED)?;
        if needs == AccessLevel::Write && rights.access == AccessLevel::Read {
            return Err(Status::ACCESS_DENIED);
        }
        match &rights.blocks {
            None => Ok(()),
            Some(blocks) => check_blocks(blocks, command, settings()),
        }
    }
}

/// Returns the access that a command needs; `None` for a command that no ring client may submit.
#[inline]
fn required_access(command: &SsdCommand) -> Option<AccessLevel> {
    match command {
        SsdCommand::Retrieve { .. }
        | SsdCommand::OpenValue { .. }
        | SsdCommand::ReadPart { .. }
        | SsdCommand::Exist { .. }
        | SsdCommand::List { .. }
        | SsdCommand::Flush
        | SsdCommand::Fence { .. }
        | SsdCommand::Read { .. }
        | SsdCommand::Compare { .. }
        | SsdCommand::Verify { .. } => Some(AccessLevel::Read),
        SsdCommand::Store { .. }
        | SsdCommand::Delete { .. }
        | SsdCommand::Batch { .. }
        | SsdCommand::Clear
        | SsdCommand::Write { .. }
        | SsdCommand::Deallocate { .. }
        | SsdCommand::Copy { .. } => Some(AccessLevel::Write),
        // A ring belongs to one namespace.
        SsdCommand::Namespace(_) | SsdCommand::BatchAcross { .. } => None,
    }
}

/// Checks that every block that a command names is in `allowed`. A command that names no blocks acts on the whole
/// namespace; a client with rights to a part of it may only flush or fence it.
fn check_blocks(
    allowed: &Range<u64>,
    command: &SsdCommand,
    settings: Option<Namespace>,
) -> Result<(), Status> {
    let NamespaceKind::Block(format) = settings.ok_or(Status::INVALID_NAMESPACE)?.kind else {
        return Err(Status::ACCESS_DENIED);
    };
    let inside = |start: Lba, blocks: u64| {
        let end = start.0.checked_add(blocks);
        allowed.start <= start.0 && end.is_some_and(|end| end <= allowed.end)
    };
    let blocks_in = |data: &ValueSource| data.len().div_ceil(format.bytes()) as u64;
    let fine = match command {
        SsdCommand::Flush | SsdCommand::Fence { .. } => true,
        SsdCommand::Read { range, .. } | SsdCommand::Verify { range } => {
            inside(range.start, range.blocks.into())
        }
        SsdCommand::Write { start, data, .. } | SsdCommand::Compare { start, data } => {
            inside(*start, blocks_in(data))
        }
        SsdCommand::Deallocate { ranges, .. } => {
            ranges.iter().all(|range| inside(range.start, range.blocks.into()))
        }
        SsdCommand::Copy { sources, destination, .. } => {
            let blocks = sources.iter().map(|range| u64::from(range.blocks)).sum();
            sources.iter().all(|range| inside(range.start, range.blocks.into()))
                && inside(*destination, blocks)
        }
        _ => false,
    };
    if fine { Ok(()) } else { Err(Status::ACCESS_DENIED) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Fua, LbaRange, ReadRelease, ValueSink};
    use crate::namespace::BlockFormat;

    const SECOND: NamespaceId = NamespaceId(2);

    fn block() -> Option<Namespace> {
        Some(Namespace { kind: NamespaceKind::Block(BlockFormat::B4096), size: 1_000, ..Namespace::IMPLICIT })
    }

    fn part(access: AccessLevel) -> ClientRights {
        ClientRights::none().with_namespace(SECOND, NamespaceRights { access, blocks: Some(100..200) })
    }

    fn read(start: u64, blocks: u32) -> SsdCommand {
        SsdCommand::Read { range: LbaRange { start: Lba(start), blocks }, sink: ValueSink::Bytes(Vec::new()) }
    }

    fn write(start: u64, blocks: usize) -> SsdCommand {
        SsdCommand::Write {
            start: Lba(start),
            data: ValueSource::from(vec![0; blocks * 4_096]),
            fua: Fua::No,
        }
    }

    #[test]
    fn namespace_without_rights_is_denied() {
        let exist = SsdCommand::Exist { key: b"k".as_slice().into(), release: ReadRelease::WhenDurable };
        assert_eq!(ClientRights::none().check(SECOND, &exist, || None), Err(Status::ACCESS_DENIED));
        assert_eq!(ClientRights::all().check(SECOND, &exist, || None), Ok(()));
        assert_eq!(ClientRights::all().check(NamespaceId(17), &exist, || None), Err(Status::ACCESS_DENIED));
        assert_eq!(ClientRights::all().check(NamespaceId(0), &exist, || None), Err(Status::ACCESS_DENIED));
    }

    #[test]
    fn batch_over_several_namespaces_is_denied_whatever_the_rights() {
        let across = SsdCommand::BatchAcross { writes: Vec::new(), runs: Vec::new() };
        assert_eq!(ClientRights::all().check(SECOND, &across, || None), Err(Status::ACCESS_DENIED));
    }

    #[test]
    fn read_access_denies_all_writes() {
        let reader = part(AccessLevel::Read);
        assert_eq!(reader.check(SECOND, &read(100, 100), block), Ok(()));
        assert_eq!(reader.check(SECOND, &write(100, 1), block), Err(Status::ACCESS_DENIED));
        for change in [SsdCommand::Clear, SsdCommand::Batch { writes: Vec::new() }] {
            assert_eq!(reader.check(SECOND, &change, block), Err(Status::ACCESS_DENIED));
        }
    }

    #[test]
    fn commands_outside_the_granted_blocks_are_denied() {
        let writer = part(AccessLevel::Write);
        let range = |start, blocks| LbaRange { start: Lba(start), blocks };
        let copy = |from, to| SsdCommand::Copy { sources: vec![from], destination: Lba(to), fua: Fua::No };
        let verdicts = [
            (read(100, 100), true),
            (read(99, 1), false),
            (read(199, 2), false),
            (read(u64::MAX, 2), false),
            (write(199, 1), true),
            (write(199, 2), false),
            (SsdCommand::Verify { range: range(200, 1) }, false),
            (SsdCommand::Deallocate { ranges: vec![range(100, 1), range(300, 1)], fua: Fua::No }, false),
            (copy(range(100, 10), 190), true),
            (copy(range(100, 11), 190), false),
            (copy(range(90, 11), 150), false),
            (SsdCommand::Flush, true),
            (SsdCommand::Clear, false),
        ];
        for (command, fine) in verdicts {
            let verdict = writer.check(SECOND, &command, block);
            assert_eq!(verdict.is_ok(), fine, "{command:?}");
        }
    }

    #[test]
    fn namespace_changes_are_denied_to_ring_clients() {
        let change = SsdCommand::Namespace(crate::namespace::NamespaceChange::Delete);
        assert_eq!(ClientRights::all().check(SECOND, &change, block), Err(Status::ACCESS_DENIED));
    }
}
