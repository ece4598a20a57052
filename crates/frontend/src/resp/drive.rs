//! The drive of an operation: its slot is opened, its due device commands are submitted, and its reply fills the slot.
//!
//! Input: an operation of a connection, or the number of its slot. Output: submitted device commands, a work list that drives
//! it again, or its reply in the slot. Invariant: an operation that is not done is on exactly one list, waits for a completion,
//! or holds its connection until that is run.

use super::client_list;
use super::command_table::RespCommand;
use super::connection::{ConnectionLife, PipelineSlotState, RespConnection};
use super::dispatch::TurnContext;
use super::operation::{RespOperation, operation_ref};
use super::operation_step::{DriveResult, OperationContext};
use crate::core_device::CoreDevice;

impl<S: CoreDevice> TurnContext<'_, S> {
    /// Opens the slot of an operation and starts it.
    pub(crate) fn begin(
        &mut self,
        connection: &mut RespConnection,
        call: (RespCommand, usize),
        operation: Box<RespOperation>,
    ) {
        let slot = connection.next_slot();
        let state = PipelineSlotState::Working(operation);
        connection.open_slot(state, call.0, call.1, self.shared.now);
        self.drive(connection, slot);
    }

    /// Submits the commands of an operation that are due; fills its slot when the operation is done.
    pub(crate) fn drive(&mut self, connection: &mut RespConnection, slot: u64) {
        let Some(at) = slot.checked_sub(connection.first_slot).and_then(|at| usize::try_from(at).ok()) else {
            return;
        };
        let token = connection.token(slot);
        let own = connection.reply_bytes() - connection.slots.get(at).map_or(0, |slot| slot.reply);
        let unsent = connection.output.pending();
        let again = operation_ref(connection.index, connection.identity.id, slot);
        let Some(PipelineSlotState::Working(operation)) =
            connection.slots.get_mut(at).map(|slot| &mut slot.state)
        else {
            return;
        };
        if let RespOperation::Clients(lines) = &mut **operation {
            client_list::advance(lines, self.clients, self.shared);
        }
        let mut context = OperationContext {
            device: &mut *self.device,
            shared: &mut *self.shared,
            in_flight: &mut connection.in_flight,
            locks: &mut connection.locks_held,
            watched: &mut connection.transaction.watched,
            token,
            protocol: connection.protocol,
            replies: Some((connection.index, &mut connection.replies)),
            own_replies: own,
            unsent,
            operation: again,
        };
        let driven = operation.drive(&mut context);
        let (grown, sent_from) = (operation.take_grown(), operation.sent_from());
        connection.database = operation.selected().unwrap_or(connection.database);
        let holds = operation.holds_connection() && !matches!(driven, DriveResult::Done(_));
        if holds {
            connection.barrier = Some(slot);
            connection.awaits_room = matches!(driven, DriveResult::NoRoom);
        } else if connection.barrier == Some(slot) {
            connection.barrier = None;
            connection.awaits_room = false;
        }
        if let Some(bytes) = operation.reply_bytes() {
            connection.set_reply_bytes(slot, bytes);
            connection.send_parts(self.shared);
        }
        if grown > 0 {
            connection.hold(slot, grown);
        }
        match driven {
            DriveResult::Waiting | DriveResult::NoRoom => {}
            DriveResult::Again => self.shared.long_operations.push_back(again),
            DriveResult::Busy => self.shared.busy_operations.push_back(again),
            DriveResult::Until(time) => self.shared.sleepers.push((time, again)),
            DriveResult::Done(reply) => {
                if let Some(from) = sent_from {
                    // The time that the client took to receive is not the command's.
                    let slot = &mut connection.slots[at];
                    slot.started = slot.started.after(self.shared.now.since(from));
                }
                connection.complete_slot(at, reply, self.shared);
            }
            DriveResult::Broken(reason) => {
                tracing::warn!(client = %connection.identity.address, "a client was disconnected: {reason}");
                connection.life = ConnectionLife::Dead;
            }
        }
    }
}
