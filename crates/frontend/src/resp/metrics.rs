//! The front end's contribution to the node's metrics.
//!
//! Input: the front end's counters. Output: the same, added to [`FrontEndCounters`].

use super::RespFrontEnd;
use super::command_table::TABLE;
use crate::counters::{FrontEndCounters, StatusClass};

impl RespFrontEnd {
    /// Adds the front end's counters to `into`.
    pub fn count(&self, into: &mut FrontEndCounters) {
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
