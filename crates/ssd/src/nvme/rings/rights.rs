//! What a client of rings may do, asked for every command, on the device's side.
//!
//! In: a namespace and a command whose addresses are resolved. Out: nothing, or the status that refuses it. Invariant:
//! what a client may do is looked up when the command is taken, so a change holds for the next one.

use crate::command::{Command, Lba, NamespaceId};
use crate::limits::NAMESPACES;
use crate::namespace::{Namespace, NamespaceKind};
use headwater_nvme::spec::status::Status;
use std::ops::Range;

/// Whether a client may change what a namespace holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It may look.
    Read,
    /// It may look and change.
    Write,
}

/// What a client may do in one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceRights {
    /// Read, or write too.
    pub access: Access,
    /// Block namespaces: the blocks it may touch; `None` for all of them.
    pub blocks: Option<Range<u64>>,
}

/// What a client may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    namespaces: [Option<NamespaceRights>; NAMESPACES],
}

impl Rights {
    /// Everything.
    #[must_use]
    pub fn all() -> Self {
        let all = NamespaceRights { access: Access::Write, blocks: None };
        Self { namespaces: std::array::from_fn(|_| Some(all.clone())) }
    }

    /// Nothing.
    #[must_use]
    pub fn none() -> Self {
        Self { namespaces: [const { None }; NAMESPACES] }
    }

    /// The same, and these in one namespace. A namespace that cannot exist is left aside.
    #[must_use]
    pub fn with(mut self, namespace: NamespaceId, rights: NamespaceRights) -> Self {
        if let Some(place) = self.namespaces.get_mut(namespace.index()) {
            *place = Some(rights);
        }
        self
    }

    /// What it may do in a namespace, if anything.
    #[must_use]
    #[inline]
    pub fn of(&self, namespace: NamespaceId) -> Option<&NamespaceRights> {
        self.namespaces.get(namespace.index())?.as_ref()
    }

    /// Judges a command. `facts` are asked for only where the rights speak of blocks.
    ///
    /// # Errors
    /// [`Status::ACCESS_DENIED`].
    #[inline]
    pub fn check(
        &self,
        namespace: NamespaceId,
        command: &Command,
        facts: impl FnOnce() -> Option<Namespace>,
    ) -> Result<(), Status> {
        let rights = self.of(namespace).ok_or(Status::ACCESS_DENIED)?;
        let needs = access_of(command).ok_or(Status::ACCESS_DENIED)?;
        if needs == Access::Write && rights.access == Access::Read {
            return Err(Status::ACCESS_DENIED);
        }
        match &rights.blocks {
            None => Ok(()),
            Some(blocks) => check_blocks(blocks, command, facts()),
        }
    }
}

/// What a command needs; `None` for what no client of a ring is ever allowed.
#[inline]
fn access_of(command: &Command) -> Option<Access> {
    match command {
        Command::Retrieve { .. }
        | Command::Exist { .. }
        | Command::List { .. }
        | Command::Flush
        | Command::Fence { .. }
        | Command::Read { .. }
        | Command::Compare { .. }
        | Command::Verify { .. } => Some(Access::Read),
        Command::Store { .. }
        | Command::Delete { .. }
        | Command::Batch { .. }
        | Command::Clear
        | Command::Write { .. }
        | Command::Deallocate { .. }
        | Command::Copy { .. } => Some(Access::Write),
        Command::Namespace(_) => None,
    }
}

/// Whether every block that a command names lies in `allowed`. Commands that name none act on the whole namespace, which
/// a client with a part of it may only flush.
fn check_blocks(allowed: &Range<u64>, command: &Command, facts: Option<Namespace>) -> Result<(), Status> {
    let NamespaceKind::Block(format) = facts.ok_or(Status::INVALID_NAMESPACE)?.kind else {
        return Err(Status::ACCESS_DENIED);
    };
    let inside = |start: Lba, blocks: u64| {
        let end = start.0.checked_add(blocks);
        allowed.start <= start.0 && end.is_some_and(|end| end <= allowed.end)
    };
    let bytes = |bytes: usize| u64::try_from(bytes.div_ceil(format.bytes())).unwrap_or(u64::MAX);
    let fine = match command {
        Command::Flush | Command::Fence { .. } => true,
        Command::Read { range, .. } | Command::Verify { range } => inside(range.start, range.blocks.into()),
        Command::Write { start, data, .. } | Command::Compare { start, data } => {
            inside(*start, bytes(data.len()))
        }
        Command::Deallocate { ranges, .. } => {
            ranges.iter().all(|range| inside(range.start, range.blocks.into()))
        }
        Command::Copy { sources, destination, .. } => {
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
    use crate::command::{Fua, LbaRange, Payload, Release, Sink};
    use crate::namespace::BlockFormat;

    const SECOND: NamespaceId = NamespaceId(2);

    fn block() -> Option<Namespace> {
        Some(Namespace { kind: NamespaceKind::Block(BlockFormat::B4096), size: 1_000, ..Namespace::IMPLICIT })
    }

    fn part(access: Access) -> Rights {
        Rights::none().with(SECOND, NamespaceRights { access, blocks: Some(100..200) })
    }

    fn read(start: u64, blocks: u32) -> Command {
        Command::Read { range: LbaRange { start: Lba(start), blocks }, sink: Sink::Bytes(Vec::new()) }
    }

    fn write(start: u64, blocks: usize) -> Command {
        Command::Write { start: Lba(start), data: Payload::from(vec![0; blocks * 4_096]), fua: Fua::No }
    }

    #[test]
    fn a_namespace_that_was_not_granted_is_denied() {
        let exist = Command::Exist { key: b"k".as_slice().into(), release: Release::WhenDurable };
        assert_eq!(Rights::none().check(SECOND, &exist, || None), Err(Status::ACCESS_DENIED));
        assert_eq!(Rights::all().check(SECOND, &exist, || None), Ok(()));
        assert_eq!(Rights::all().check(NamespaceId(17), &exist, || None), Err(Status::ACCESS_DENIED));
        assert_eq!(Rights::all().check(NamespaceId(0), &exist, || None), Err(Status::ACCESS_DENIED));
    }

    #[test]
    fn a_reader_changes_nothing() {
        let reader = part(Access::Read);
        assert_eq!(reader.check(SECOND, &read(100, 100), block), Ok(()));
        assert_eq!(reader.check(SECOND, &write(100, 1), block), Err(Status::ACCESS_DENIED));
        for change in [Command::Clear, Command::Batch { writes: Vec::new() }] {
            assert_eq!(reader.check(SECOND, &change, block), Err(Status::ACCESS_DENIED));
        }
    }

    #[test]
    fn only_granted_blocks_are_touched() {
        let writer = part(Access::Write);
        let range = |start, blocks| LbaRange { start: Lba(start), blocks };
        let copy = |from, to| Command::Copy { sources: vec![from], destination: Lba(to), fua: Fua::No };
        let verdicts = [
            (read(100, 100), true),
            (read(99, 1), false),
            (read(199, 2), false),
            (read(u64::MAX, 2), false),
            (write(199, 1), true),
            (write(199, 2), false),
            (Command::Verify { range: range(200, 1) }, false),
            (Command::Deallocate { ranges: vec![range(100, 1), range(300, 1)], fua: Fua::No }, false),
            (copy(range(100, 10), 190), true),
            (copy(range(100, 11), 190), false),
            (copy(range(90, 11), 150), false),
            (Command::Flush, true),
            (Command::Clear, false),
        ];
        for (command, fine) in verdicts {
            let verdict = writer.check(SECOND, &command, block);
            assert_eq!(verdict.is_ok(), fine, "{command:?}");
        }
    }

    #[test]
    fn nobody_changes_the_table_of_namespaces_by_a_ring() {
        let change = Command::Namespace(crate::namespace::NamespaceChange::Delete);
        assert_eq!(Rights::all().check(SECOND, &change, block), Err(Status::ACCESS_DENIED));
    }
}
