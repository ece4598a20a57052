//! The steps of one turn of the front end.
//!
//! Input: kernel events, completions, times. Output: connections that read, run, send and close. Invariant: a step does
//! a bounded amount of work for each connection; the rest stays on a list that the next turn starts with.

use super::client_identity::ClientIdentity;
use super::connection::{ConnectionLife, PipelineSlotState, RespConnection};
use super::dispatch::TurnContext;
use super::errors;
use super::limits::{
    TURN_ACCEPTS_MAX, TURN_BYTES_MAX, TURN_COMPLETIONS_MAX, TURN_SENT_BYTES_EACH, TURN_SENT_BYTES_MAX,
    TURN_VALUE_BYTES_MAX,
};
use super::listener::AcceptedClient;
use super::locks::ClientIndex;
use super::output_queue::FlushResult;
use super::reply::RespReply;
use super::reply_form::ReplyForm;
use super::state::OperationRef;
use super::{RespFrontEnd, RespStage};
use crate::core_device::CoreDevice;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_host::width::{narrow, to_usize};
use headwater_ssd::command::SsdCompletion;
use rustix::event::epoll::{self, EventFlags};
use rustix::net::{SendFlags, send};
use std::os::fd::AsFd;

/// The bit that marks an event of a listener; the other bits are the listener's index.
pub(crate) const LISTENER_BIT: u64 = 1 << 63;
/// The interval between searches for idle clients.
pub(crate) const IDLE_SWEEP_INTERVAL: Nanos = Nanos::from_millis(1_000);
/// The interval between searches for clients that receive nothing while other clients wait for memory.
pub(crate) const STALL_SEARCH_INTERVAL: Nanos = Nanos::from_millis(100);
/// The interval between calls of `epoll_wait` while device commands are in flight and the last call found no event.
pub(crate) const EPOLL_INTERVAL: Nanos = Nanos::from_micros(2);
/// The maximum number of device polls in one turn while the device keeps completing commands.
const TURN_DEVICE_POLLS_MAX: usize = 64;

/// The completions that were taken from the device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TakenCompletions {
    /// Their number.
    pub(crate) count: usize,
    /// Bytes of the values and keys that they carried.
    value_bytes: usize,
}

/// The readiness of a client's socket in one event.
#[derive(Clone, Copy, Debug)]
struct SocketEvent {
    readable: bool,
    hung_up: bool,
    writable: bool,
}

impl RespFrontEnd {
    /// Runs `work` on a connection that is in the table, then puts it back or removes it.
    pub(super) fn with_connection<S: CoreDevice>(
        &mut self,
        store: &mut S,
        index: ClientIndex,
        work: impl FnOnce(&mut RespConnection, &mut TurnContext<'_, S>),
    ) {
        let Some(mut connection) = self.clients.take(index) else {
            return;
        };
        let mut turn = TurnContext { device: store, shared: &mut self.shared, clients: &mut self.clients };
        work(&mut connection, &mut turn);
        self.finish_run(connection);
    }

    /// Schedules a connection's output to be sent, and closes the connection when it is finished.
    fn finish_run(&mut self, mut connection: Box<RespConnection>) {
        if self.stage == RespStage::Draining
            && connection.life == ConnectionLife::Open
            && connection.slots.is_empty()
            && connection.pending.is_done()
        {
            connection.life = ConnectionLife::Closing;
        }
        let finished = connection.slots.is_empty() && connection.output.pending() == 0;
        if connection.life == ConnectionLife::Dead || (connection.life == ConnectionLife::Closing && finished)
        {
            self.close(&mut connection);
        } else if connection.output.pending() > 0 && !connection.queued.flushing {
            connection.queued.flushing = true;
            self.shared.list_for_flush(connection.index, connection.output.pending());
        }
        let held = connection.held_bytes();
        self.shared.client_memory.account(&mut connection.accounted, held);
        self.account_replies(&mut connection);
        let index = connection.index;
        if connection.socket.is_none() && connection.in_flight == 0 {
            self.clients.release_slot(connection.index);
        } else {
            self.clients.put_back(connection);
        }
        self.wake_next(index);
    }

    fn close(&mut self, connection: &mut RespConnection) {
        connection.life = ConnectionLife::Dead;
        connection.socket = None;
        for slot in &connection.slots {
            if let PipelineSlotState::Working(operation) = &slot.state
                && let Some((namespace, key)) = operation.locked_key()
            {
                self.shared.unlock(namespace, key);
            }
        }
        self.shared.leave_gate(connection.index);
        if let Some(waits) = connection.awaited_key.take() {
            self.shared.stop_waiting(waits.namespace, &waits.key, connection.index);
        }
        self.shared.reply_budget.leave_queue(connection.index, &mut connection.replies);
        connection.awaits_room = false;
        connection.release_memory();
    }

    /// Accepts clients and handles the events of client sockets.
    pub(crate) fn handle_events<S: CoreDevice>(&mut self, store: &mut S) -> bool {
        for (listener, pause) in self.listeners.iter().zip(&mut self.accept_pauses) {
            pause.is_paused(self.epoll.as_fd(), listener.as_fd(), self.shared.now);
        }
        self.poll_epoll();
        let events = std::mem::take(&mut self.events);
        for &(data, flags) in &events {
            if data & LISTENER_BIT != 0 {
                self.accept_from(to_usize(data & !LISTENER_BIT));
                continue;
            }
            let seen = SocketEvent {
                readable: flags
                    .intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR),
                hung_up: flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR),
                writable: flags.contains(EventFlags::OUT),
            };
            let index = ClientIndex(narrow(data & 0xFFFF));
            self.handle_socket_event(store, index, seen);
        }
        let moved = !events.is_empty();
        self.events = events;
        moved
    }

    fn handle_socket_event<S: CoreDevice>(&mut self, store: &mut S, index: ClientIndex, seen: SocketEvent) {
        let Some(connection) = self.clients.get_mut(index) else {
            return;
        };
        connection.ready.hung_up |= seen.hung_up;
        if seen.writable && connection.output.pending() > 0 && !connection.queued.flushing {
            connection.queued.flushing = true;
            self.shared.list_for_flush(index, connection.output.pending());
        }
        if seen.readable {
            connection.ready.readable = true;
            self.read_and_run(store, index);
        }
    }

    /// Reads and runs commands until the socket is empty, the connection must wait, or its byte budget is used up.
    pub(super) fn read_and_run<S: CoreDevice>(&mut self, store: &mut S, index: ClientIndex) {
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut has_more = false;
        let draining = self.stage == RespStage::Draining;
        self.with_connection(store, index, |connection, turn| {
            let mut budget = TURN_BYTES_MAX;
            loop {
                turn.run(connection);
                turn.begin_receipt(connection);
                if turn.refuse_argument(connection) {
                    break;
                }
                if connection.share.is_used_up(turn.shared.turn) {
                    has_more = true;
                    break;
                }
                let waits = !connection.pending.is_done() || connection.is_held();
                if waits || draining || !connection.ready.readable || connection.protocol_error.is_some() {
                    break;
                }
                if budget == 0 {
                    has_more = true;
                    break;
                }
                let Some(count) = turn.receive_or_read(connection, &mut scratch) else { break };
                connection.last_active = turn.shared.now;
                turn.shared.counters.input_bytes += count as u64;
                budget = budget.saturating_sub(count);
            }
        });
        if has_more
            && let Some(connection) = self.clients.get_mut(index)
            && !std::mem::replace(&mut connection.queued.unread, true)
        {
            self.unread.push(index);
        }
        self.scratch = scratch;
    }

    fn accept_from(&mut self, index: usize) {
        if self.accept_pauses[index].deadline().is_some() {
            return;
        }
        for _ in 0..TURN_ACCEPTS_MAX {
            let Some(listener) = self.listeners.get(index) else {
                return;
            };
            match listener.accept() {
                Ok(accepted) => self.register_client(accepted),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                // No client is waiting, or no descriptor is left: waiting clients then stay in the kernel's queue.
                Err(error) => {
                    let (epoll, now) = (self.epoll.as_fd(), self.shared.now);
                    return self.accept_pauses[index].handle_error(epoll, listener.as_fd(), &error, now);
                }
            }
        }
    }

    fn register_client(&mut self, accepted: AcceptedClient) {
        let full = self.clients.len() >= self.shared.settings.clients_max;
        let vacancy = if full { None } else { self.clients.reserve() };
        let Some(index) = vacancy else {
            self.shared.counters.connections_rejected += 1;
            // Best effort: the client is closed even if the line cannot be sent.
            let _ = send(&accepted.socket, b"-ERR max number of clients reached\r\n", SendFlags::NOSIGNAL);
            return;
        };
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let data = epoll::EventData::new_u64(u64::from(index.0));
        if epoll::add(&self.epoll, &accepted.socket, data, flags).is_err() {
            self.clients.cancel_reservation(index);
            return;
        }
        let identity = ClientIdentity {
            id: self.shared.next_client,
            address: accepted.address,
            local: accepted.local,
            name: Vec::new(),
            library: Vec::new(),
            library_version: Vec::new(),
            created: self.shared.now,
        };
        self.shared.next_client += 1;
        self.shared.counters.connections += 1;
        let mut connection = Box::new(RespConnection::new(index, identity, accepted.socket));
        connection.authenticated = self.shared.settings.password.is_none();
        self.clients.insert(connection);
    }

    /// Continues to read from clients whose byte budget ended the last turn.
    pub(crate) fn resume_reading<S: CoreDevice>(&mut self, store: &mut S) -> bool {
        let unread = std::mem::take(&mut self.unread);
        for &index in &unread {
            if let Some(connection) = self.clients.get_mut(index) {
                connection.queued.unread = false;
            }
            self.read_and_run(store, index);
        }
        !unread.is_empty()
    }

    /// Resubmits the commands for which the device had no room, oldest first.
    pub(crate) fn retry_busy<S: CoreDevice>(&mut self, store: &mut S) -> bool {
        let operations = std::mem::take(&mut self.shared.busy_operations);
        for again in operations {
            self.redrive(store, again);
        }
        let waiting = std::mem::take(&mut self.shared.busy);
        let before = self.shared.in_flight;
        for index in waiting {
            self.shared.dirty.push_back(index);
        }
        self.run_dirty(store) && self.shared.in_flight != before
    }

    fn redrive<S: CoreDevice>(&mut self, store: &mut S, again: OperationRef) {
        self.with_connection(store, again.client, |connection, turn| {
            if connection.identity.id == again.id && connection.life != ConnectionLife::Dead {
                turn.drive(connection, again.slot);
                turn.shared.dirty.push_back(again.client);
            }
        });
    }

    /// Drives the operations whose wake-up time has passed.
    pub(crate) fn wake_sleepers<S: CoreDevice>(&mut self, store: &mut S) -> bool {
        if self.shared.sleepers.is_empty() {
            return false;
        }
        let now = self.shared.now;
        let due: Vec<OperationRef> =
            self.shared.sleepers.extract_if(.., |(time, _)| *time <= now).map(|(_, again)| again).collect();
        for &again in &due {
            self.redrive(store, again);
        }
        !due.is_empty()
    }

    /// Runs the next part of one long computation.
    pub(crate) fn run_long_operation<S: CoreDevice>(&mut self, store: &mut S) -> bool {
        let next = self.shared.long_operations.pop_front();
        if let Some(again) = next {
            self.redrive(store, again);
        }
        next.is_some()
    }

    /// Takes every available completion and applies it to its connection.
    pub(crate) fn take_completions<S: CoreDevice>(&mut self, store: &mut S) -> TakenCompletions {
        let mut taken = TakenCompletions::default();
        while let Some(completion) = store.next_completion(self.shared.front_end) {
            taken.count += 1;
            taken.value_bytes += completion.payload_bytes();
            assert!(self.shared.in_flight > 0, "the device completed a command, and none is in flight");
            self.shared.in_flight -= 1;
            self.shared.large_writes.end(completion.token);
            let index = ClientIndex(narrow(completion.token >> 48));
            self.complete(store, index, completion);
        }
        taken
    }

    fn complete<S: CoreDevice>(&mut self, store: &mut S, index: ClientIndex, completion: SsdCompletion) {
        let Some(mut connection) = self.clients.take(index) else {
            unreachable!("a connection stays until its commands are completed, and {index:?} is gone");
        };
        assert!(connection.in_flight > 0, "the device completed a command twice for {index:?}");
        connection.in_flight -= 1;
        let completion = self.admit(&connection, completion);
        let at = connection.slot_index(completion.token);
        let slot = connection.first_slot + at as u64;
        match connection.slots.get_mut(at).map(|slot| &mut slot.state) {
            Some(PipelineSlotState::Waiting(wait)) => {
                let reply = match *wait {
                    ReplyForm::Value if completion.status.is_success() => {
                        self.shared.counters.hits += 1;
                        RespReply::Bulk(completion.sink)
                    }
                    wait => {
                        self.shared.counters.misses += u64::from(matches!(wait, ReplyForm::Value));
                        wait.reply(completion, self.shared.wall, &mut self.shared.value_buffers)
                    }
                };
                connection.complete_slot(at, reply, &mut self.shared);
            }
            Some(PipelineSlotState::Working(operation)) => {
                let bytes = completion.payload_bytes();
                operation.accept(completion, &mut self.shared);
                connection.hold(slot, bytes);
                let mut turn =
                    TurnContext { device: store, shared: &mut self.shared, clients: &mut self.clients };
                turn.drive(&mut connection, slot);
            }
            // The client has disconnected.
            _ => self.shared.value_buffers.put_back(completion.sink),
        }
        if !connection.queued.dirty {
            connection.queued.dirty = true;
            self.shared.dirty.push_back(index);
        }
        self.finish_run(connection);
    }

    /// Returns the completion, or its failure without values and keys if the memory of clients has no room for that.
    fn admit(&self, connection: &RespConnection, completion: SsdCompletion) -> SsdCompletion {
        if self.shared.client_memory.admits(connection.accounted, completion.payload_bytes()) {
            completion
        } else {
            SsdCompletion::new(completion.token, errors::CLIENT_MEMORY)
        }
    }

    /// Runs every connection whose commands can proceed.
    pub(crate) fn run_dirty<S: CoreDevice>(&mut self, store: &mut S) -> bool {
        // A connection queued during this loop comes after the queued ones; what exceeds the bound waits for the next
        // turn.
        let mut left = self.shared.dirty.len().saturating_mul(2);
        let any = left > 0;
        while left > 0
            && let Some(index) = self.shared.dirty.pop_front()
        {
            left -= 1;
            if let Some(connection) = self.clients.get_mut(index) {
                connection.queued.dirty = false;
                self.read_and_run(store, index);
            }
        }
        any
    }

    /// Polls the device while it completes commands immediately.
    pub(crate) fn poll_device<S: CoreDevice>(&mut self, store: &mut S, now: Nanos, wall: UnixMillis) -> bool {
        let mut moved = false;
        let mut all = TakenCompletions::default();
        for _ in 0..TURN_DEVICE_POLLS_MAX {
            let enough = all.count >= TURN_COMPLETIONS_MAX || all.value_bytes >= TURN_VALUE_BYTES_MAX;
            if self.shared.in_flight == 0 || enough {
                break;
            }
            moved |= store.poll(now, wall);
            let taken = self.take_completions(store);
            if taken.count == 0 {
                break;
            }
            all.count += taken.count;
            all.value_bytes += taken.value_bytes;
            moved = true;
            self.run_dirty(store);
        }
        moved
    }

    /// Closes clients that have been idle for longer than the configured timeout.
    pub(crate) fn sweep_idle<S: CoreDevice>(&mut self, store: &mut S) {
        let now = self.shared.now;
        let seconds = self.shared.settings.timeout_seconds;
        if seconds == 0 || now.since(self.last_sweep) < IDLE_SWEEP_INTERVAL {
            return;
        }
        self.last_sweep = now;
        let limit = Nanos(seconds.saturating_mul(1_000_000_000));
        let idle: Vec<ClientIndex> = self
            .clients
            .iter()
            .filter(|client| client.slots.is_empty() && now.since(client.last_active) > limit)
            .map(|client| client.index)
            .collect();
        for index in idle {
            self.with_connection(store, index, |connection, _| connection.life = ConnectionLife::Dead);
        }
    }

    /// Sends the queued output of each client, with one flush for each. Short outputs are sent first, so that they do not wait
    /// for long values of other clients, of which at least one makes progress in each turn.
    pub(crate) fn flush_all(&mut self) {
        let mut left = TURN_SENT_BYTES_MAX;
        let short = std::mem::take(&mut self.shared.flush);
        let rest = self.flush_some(short, &mut left);
        self.shared.flush.splice(0..0, rest);
        left = left.max(TURN_SENT_BYTES_EACH);
        let long = std::mem::take(&mut self.shared.flush_long);
        let rest = self.flush_some(long, &mut left);
        self.shared.flush_long.splice(0..0, rest);
    }

    /// Sends the output of clients in order, at most `left` bytes. Returns those that were not reached, in the list's memory.
    fn flush_some(&mut self, mut clients: Vec<ClientIndex>, left: &mut usize) -> Vec<ClientIndex> {
        let mut next = 0;
        while *left > 0
            && let Some(&index) = clients.get(next)
        {
            next += 1;
            *left -= self.flush_one(index, *left);
        }
        clients.drain(..next);
        clients
    }

    /// Sends the output of one client, at most `left` bytes. Returns the bytes that were sent.
    fn flush_one(&mut self, index: ClientIndex, left: usize) -> usize {
        let Some(mut connection) = self.clients.take(index) else {
            return 0;
        };
        connection.queued.flushing = false;
        let before = connection.output.pending();
        let bytes_max = left.min(TURN_SENT_BYTES_EACH);
        let flushed = match &connection.socket {
            Some(socket) => {
                connection.output.flush(socket.as_fd(), bytes_max, &mut self.shared.value_buffers)
            }
            None => Ok(FlushResult::All),
        };
        let sent = before - connection.output.pending();
        self.shared.counters.output_bytes += sent as u64;
        if sent > 0 {
            connection.replies.progress_at = self.shared.now;
            if connection.awaits_room && !connection.queued.dirty {
                connection.queued.dirty = true;
                self.shared.dirty.push_back(index);
            }
        }
        match flushed {
            // An event reports when the socket is writable again.
            Ok(FlushResult::Blocked) => connection.queued.flushing = true,
            Ok(FlushResult::All | FlushResult::Paused) => {}
            Err(_) => connection.life = ConnectionLife::Dead,
        }
        self.finish_run(connection);
        if matches!(flushed, Ok(FlushResult::Blocked))
            && let Some(connection) = self.clients.get_mut(index)
        {
            connection.queued.flushing = false;
        }
        sent
    }
}
