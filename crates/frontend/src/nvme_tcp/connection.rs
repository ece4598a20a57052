//! One connection of a host: its socket, its end of the protocol, and the commands it is owed answers for.
//!
//! In: bytes and answers. Out: work by slot, and room for what is on its way out. Invariant: bytes on their way to the host,
//! in the device or in the output, stay under the limit; what would exceed it waits in its slot.

use super::limits::{OUTPUT_BYTES_MAX, READ_BYTES_MAX};
use headwater_dma::pool::Pool;
use headwater_host::clock::Nanos;
use headwater_nvme::fabrics::{ConnectionId, ControllerId};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::opcode::AdminOpcode;
use headwater_nvme::tcp::secure::SecureStream;
use headwater_nvme::tcp::target::Response;
use headwater_nvme::tcp::{Slot, TargetConnection, TargetParameters};
use headwater_ssd::nvme::interpreter::IoCommand;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// What a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// No queue yet.
    Stranger,
    /// The admin queue of a controller.
    Admin(ControllerId),
    /// An I/O queue of a controller.
    Io(ControllerId),
}

/// A command between its capsule and its answer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    /// Nothing, or already in the device.
    None,
    /// Connect.
    Connect(SubmissionEntry),
    /// A command of an admin queue.
    Admin(SubmissionEntry),
    /// A command of an I/O queue.
    Io(IoCommand),
}

/// How a connection ends.
///
/// ```text
///   Open --fault, drained--> Closing --everything sent, or too late--> Dead
///     |                                                                 ^
///     +---- the other side is gone, or its controller is ---------------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// It does not.
    Open,
    /// When what is to be sent has been sent, or at this time.
    Closing(Nanos),
    /// Now.
    Dead,
}

/// Whether anything may still be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sending {
    /// It may.
    Open,
    /// The other side was told that nothing follows.
    Over,
}

/// On which of the face's lists a connection is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Listed {
    /// To be flushed.
    pub(super) flushing: bool,
    /// To be fed.
    pub(super) feeding: bool,
    /// To go on with what is parked.
    pub(super) parked: bool,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnectionId,
    pub(super) socket: OwnedFd,
    pub(super) target: TargetConnection,
    /// TLS around it.
    pub(super) secure: Option<Box<SecureStream>>,
    pub(super) role: Role,
    pub(super) life: Life,
    pub(super) born: Nanos,
    /// The kernel said that there may be bytes, and no read has found the end of them.
    pub(super) readable: bool,
    pub(super) listed: Listed,
    pub(super) sending: Sending,
    /// Commands in the device.
    pub(super) in_flight: usize,
    /// Bytes that they will bring.
    owed: usize,
    work: Vec<Work>,
    /// Commands that wait for room, in order.
    parked: VecDeque<Slot>,
    /// Event requests: their identifiers and slots.
    held: Vec<(u16, Slot)>,
    /// A Disconnect, the last command that is taken; it is answered when all others are.
    farewell: Option<Slot>,
}

impl Work {
    /// Whether it is an Abort: it needs no room, and goes past what waits for some.
    pub(super) fn is_abort(&self) -> bool {
        matches!(self, Self::Admin(entry) if entry.opcode == AdminOpcode::Abort.number())
    }
}

/// The controller's end, with payload in the pool of the process if there is one.
fn target() -> TargetConnection {
    let target = TargetConnection::new(TargetParameters::default());
    match Pool::of_process() {
        Ok(pool) => target.with_pool(pool),
        Err(_) => target,
    }
}

impl Connection {
    pub(super) fn new(
        id: ConnectionId,
        socket: OwnedFd,
        secure: Option<Box<SecureStream>>,
        now: Nanos,
    ) -> Self {
        Self {
            id,
            socket,
            target: target(),
            secure,
            role: Role::Stranger,
            life: Life::Open,
            born: now,
            readable: false,
            listed: Listed::default(),
            sending: Sending::Open,
            in_flight: 0,
            owed: 0,
            work: Vec::new(),
            parked: VecDeque::new(),
            held: Vec::new(),
            farewell: None,
        }
    }

    /// Bytes not sent yet.
    #[inline]
    pub(super) fn pending(&self) -> usize {
        let sealed = self.secure.as_ref().map_or(0, |stream| stream.outgoing().len());
        self.target.outgoing().pending() + sealed
    }

    /// Whether nothing more may be read from it for now.
    #[inline]
    pub(super) fn is_choked(&self) -> bool {
        self.pending() >= OUTPUT_BYTES_MAX
    }

    #[inline]
    pub(super) fn set_work(&mut self, slot: Slot, work: Work) {
        let place = usize::from(slot.0);
        if self.work.len() <= place {
            self.work.resize(place + 1, Work::None);
        }
        self.work[place] = work;
    }

    #[inline]
    pub(super) fn take_work(&mut self, slot: Slot) -> Work {
        self.work.get_mut(usize::from(slot.0)).map_or(Work::None, |work| std::mem::replace(work, Work::None))
    }

    /// Makes room for an answer of so many bytes, or none.
    #[inline]
    pub(super) fn reserve(&mut self, bytes: usize) -> bool {
        let taken = self.owed + self.pending();
        let fits = taken == 0 || taken + bytes <= READ_BYTES_MAX;
        if fits {
            self.owed += bytes;
        }
        fits
    }

    /// An answer for which room was made is here.
    #[inline]
    pub(super) fn settle(&mut self, bytes: usize) {
        self.owed -= bytes;
    }

    /// A command waits, behind those that wait already.
    pub(super) fn park(&mut self, slot: Slot, work: Work) {
        self.set_work(slot, work);
        self.parked.push_back(slot);
    }

    /// A command that could not go on after all waits again, before all others.
    pub(super) fn park_first(&mut self, slot: Slot, work: Work) {
        self.set_work(slot, work);
        self.parked.push_front(slot);
    }

    pub(super) fn is_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    pub(super) fn unpark(&mut self) -> Option<Slot> {
        self.parked.pop_front()
    }

    /// Takes a command that waits out of line. Whether it waited.
    pub(super) fn unpark_one(&mut self, slot: Slot) -> bool {
        let Some(place) = self.parked.iter().position(|&parked| parked == slot) else {
            return false;
        };
        self.parked.remove(place);
        self.set_work(slot, Work::None);
        true
    }

    /// Keeps an event request.
    pub(super) fn hold(&mut self, command_id: u16, slot: Slot) {
        self.held.push((command_id, slot));
    }

    /// The slot of an event request that is answered now.
    pub(super) fn release(&mut self, command_id: u16) -> Option<Slot> {
        let place = self.held.iter().position(|(held, _)| *held == command_id)?;
        Some(self.held.swap_remove(place).1)
    }

    /// Takes no command after this one, which ends the queue.
    pub(super) fn bid_farewell(&mut self, slot: Slot) {
        self.farewell = Some(slot);
    }

    /// Whether commands are still taken.
    #[inline]
    pub(super) fn is_listening(&self) -> bool {
        self.life == Life::Open && self.farewell.is_none()
    }

    /// The Disconnect, once every command before it was answered.
    pub(super) fn take_farewell(&mut self) -> Option<Slot> {
        if self.owes() { None } else { self.farewell.take() }
    }

    /// Commands that somebody still has to answer; event requests are not among them.
    pub(super) fn owes(&self) -> bool {
        self.in_flight > 0 || self.is_parked()
    }

    #[inline]
    pub(super) fn respond(&mut self, slot: Slot, response: Response) {
        self.target.respond(slot, response);
    }
}
