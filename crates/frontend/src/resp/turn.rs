//! One turn of the face, step by step.
//!
//! In: kernel events, completions, times. Out: connections that read, run, send and close. Invariant: a step takes a bounded
//! amount of work from each connection, and what it leaves stays on a list that the next turn begins with.

use super::connection::{Connection, Identity, Life, State};
use super::dispatch::Turn;
use super::limits::{OUTPUT_BUFFER_BYTES_MAX, TURN_ACCEPTS_MAX, TURN_BYTES_MAX};
use super::listener::Accepted;
use super::locks::ClientIndex;
use super::output::Flushed;
use super::shared::Again;
use super::{RespFace, Stage};
use crate::core_device::CoreDevice;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::Completion;
use rustix::event::epoll::{self, EventFlags};
use rustix::net::{SendFlags, send};
use std::os::fd::AsFd;

/// Marks an event of a listener; the rest of the number is its place.
pub(crate) const LISTENER_BIT: u64 = 1 << 63;
/// How often idle clients are looked for.
pub(crate) const SWEEP_EVERY: Nanos = Nanos::from_millis(1_000);
/// How often the kernel is asked for events while device commands are in flight and nothing came last time.
pub(crate) const WATCH_EVERY: Nanos = Nanos::from_micros(2);
/// How often the device is run again in one turn while it keeps answering.
const SETTLE_ROUNDS_MAX: usize = 64;

/// What an event says about a client's socket.
#[derive(Clone, Copy, Debug)]
struct Seen {
    readable: bool,
    hung_up: bool,
    writable: bool,
}

impl RespFace {
    /// Works on one connection, if it is there, and puts it back or forgets it.
    fn with<S: CoreDevice>(
        &mut self,
        store: &mut S,
        index: ClientIndex,
        work: impl FnOnce(&mut Connection, &mut Turn<'_, S>),
    ) {
        let Some(mut connection) = self.clients.take(index) else {
            return;
        };
        let mut turn = Turn { store, shared: &mut self.shared, clients: &mut self.clients };
        work(&mut connection, &mut turn);
        self.conclude(connection);
    }

    /// Queues what a connection has to send and closes it when its time has come.
    fn conclude(&mut self, mut connection: Box<Connection>) {
        if self.stage == Stage::Draining
            && connection.life == Life::Open
            && connection.slots.is_empty()
            && connection.pending.is_done()
        {
            connection.life = Life::Closing;
        }
        if connection.output.pending() > OUTPUT_BUFFER_BYTES_MAX {
            connection.life = Life::Dead;
        }
        let finished = connection.slots.is_empty() && connection.output.pending() == 0;
        if connection.life == Life::Dead || (connection.life == Life::Closing && finished) {
            self.close(&mut connection);
        } else if connection.output.pending() > 0 && !connection.queued.flushing {
            connection.queued.flushing = true;
            self.shared.flush.push(connection.index);
        }
        if connection.socket.is_none() && connection.in_flight == 0 {
            self.clients.forget(connection.index);
        } else {
            self.clients.put_back(connection);
        }
    }

    fn close(&mut self, connection: &mut Connection) {
        connection.life = Life::Dead;
        connection.socket = None;
        for slot in &connection.slots {
            if let State::Working(operation) = &slot.state
                && let Some((namespace, key)) = operation.locked_key()
            {
                self.shared.unlock(namespace, key);
            }
        }
        if let Some(waits) = connection.waits_for.take() {
            self.shared.abandon(waits.namespace, &waits.key, connection.index);
        }
        connection.slots.clear();
        connection.pending = super::connection::Pending::default();
    }

    /// Accepts clients and notes which sockets have something.
    pub(crate) fn take_events<S: CoreDevice>(&mut self, store: &mut S) -> bool {
        self.take_kernel_events();
        let events = std::mem::take(&mut self.events);
        for &(data, flags) in &events {
            if data & LISTENER_BIT != 0 {
                self.accept_from(usize::try_from(data & !LISTENER_BIT).unwrap_or(usize::MAX));
                continue;
            }
            let seen = Seen {
                readable: flags
                    .intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR),
                hung_up: flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR),
                writable: flags.contains(EventFlags::OUT),
            };
            let index = ClientIndex(u16::try_from(data & 0xFFFF).unwrap_or(u16::MAX));
            self.look_at(store, index, seen);
        }
        let moved = !events.is_empty();
        self.events = events;
        moved
    }

    fn look_at<S: CoreDevice>(&mut self, store: &mut S, index: ClientIndex, seen: Seen) {
        let Some(connection) = self.clients.get_mut(index) else {
            return;
        };
        connection.ready.hung_up |= seen.hung_up;
        if seen.writable && connection.output.pending() > 0 && !connection.queued.flushing {
            connection.queued.flushing = true;
            self.shared.flush.push(index);
        }
        if seen.readable {
            connection.ready.readable = true;
            self.feed(store, index);
        }
    }

    /// Reads and runs until the socket is empty, the connection has to wait, or it has had its share.
    fn feed<S: CoreDevice>(&mut self, store: &mut S, index: ClientIndex) {
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut hungry = false;
        let draining = self.stage == Stage::Draining;
        self.with(store, index, |connection, turn| {
            let mut budget = TURN_BYTES_MAX;
            loop {
                turn.run(connection);
                let waits = !connection.pending.is_done() || connection.is_held();
                if waits || draining || !connection.ready.readable || connection.protocol_error.is_some() {
                    break;
                }
                if budget == 0 {
                    hungry = true;
                    break;
                }
                let Some(count) = connection.read(&mut scratch) else {
                    break;
                };
                connection.last_active = turn.shared.now;
                turn.shared.counters.input_bytes += count as u64;
                budget = budget.saturating_sub(count);
            }
        });
        if hungry {
            self.hungry.push(index);
        }
        self.scratch = scratch;
    }

    fn accept_from(&mut self, place: usize) {
        for _ in 0..TURN_ACCEPTS_MAX {
            let Some(listener) = self.listeners.get(place) else {
                return;
            };
            match listener.accept() {
                Ok(accepted) => self.welcome(accepted),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                // Nobody is waiting, or there are no descriptors left: then those who wait stay in the kernel's queue.
                Err(_) => return,
            }
        }
    }

    fn welcome(&mut self, accepted: Accepted) {
        let full = self.clients.len() >= self.shared.settings.clients_max;
        let vacancy = if full { None } else { self.clients.vacancy() };
        let Some(index) = vacancy else {
            self.shared.counters.connections_rejected += 1;
            // Best effort: a client that cannot even take this line is closed all the same.
            let _ = send(&accepted.socket, b"-ERR max number of clients reached\r\n", SendFlags::NOSIGNAL);
            return;
        };
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let data = epoll::EventData::new_u64(u64::from(index.0));
        if epoll::add(&self.epoll, &accepted.socket, data, flags).is_err() {
            self.clients.give_up(index);
            return;
        }
        let identity = Identity {
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
        let mut connection = Box::new(Connection::new(index, identity, accepted.socket));
        connection.authenticated = self.shared.settings.password.is_none();
        self.clients.insert(connection);
    }

    /// Reads on where the last turn stopped for fairness.
    pub(crate) fn feed_hungry<S: CoreDevice>(&mut self, store: &mut S) -> bool {
        let hungry = std::mem::take(&mut self.hungry);
        for &index in &hungry {
            self.feed(store, index);
        }
        !hungry.is_empty()
    }

    /// Tries again what the device had no room for, oldest first.
    pub(crate) fn retry_busy<S: CoreDevice>(&mut self, store: &mut S) -> bool {
        let operations = std::mem::take(&mut self.shared.busy_operations);
        for again in operations {
            self.drive_again(store, again);
        }
        let waiting = std::mem::take(&mut self.shared.busy);
        let before = self.shared.in_flight;
        for index in waiting {
            self.shared.dirty.push_back(index);
        }
        self.go_on(store) && self.shared.in_flight != before
    }

    fn drive_again<S: CoreDevice>(&mut self, store: &mut S, again: Again) {
        self.with(store, again.client, |connection, turn| {
            if connection.identity.id == again.id && connection.life != Life::Dead {
                turn.drive(connection, again.slot);
                turn.shared.dirty.push_back(again.client);
            }
        });
    }

    /// Ends what waited for a time that has come.
    pub(crate) fn wake_sleepers<S: CoreDevice>(&mut self, store: &mut S) -> bool {
        if self.shared.sleepers.is_empty() {
            return false;
        }
        let now = self.shared.now;
        let due: Vec<Again> =
            self.shared.sleepers.extract_if(.., |(time, _)| *time <= now).map(|(_, again)| again).collect();
        for &again in &due {
            self.drive_again(store, again);
        }
        !due.is_empty()
    }

    /// Hands out every completion that may leave.
    pub(crate) fn take_completions<S: CoreDevice>(&mut self, store: &mut S) -> bool {
        let mut any = false;
        while let Some(completion) = store.next_completion(self.shared.face) {
            any = true;
            self.shared.in_flight -= 1;
            let index = ClientIndex(u16::try_from(completion.token >> 48).unwrap_or(u16::MAX));
            self.complete(store, index, completion);
        }
        any
    }

    fn complete<S: CoreDevice>(&mut self, store: &mut S, index: ClientIndex, completion: Completion) {
        let Some(mut connection) = self.clients.take(index) else {
            return;
        };
        connection.in_flight -= 1;
        let place = connection.slot_place(completion.token);
        let slot = connection.base + place as u64;
        match connection.slots.get_mut(place).map(|slot| &mut slot.state) {
            Some(State::Waiting(wait)) => {
                let wait = *wait;
                if let super::wait::Wait::Value = wait {
                    match completion.status {
                        Status::SUCCESS => self.shared.counters.hits += 1,
                        _ => self.shared.counters.misses += 1,
                    }
                }
                let reply = wait.reply(completion, self.shared.wall, &mut self.shared.sinks);
                connection.settle(place, reply, &mut self.shared);
            }
            Some(State::Working(operation)) => {
                operation.accept(completion, &mut self.shared);
                let mut turn = Turn { store, shared: &mut self.shared, clients: &mut self.clients };
                turn.drive(&mut connection, slot);
            }
            // Its client is gone.
            _ => self.shared.sinks.put_back(completion.sink),
        }
        if !connection.queued.dirty {
            connection.queued.dirty = true;
            self.shared.dirty.push_back(index);
        }
        self.conclude(connection);
    }

    /// Lets every connection go on whose commands may.
    pub(crate) fn go_on<S: CoreDevice>(&mut self, store: &mut S) -> bool {
        // Who is put on the list meanwhile comes after those who are on it, and may come again in the next turn.
        let mut left = self.shared.dirty.len().saturating_mul(2);
        let any = left > 0;
        while left > 0
            && let Some(index) = self.shared.dirty.pop_front()
        {
            left -= 1;
            if let Some(connection) = self.clients.get_mut(index) {
                connection.queued.dirty = false;
                self.feed(store, index);
            }
        }
        any
    }

    /// Runs the device while it answers at once.
    pub(crate) fn settle<S: CoreDevice>(&mut self, store: &mut S, now: Nanos, wall: UnixMillis) -> bool {
        let mut moved = false;
        for _ in 0..SETTLE_ROUNDS_MAX {
            if self.shared.in_flight == 0 {
                break;
            }
            moved |= store.poll(now, wall);
            if !self.take_completions(store) {
                break;
            }
            moved = true;
            self.go_on(store);
        }
        moved
    }

    /// Closes clients that have said nothing for too long.
    pub(crate) fn sweep_idle<S: CoreDevice>(&mut self, store: &mut S) {
        let now = self.shared.now;
        let seconds = self.shared.settings.timeout_seconds;
        if seconds == 0 || now.since(self.swept) < SWEEP_EVERY {
            return;
        }
        self.swept = now;
        let limit = Nanos(seconds.saturating_mul(1_000_000_000));
        let idle: Vec<ClientIndex> = self
            .clients
            .iter()
            .filter(|client| client.slots.is_empty() && now.since(client.last_active) > limit)
            .map(|client| client.index)
            .collect();
        for index in idle {
            self.with(store, index, |connection, _| connection.life = Life::Dead);
        }
    }

    /// Sends what there is to send, once for each client.
    pub(crate) fn flush_all(&mut self) {
        let clients = std::mem::take(&mut self.shared.flush);
        for &index in &clients {
            let Some(mut connection) = self.clients.take(index) else {
                continue;
            };
            connection.queued.flushing = false;
            let before = connection.output.pending();
            let flushed = match &connection.socket {
                Some(socket) => connection.output.flush(socket.as_fd(), &mut self.shared.sinks),
                None => Ok(Flushed::All),
            };
            self.shared.counters.output_bytes += (before - connection.output.pending()) as u64;
            match flushed {
                // The kernel says when it takes more.
                Ok(Flushed::Blocked) => connection.queued.flushing = true,
                Ok(Flushed::All) => {}
                Err(_) => connection.life = Life::Dead,
            }
            self.conclude(connection);
            if let Some(connection) = self.clients.get_mut(index) {
                connection.queued.flushing = false;
            }
        }
        if self.shared.flush.is_empty() {
            // The list's memory is kept.
            self.shared.flush = clients;
            self.shared.flush.clear();
        }
    }
}
