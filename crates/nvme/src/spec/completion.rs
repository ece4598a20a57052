//! The completion queue entry: 16 bytes, little-endian (NVMe Base 2.0 section 3.3.3.2).
//!
//! Input: two 64-bit words as read from ring memory. Output: fields by name. The second word carries the phase tag, so
//! it is stored last and loaded first.

use crate::spec::status::Status;
use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

/// 64-bit words of one entry in ring memory.
pub const COMPLETION_WORDS: usize = 2;

/// The phase tag in the second word: bit 16 of dword 3.
const PHASE_IN_WORD: u64 = 1 << 48;
/// The phase tag in the status field.
const PHASE_IN_STATUS: u16 = 1;

/// The phase tag of an entry: it identifies the pass over the queue and flips each time the tail wraps. The first pass
/// is [`PhaseTag::One`], because new memory reads as zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhaseTag {
    /// P = 0.
    Zero,
    /// P = 1.
    One,
}

impl PhaseTag {
    /// Returns the phase of the next pass.
    #[must_use]
    #[inline]
    pub const fn flipped(self) -> Self {
        match self {
            Self::Zero => Self::One,
            Self::One => Self::Zero,
        }
    }

    /// Returns the phase in the second word of an entry.
    #[must_use]
    #[inline]
    pub const fn of_word(word: u64) -> Self {
        if word & PHASE_IN_WORD == 0 { Self::Zero } else { Self::One }
    }
}

/// An entry as two words, used between completion and ring: a pair of words stays in CPU registers, whereas an entry of
/// small fields would be stored to memory and loaded again before the stores complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionWords {
    first: u64,
    second: u64,
}

impl CompletionWords {
    /// Returns the words with this phase tag.
    #[must_use]
    #[inline]
    pub const fn with_phase(self, phase: PhaseTag) -> [u64; COMPLETION_WORDS] {
        let phase = match phase {
            PhaseTag::Zero => 0,
            PhaseTag::One => PHASE_IN_WORD,
        };
        [self.first, self.second & !PHASE_IN_WORD | phase]
    }

    /// Returns the entry.
    #[must_use]
    pub fn entry(self) -> CompletionEntry {
        CompletionEntry::from_words([self.first, self.second])
    }
}

impl From<CompletionEntry> for CompletionWords {
    #[inline]
    fn from(entry: CompletionEntry) -> Self {
        let [first, second] = entry.to_words();
        Self { first, second }
    }
}

/// One completion in the layout of a completion queue slot.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct CompletionEntry {
    /// DW0, command specific: Retrieve and UIO get, the value's full length in bytes.
    pub result: U32,
    /// DW1, reserved.
    pub reserved: U32,
    /// DW2 15:0, SQ Head Pointer: entries before it may be overwritten.
    pub submission_head: U16,
    /// DW2 31:16, SQ Identifier.
    pub submission_queue: U16,
    /// DW3 15:0, Command Identifier.
    pub command_id: U16,
    /// DW3 31:16: Phase Tag in bit 0, Status Field above it.
    pub status_and_phase: U16,
}

const _: () = assert!(size_of::<CompletionEntry>() == 16);
const _: () = assert!(size_of::<CompletionEntry>() == COMPLETION_WORDS * size_of::<u64>());
const _: () = assert!(offset_of!(CompletionEntry, reserved) == 4);
const _: () = assert!(offset_of!(CompletionEntry, submission_head) == 8);
const _: () = assert!(offset_of!(CompletionEntry, submission_queue) == 10);
const _: () = assert!(offset_of!(CompletionEntry, command_id) == 12);
const _: () = assert!(offset_of!(CompletionEntry, status_and_phase) == 14);

impl CompletionEntry {
    /// Returns the entry held in these words of ring memory.
    #[must_use]
    #[inline]
    pub fn from_words(words: [u64; COMPLETION_WORDS]) -> Self {
        let words: [U64; COMPLETION_WORDS] = words.map(U64::new);
        transmute!(words)
    }

    /// Returns the words that ring memory holds for this entry.
    #[must_use]
    #[inline]
    pub fn to_words(self) -> [u64; COMPLETION_WORDS] {
        let words: [U64; COMPLETION_WORDS] = transmute!(self);
        words.map(U64::get)
    }

    /// Returns the status of the command.
    #[must_use]
    #[inline]
    pub fn status(&self) -> Status {
        Status::from_field(self.status_and_phase.get())
    }

    /// Returns the phase tag of the entry.
    #[must_use]
    #[inline]
    pub fn phase(&self) -> PhaseTag {
        if self.status_and_phase.get() & PHASE_IN_STATUS == 0 { PhaseTag::Zero } else { PhaseTag::One }
    }

    /// Returns the same entry with this phase tag.
    #[must_use]
    #[inline]
    pub fn with_phase(mut self, phase: PhaseTag) -> Self {
        let status = self.status_and_phase.get() & !PHASE_IN_STATUS;
        self.status_and_phase = U16::new(match phase {
            PhaseTag::Zero => status,
            PhaseTag::One => status | PHASE_IN_STATUS,
        });
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completion_entry_fields_have_the_specified_offsets() {
        let entry = CompletionEntry {
            result: U32::new(0x1111_2222),
            reserved: U32::new(0),
            submission_head: U16::new(0x3333),
            submission_queue: U16::new(0x4444),
            command_id: U16::new(0x5555),
            status_and_phase: U16::new(Status::KEY_DOES_NOT_EXIST.to_field()),
        };
        let words = entry.to_words();
        assert_eq!(words[0], 0x1111_2222);
        assert_eq!(words[1] & 0xFFFF_FFFF, 0x4444_3333);
        assert_eq!((words[1] >> 32) & 0xFFFF, 0x5555);
        // DW3: DNR is bit 31, SCT 27:25, SC 24:17, P 16.
        let dword3 = words[1] >> 32;
        assert_eq!(dword3 >> 31, 1);
        assert_eq!((dword3 >> 25) & 0x7, 0);
        assert_eq!((dword3 >> 17) & 0xFF, 0x87);
        assert_eq!(CompletionEntry::from_words(words), entry);
    }

    #[test]
    fn setting_phase_changes_no_other_bit() {
        let entry = CompletionEntry {
            status_and_phase: U16::new(Status::CAPACITY_EXCEEDED.to_field()),
            ..CompletionEntry::default()
        };
        let one = entry.with_phase(PhaseTag::One);
        assert_eq!(one.phase(), PhaseTag::One);
        assert_eq!(PhaseTag::of_word(one.to_words()[1]), PhaseTag::One);
        assert_eq!(one.status(), Status::CAPACITY_EXCEEDED);
        assert_eq!(one.with_phase(PhaseTag::Zero), entry);
        for phase in [PhaseTag::Zero, PhaseTag::One] {
            assert_eq!(CompletionWords::from(one).with_phase(phase), one.with_phase(phase).to_words());
        }
        assert_eq!(CompletionWords::from(one).entry(), one);
        assert_eq!(PhaseTag::of_word(entry.to_words()[1]), PhaseTag::Zero);
    }
}
