//! Counts what hosts read and write, for the SMART log.
//!
//! Input: commands with their completions. Output: sums in the counters.

use crate::command::{BatchWrite, SsdCommand, SsdCompletion};
use crate::engine::batch_plan::BatchPlan;
use crate::log::health_counters::HealthCounters;

/// Counts a completed command, with its plan if it is a batch that was carried out in parts.
pub(crate) fn count_traffic(
    counters: &mut HealthCounters,
    (command, plan): (&SsdCommand, Option<&BatchPlan>),
    completion: &SsdCompletion,
) {
    if !completion.status.is_success() {
        return;
    }
    let (read, written) = match command {
        SsdCommand::Retrieve { offset, bytes_max, .. } => {
            let bytes = completion.value_bytes.saturating_sub(*offset).min(*bytes_max);
            (Some(u64::from(bytes)), None)
        }
        SsdCommand::ReadPart { .. } => {
            // The command counts when its reader is opened.
            counters.bytes_read += completion.sink.len() as u64;
            (None, None)
        }
        SsdCommand::OpenValue { .. } => (Some(0), None),
        SsdCommand::Read { .. } => (Some(completion.sink.len() as u64), None),
        SsdCommand::Store { value, .. } => (None, Some(value.len() as u64)),
        SsdCommand::Write { data, .. } => (None, Some(data.len() as u64)),
        SsdCommand::Batch { writes } | SsdCommand::BatchAcross { writes, .. } => {
            let sum = || writes.iter().map(BatchWrite::value_bytes).sum();
            (None, Some(plan.map_or_else(sum, |plan| plan.value_bytes)))
        }
        _ => (None, None),
    };
    if let Some(bytes) = read {
        counters.reads += 1;
        counters.bytes_read += bytes;
    }
    if let Some(bytes) = written {
        counters.writes += 1;
        counters.bytes_written += bytes;
    }
}
