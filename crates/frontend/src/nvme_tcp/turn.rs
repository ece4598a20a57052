//! One turn of the face, step by step.
//!
//! In: kernel events, completions, times. Out: connections that read, run, send and close. Invariant: a step takes a bounded
//! amount of work from each connection, and what it leaves stays on a list that the next turn begins with.

use super::connection::{Connection, Life, Role, Sending};
use super::dispatch::Turn;
use super::limits::{CLOSE_WITHIN, JOIN_WITHIN, TURN_ACCEPTS_MAX, TURN_BYTES_MAX, TURN_EVENTS_MAX};
use super::secure::{self, Keyring, Security};
use super::socket::{self, Flushed, Got};
use super::{NvmeTcpFace, Stage};
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::controller::Subsystem as _;
use headwater_nvme::fabrics::ConnectionId;
use headwater_nvme::spec::fabrics::discovery_page;
use headwater_nvme::spec::status::Status;
use headwater_nvme::tcp::Slot;
use headwater_nvme::tcp::target::Response;
use headwater_ssd::engine::Device;
use headwater_ssd::media::Media;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventFlags};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

/// Names the listener among the events.
pub(super) const LISTENER: u64 = u64::MAX;
/// How often the kernel is asked for events while device commands are in flight and nothing came last time.
const WATCH_EVERY: Nanos = Nanos::from_micros(5);
/// How long the connection that spoke last is asked first.
const LATEST_FOR: Nanos = Nanos::from_micros(50);
/// How long it may keep the face from asking for the others.
const LATEST_ALONE: Nanos = Nanos::from_micros(20);
/// How often it is asked in one turn, when the device has nothing of this face: a turn takes longer than a look.
const LATEST_LOOKS: u32 = 4;
/// How often connections are looked for that take too long.
const SWEEP_EVERY: Nanos = Nanos::from_millis(250);
/// How often the device is run again in one turn while it keeps answering.
const SETTLE_ROUNDS_MAX: usize = 16;

impl NvmeTcpFace {
    pub(super) fn turn<M: Media>(&mut self, device: &mut Device<M>, now: Nanos, wall: UnixMillis) -> bool {
        self.shared.now = now;
        if !self.introduced {
            self.introduce(device);
        }
        let mut moved = self.take_completions(device);
        moved |= self.take_administered(device);
        moved |= self.retry(device);
        let spoke = self.take_latest(device);
        moved |= spoke;
        if spoke {
            // Its answers need not wait for the others.
            self.settle(device, now, wall);
            self.flush_all();
        }
        // The others are not forgotten over it.
        if !spoke || now.since(self.watched) >= LATEST_ALONE {
            moved |= self.take_events(device);
        }
        moved |= self.feed_hungry(device);
        moved |= self.settle(device, now, wall);
        // Hosts wait for this; the rest of the turn they need not wait for.
        moved |= self.flush_all();
        moved |= self.look_after_controllers(device);
        self.sweep();
        moved |= self.close_doomed();
        for controller in self.shared.gone.drain(..) {
            device.remove_controller(controller.0);
        }
        moved |= self.flush_all();
        moved || !self.hungry.is_empty()
    }

    /// Learns from the device who it is, and tells it where discovery controllers send hosts.
    fn introduce<M: Media>(&mut self, device: &mut Device<M>) {
        /// One subsystem at one address for as long as the face lives: the log never changes.
        const GENERATION: u64 = 1;
        self.introduced = true;
        let name = device.identity().subsystem_name.clone();
        if let Security::Tls(keyring) = &mut self.shared.security {
            // Without keys nobody is let in: that is safe, and said.
            *keyring = Keyring::new(&self.keys, &name)
                .inspect_err(
                    |error| tracing::error!(%error, "NVMe/TCP: no key can be used, every host is refused"),
                )
                .ok();
        }
        let channel = self.shared.security.channel();
        device.set_discovery_log(discovery_page(GENERATION, &name, self.shared.address, channel));
        tracing::info!(address = %self.shared.address, subsystem = %name, "NVMe/TCP hosts may connect");
        self.shared.associations.set_subsystem_name(name);
    }

    /// Asks the connection that spoke last, while that is not long ago: it is the likeliest to speak next, and its socket is
    /// asked for less than the kernel is which socket it is. Whether it spoke.
    fn take_latest<M: Media>(&mut self, device: &mut Device<M>) -> bool {
        let Some((id, spoke)) = self.latest.filter(|(_, spoke)| self.is_recent(*spoke)) else {
            return false;
        };
        let looks = if self.shared.flights.is_empty() { LATEST_LOOKS } else { 1 };
        for _ in 0..looks {
            let Some(mut connection) = self.connections.take(id) else {
                return false;
            };
            connection.readable = true;
            self.feed(device, connection);
            if self.latest.is_some_and(|(_, again)| again > spoke) {
                return true;
            }
        }
        false
    }

    fn is_recent(&self, spoke: Nanos) -> bool {
        self.shared.now.since(spoke) < LATEST_FOR
    }

    fn take_events<M: Media>(&mut self, device: &mut Device<M>) -> bool {
        self.take_kernel_events();
        let events = std::mem::take(&mut self.events);
        for &(data, flags) in &events {
            if data == LISTENER {
                self.accept();
                continue;
            }
            let id = ConnectionId(data);
            let Some(mut connection) = self.connections.take(id) else {
                continue;
            };
            if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
                connection.life = Life::Dead;
            }
            if flags.contains(EventFlags::OUT) && connection.pending() > 0 {
                self.list_for_flush(&mut connection);
            }
            if flags.intersects(EventFlags::IN | EventFlags::RDHUP) {
                connection.readable = true;
                self.feed(device, connection);
            } else {
                self.conclude(connection);
            }
        }
        let moved = !events.is_empty();
        self.events = events;
        moved
    }

    fn take_kernel_events(&mut self) {
        let quiet = self.events.is_empty();
        self.events.clear();
        // A core that turns while it waits for the device, or asks the likeliest connection itself, need not ask the kernel
        // each time round.
        let busy =
            !self.shared.flights.is_empty() || self.latest.is_some_and(|(_, spoke)| self.is_recent(spoke));
        if quiet && busy && self.shared.now.since(self.watched) < WATCH_EVERY {
            return;
        }
        self.watched = self.shared.now;
        let nothing = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut buffer = [MaybeUninit::<epoll::Event>::uninit(); TURN_EVENTS_MAX];
        // An interrupted wait has found nothing; the next turn asks again.
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
                // Nobody is waiting, or there are no descriptors left: then those who wait stay in the kernel's queue.
                Err(_) => return,
            };
            let secure = match &self.shared.security {
                Security::Open => Ok(None),
                Security::Tls(keyring) => {
                    keyring.as_ref().ok_or(()).and_then(|keyring| keyring.stream().map(Some).map_err(drop))
                }
            };
            let (Some(id), Ok(secure)) = (self.connections.vacancy(), secure) else {
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

    /// Reads and runs until the socket is empty, the connection is choked, or it has had its share.
    fn feed<M: Media>(&mut self, device: &mut Device<M>, mut connection: Box<Connection>) {
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut budget = TURN_BYTES_MAX;
        while connection.readable && connection.life != Life::Dead && budget > 0 && !connection.is_choked() {
            match socket::receive(connection.socket.as_fd(), &mut scratch) {
                Got::Nothing => connection.readable = false,
                Got::End => connection.life = Life::Dead,
                Got::Bytes(count) => {
                    // A socket that gave less than was asked for is empty; the kernel says when it is not.
                    connection.readable = count == scratch.len();
                    budget = budget.saturating_sub(count);
                    self.shared.counters.bytes_in += count as u64;
                    self.latest = Some((connection.id, self.shared.now));
                    // What comes behind a fault or a Disconnect, or after the drain has begun, is read so that it is not in
                    // the way.
                    if connection.is_listening() {
                        let mut turn = Turn { device: &mut *device, shared: &mut self.shared };
                        turn.receive(&mut connection, &scratch[..count]);
                    }
                }
            }
        }
        self.scratch = scratch;
        self.conclude(connection);
        // Before the device is run again: what waits for its turn is still to be had.
        self.carry_out_aborts(device);
    }

    /// Reads on where the last turn stopped.
    fn feed_hungry<M: Media>(&mut self, device: &mut Device<M>) -> bool {
        let mut moved = false;
        for _ in 0..self.hungry.len() {
            let Some(mut connection) = self.hungry.pop_front().and_then(|id| self.connections.take(id))
            else {
                continue;
            };
            connection.listed.feeding = false;
            moved = true;
            self.feed(device, connection);
        }
        moved
    }

    /// Runs the device while it answers at once.
    fn settle<M: Media>(&mut self, device: &mut Device<M>, now: Nanos, wall: UnixMillis) -> bool {
        let mut moved = false;
        for _ in 0..SETTLE_ROUNDS_MAX {
            if self.shared.flights.is_empty() {
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

    /// Queues what a connection has to send and closes it when its time has come.
    pub(super) fn conclude(&mut self, mut connection: Box<Connection>) {
        let now = self.shared.now;
        if let Some(slot) = connection.take_farewell() {
            self.disconnect(&mut connection, slot);
        }
        if self.stage == Stage::Draining && connection.life == Life::Open && !connection.owes() {
            connection.life = Life::Closing(now.after(CLOSE_WITHIN));
        }
        if let Life::Closing(until) = connection.life
            && connection.pending() == 0
        {
            if connection.sending == Sending::Open {
                connection.sending = Sending::Over;
                // A termination request must not be lost to a reset: the other side closes first, or its time is over.
                // A failure means that it is gone already.
                let _ = rustix::net::shutdown(&connection.socket, rustix::net::Shutdown::Write);
            }
            if now >= until {
                connection.life = Life::Dead;
            }
        }
        if connection.life == Life::Dead {
            return self.bury(connection);
        }
        if connection.pending() > 0 {
            self.list_for_flush(&mut connection);
        }
        if connection.is_parked() && !connection.listed.parked {
            connection.listed.parked = true;
            self.parked.push(connection.id);
        }
        if connection.readable && !connection.is_choked() && !connection.listed.feeding {
            connection.listed.feeding = true;
            self.hungry.push_back(connection.id);
        }
        self.connections.put_back(connection);
    }

    /// Ends a queue whose host asked for it: its number is free before the host hears of it.
    fn disconnect(&mut self, connection: &mut Connection, slot: Slot) {
        if let Role::Io(id) = connection.role {
            self.shared.doomed.extend(self.shared.associations.leave(id, connection.id));
        }
        connection.respond(slot, Response::status(Status::SUCCESS));
        connection.life = Life::Closing(self.shared.now.after(CLOSE_WITHIN));
    }

    fn bury(&mut self, connection: Box<Connection>) {
        if let Role::Admin(id) = connection.role {
            self.shared.gone.push(id);
        }
        if let Role::Admin(id) | Role::Io(id) = connection.role {
            self.shared.doomed.extend(self.shared.associations.leave(id, connection.id));
        }
        self.connections.forget(connection);
    }

    fn list_for_flush(&mut self, connection: &mut Connection) {
        if !connection.listed.flushing {
            connection.listed.flushing = true;
            self.flush.push(connection.id);
        }
    }

    /// Closes connections whose controller is gone.
    fn close_doomed(&mut self) -> bool {
        let mut any = false;
        while let Some(id) = self.shared.doomed.pop() {
            if let Some(mut connection) = self.connections.take(id) {
                any = true;
                connection.life = Life::Dead;
                self.conclude(connection);
            }
        }
        any
    }

    /// Closes connections that never became a queue, or take too long to end.
    fn sweep(&mut self) {
        let now = self.shared.now;
        if now.since(self.swept) < SWEEP_EVERY {
            return;
        }
        self.swept = now;
        let late = self.connections.iter().filter(|connection| match (connection.life, connection.role) {
            (Life::Closing(until), _) => now >= until,
            (_, Role::Stranger) => now.since(connection.born) >= JOIN_WITHIN,
            _ => false,
        });
        self.shared.doomed.extend(late.map(|connection| connection.id).collect::<Vec<_>>());
    }

    /// Sends what there is to send, once for each connection.
    fn flush_all(&mut self) -> bool {
        let mut listed = std::mem::take(&mut self.flush);
        let mut moved = false;
        for id in listed.drain(..) {
            let Some(mut connection) = self.connections.take(id) else {
                continue;
            };
            connection.listed.flushing = false;
            let (socket, pdus) = (connection.socket.as_fd(), connection.target.outgoing_mut());
            let (flushed, sent) = match &mut connection.secure {
                Some(stream) => secure::flush(socket, stream, pdus),
                None => socket::flush(socket, pdus),
            };
            moved |= sent > 0;
            self.shared.counters.bytes_out += sent as u64;
            match flushed {
                // The kernel says when it takes more.
                Flushed::Blocked => connection.listed.flushing = true,
                Flushed::All => {}
                Flushed::Gone => connection.life = Life::Dead,
            }
            self.conclude(connection);
            if let Some(mut connection) = self.connections.take(id) {
                connection.listed.flushing = false;
                self.connections.put_back(connection);
            }
        }
        if self.flush.is_empty() {
            // The list's memory is kept.
            self.flush = listed;
        }
        moved
    }
}
