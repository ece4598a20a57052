//! Where things lie in the function's regions (NVMe over PCIe Transport 1.0 section 3.1).
//!
//! In: an offset into BAR0. Out: what it names. Invariant: registers, doorbells and interrupt table lie on pages of their own.

/// Bytes of BAR0.
pub const BAR_BYTES: u64 = 0x4000;
/// First doorbell.
pub const DOORBELLS: u64 = 0x1000;
/// The MSI-X table, in BAR0.
pub const MSIX_TABLE: u32 = 0x2000;
/// The MSI-X pending bits, in BAR0.
pub const MSIX_PENDING: u32 = 0x3000;
/// Interrupt vectors: one for the admin queue, and one for each pair of I/O queues.
pub const VECTORS: u16 = IO_QUEUES_MAX + 1;
/// Most pairs of I/O queues of a guest.
pub const IO_QUEUES_MAX: u16 = 32;

/// What an offset into BAR0 names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarPlace {
    /// A controller register.
    Register(u16),
    /// The tail doorbell of a submission queue.
    SubmissionTail(u16),
    /// The head doorbell of a completion queue.
    CompletionHead(u16),
    /// A byte of the MSI-X table.
    VectorTable(usize),
    /// The pending bits, or nothing.
    Other,
}

impl BarPlace {
    /// What lies at `offset`.
    #[must_use]
    pub fn at(offset: u64) -> Self {
        let table = u64::from(MSIX_TABLE);
        let number = |offset: u64| u16::try_from(offset).unwrap_or(u16::MAX);
        match offset {
            0..DOORBELLS => Self::Register(number(offset)),
            // Doorbell stride 0: four bytes each, in turn for submission and completion queue.
            at if at < table && at % 8 == 0 => Self::SubmissionTail(number((at - DOORBELLS) / 8)),
            at if at < table && at % 8 == 4 => Self::CompletionHead(number((at - DOORBELLS) / 8)),
            at if at >= table && at < table + u64::from(VECTORS) * 16 => {
                Self::VectorTable(usize::try_from(at - table).unwrap_or(0))
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
        assert_eq!(BarPlace::at(0x1000), BarPlace::SubmissionTail(0));
        assert_eq!(BarPlace::at(0x1004), BarPlace::CompletionHead(0));
        assert_eq!(BarPlace::at(0x1008), BarPlace::SubmissionTail(1));
        assert_eq!(BarPlace::at(0x100C), BarPlace::CompletionHead(1));
        assert_eq!(BarPlace::at(0x1002), BarPlace::Other);
    }

    #[test]
    fn every_vector_has_its_place_and_nothing_lies_behind() {
        let last = u64::from(MSIX_TABLE) + u64::from(VECTORS) * 16 - 1;
        assert!(matches!(BarPlace::at(last), BarPlace::VectorTable(_)));
        for at in [last + 1, u64::from(MSIX_PENDING), BAR_BYTES, u64::MAX] {
            assert_eq!(BarPlace::at(at), BarPlace::Other);
        }
    }
}
