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
        into.connections += self.clients.len() as u64;
        into.connections_total += counters.connections;
        into.connections_refused += counters.connections_rejected;
        self.accept_pauses.iter().for_each(|pause| pause.count(into));
        into.bytes_in += counters.input_bytes;
        into.bytes_out += counters.output_bytes;
        *into.in_flight.entry("resp").or_default() += self.shared.in_flight as u64;
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
