//! The admission of commands by the memory that their replies take.
//!
//! Input: a planned command and its connection. Output: the bytes that it makes the front end hold until the client has
//! received the reply, and the verdict if it may start. A value's length is known from the device's index before it is
//! read. Invariant: a command that waits has had no effect and keeps no other connection's key.

use super::connection::RespConnection;
use super::dispatch::TurnContext;
use super::plan::CommandPlan;
use super::reply_budget::ReplyVerdict;
use crate::core_device::CoreDevice;
use bytes::Bytes;
use headwater_ssd::command::{NamespaceId, SsdCommand};
use headwater_ssd::limits::SHORT_RECORD_BYTES;

impl<S: CoreDevice> TurnContext<'_, S> {
    /// Returns the bytes that a planned command makes the front end hold at the most, if they are known beforehand. A
    /// gather asks for each of its values, a listing for each of its steps.
    #[inline]
    pub(crate) fn reply_bytes_of(&self, own: usize, namespace: NamespaceId, plan: &CommandPlan) -> usize {
        let length =
            |namespace, key: &Bytes| self.shared.large_writes.value_bytes(&*self.device, namespace, key);
        match plan {
            CommandPlan::Single { command: SsdCommand::Retrieve { bytes_max, .. }, .. }
                if own + SHORT_RECORD_BYTES <= self.shared.settings.reply_limits.soft
                    && self.shared.large_writes.is_empty()
                    && self.device.has_only_short_values(namespace) =>
            {
                // Within the share the bound does as well as the length, which costs a search of the index.
                SHORT_RECORD_BYTES.min(*bytes_max as usize)
            }
            CommandPlan::Single { command: SsdCommand::Retrieve { key, offset, bytes_max, .. }, .. } => {
                length(namespace, key).saturating_sub(*offset as usize).min(*bytes_max as usize)
            }
            CommandPlan::Edit(key, change) => length(namespace, key) + change.growth(),
            CommandPlan::Exclusive(operation) => operation.bytes_at_start(length),
            CommandPlan::Single { .. }
            | CommandPlan::Stream { .. }
            | CommandPlan::Gather(_)
            | CommandPlan::Answer(_) => 0,
        }
    }

    /// Returns true if a command that makes so many bytes of replies may start. If not, the connection is run again when
    /// it may.
    #[inline]
    pub(crate) fn admits_reply(&mut self, connection: &mut RespConnection, more: usize) -> bool {
        let own = connection.reply_bytes();
        let limits = &self.shared.settings.reply_limits;
        let account = (connection.index, &mut connection.replies);
        let verdict = self.shared.reply_budget.request(limits, account, (own, more));
        connection.awaits_room = verdict == ReplyVerdict::Waits;
        if connection.awaits_room
            && let Some(waits) = connection.awaited_key.take()
        {
            // The key may be promised to this connection, which cannot use it now.
            self.shared.stop_waiting(waits.namespace, &waits.key, connection.index);
        }
        !connection.awaits_room
    }
}
