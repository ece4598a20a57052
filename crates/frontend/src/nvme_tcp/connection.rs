//! One connection of a host: its socket, its protocol state and its unanswered commands.
//!
//! Input: bytes and responses. Output: work by slot, and reservations of output bytes. Invariant: bytes on their way to
//! the host, in the device or in the output, stay under the limit; a command that would exceed it waits in its slot.

use super::connection_receipts::ConnectionReceipts;
use super::limits::{OUTPUT_BYTES_MAX, READ_BYTES_MAX};
use headwater_dma::pool::Pool;
use headwater_host::clock::Nanos;
use headwater_nvme::fabrics::{ConnectionId, ControllerId};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::opcode::AdminOpcode;
use headwater_nvme::tcp::secure::SecureStream;
use headwater_nvme::tcp::target::TargetResponse;
use headwater_nvme::tcp::{ExchangeSlot, TargetConnection, TargetParameters};
use headwater_ssd::nvme::decoder::IoCommand;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// The role of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionRole {
    /// No queue: before Connect.
    Unconnected,
    /// The admin queue of a controller.
    Admin(ControllerId),
    /// An I/O queue of a controller.
    Io(ControllerId),
}

/// A command between its capsule and its response.
#[derive(Clone, Copy, Debug)]
pub(super) enum SlotWork {
    /// No command, or one already in the device.
    None,
    /// Connect.
    Connect(SubmissionEntry),
    /// A command of an admin queue.
    Admin(SubmissionEntry),
    /// A command of an I/O queue.
    Io(IoCommand),
}

/// The lifetime of a connection.
///
/// ```text
///   Open --fault, drained--> Closing --everything sent, or time limit--> Dead
///     |                                                                   ^
///     +---- the host or the controller is gone ---------------------------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NvmeTcpConnectionLife {
    /// In service.
    Open,
    /// Closes when its output is sent, or at this time.
    Closing(Nanos),
    /// Closes now.
    Dead,
}

/// The state of the sending direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendState {
    /// Open.
    Open,
    /// Shut down.
    ShutDown,
}

/// The front end's lists that contain a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ListMembership {
    /// The list of connections to flush.
    pub(super) flushing: bool,
    /// The list of connections to read from.
    pub(super) feeding: bool,
    /// The list of connections with parked commands.
    pub(super) parked: bool,
}

#[derive(Debug)]
pub(super) struct NvmeTcpConnection {
    pub(super) id: ConnectionId,
    pub(super) socket: OwnedFd,
    pub(super) target: TargetConnection,
    /// Its TLS stream.
    pub(super) secure: Option<Box<SecureStream>>,
    pub(super) role: ConnectionRole,
    /// True if its host selected an I/O command set (CC.CSS), on an I/O queue.
    pub(super) has_io_commands: bool,
    pub(super) life: NvmeTcpConnectionLife,
    pub(super) accepted_at: Nanos,
    /// True if the socket may hold unread bytes.
    pub(super) readable: bool,
    /// True if the host closed its end: no event follows, so the socket is read up to its end.
    pub(super) hung_up: bool,
    pub(super) lists: ListMembership,
    pub(super) sending: SendState,
    /// The values that the device receives for its commands.
    pub(super) receipts: ConnectionReceipts,
    /// Commands in the device.
    pub(super) in_flight: usize,
    /// Bytes reserved for their responses.
    reserved: usize,
    work: Vec<SlotWork>,
    /// Commands that wait for room, in order.
    parked: VecDeque<ExchangeSlot>,
    /// Asynchronous Event Requests: their command identifiers and slots.
    event_requests: Vec<(u16, ExchangeSlot)>,
    /// A Disconnect, the last command accepted; answered after all other commands.
    disconnect: Option<ExchangeSlot>,
}

impl SlotWork {
    /// Returns true for an Abort: it needs no room, and overtakes parked commands.
    pub(super) fn is_abort(&self) -> bool {
        matches!(self, Self::Admin(entry) if entry.opcode == AdminOpcode::Abort.number())
    }
}

/// Creates the controller's side of the protocol, with payload in the process's pool if there is one.
fn create_target() -> TargetConnection {
    let target = TargetConnection::new(TargetParameters::default());
    match Pool::of_process() {
        Ok(pool) => target.with_pool(pool),
        Err(_) => target,
    }
}

impl NvmeTcpConnection {
    pub(super) fn new(
        id: ConnectionId,
        socket: OwnedFd,
        secure: Option<Box<SecureStream>>,
        now: Nanos,
    ) -> Self {
        Self {
            id,
            socket,
            target: create_target(),
            secure,
            role: ConnectionRole::Unconnected,
            has_io_commands: false,
            life: NvmeTcpConnectionLife::Open,
            accepted_at: now,
            readable: false,
            hung_up: false,
            lists: ListMembership::default(),
            sending: SendState::Open,
            receipts: ConnectionReceipts::default(),
            in_flight: 0,
            reserved: 0,
            work: Vec::new(),
            parked: VecDeque::new(),
            event_requests: Vec::new(),
            disconnect: None,
        }
    }

    /// Returns the number of unsent bytes.
    #[inline]
    pub(super) fn pending(&self) -> usize {
        let sealed = self.secure.as_ref().map_or(0, |stream| stream.outgoing().len());
        self.target.outgoing().pending() + sealed
    }

    /// Returns true if reading from it must pause.
    #[inline]
    pub(super) fn is_read_paused(&self) -> bool {
        self.pending() >= OUTPUT_BYTES_MAX || self.receipts.is_stalled()
    }

    #[inline]
    pub(super) fn set_work(&mut self, slot: ExchangeSlot, work: SlotWork) {
        let at = usize::from(slot.0);
        if self.work.len() <= at {
            self.work.resize(at + 1, SlotWork::None);
        }
        self.work[at] = work;
    }

    #[inline]
    pub(super) fn take_work(&mut self, slot: ExchangeSlot) -> SlotWork {
        self.work
            .get_mut(usize::from(slot.0))
            .map_or(SlotWork::None, |work| std::mem::replace(work, SlotWork::None))
    }

    /// Reserves output for a response of `bytes` bytes. Returns false if it does not fit.
    #[inline]
    pub(super) fn reserve(&mut self, bytes: usize) -> bool {
        let taken = self.reserved + self.pending();
        let fits = taken == 0 || taken + bytes <= READ_BYTES_MAX;
        if fits {
            self.reserved += bytes;
        }
        fits
    }

    /// Ends a reservation.
    #[inline]
    pub(super) fn end_reservation(&mut self, bytes: usize) {
        assert!(bytes <= self.reserved, "{bytes} bytes are released, {} are reserved", self.reserved);
        self.reserved -= bytes;
    }

    /// Parks a command, behind all parked commands.
    pub(super) fn park(&mut self, slot: ExchangeSlot, work: SlotWork) {
        self.set_work(slot, work);
        self.parked.push_back(slot);
    }

    /// Parks a command again, before all parked commands.
    pub(super) fn park_first(&mut self, slot: ExchangeSlot, work: SlotWork) {
        self.set_work(slot, work);
        self.parked.push_front(slot);
    }

    pub(super) fn is_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    pub(super) fn unpark(&mut self) -> Option<ExchangeSlot> {
        self.parked.pop_front()
    }

    /// Removes a command from the parked ones. Returns true if it was parked.
    pub(super) fn unpark_one(&mut self, slot: ExchangeSlot) -> bool {
        let Some(at) = self.parked.iter().position(|&parked| parked == slot) else {
            return false;
        };
        self.parked.remove(at);
        self.set_work(slot, SlotWork::None);
        true
    }

    /// Keeps an Asynchronous Event Request.
    pub(super) fn hold_event_request(&mut self, command_id: u16, slot: ExchangeSlot) {
        self.target.hold(slot);
        self.event_requests.push((command_id, slot));
    }

    /// Removes an Asynchronous Event Request and returns its slot.
    pub(super) fn take_event_request(&mut self, command_id: u16) -> Option<ExchangeSlot> {
        let at = self.event_requests.iter().position(|(held, _)| *held == command_id)?;
        Some(self.event_requests.swap_remove(at).1)
    }

    /// Stores a Disconnect; no further command is accepted.
    pub(super) fn begin_disconnect(&mut self, slot: ExchangeSlot) {
        self.disconnect = Some(slot);
    }

    /// Returns true if commands are still accepted.
    #[inline]
    pub(super) fn accepts_commands(&self) -> bool {
        self.life == NvmeTcpConnectionLife::Open && self.disconnect.is_none()
    }

    /// Returns the Disconnect, once every command before it is answered.
    pub(super) fn take_disconnect(&mut self) -> Option<ExchangeSlot> {
        if self.has_unanswered() { None } else { self.disconnect.take() }
    }

    /// Returns true if commands are unanswered, except for Asynchronous Event Requests.
    pub(super) fn has_unanswered(&self) -> bool {
        self.in_flight > 0 || self.is_parked()
    }

    /// Answers a command, and gives back what a receipt holds for it.
    #[inline]
    pub(super) fn respond(&mut self, slot: ExchangeSlot, response: TargetResponse) {
        self.receipts.end(slot);
        self.target.respond(slot, response);
    }
}
