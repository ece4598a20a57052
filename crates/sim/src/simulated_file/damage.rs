//! Damage to the bytes of a simulated file at rest.
//!
//! Input: a file on which no medium runs. Output: the same file with other bytes. Invariant: only the named ranges
//! change.

use super::SimFile;
use super::sector_store::SectorStore;
use std::ops::Range;

/// The bytes of a file at an earlier moment.
#[derive(Clone, Debug)]
pub struct FileMoment(pub(super) SectorStore);

impl FileMoment {
    /// Returns the bytes of a range at that moment.
    #[must_use]
    pub fn bytes(&self, range: Range<u64>) -> Vec<u8> {
        self.0.bytes(range)
    }
}

/// One change that the file's user did not ask for.
#[derive(Clone, Debug)]
pub enum FileDamage {
    /// A bit is flipped.
    Flip {
        /// The byte.
        offset: u64,
        /// The bit in it, 0 to 7.
        bit: u8,
    },
    /// A range holds one byte value: zeros, 0xFF.
    Fill {
        /// The range.
        range: Range<u64>,
        /// The value.
        byte: u8,
    },
    /// A range holds other bytes.
    Overwrite {
        /// The first byte.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Two ranges changed places.
    Swap {
        /// The first byte of one.
        first: u64,
        /// The first byte of the other.
        second: u64,
        /// The length of both; they do not overlap.
        bytes: u64,
    },
    /// A range is as it was earlier.
    Restore {
        /// The range.
        range: Range<u64>,
        /// The moment.
        moment: FileMoment,
    },
    /// The file ends early.
    Truncate {
        /// The new length.
        length: u64,
    },
    /// Every read of a range fails until it is written.
    Unreadable {
        /// The range.
        range: Range<u64>,
        /// The kernel's error number.
        errno: i32,
    },
}

impl SimFile {
    /// Returns the bytes of the file now, to restore a part of them later.
    #[must_use]
    pub fn moment(&self) -> FileMoment {
        FileMoment(self.lock().bytes.visible().clone())
    }

    /// Returns the bytes of a range.
    #[must_use]
    pub fn bytes(&self, range: Range<u64>) -> Vec<u8> {
        self.lock().bytes.visible().bytes(range)
    }

    /// Damages the file.
    pub fn damage(&self, damage: &FileDamage) {
        self.lock().bytes.damage(|store| change(store, damage));
    }
}

fn change(store: &mut SectorStore, damage: &FileDamage) {
    match damage {
        FileDamage::Flip { offset, bit } => {
            let flipped: Vec<u8> =
                store.bytes(*offset..offset + 1).into_iter().map(|byte| byte ^ (1 << bit)).collect();
            store.write(*offset, &flipped);
        }
        FileDamage::Fill { range, byte } => {
            let bytes = usize::try_from(range.end - range.start).unwrap_or(0);
            store.write(range.start, &vec![*byte; bytes]);
        }
        FileDamage::Overwrite { offset, bytes } => store.write(*offset, bytes),
        FileDamage::Swap { first, second, bytes } => {
            let (one, other) = (store.bytes(*first..first + bytes), store.bytes(*second..second + bytes));
            store.write(*first, &other);
            store.write(*second, &one);
        }
        FileDamage::Restore { range, moment } => store.write(range.start, &moment.0.bytes(range.clone())),
        FileDamage::Truncate { length } => store.truncate(*length),
        FileDamage::Unreadable { range, errno } => store.make_unreadable(range.clone(), *errno),
    }
}
