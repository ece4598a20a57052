//! What the face counts, for the node's metrics.
//!
//! In: the face's counters. Out: [`FaceNumbers`], added to what other faces counted.

use super::RespFace;
use super::command_table::TABLE;
use crate::numbers::{FaceNumbers, StatusClass};

impl RespFace {
    /// Adds the face's numbers.
    pub fn count(&self, into: &mut FaceNumbers) {
        let counters = &self.shared.counters;
        let wide = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        into.connections += wide(self.clients.len());
        into.connections_total += counters.connections;
        into.connections_refused += counters.connections_rejected;
        into.bytes_in += counters.input_bytes;
        into.bytes_out += counters.output_bytes;
        *into.in_flight.entry("resp").or_default() += wide(self.shared.in_flight);
        for (command, counts) in TABLE.iter().zip(&counters.commands) {
            for (class, count) in [
                (StatusClass::Ok, counts.calls - counts.failed.min(counts.calls)),
                (StatusClass::Failed, counts.failed),
                (StatusClass::Rejected, counts.rejected),
            ] {
                if count > 0 {
                    *into.commands.entry((command.name, class)).or_default() += count;
                }
            }
        }
    }
}
