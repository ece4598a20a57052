//! Counters of host reads and writes for the SMART log.
//!
//! Input: commands with their completions. Output: sums since the device was opened.

use crate::command::{BatchWrite, SsdCommand, SsdCompletion};

/// Commands and bytes that hosts read and wrote.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HostTraffic {
    pub(crate) reads: u64,
    pub(crate) bytes_read: u64,
    pub(crate) writes: u64,
    pub(crate) bytes_written: u64,
}

impl HostTraffic {
    /// Counts a completed command.
    pub(crate) fn count(&mut self, command: &SsdCommand, completion: &SsdCompletion) {
        if !completion.status.is_success() {
            return;
        }
        let (read, written) = match command {
            SsdCommand::Retrieve { bytes_max, .. } => {
                (Some(u64::from(completion.value_bytes.min(*bytes_max))), None)
            }
            SsdCommand::Read { .. } => (Some(completion.sink.len() as u64), None),
            SsdCommand::Store { value, .. } => (None, Some(value.len() as u64)),
            SsdCommand::Write { data, .. } => (None, Some(data.len() as u64)),
            SsdCommand::Batch { writes } => (None, Some(writes.iter().map(write_bytes).sum())),
            _ => (None, None),
        };
        if let Some(bytes) = read {
            self.reads += 1;
            self.bytes_read += bytes;
        }
        if let Some(bytes) = written {
            self.writes += 1;
            self.bytes_written += bytes;
        }
    }
}

fn write_bytes(write: &BatchWrite) -> u64 {
    match write {
        BatchWrite::Store { value, .. } => value.len() as u64,
        BatchWrite::Delete { .. } | BatchWrite::Check { .. } => 0,
    }
}
