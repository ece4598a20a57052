//! One turn of the front end.
//!
//! Input: kernel events, completions, the time. Output: connections that read, run, send and close. Invariant: a step
//! does a bounded amount of work for each connection; the rest stays on a list for the next turn.

use super::connection::{ConnectionRole, NvmeTcpConnection, NvmeTcpConnectionLife, SendState};
use super::dispatch::NvmeTcpTurn;
use super::limits::{
    CLOSE_TIMEOUT, CONNECT_TIMEOUT, PART_HEADER_BYTES, TURN_ACCEPTS_MAX, TURN_BYTES_MAX, TURN_EVENTS_MAX,
};
use super::secure::{self, ConnectionSecurity, HostKeyring};
use super::socket::{self, ReceiveResult, SendResult};
use super::{NvmeTcpFrontEnd, NvmeTcpStage};
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::controller::NvmSubsystem as _;
use headwater_nvme::fabrics::ConnectionId;
use headwater_nvme::spec::fabrics::discovery_page;
use headwater_nvme::spec::status::Status;
use headwater_nvme::tcp::ExchangeSlot;
use headwater_nvme::tcp::target::TargetResponse;
use headwater_ssd::engine::SsdDevice;
use headwater_ssd::media::Media;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventFlags};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

/// The event data of the listener.
pub(super) const LISTENER: u64 = u64::MAX;
/// Minimum time between polls for kernel events while device commands are in flight and the last poll found none.
const EVENT_POLL_PERIOD: Nanos = Nanos::from_micros(5);
/// Time for which the connection that received bytes last is polled first.
const LATEST_SPAN: Nanos = Nanos::from_micros(50);
/// Maximum time for which it delays the poll of all other connections.
const LATEST_EXCLUSIVE_SPAN: Nanos = Nanos::from_micros(20);
/// Reads of it in one turn while no command of this front end is in flight: a turn takes longer than a read.
const LATEST_READS: u32 = 4;
/// Time between two sweeps for connections past their time limit.
const SWEEP_PERIOD: Nanos = Nanos::from_millis(250);
/// Maximum polls of the device in one turn while it keeps completing commands.
const SETTLE_ROUNDS_MAX: usize = 16;

impl NvmeTcpFrontEnd {
    pub(super) fn run_turn<M: Media>(
        &mut self,
        device: &mut SsdDevice<M>,
        now: Nanos,
        wall: UnixMillis,
    ) -> bool {
        self.shared.now = now;
        if !self.identity_read {
            self.read_identity(device);
        }
        let mut moved = self.take_completions(device);
        moved |= self.complete_namespace_changes(device);
        moved |= self.retry_waiting(device);
        let has_read = self.read_latest(device);
        moved |= has_read;
        if has_read {
            // Its responses are sent before other connections are polled.
            self.poll_device(device, now, wall);
            self.flush_all();
        }
        // Other connections are polled at least every LATEST_EXCLUSIVE_SPAN.
        if !has_read || now.since(self.last_event_poll) >= LATEST_EXCLUSIVE_SPAN {
            moved |= self.handle_events(device);
        }
        // Before connections that do not wait take the room.
        moved |= self.resume_receipts(device);
        moved |= self.read_unread(device);
        moved |= self.poll_device(device, now, wall);
        // Responses are sent before the rest of the turn, which no host waits for.
        moved |= self.flush_all();
        moved |= self.poll_controllers(device);
        self.sweep();
        moved |= self.close_listed();
        for controller in self.shared.removed_controllers.drain(..) {
            device.remove_controller(controller.0);
        }
        moved |= self.flush_all();
        moved || !self.unread.is_empty()
    }

    /// Reads the device's subsystem name, derives the keys, and sets the device's discovery log.
    fn read_identity<M: Media>(&mut self, device: &mut SsdDevice<M>) {
        /// The discovery log never changes: one subsystem at one address while the front end exists.
        const GENERATION: u64 = 1;
        self.identity_read = true;
        let name = device.identity().subsystem_name.clone();
        if let ConnectionSecurity::Tls(keyring) = &mut self.shared.security {
            // Without usable keys every host is refused: that is safe, and logged.
            *keyring = HostKeyring::new(&self.keys, &name)
                .inspect_err(
                    |error| tracing::error!(%error, "NVMe/TCP: the keys are unusable, every host is refused"),
                )
                .ok();
        }
        let channel = self.shared.security.channel();
        device.set_discovery_log(discovery_page(GENERATION, &name, self.shared.address, channel));
        tracing::info!(address = %self.shared.address, subsystem = %name, "NVMe/TCP hosts may connect");
        self.shared.associations.set_subsystem_name(name);
    }

    /// Reads from the connection that received bytes last, if that was recent: it is the most likely to receive more,
    /// and a read of its socket is cheaper than a poll for events. Returns true if it received bytes.
    fn read_latest<M: Media>(&mut self, device: &mut SsdDevice<M>) -> bool {
        let Some((id, received_at)) =
            self.latest_sender.filter(|(_, received_at)| self.is_recent(*received_at))
        else {
            return false;
        };
        let looks = if self.shared.in_flight.is_empty() { LATEST_READS } else { 1 };
        for _ in 0..looks {
            let Some(mut connection) = self.connections.take_out(id) else {
                return false;
            };
            connection.readable = true;
            self.read_connection(device, connection);
            if self.latest_sender.is_some_and(|(_, again)| again > received_at) {
                return true;
            }
        }
        false
    }

    fn is_recent(&self, received_at: Nanos) -> bool {
        self.shared.now.since(received_at) < LATEST_SPAN
    }

    fn handle_events<M: Media>(&mut self, device: &mut SsdDevice<M>) -> bool {
        if let Some(listener) = &self.listener {
            self.accept_pause.is_paused(self.epoll.as_fd(), listener.as_fd(), self.shared.now);
        }
        self.poll_events();
        let events = std::mem::take(&mut self.events);
        for &(data, flags) in &events {
            if data == LISTENER {
                if self.accept_pause.deadline().is_none() {
                    self.accept();
                }
                continue;
            }
            let id = ConnectionId(data);
            let Some(mut connection) = self.connections.take_out(id) else {
                continue;
            };
            if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
                connection.life = NvmeTcpConnectionLife::Dead;
            }
            if flags.contains(EventFlags::OUT) && connection.pending() > 0 {
                self.list_for_flush(&mut connection);
            }
            if flags.intersects(EventFlags::IN | EventFlags::RDHUP) {
                connection.readable = true;
                connection.hung_up |= flags.contains(EventFlags::RDHUP);
                self.read_connection(device, connection);
            } else {
                self.finish_step(connection);
            }
        }
        let moved = !events.is_empty();
        self.events = events;
        moved
    }

    fn poll_events(&mut self) {
        let quiet = self.events.is_empty();
        self.events.clear();
        // While commands are in flight, or the latest connection is read directly, the turn repeats quickly: not every
        // turn polls for events.
        let busy = !self.shared.in_flight.is_empty()
            || self.latest_sender.is_some_and(|(_, received_at)| self.is_recent(received_at));
        if quiet && busy && self.shared.now.since(self.last_event_poll) < EVENT_POLL_PERIOD {
            return;
        }
        self.last_event_poll = self.shared.now;
        let nothing = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut buffer = [MaybeUninit::<epoll::Event>::uninit(); TURN_EVENTS_MAX];
        // An interrupted wait returns no events; the next turn repeats it.
        if let Ok((events, _)) = epoll::wait(&self.epoll, &mut buffer, Some(&nothing)) {
            self.events.extend(events.iter().map(|event| (event.data.u64(), event.flags)));
        }
    }

    fn accept(&mut self) {
        for _ in 0..TURN_ACCEPTS_MAX {
            let Some(listener) = &self.listener else {
                return;
            };
            let socket = match socket::accept(listener) {
                Ok(socket) => socket,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                // No connection waits, or no descriptor is left: waiting connections stay in the kernel's backlog.
                Err(error) => {
                    let (epoll, now) = (self.epoll.as_fd(), self.shared.now);
                    return self.accept_pause.handle_error(epoll, listener.as_fd(), &error, now);
                }
            };
            let secure = match &self.shared.security {
                ConnectionSecurity::Plain => Ok(None),
                ConnectionSecurity::Tls(keyring) => {
                    keyring.as_ref().ok_or(()).and_then(|keyring| keyring.stream().map(Some).map_err(drop))
                }
            };
            let (Some(id), Ok(secure)) = (self.connections.next_id(), secure) else {
                self.shared.counters.refused += 1;
                continue;
            };
            let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
            if epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(id.0), flags).is_err() {
                continue;
            }
            self.shared.counters.connections += 1;
            self.connections.insert(id, socket, secure, self.shared.now);
        }
    }

    /// Reads and runs commands until the socket is empty, the connection is choked, or its budget is used.
    pub(super) fn read_connection<M: Media>(
        &mut self,
        device: &mut SsdDevice<M>,
        mut connection: Box<NvmeTcpConnection>,
    ) {
        let mut budget = TURN_BYTES_MAX;
        while connection.readable
            && connection.life != NvmeTcpConnectionLife::Dead
            && budget > 0
            && !connection.is_read_paused()
        {
            let count = if connection.is_part_next() {
                NvmeTcpTurn { device: &mut *device, shared: &mut self.shared }.read_part(&mut connection)
            } else {
                self.read_bytes(device, &mut connection)
            };
            if count > 0 {
                budget = budget.saturating_sub(count);
                self.shared.counters.bytes_in += count as u64;
                self.latest_sender = Some((connection.id, self.shared.now));
            }
        }
        self.finish_step(connection);
        // Before the device is polled again: commands that wait for their turn can still be aborted.
        self.execute_aborts(device);
    }

    /// Reads once from a socket, and runs the commands of what was received. Returns the number of bytes read.
    fn read_bytes<M: Media>(
        &mut self,
        device: &mut SsdDevice<M>,
        connection: &mut NvmeTcpConnection,
    ) -> usize {
        let plain_part = connection.secure.is_none() && connection.receipts.expects_parts();
        // What arrives with the header of a part is copied into its destination: little, so that the rest is not.
        let most = if plain_part { PART_HEADER_BYTES } else { self.scratch.len() };
        let result = socket::receive(connection.socket.as_fd(), &mut self.scratch[..most]);
        match result {
            ReceiveResult::Nothing => connection.readable = false,
            ReceiveResult::End => connection.life = NvmeTcpConnectionLife::Dead,
            ReceiveResult::Bytes(count) => {
                // A short read means that the socket is empty; an event follows when it is not.
                connection.readable = count == most || connection.hung_up;
                // Bytes after a fault or a Disconnect, or after the drain has begun, are read and discarded.
                if connection.accepts_commands() {
                    let mut turn = NvmeTcpTurn { device, shared: &mut self.shared };
                    turn.receive(connection, &self.scratch[..count]);
                }
                return count;
            }
        }
        0
    }

    /// Continues reading where the last turn stopped.
    fn read_unread<M: Media>(&mut self, device: &mut SsdDevice<M>) -> bool {
        let mut moved = false;
        for _ in 0..self.unread.len() {
            let Some(mut connection) = self.unread.pop_front().and_then(|id| self.connections.take_out(id))
            else {
                continue;
            };
            connection.lists.feeding = false;
            moved = true;
            self.read_connection(device, connection);
        }
        moved
    }

    /// Polls the device while it completes commands immediately. Returns true if there was progress.
    fn poll_device<M: Media>(&mut self, device: &mut SsdDevice<M>, now: Nanos, wall: UnixMillis) -> bool {
        let mut moved = false;
        for _ in 0..SETTLE_ROUNDS_MAX {
            // A value for which the device had no room has some when pages are programmed or a block is erased.
            if self.shared.in_flight.is_empty() && self.awaiting_room.is_empty() {
                break;
            }
            moved |= device.poll(now, wall);
            if !self.take_completions(device) {
                break;
            }
            moved = true;
        }
        moved
    }

    /// Adds a connection to the lists of its next steps, or closes it if it is finished.
    pub(super) fn finish_step(&mut self, mut connection: Box<NvmeTcpConnection>) {
        let now = self.shared.now;
        if let Some(slot) = connection.take_disconnect() {
            self.disconnect(&mut connection, slot);
        }
        if self.stage == NvmeTcpStage::Draining
            && connection.life == NvmeTcpConnectionLife::Open
            && !connection.has_unanswered()
        {
            connection.life = NvmeTcpConnectionLife::Closing(now.after(CLOSE_TIMEOUT));
        }
        if let NvmeTcpConnectionLife::Closing(until) = connection.life
            && connection.pending() == 0
        {
            if connection.sending == SendState::Open {
                connection.sending = SendState::ShutDown;
                // A TCP reset could discard a termination request: the host closes first, or the time limit passes.
                // A failure means that the host is gone already.
                let _ = rustix::net::shutdown(&connection.socket, rustix::net::Shutdown::Write);
            }
            if now >= until {
                connection.life = NvmeTcpConnectionLife::Dead;
            }
        }
        if connection.life == NvmeTcpConnectionLife::Dead {
            return self.remove_connection(connection);
        }
        if !connection.receipts.is_empty() {
            connection.end_answered_receipts();
        }
        if !connection.accepts_commands() {
            connection.receipts.end_incomplete();
        }
        if connection.pending() > 0 {
            self.list_for_flush(&mut connection);
        }
        if connection.receipts.awaits_room() && !connection.receipts.is_listed {
            connection.receipts.is_listed = true;
            self.awaiting_room.push(connection.id);
        }
        if connection.is_parked() && !connection.lists.parked {
            connection.lists.parked = true;
            self.parked.push(connection.id);
        }
        if connection.readable && !connection.is_read_paused() && !connection.lists.feeding {
            connection.lists.feeding = true;
            self.unread.push_back(connection.id);
        }
        self.connections.put_back(connection);
    }

    /// Executes a Disconnect: the queue's number is free before the host receives the response.
    fn disconnect(&mut self, connection: &mut NvmeTcpConnection, slot: ExchangeSlot) {
        if let ConnectionRole::Io(id) = connection.role {
            self.shared.to_close.extend(self.shared.associations.remove_connection(id, connection.id));
        }
        connection.respond(slot, TargetResponse::status(Status::SUCCESS));
        connection.life = NvmeTcpConnectionLife::Closing(self.shared.now.after(CLOSE_TIMEOUT));
    }

    fn remove_connection(&mut self, connection: Box<NvmeTcpConnection>) {
        if let ConnectionRole::Admin(id) = connection.role {
            self.shared.removed_controllers.push(id);
        }
        if let ConnectionRole::Admin(id) | ConnectionRole::Io(id) = connection.role {
            self.shared.to_close.extend(self.shared.associations.remove_connection(id, connection.id));
        }
        self.connections.remove(connection);
    }

    fn list_for_flush(&mut self, connection: &mut NvmeTcpConnection) {
        if !connection.lists.flushing {
            connection.lists.flushing = true;
            self.to_flush.push(connection.id);
        }
    }

    /// Closes connections whose controller is gone.
    fn close_listed(&mut self) -> bool {
        let mut any = false;
        while let Some(id) = self.shared.to_close.pop() {
            if let Some(mut connection) = self.connections.take_out(id) {
                any = true;
                connection.life = NvmeTcpConnectionLife::Dead;
                self.finish_step(connection);
            }
        }
        any
    }

    /// Closes connections past the time limit for Connect or for closing.
    fn sweep(&mut self) {
        let now = self.shared.now;
        if now.since(self.last_sweep) < SWEEP_PERIOD {
            return;
        }
        self.last_sweep = now;
        let late = self.connections.iter().filter(|connection| match (connection.life, connection.role) {
            (NvmeTcpConnectionLife::Closing(until), _) => now >= until,
            (_, ConnectionRole::Unconnected) => now.since(connection.accepted_at) >= CONNECT_TIMEOUT,
            _ => false,
        });
        self.shared.to_close.extend(late.map(|connection| connection.id).collect::<Vec<_>>());
    }

    /// Sends the output of every listed connection. Returns true if bytes were sent.
    fn flush_all(&mut self) -> bool {
        let mut listed = std::mem::take(&mut self.to_flush);
        let mut moved = false;
        for id in listed.drain(..) {
            let Some(mut connection) = self.connections.take_out(id) else {
                continue;
            };
            connection.lists.flushing = false;
            let (socket, pdus) = (connection.socket.as_fd(), connection.target.outgoing_mut());
            let (flushed, sent) = match &mut connection.secure {
                Some(stream) => secure::flush(socket, stream, pdus),
                None => socket::flush(socket, pdus),
            };
            moved |= sent > 0;
            self.shared.counters.bytes_out += sent as u64;
            match flushed {
                // An event follows when the socket accepts more.
                SendResult::Blocked => connection.lists.flushing = true,
                SendResult::All => {}
                SendResult::Gone => connection.life = NvmeTcpConnectionLife::Dead,
            }
            self.finish_step(connection);
            if let Some(mut connection) = self.connections.take_out(id) {
                connection.lists.flushing = false;
                self.connections.put_back(connection);
            }
        }
        if self.to_flush.is_empty() {
            // Reuses the list's memory.
            self.to_flush = listed;
        }
        moved
    }
}
