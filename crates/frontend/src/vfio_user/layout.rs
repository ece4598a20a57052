//! The layout of the function's BAR0 (NVMe over PCIe Transport 1.0 section 3.1).
//!
//! Input: an offset into BAR0. Output: the register there. Invariant: registers, doorbells and interrupt table are on
//! separate pages.

use headwater_host::width::{narrow, to_usize};

/// Bytes of BAR0.
pub const BAR_BYTES: u64 = 0x4000;
/// Offset of the first doorbell.
pub const DOORBELLS: u64 = 0x1000;
/// Offset of the MSI-X table in BAR0.
pub const MSIX_TABLE: u32 = 0x2000;
/// Offset of the MSI-X pending bits in BAR0.
pub const MSIX_PENDING: u32 = 0x3000;
/// Number of interrupt vectors: one for the admin queue, and one for each pair of I/O queues.
pub const VECTORS: u16 = IO_QUEUES_MAX + 1;
/// Maximum pairs of I/O queues of a guest.
pub const IO_QUEUES_MAX: u16 = 32;

const _: () = {
    let (table, doorbell_bytes) = (MSIX_TABLE as u64, 8 * (IO_QUEUES_MAX as u64 + 1));
    assert!(DOORBELLS.is_multiple_of(4_096) && table.is_multiple_of(4_096), "they start on pages");
    assert!(DOORBELLS + doorbell_bytes <= table, "the doorbells end before the interrupt table");
    assert!(table + 16 * VECTORS as u64 <= MSIX_PENDING as u64, "the table ends before the pending bits");
};

/// The register at an offset into BAR0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarLocation {
    /// A controller register.
    Register(u16),
    /// The tail doorbell of a submission queue.
    SubmissionTail(u16),
    /// The head doorbell of a completion queue.
    CompletionHead(u16),
    /// A byte of the MSI-X table.
    VectorTable(usize),
    /// The pending bits, or no register.
    Other,
}

impl BarLocation {
    /// Decodes `offset`.
    #[must_use]
    pub fn at(offset: u64) -> Self {
        let table = u64::from(MSIX_TABLE);
        let number = |offset: u64| narrow(offset);
        match offset {
            0..DOORBELLS => Self::Register(number(offset)),
            // Doorbell stride 0: four bytes each, submission and completion queue alternate.
            at if at < table && at % 8 == 0 => Self::SubmissionTail(number((at - DOORBELLS) / 8)),
            at if at < table && at % 8 == 4 => Self::CompletionHead(number((at - DOORBELLS) / 8)),
            at if at >= table && at < table + u64::from(VECTORS) * 16 => {
                Self::VectorTable(to_usize(at - table))
            }
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doorbells_alternate_between_submission_and_completion() {
        assert_eq!(BarLocation::at(0x1000), BarLocation::SubmissionTail(0));
        assert_eq!(BarLocation::at(0x1004), BarLocation::CompletionHead(0));
        assert_eq!(BarLocation::at(0x1008), BarLocation::SubmissionTail(1));
        assert_eq!(BarLocation::at(0x100C), BarLocation::CompletionHead(1));
        assert_eq!(BarLocation::at(0x1002), BarLocation::Other);
    }

    #[test]
    fn the_vector_table_holds_every_vector_and_ends_there() {
        let last = u64::from(MSIX_TABLE) + u64::from(VECTORS) * 16 - 1;
        assert!(matches!(BarLocation::at(last), BarLocation::VectorTable(_)));
        for at in [last + 1, u64::from(MSIX_PENDING), BAR_BYTES, u64::MAX] {
            assert_eq!(BarLocation::at(at), BarLocation::Other);
        }
    }
}
