//! The namespace table: the definition of each number, kept in records of the log (`docs/formats/namespace-table.md`).
//!
//! Input: records of the system namespace, and changes. Output: the current and the visible definition of a number.
//! Invariant: what is visible is durable; a change takes effect at once and becomes visible once its record is durable.

use crate::command::{Lba, NamespaceId, Sequence};
use crate::config::Durability;
use crate::ftl::sanitize_mark::FoundMark;
use crate::index::KeyHash;
use crate::limits::{NAMESPACE_BLOCKS_MAX, NAMESPACES};
use crate::mutant::{Mutant, mutant};
use crate::namespace::attachment::NamespaceAttachment;
use crate::namespace::{BlockFormat, MissingKey, Namespace, NamespaceKind, NamespaceLimits};
use headwater_host::clock::Nanos;
use headwater_host::width::narrow;
use std::collections::{BTreeSet, VecDeque};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of records of namespaces that are attached to every controller.
const VERSION_ALL_CONTROLLERS: u8 = 1;
/// Version of records that list controllers.
const VERSION_ATTACHED: u8 = 2;
/// Bytes of a record's value, without its list of controllers.
const NAMESPACE_BYTES: usize = 64;

/// The properties of a namespace in their record format.
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
    /// Version 2: the meaning of the controllers listed after this structure; see [`LISTED_EXCLUDED`] and [`LISTED_INCLUDED`].
    attachment: u8,
    /// Version 2: number of controllers listed.
    controllers: U16,
    uuid: [u8; 16],
    zero: U64,
}

const _: () = assert!(size_of::<NamespaceLayout>() == NAMESPACE_BYTES);
const _: () = assert!(std::mem::offset_of!(NamespaceLayout, size) == 8);
const _: () = assert!(std::mem::offset_of!(NamespaceLayout, uuid) == 40);

/// The namespace is attached to all controllers except those listed.
const LISTED_EXCLUDED: u8 = 0;
/// The namespace is attached only to the controllers listed.
const LISTED_INCLUDED: u8 = 1;

const KIND_KV: u8 = 1;
const KIND_BLOCK: u8 = 2;

/// Encodes a namespace and its attachment.
pub(crate) fn encode(namespace: &Namespace, attachment: &NamespaceAttachment) -> Vec<u8> {
    let (listed, controllers) = match attachment {
        NamespaceAttachment::AllBut(these) => (LISTED_EXCLUDED, these),
        NamespaceAttachment::Only(these) => (LISTED_INCLUDED, these),
    };
    let (listed, controllers) = if mutant(Mutant::AttachmentNotStored) {
        (LISTED_EXCLUDED, &BTreeSet::new())
    } else {
        (listed, controllers)
    };
    let is_all_controllers = *attachment == NamespaceAttachment::ALL_CONTROLLERS;
    let layout = NamespaceLayout {
        version: if is_all_controllers { VERSION_ALL_CONTROLLERS } else { VERSION_ATTACHED },
        attachment: listed,
        controllers: U16::new(narrow(controllers.len())),
        ..layout_of(namespace)
    };
    let mut bytes = layout.as_bytes().to_vec();
    bytes.extend(controllers.iter().flat_map(|id| id.to_le_bytes()));
    bytes
}

fn layout_of(namespace: &Namespace) -> NamespaceLayout {
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
    NamespaceLayout {
        version: VERSION_ALL_CONTROLLERS,
        kind,
        format,
        durability,
        iops: U32::new(namespace.limits.iops),
        size: U64::new(namespace.size),
        interval_ns: U64::new(interval.0),
        bytes_per_second: U64::new(namespace.limits.bytes_per_second),
        burst: U32::new(namespace.limits.burst),
        missing_key: u8::from(namespace.missing_key == MissingKey::Reported),
        attachment: LISTED_EXCLUDED,
        controllers: U16::ZERO,
        uuid: namespace.uuid,
        zero: U64::ZERO,
    }
}

/// Decodes a namespace and its attachment; `None` for bytes that no writer produces.
pub(crate) fn decode(bytes: &[u8]) -> Option<(Namespace, NamespaceAttachment)> {
    let (layout, rest) = NamespaceLayout::ref_from_prefix(bytes).ok()?;
    let attachment = match layout.version {
        VERSION_ALL_CONTROLLERS if rest.is_empty() => NamespaceAttachment::ALL_CONTROLLERS,
        VERSION_ATTACHED => attachment_of(layout, rest)?,
        _ => return None,
    };
    Some((namespace_of(layout)?, attachment))
}

/// Decodes the controllers of version 2: in ascending order, each once.
fn attachment_of(layout: &NamespaceLayout, rest: &[u8]) -> Option<NamespaceAttachment> {
    let (pairs, odd) = rest.as_chunks::<2>();
    let ids: Vec<u16> = pairs.iter().map(|pair| u16::from_le_bytes(*pair)).collect();
    let in_order = ids.windows(2).all(|pair| pair[0] < pair[1]);
    if !odd.is_empty() || ids.len() != usize::from(layout.controllers.get()) || !in_order {
        return None;
    }
    match layout.attachment {
        LISTED_EXCLUDED => Some(NamespaceAttachment::AllBut(ids.into_iter().collect())),
        LISTED_INCLUDED => Some(NamespaceAttachment::Only(ids.into_iter().collect())),
        _ => None,
    }
}

fn namespace_of(layout: &NamespaceLayout) -> Option<Namespace> {
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
        1 => MissingKey::Reported,
        _ => return None,
    };
    Some(Namespace { kind, size, durability, limits, uuid: layout.uuid, missing_key })
}

/// The definition of a namespace number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum NamespaceDefinition {
    /// It was not created: a key space.
    #[default]
    Implicit,
    /// It was created.
    Created(Namespace),
    /// It was created, and its record cannot be read: it can only be created again or deleted.
    Damaged,
}

/// The table of all namespace numbers.
#[derive(Debug)]
pub(crate) struct NamespaceTable {
    slots: [NamespaceDefinition; NAMESPACES],
    visible: [NamespaceDefinition; NAMESPACES],
    attachments: [NamespaceAttachment; NAMESPACES],
    visible_attachments: [NamespaceAttachment; NAMESPACES],
    /// Changes that are not durable yet, in the order of their sequences.
    pending: VecDeque<(Sequence, NamespaceId)>,
    generation: u64,
    /// The last sanitize operation, as recovery found it.
    sanitize: Option<FoundMark>,
}

impl Default for NamespaceTable {
    fn default() -> Self {
        Self {
            slots: Default::default(),
            visible: Default::default(),
            attachments: [const { NamespaceAttachment::ALL_CONTROLLERS }; NAMESPACES],
            visible_attachments: [const { NamespaceAttachment::ALL_CONTROLLERS }; NAMESPACES],
            pending: VecDeque::new(),
            generation: 0,
            sanitize: None,
        }
    }
}

/// Returns the position of a namespace's record.
pub(crate) const fn record_position(namespace: NamespaceId) -> KeyHash {
    KeyHash::of_block(NamespaceId::SYSTEM, Lba(namespace.0 as u64))
}

impl NamespaceTable {
    /// Returns the definition of a number for the next command.
    #[inline]
    pub(crate) fn get(&self, namespace: NamespaceId) -> NamespaceDefinition {
        *self.definition(namespace)
    }

    /// Returns a reference to the same definition.
    #[inline]
    pub(crate) fn definition(&self, namespace: NamespaceId) -> &NamespaceDefinition {
        self.slots.get(namespace.index()).unwrap_or(&NamespaceDefinition::Implicit)
    }

    /// Returns the limits of a namespace that has any.
    #[inline]
    pub(crate) fn limits(&self, namespace: NamespaceId) -> Option<NamespaceLimits> {
        match self.slots.get(namespace.index()) {
            Some(NamespaceDefinition::Created(made))
                if made.limits.iops != 0 || made.limits.bytes_per_second != 0 =>
            {
                Some(made.limits)
            }
            _ => None,
        }
    }

    /// Returns the format of a block namespace.
    #[inline]
    pub(crate) fn format(&self, namespace: NamespaceId) -> Option<BlockFormat> {
        match self.slots.get(namespace.index()) {
            Some(NamespaceDefinition::Created(Namespace { kind: NamespaceKind::Block(format), .. })) => {
                Some(*format)
            }
            _ => None,
        }
    }

    /// Returns the durability that was set for a created namespace, if any.
    #[inline]
    pub(crate) fn durability(&self, namespace: NamespaceId) -> Option<Durability> {
        match self.slots.get(namespace.index()) {
            Some(NamespaceDefinition::Created(made)) => made.durability,
            _ => None,
        }
    }

    /// Returns the visible definition of a number, which hosts may be shown.
    pub(crate) fn visible(&self, namespace: NamespaceId) -> NamespaceDefinition {
        self.visible.get(namespace.index()).copied().unwrap_or_default()
    }

    /// Returns the attachment of a namespace once every change is durable.
    pub(crate) fn attachment(&self, namespace: NamespaceId) -> NamespaceAttachment {
        self.attachments.get(namespace.index()).cloned().unwrap_or(NamespaceAttachment::NO_CONTROLLERS)
    }

    /// Returns true if a namespace is attached to a controller.
    #[inline]
    pub(crate) fn is_attached(&self, namespace: NamespaceId, controller: u16) -> bool {
        self.visible_attachments
            .get(namespace.index())
            .is_some_and(|attachment| attachment.includes(controller) || mutant(Mutant::AttachmentIgnored))
    }

    /// Removes a controller that is gone.
    pub(crate) fn forget_controller(&mut self, controller: u16) {
        for attachment in self.attachments.iter_mut().chain(&mut self.visible_attachments) {
            attachment.remove_gone(|id| id == controller);
        }
        self.generation += 1;
    }

    /// Sets a definition that recovery found.
    pub(crate) fn load(
        &mut self,
        namespace: NamespaceId,
        slot: NamespaceDefinition,
        attachment: &NamespaceAttachment,
    ) {
        self.slots[namespace.index()] = slot;
        self.visible[namespace.index()] = slot;
        self.attachments[namespace.index()].clone_from(attachment);
        self.visible_attachments[namespace.index()].clone_from(attachment);
    }

    /// Sets the sanitize mark that recovery found.
    pub(crate) fn load_sanitize(&mut self, mark: Option<FoundMark>) {
        self.sanitize = mark;
    }

    /// Returns the sanitize mark that recovery found.
    pub(crate) fn sanitize(&self) -> Option<FoundMark> {
        self.sanitize
    }

    /// Applies a change whose record was written with this sequence.
    pub(crate) fn apply_change(
        &mut self,
        namespace: NamespaceId,
        slot: NamespaceDefinition,
        attachment: NamespaceAttachment,
        sequence: Sequence,
    ) {
        self.slots[namespace.index()] = slot;
        self.attachments[namespace.index()] = attachment;
        self.pending.push_back((sequence, namespace));
    }

    /// Makes the changes up to this durable sequence visible.
    #[inline]
    pub(crate) fn make_visible(&mut self, durable: Sequence) {
        while let Some((_, namespace)) = self.pending.pop_front_if(|(sequence, _)| *sequence <= durable) {
            // A later change of the same number becomes visible when it is durable itself.
            if self.pending.iter().all(|(_, later)| *later != namespace) {
                self.visible[namespace.index()] = self.slots[namespace.index()];
                self.visible_attachments[namespace.index()].clone_from(&self.attachments[namespace.index()]);
            }
            self.generation += 1;
        }
    }

    /// Advances the generation after an implicit namespace got its first key or lost its last.
    pub(crate) fn note_emptiness_change(&mut self, namespace: NamespaceId) {
        if self.visible.get(namespace.index()) == Some(&NamespaceDefinition::Implicit) {
            self.generation += 1;
        }
    }

    /// Returns a number that grows with every visible change.
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
            missing_key: MissingKey::Reported,
        }
    }

    #[test]
    fn a_namespace_reads_back_as_written() {
        for kind in [NamespaceKind::Kv, NamespaceKind::Block(BlockFormat::B512), namespace().kind] {
            for durability in
                [None, Some(Durability::Always), namespace().durability, Some(Durability::OnFlush)]
            {
                let written = Namespace { kind, durability, ..namespace() };
                for attachment in [
                    NamespaceAttachment::ALL_CONTROLLERS,
                    NamespaceAttachment::NO_CONTROLLERS,
                    NamespaceAttachment::ALL_CONTROLLERS.without(&[1, 300]),
                    NamespaceAttachment::NO_CONTROLLERS.with(&[1, 0x1000]),
                ] {
                    let bytes = encode(&written, &attachment);
                    assert_eq!(decode(&bytes), Some((written, attachment)));
                }
            }
        }
    }

    #[test]
    fn encoded_bytes_match_the_format_page() {
        let bytes = encode(&namespace(), &NamespaceAttachment::ALL_CONTROLLERS);
        assert_eq!(bytes[..8], [1, 2, 1, 2, 5, 0, 0, 0]);
        assert_eq!(bytes[8..16], [0x34, 0x12, 0, 0, 0, 0, 0, 0]);
        assert_eq!((bytes[16], bytes[24], bytes[32], bytes[36]), (77, 6, 7, 1));
        assert_eq!(bytes[40..56], [9; 16]);
        assert_eq!((bytes.len(), &bytes[37..40]), (64, &[0; 3][..]));
        let bytes = encode(&namespace(), &NamespaceAttachment::NO_CONTROLLERS.with(&[0x102, 3]));
        assert_eq!((bytes[0], &bytes[37..40]), (2, &[1, 2, 0][..]));
        assert_eq!(bytes[64..], [3, 0, 2, 1]);
    }

    #[test]
    fn bytes_that_no_writer_produces_are_refused() {
        for (at, byte) in [(0, 3), (1, 0), (1, 3), (2, 2), (3, 4), (9, 0)] {
            let mut bytes =
                encode(&Namespace { size: 0x100, ..namespace() }, &NamespaceAttachment::ALL_CONTROLLERS);
            assert!(decode(&bytes).is_some());
            bytes[at] = byte;
            assert_eq!(decode(&bytes), None, "byte {at} is {byte}");
        }
        assert_eq!(decode(&[1; 3]), None);
        let large = Namespace { size: NAMESPACE_BLOCKS_MAX + 1, ..namespace() };
        assert_eq!(decode(&encode(&large, &NamespaceAttachment::ALL_CONTROLLERS)), None);
        let attached = encode(&namespace(), &NamespaceAttachment::NO_CONTROLLERS.with(&[3, 5]));
        for (at, byte) in [(0, 1), (37, 2), (38, 1), (38, 3), (66, 3), (66, 2)] {
            let mut bytes = attached.clone();
            bytes[at] = byte;
            assert_eq!(decode(&bytes), None, "byte {at} is {byte}");
        }
        assert_eq!(decode(&attached[..67]), None, "half a controller number");
    }

    #[test]
    fn a_change_becomes_visible_when_it_is_durable() {
        let mut table = NamespaceTable::default();
        let number = NamespaceId(3);
        table.apply_change(
            number,
            NamespaceDefinition::Created(namespace()),
            NamespaceAttachment::NO_CONTROLLERS,
            Sequence(5),
        );
        table.apply_change(
            NamespaceId(4),
            NamespaceDefinition::Created(namespace()),
            NamespaceAttachment::NO_CONTROLLERS,
            Sequence(7),
        );
        table.apply_change(
            number,
            NamespaceDefinition::Implicit,
            NamespaceAttachment::ALL_CONTROLLERS,
            Sequence(9),
        );
        assert_eq!(
            (table.get(number), table.visible(number)),
            (NamespaceDefinition::Implicit, NamespaceDefinition::Implicit)
        );
        table.make_visible(Sequence(6));
        assert!(table.is_attached(NamespaceId(4), 1), "the change became visible before it was durable");
        table.make_visible(Sequence(8));
        assert!(!table.is_attached(NamespaceId(4), 1));
        assert_eq!(table.visible(NamespaceId(4)), NamespaceDefinition::Created(namespace()));
        let before = table.generation();
        table.make_visible(Sequence(9));
        assert!(table.generation() > before);
    }
}
