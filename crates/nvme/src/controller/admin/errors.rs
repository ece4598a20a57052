//! The Error Information log (NVMe Base 2.0 section 5.16.1.2).
//!
//! Input: failed commands. Output: their entries, newest first, and the total count.

use crate::spec::log_page::ErrorEntry;
use crate::spec::status::Status;
use std::collections::VecDeque;
use zerocopy::FromZeros;
use zerocopy::little_endian::{U16, U32, U64};

/// The number of entries kept: ELPE plus one.
pub(super) const ERRORS_MAX: usize = 64;
/// The parameter error location value for no particular parameter.
const NO_PARAMETER: u16 = 0xFFFF;

/// The error log of one controller.
#[derive(Clone, Debug, Default)]
pub(super) struct ErrorLog {
    newest_first: VecDeque<ErrorEntry>,
    count: u64,
}

impl ErrorLog {
    /// Logs a failed command of a queue.
    pub(super) fn record(&mut self, queue: u16, command: u16, namespace: u32, status: Status) {
        self.count += 1;
        let mut entry = ErrorEntry::new_zeroed();
        entry.count = U64::new(self.count);
        entry.queue = U16::new(queue);
        entry.command = U16::new(command);
        entry.status = U16::new(status.to_field());
        entry.parameter = U16::new(NO_PARAMETER);
        entry.namespace = U32::new(namespace);
        self.newest_first.truncate(ERRORS_MAX - 1);
        self.newest_first.push_front(entry);
    }

    /// Returns the total number of errors.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Returns the kept entries, newest first.
    pub(super) fn entries(&self) -> impl Iterator<Item = &ErrorEntry> {
        self.newest_first.iter()
    }
}
