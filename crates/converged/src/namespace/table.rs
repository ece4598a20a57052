//! The table of namespaces: what each number means, as records of the log keep it (`docs/formats/namespace-table.md`).
//!
//! In: records of the system namespace, and changes that were made. Out: what a number means now, and what is shown of it.
//! Invariant: what is shown is durable; a change takes effect at once and is shown when its record cannot be lost any more.

use super::{BlockFormat, MissingKey, Namespace, NamespaceKind, NamespaceLimits};
use crate::command::{Lba, NamespaceId, Sequence};
use crate::device::Durability;
use crate::index::KeyHash;
use crate::limits::{NAMESPACE_BLOCKS_MAX, NAMESPACES};
use headwater_host::clock::Nanos;
use std::collections::VecDeque;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of the format.
const NAMESPACE_VERSION: u8 = 1;
/// Bytes of one record's value.
pub(crate) const NAMESPACE_BYTES: usize = 64;

/// What a namespace is, as its record holds it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct NamespaceLayout {
    version: u8,
    kind: u8,
    format: u8,
    durability: u8,
    iops: U32,
    size: U64,
    interval_ns: U64,
    bytes_per_second: U64,
    burst: U32,
    missing_key: u8,
    reserved: [u8; 3],
    uuid: [u8; 16],
    zero: U64,
}

const _: () = assert!(size_of::<NamespaceLayout>() == NAMESPACE_BYTES);
const _: () = assert!(std::mem::offset_of!(NamespaceLayout, size) == 8);
const _: () = assert!(std::mem::offset_of!(NamespaceLayout, uuid) == 40);

const KIND_KV: u8 = 1;
const KIND_BLOCK: u8 = 2;

/// Writes what a namespace is.
pub(crate) fn encode(namespace: &Namespace) -> [u8; NAMESPACE_BYTES] {
    let (kind, format) = match namespace.kind {
        NamespaceKind::Kv => (KIND_KV, 0),
        NamespaceKind::Block(BlockFormat::B512) => (KIND_BLOCK, 0),
        NamespaceKind::Block(BlockFormat::B4096) => (KIND_BLOCK, 1),
    };
    let (durability, interval) = match namespace.durability {
        None => (0, Nanos::ZERO),
        Some(Durability::Always) => (1, Nanos::ZERO),
        Some(Durability::Interval(interval)) => (2, interval),
        Some(Durability::OnFlush) => (3, Nanos::ZERO),
    };
    zerocopy::transmute!(NamespaceLayout {
        version: NAMESPACE_VERSION,
        kind,
        format,
        durability,
        iops: U32::new(namespace.limits.iops),
        size: U64::new(namespace.size),
        interval_ns: U64::new(interval.0),
        bytes_per_second: U64::new(namespace.limits.bytes_per_second),
        burst: U32::new(namespace.limits.burst),
        missing_key: u8::from(namespace.missing_key == MissingKey::Told),
        reserved: [0; 3],
        uuid: namespace.uuid,
        zero: U64::ZERO,
    })
}

/// Reads what a namespace is; `None` for anything that no writer of this version wrote.
pub(crate) fn decode(bytes: &[u8]) -> Option<Namespace> {
    let layout =
        NamespaceLayout::read_from_bytes(bytes).ok().filter(|layout| layout.version == NAMESPACE_VERSION)?;
    let size = layout.size.get();
    let kind = match layout.kind {
        KIND_KV if layout.format == 0 => NamespaceKind::Kv,
        KIND_BLOCK if (1..=NAMESPACE_BLOCKS_MAX).contains(&size) => {
            NamespaceKind::Block(*BlockFormat::ALL.get(usize::from(layout.format))?)
        }
        _ => return None,
    };
    let durability = match layout.durability {
        0 => None,
        1 => Some(Durability::Always),
        2 => Some(Durability::Interval(Nanos(layout.interval_ns.get()))),
        3 => Some(Durability::OnFlush),
        _ => return None,
    };
    let limits = NamespaceLimits {
        iops: layout.iops.get(),
        bytes_per_second: layout.bytes_per_second.get(),
        burst: layout.burst.get(),
    };
    let missing_key = match layout.missing_key {
        0 => MissingKey::Ignored,
        1 => MissingKey::Told,
        _ => return None,
    };
    Some(Namespace { kind, size, durability, limits, uuid: layout.uuid, missing_key })
}

/// What a number means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Nobody made it: a key space.
    #[default]
    Implicit,
    /// It was made.
    Made(Namespace),
    /// It was made, and its record cannot be read: nothing is done with it but to make it anew or to delete it.
    Damaged,
}

/// The table.
#[derive(Debug, Default)]
pub(crate) struct Table {
    slots: [Slot; NAMESPACES],
    shown: [Slot; NAMESPACES],
    /// Changes that are not durable yet, in the order of their sequences.
    pending: VecDeque<(Sequence, NamespaceId)>,
    generation: u64,
}

/// Where the record of a namespace lies.
pub(crate) const fn place(namespace: NamespaceId) -> KeyHash {
    KeyHash::of_block(NamespaceId::SYSTEM, Lba(namespace.0 as u64))
}

impl Table {
    /// What a number means to the next command.
    #[inline]
    pub(crate) fn get(&self, namespace: NamespaceId) -> Slot {
        *self.state(namespace)
    }

    /// The same, where it lies.
    #[inline]
    pub(crate) fn state(&self, namespace: NamespaceId) -> &Slot {
        self.slots.get(namespace.index()).unwrap_or(&Slot::Implicit)
    }

    /// The limits of a namespace that has any.
    #[inline]
    pub(crate) fn limits(&self, namespace: NamespaceId) -> Option<NamespaceLimits> {
        match self.slots.get(namespace.index()) {
            Some(Slot::Made(made)) if made.limits.iops != 0 || made.limits.bytes_per_second != 0 => {
                Some(made.limits)
            }
            _ => None,
        }
    }

    /// The format of a block namespace.
    #[inline]
    pub(crate) fn format(&self, namespace: NamespaceId) -> Option<BlockFormat> {
        match self.slots.get(namespace.index()) {
            Some(Slot::Made(Namespace { kind: NamespaceKind::Block(format), .. })) => Some(*format),
            _ => None,
        }
    }

    /// The durability that a namespace chose, if it was made and chose one.
    #[inline]
    pub(crate) fn durability(&self, namespace: NamespaceId) -> Option<Durability> {
        match self.slots.get(namespace.index()) {
            Some(Slot::Made(made)) => made.durability,
            _ => None,
        }
    }

    /// What hosts may be told that a number means.
    pub(crate) fn shown(&self, namespace: NamespaceId) -> Slot {
        self.shown.get(namespace.index()).copied().unwrap_or_default()
    }

    /// What recovery found.
    pub(crate) fn load(&mut self, namespace: NamespaceId, slot: Slot) {
        self.slots[namespace.index()] = slot;
        self.shown[namespace.index()] = slot;
    }

    /// A change was written with this sequence.
    pub(crate) fn change(&mut self, namespace: NamespaceId, slot: Slot, sequence: Sequence) {
        self.slots[namespace.index()] = slot;
        self.pending.push_back((sequence, namespace));
    }

    /// Everything up to this sequence is durable.
    #[inline]
    pub(crate) fn advance(&mut self, durable: Sequence) {
        while let Some((_, namespace)) = self.pending.pop_front_if(|(sequence, _)| *sequence <= durable) {
            // A later change of the same number is shown when it is durable itself.
            if self.pending.iter().all(|(_, later)| *later != namespace) {
                self.shown[namespace.index()] = self.slots[namespace.index()];
            }
            self.generation += 1;
        }
    }

    /// A key space that nobody made got its first key or lost its last.
    pub(crate) fn turned(&mut self, namespace: NamespaceId) {
        if self.shown.get(namespace.index()) == Some(&Slot::Implicit) {
            self.generation += 1;
        }
    }

    /// Grows with everything that is shown.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace() -> Namespace {
        Namespace {
            kind: NamespaceKind::Block(BlockFormat::B4096),
            size: 0x1234,
            durability: Some(Durability::Interval(Nanos(77))),
            limits: NamespaceLimits { iops: 5, bytes_per_second: 6, burst: 7 },
            uuid: [9; 16],
            missing_key: MissingKey::Told,
        }
    }

    #[test]
    fn a_namespace_reads_back_as_written() {
        for kind in [NamespaceKind::Kv, NamespaceKind::Block(BlockFormat::B512), namespace().kind] {
            for durability in
                [None, Some(Durability::Always), namespace().durability, Some(Durability::OnFlush)]
            {
                let written = Namespace { kind, durability, ..namespace() };
                assert_eq!(decode(&encode(&written)), Some(written));
            }
        }
    }

    #[test]
    fn bytes_lie_where_the_format_page_says() {
        let bytes = encode(&namespace());
        assert_eq!(bytes[..8], [1, 2, 1, 2, 5, 0, 0, 0]);
        assert_eq!(bytes[8..16], [0x34, 0x12, 0, 0, 0, 0, 0, 0]);
        assert_eq!((bytes[16], bytes[24], bytes[32], bytes[36]), (77, 6, 7, 1));
        assert_eq!(bytes[40..56], [9; 16]);
    }

    #[test]
    fn what_no_writer_wrote_is_refused() {
        for (at, byte) in [(0, 2), (1, 0), (1, 3), (2, 2), (3, 4), (9, 0)] {
            let mut bytes = encode(&Namespace { size: 0x100, ..namespace() });
            assert!(decode(&bytes).is_some());
            bytes[at] = byte;
            assert_eq!(decode(&bytes), None, "byte {at} is {byte}");
        }
        assert_eq!(decode(&[1; 3]), None);
        let large = Namespace { size: NAMESPACE_BLOCKS_MAX + 1, ..namespace() };
        assert_eq!(decode(&encode(&large)), None);
    }

    #[test]
    fn a_change_is_shown_when_it_is_durable() {
        let mut table = Table::default();
        let number = NamespaceId(3);
        table.change(number, Slot::Made(namespace()), Sequence(5));
        table.change(NamespaceId(4), Slot::Made(namespace()), Sequence(7));
        table.change(number, Slot::Implicit, Sequence(9));
        assert_eq!((table.get(number), table.shown(number)), (Slot::Implicit, Slot::Implicit));
        table.advance(Sequence(6));
        table.advance(Sequence(8));
        assert_eq!(table.shown(NamespaceId(4)), Slot::Made(namespace()));
        let before = table.generation();
        table.advance(Sequence(9));
        assert!(table.generation() > before);
    }
}
