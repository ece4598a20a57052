//! The clients that do not receive their replies: what they hold, whom they keep waiting, and when they are closed.
//!
//! Input: connections that ran or sent. Output: the account of unread replies, the next connection that may start its
//! command, and closed connections. A client that receives nothing is closed only while other clients wait for memory: the one
//! that has received nothing for the longest first, and no more than the waiters need.

use super::RespFrontEnd;
use super::connection::{ConnectionLife, RespConnection};
use super::locks::ClientIndex;
use super::turn::STALL_SEARCH_INTERVAL;
use crate::core_device::CoreDevice;
use headwater_host::clock::Nanos;

/// Time between two log lines about clients that were closed because they received nothing.
const STALL_WARNING_INTERVAL: Nanos = Nanos::from_millis(60_000);

impl RespFrontEnd {
    /// Counts the replies that a connection holds after it ran or sent.
    pub(super) fn account_replies(&mut self, connection: &mut RespConnection) {
        let has_output = connection.output.pending() > 0;
        if has_output && !connection.replies.has_output {
            connection.replies.progress_at = self.shared.now;
        }
        connection.replies.has_output = has_output;
        let own = connection.reply_bytes();
        let limits = &self.shared.settings.reply_limits;
        self.shared.reply_budget.account(limits, &mut connection.replies, own);
        if connection.life != ConnectionLife::Open {
            self.shared.reply_budget.leave_queue(connection.index, &mut connection.replies);
        }
    }

    /// Queues the first connection that waits for the budget, if there is room for its command. The connection that ran
    /// last has seen that room itself.
    pub(super) fn wake_next(&mut self, ran: ClientIndex) {
        if let Some(next) = self.shared.reply_budget.next_to_run()
            && next != ran
            && let Some(connection) = self.clients.get_mut(next)
            && !connection.queued.dirty
        {
            connection.queued.dirty = true;
            self.shared.dirty.push_back(next);
        }
    }

    /// Closes clients that receive nothing and hold memory for which other clients wait.
    pub(super) fn close_stalled<S: CoreDevice>(&mut self, store: &mut S) {
        let now = self.shared.now;
        if self.shared.reply_budget.waiting() == 0
            || now.since(self.last_stall_search) < STALL_SEARCH_INTERVAL
        {
            return;
        }
        self.last_stall_search = now;
        let limits = self.shared.settings.reply_limits;
        let patience = self.shared.reply_budget.patience(&limits);
        let mut stalled: Vec<(Nanos, ClientIndex)> = self
            .clients
            .iter()
            .filter(|client| {
                let since = now.since(client.replies.progress_at);
                client.output.pending() > 0 && client.reply_bytes() > limits.soft && since > patience
            })
            .map(|client| (client.replies.progress_at, client.index))
            .collect();
        stalled.sort_unstable();
        for (since, index) in stalled {
            if self.shared.reply_budget.has_room_for_all() {
                break;
            }
            self.warn_stalled(index, now.since(since));
            self.shared.counters.stalled_closed += 1;
            self.with_connection(store, index, |connection, _| connection.life = ConnectionLife::Dead);
        }
    }

    fn warn_stalled(&mut self, index: ClientIndex, span: Nanos) {
        let now = self.shared.now;
        let last = &mut self.shared.stall_warned_at;
        if last.is_none_or(|at| now.since(at) >= STALL_WARNING_INTERVAL)
            && let Some(connection) = self.clients.get_mut(index)
        {
            *last = Some(now);
            tracing::warn!(
                client = %connection.identity.address,
                bytes = connection.reply_bytes(),
                "a client received none of its replies for {} ms and was disconnected, because other clients wait for \
                 the memory that they take (client-output-buffer-limit)",
                span.0 / 1_000_000
            );
        }
    }
}
