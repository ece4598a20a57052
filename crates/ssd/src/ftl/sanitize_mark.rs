//! The progress of the last sanitize operation, kept in a record of the log (`docs/formats/namespace-table.md`).
//!
//! Input: the start and the end of sanitize operations. Output: after a power cut, the operation that must continue.
//! Invariant: an acknowledged operation has a mark until another mark records its end.

use crate::command::{Lba, NamespaceId, Sequence};
use crate::index::KeyHash;
use crate::namespace::sanitize::{SanitizeMark, SanitizePhase};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const SANITIZE_VERSION: u8 = 1;
/// Bytes of the record's value.
pub(crate) const SANITIZE_BYTES: usize = 16;

/// The mark in its record format.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SanitizeLayout {
    version: u8,
    phase: u8,
    zero: [u8; 2],
    command: U32,
    reserved: U64,
}

const _: () = assert!(size_of::<SanitizeLayout>() == SANITIZE_BYTES);
const _: () = assert!(std::mem::offset_of!(SanitizeLayout, command) == 4);

/// A mark that recovery found, with its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoundMark {
    pub(crate) mark: SanitizeMark,
    pub(crate) sequence: Sequence,
}

impl FoundMark {
    /// The record exists and cannot be read: an operation that began may not have ended.
    pub(crate) const DAMAGED: Self =
        Self { mark: SanitizeMark { phase: SanitizePhase::Failed, command: 0 }, sequence: Sequence(0) };
}

/// Returns the position of the mark's record: before those of the namespaces, which count from 1.
pub(crate) const fn mark_position() -> KeyHash {
    KeyHash::of_block(NamespaceId::SYSTEM, Lba(0))
}

/// Encodes a mark.
pub(crate) fn encode(mark: SanitizeMark) -> [u8; SANITIZE_BYTES] {
    let phase = match mark.phase {
        SanitizePhase::Never => 0,
        SanitizePhase::Running => 1,
        SanitizePhase::Completed => 2,
        SanitizePhase::Failed => 3,
    };
    zerocopy::transmute!(SanitizeLayout {
        version: SANITIZE_VERSION,
        phase,
        zero: [0; 2],
        command: U32::new(mark.command),
        reserved: U64::ZERO,
    })
}

/// Decodes a mark; `None` for bytes that no writer of this version produces.
pub(crate) fn decode(bytes: &[u8]) -> Option<SanitizeMark> {
    let layout =
        SanitizeLayout::read_from_bytes(bytes).ok().filter(|layout| layout.version == SANITIZE_VERSION)?;
    let phase = match layout.phase {
        0 => SanitizePhase::Never,
        1 => SanitizePhase::Running,
        2 => SanitizePhase::Completed,
        3 => SanitizePhase::Failed,
        _ => return None,
    };
    Some(SanitizeMark { phase, command: layout.command.get() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_reads_back_as_written_and_matches_the_format_page() {
        use SanitizePhase::{Completed, Failed, Never, Running};
        for (number, phase) in (0..).zip([Never, Running, Completed, Failed]) {
            let mark = SanitizeMark { phase, command: 0x0102_0304 };
            let bytes = encode(mark);
            assert_eq!(bytes, [1, number, 0, 0, 4, 3, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
            assert_eq!(decode(&bytes), Some(mark));
        }
    }

    #[test]
    fn bytes_that_no_writer_produces_are_refused() {
        let bytes = encode(SanitizeMark { phase: SanitizePhase::Running, command: 2 });
        assert_eq!(decode(&bytes[..15]), None);
        for (at, byte) in [(0, 2), (1, 4)] {
            let mut bytes = bytes;
            bytes[at] = byte;
            assert_eq!(decode(&bytes), None);
        }
    }
}
