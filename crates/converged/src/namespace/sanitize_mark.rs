//! How far the last sanitize operation is, as a record of the log keeps it (`docs/formats/namespace-table.md`).
//!
//! In: the beginning and the end of sanitize operations. Out: after a power cut, which of them must go on. Invariant: an
//! operation that was acknowledged is marked, until a mark says how it ended.

use crate::command::{Lba, NamespaceId, Sequence};
use crate::index::KeyHash;
use headwater_nvme::controller::admin::SanitizeState;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const SANITIZE_VERSION: u8 = 1;
/// Bytes of the record's value.
pub(crate) const SANITIZE_BYTES: usize = 16;

/// The mark, as its record holds it.
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

/// Where a sanitize operation is, as far as a restart must know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SanitizePhase {
    /// There was none, or its failure was left behind.
    Never,
    /// It began, and must go on.
    Running,
    /// Nothing of what was there is left.
    Completed,
    /// It failed.
    Failed,
}

impl SanitizePhase {
    /// What hosts are told.
    pub(crate) const fn state(self) -> SanitizeState {
        match self {
            Self::Never => SanitizeState::Never,
            Self::Running => SanitizeState::Running(0),
            Self::Completed => SanitizeState::Completed,
            Self::Failed => SanitizeState::Failed,
        }
    }
}

/// The last sanitize operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SanitizeMark {
    /// Where it is.
    pub phase: SanitizePhase,
    /// Dword 10 of the command that began it.
    pub command: u32,
}

/// A mark as recovery found it, and when it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoundMark {
    pub(crate) mark: SanitizeMark,
    pub(crate) sequence: Sequence,
}

impl FoundMark {
    /// The record is there and cannot be read: whatever began may not have come to its end.
    pub(crate) const DAMAGED: Self =
        Self { mark: SanitizeMark { phase: SanitizePhase::Failed, command: 0 }, sequence: Sequence(0) };
}

/// Where the record of the mark lies: before those of the namespaces, which count from 1.
pub(crate) const fn place() -> KeyHash {
    KeyHash::of_block(NamespaceId::SYSTEM, Lba(0))
}

/// Writes a mark.
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

/// Reads a mark; `None` for anything that no writer of this version wrote.
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
    fn a_mark_reads_back_as_written_and_lies_where_the_format_page_says() {
        use SanitizePhase::{Completed, Failed, Never, Running};
        for (number, phase) in (0..).zip([Never, Running, Completed, Failed]) {
            let mark = SanitizeMark { phase, command: 0x0102_0304 };
            let bytes = encode(mark);
            assert_eq!(bytes, [1, number, 0, 0, 4, 3, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
            assert_eq!(decode(&bytes), Some(mark));
        }
    }

    #[test]
    fn what_no_writer_wrote_is_refused() {
        let bytes = encode(SanitizeMark { phase: SanitizePhase::Running, command: 2 });
        assert_eq!(decode(&bytes[..15]), None);
        for (at, byte) in [(0, 2), (1, 4)] {
            let mut bytes = bytes;
            bytes[at] = byte;
            assert_eq!(decode(&bytes), None);
        }
    }
}
