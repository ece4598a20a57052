//! The cell of a completion record, which a device writes and its owner polls.
//!
//! Input: stores of a device. Output: the outcome of an operation. Invariant: an outcome is read only behind the store of its
//! status, which is the last one.

use crate::dsa::completion::{DsaOutcome, DsaRecord, RECORD_BYTES};
use crate::sync::{AtomicU64, Ordering};
use zerocopy::{FromBytes as _, IntoBytes as _};

/// The words of a completion record.
const RECORD_WORDS: usize = RECORD_BYTES / 8;

/// A completion record that a device writes.
#[repr(C, align(32))]
#[derive(Default)]
pub(in crate::dsa) struct RecordCell([AtomicU64; RECORD_WORDS]);

impl RecordCell {
    /// Returns the address of the record.
    pub(super) fn address(&self) -> u64 {
        std::ptr::from_ref(self).expose_provenance() as u64
    }

    /// Returns the outcome; `None` if the record is not written.
    pub(super) fn load(&self) -> Option<DsaOutcome> {
        // The status is in the first word and is written last: the other words are valid behind it.
        let first = self.0[0].load(Ordering::Acquire);
        let words: [u64; RECORD_WORDS] =
            std::array::from_fn(|nth| if nth == 0 { first } else { self.0[nth].load(Ordering::Relaxed) });
        DsaRecord::read_from_bytes(words.map(u64::to_le_bytes).as_flattened()).ok()?.outcome()
    }

    /// Writes the record as a device does: the word with the status last.
    pub(in crate::dsa) fn store(&self, outcome: &DsaOutcome) {
        let record = DsaRecord::of(outcome);
        let (words, _) = record.as_bytes().as_chunks::<8>();
        for (cell, word) in self.0.iter().zip(words).rev() {
            cell.store(u64::from_le_bytes(*word), Ordering::Release);
        }
    }
}
