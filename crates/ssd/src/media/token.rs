//! The tokens of the device's operations on a medium.
//!
//! Input: the purpose of an operation. Output: a [`MediaToken`], and the purpose again from the completion. Invariant:
//! a token has one purpose; `decode` returns the argument of `encode`.

use super::MediaToken;
use super::geometry::{BlockId, PageAddress};

/// Bits of the number below the kind.
const KIND_SHIFT: u32 = 60;
const NUMBER_MASK: u64 = (1 << KIND_SHIFT) - 1;

/// The purpose of an operation on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaPurpose {
    /// The program of the log page with this id, counted from the start of the process.
    Program(u64),
    /// The read of a page into device DRAM.
    Read(PageAddress),
    /// The erase of a block.
    Erase(BlockId),
    /// The flush of a commit; at most one is in flight.
    Flush,
    /// The program of a checkpoint's page.
    Checkpoint,
    /// The write of a commit cell.
    Cell,
    /// The program of a page of an extent, for the writer with this number.
    Extent(u64),
    /// The read of a page of a run of an extent.
    ExtentRead {
        /// The place of the run among those in flight, below 2^52.
        slot: u64,
        /// The number of the page in the run.
        nth: u8,
    },
}

impl MediaPurpose {
    /// Returns the token of an operation with this purpose.
    #[must_use]
    pub const fn encode(self) -> MediaToken {
        let (kind, number) = match self {
            Self::Program(id) => (1, id & NUMBER_MASK),
            Self::Read(page) => (2, (page.block.0 as u64) << 8 | page.page as u64),
            Self::Erase(block) => (3, block.0 as u64),
            Self::Flush => (4, 0),
            Self::Checkpoint => (5, 0),
            Self::Cell => (6, 0),
            Self::Extent(writer) => (7, writer & NUMBER_MASK),
            Self::ExtentRead { slot, nth } => (8, slot << 8 & NUMBER_MASK | nth as u64),
        };
        MediaToken(kind << KIND_SHIFT | number)
    }

    /// Returns the purpose of an operation from its token.
    ///
    /// # Panics
    /// The device did not make this token: the medium completed an operation that was never submitted.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "encode made the number from these widths")]
    pub const fn decode(token: MediaToken) -> Self {
        let number = token.0 & NUMBER_MASK;
        match token.0 >> KIND_SHIFT {
            1 => Self::Program(number),
            2 => Self::Read(PageAddress::new(BlockId((number >> 8) as u32), number as u8)),
            3 => Self::Erase(BlockId(number as u32)),
            4 => Self::Flush,
            5 => Self::Checkpoint,
            6 => Self::Cell,
            7 => Self::Extent(number),
            8 => Self::ExtentRead { slot: number >> 8, nth: number as u8 },
            _ => panic!("the medium completed an operation that the device did not submit"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_decodes_to_its_purpose() {
        let page = PageAddress::new(BlockId(u32::MAX), u8::MAX);
        for purpose in [
            MediaPurpose::Program(0),
            MediaPurpose::Program(NUMBER_MASK),
            MediaPurpose::Read(page),
            MediaPurpose::Erase(BlockId(u32::MAX)),
            MediaPurpose::Flush,
            MediaPurpose::Checkpoint,
            MediaPurpose::Cell,
            MediaPurpose::Extent(NUMBER_MASK),
            MediaPurpose::ExtentRead { slot: 0, nth: 0 },
            MediaPurpose::ExtentRead { slot: NUMBER_MASK >> 8, nth: u8::MAX },
        ] {
            assert_eq!(MediaPurpose::decode(purpose.encode()), purpose);
        }
    }

    #[test]
    #[should_panic(expected = "did not submit")]
    fn an_unknown_token_panics() {
        let _ = MediaPurpose::decode(MediaToken(0));
    }
}
