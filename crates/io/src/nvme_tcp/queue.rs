//! An I/O queue, which survives the end of its connection.
//!
//! Input: commands with tokens. Output: one completion each, with the same tokens. When the device is gone the queue
//! reconnects through its session and resubmits the unanswered commands in the order of submission.
//!
//! ```text
//!   connected --connection over, or a new controller--> (session connects, unanswered resubmitted) --> connected
//!       |                                                     | no device answers in time, or it refuses
//!       +<-- completions                                      v
//!                                                         given up: every call fails
//! ```

use super::NvmeTcpTarget;
use super::admin_connection::{AdminConnection, connect_command, refused};
use super::command_buffers::CommandBuffers;
use super::link::{TaggedCompletion, TcpLink};
use super::session::TcpSession;
use crate::backend::{ArmResult, CompletedCommand, IoLimits, QueueTransport};
use crate::command::Command;
use crate::command::TRANSFER_BYTES_MAX;
use crate::error::{IoError, RejectedCommand, SubmitError};
use crate::queue::Completion;
use headwater_host::clock::Nanos;
use headwater_host::width::narrow;
use headwater_nvme::spec::fabrics::disconnect_entry;
use headwater_nvme::tcp::CommandTransfer;
use headwater_nvme::tcp::initiator::InitiatorSubmitError;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Maximum buffers of one command.
const SEGMENTS_MAX: usize = 256;
/// Longest sleep between two checks if the session has connected another controller.
const SESSION_CHECK_INTERVAL: Nanos = Nanos::from_millis(500);
/// Longest wait for the completion of a Disconnect; kept short because it delays the drop of the queue.
const DISCONNECT_TIMEOUT: Nanos = Nanos::from_millis(500);

/// A command in flight.
#[derive(Debug)]
struct TcpCommand {
    command: Command,
    token: u64,
    /// Its place in the order of submission.
    order: u64,
}

/// An I/O queue over NVMe/TCP.
#[derive(Debug)]
pub(super) struct TcpQueue {
    session: Arc<TcpSession>,
    epoch: u64,
    number: u16,
    depth: u32,
    link: TcpLink,
    /// The commands in flight, by slot.
    unanswered: Vec<Option<TcpCommand>>,
    free: Vec<usize>,
    submitted: u64,
    given_up: bool,
}

/// Connects queue `number` of a controller. Blocks.
pub(super) fn open_link(
    target: &NvmeTcpTarget,
    control: &AdminConnection,
    number: u16,
    depth: u32,
) -> Result<TcpLink, IoError> {
    // A queue of n entries holds n - 1 commands.
    let entries = u16::try_from(depth + 1)
        .ok()
        .filter(|&entries| depth > 0 && u32::from(entries) <= control.entries_max);
    let entries = entries.ok_or_else(|| IoError::Limit {
        reason: format!(
            "queue depth {depth} is out of range for {}; choose 1 to {}",
            target.address,
            control.entries_max.saturating_sub(1)
        ),
    })?;
    let mut link = TcpLink::open(target, entries - 1, control.in_capsule_max)?;
    let (entry, data) = connect_command(target, number, entries, control.controller)?;
    let status = link.call(entry, data)?.status();
    if status.is_success() { Ok(link) } else { Err(refused(target, status)) }
}

impl TcpQueue {
    /// Connects a new queue. Blocks.
    pub(super) fn open(session: Arc<TcpSession>, depth: u32) -> Result<Self, IoError> {
        let number = session.allocate_number()?;
        let before = session.epoch();
        let linked = match session.connect_queue(number, depth) {
            Err(IoError::Gone { .. }) => session.reconnect_queue(before, number, depth),
            linked => linked,
        };
        if linked.is_err() {
            session.release_number(number);
        }
        let (link, epoch) = linked?;
        let slots = depth as usize;
        Ok(Self {
            session,
            epoch,
            number,
            depth,
            link,
            unanswered: (0..slots).map(|_| None).collect(),
            free: (0..slots).rev().collect(),
            submitted: 0,
            given_up: false,
        })
    }

    /// Reconnects to the device and resubmits the unanswered commands.
    #[cold]
    fn reconnect(&mut self) -> Result<(), IoError> {
        let found = self.session.reconnect_queue(self.epoch, self.number, self.depth);
        self.given_up = found.is_err();
        let (link, epoch) = found?;
        (self.link, self.epoch) = (link, epoch);
        let mut slots: Vec<(u64, usize)> = (0..)
            .zip(&self.unanswered)
            .filter_map(|(slot, command)| command.as_ref().map(|command| (command.order, slot)))
            .collect();
        slots.sort_unstable();
        for (_, slot) in slots {
            if let Some(TcpCommand { command, .. }) = &self.unanswered[slot] {
                // A new connection has capacity for all; if it has ended again, the next poll detects that.
                let _ = submit_on_link(&mut self.link, command, slot);
            }
        }
        // A failure is detected by the next poll.
        let _ = self.link.flush();
        Ok(())
    }

    fn complete(&mut self, done: &TaggedCompletion) -> Option<CompletedCommand> {
        let slot = usize::try_from(done.token).ok()?;
        let command = self.unanswered.get_mut(slot)?.take()?;
        self.free.push(slot);
        let completion =
            Completion { token: command.token, result: done.entry.result.get(), status: done.entry.status() };
        Some(CompletedCommand { completion, data: command.command.data })
    }
}

/// Enqueues a command on a connection, with its slot as the token.
#[inline]
fn submit_on_link(link: &mut TcpLink, command: &Command, slot: usize) -> Result<(), SubmitError> {
    if command.data.buffers().len() > SEGMENTS_MAX {
        return Err(SubmitError::TOO_MANY_BUFFERS);
    }
    match link.submit(command.entry, CommandBuffers::transfer(&command.data), slot as u64) {
        Ok(()) => Ok(()),
        Err(InitiatorSubmitError::Full(_)) => Err(SubmitError::Full),
        Err(InitiatorSubmitError::NotOpen(_)) => Err(SubmitError::Gone),
        Err(InitiatorSubmitError::TooLong(_)) => {
            Err(SubmitError::Unsupported { what: "a command takes less than 4 GiB of data; divide it" })
        }
    }
}

impl QueueTransport for TcpQueue {
    fn limits(&self) -> IoLimits {
        IoLimits { transfer_bytes_max: TRANSFER_BYTES_MAX, segments_max: SEGMENTS_MAX, memory_align: 1 }
    }

    fn submit(&mut self, command: Command, token: u64) -> Result<(), RejectedCommand> {
        if self.given_up {
            return Err(RejectedCommand { command, reason: SubmitError::Gone });
        }
        let Some(&slot) = self.free.last() else {
            return Err(RejectedCommand { command, reason: SubmitError::Full });
        };
        match submit_on_link(&mut self.link, &command, slot) {
            // The connection has ended: the command is resubmitted with the rest over the next one.
            Ok(()) | Err(SubmitError::Gone) => {}
            Err(reason) => return Err(RejectedCommand { command, reason }),
        }
        self.free.pop();
        self.submitted += 1;
        self.unanswered[slot] = Some(TcpCommand { command, token, order: self.submitted });
        Ok(())
    }

    fn ring(&mut self) -> Result<(), IoError> {
        // The end of the connection is detected by `reap`: completions may have arrived before it.
        let _ = self.link.flush();
        Ok(())
    }

    fn reap(&mut self) -> Result<Option<CompletedCommand>, IoError> {
        let reaped = self.link.reap();
        let over = reaped.is_err() || self.epoch != self.session.epoch();
        if let Some(done) = reaped.unwrap_or(None).or_else(|| self.link.take_done()) {
            return Ok(self.complete(&done));
        }
        if over {
            self.reconnect()?;
        }
        // Data requested by an R2T is sent here; a failure is detected by the next poll.
        let _ = self.link.flush();
        Ok(None)
    }

    fn sleep(&mut self, longest: Option<Nanos>) -> Result<(), IoError> {
        // A failure is detected by the next poll.
        let _ = self.link.sleep(Some(
            longest.map_or(SESSION_CHECK_INTERVAL, |longest| longest.min(SESSION_CHECK_INTERVAL)),
        ));
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.link.descriptor())
    }

    fn arm(&mut self) -> Result<ArmResult, IoError> {
        // A failure is detected by the next poll. The socket is readable while it holds bytes.
        let _ = self.link.flush();
        Ok(if self.link.has_done() { ArmResult::Ready } else { ArmResult::Armed })
    }

    fn visit_tokens(&mut self, visit: &mut dyn FnMut(&mut u64)) {
        self.unanswered.iter_mut().flatten().for_each(|command| visit(&mut command.token));
    }

    fn in_flight(&self) -> u32 {
        narrow(self.unanswered.len() - self.free.len())
    }

    fn depth(&self) -> u32 {
        self.depth
    }
}

impl Drop for TcpQueue {
    fn drop(&mut self) {
        let at_rest = !self.given_up && self.in_flight() == 0 && self.epoch == self.session.epoch();
        if at_rest && self.session.may_disconnect() {
            // If Disconnect fails, closing the connection ends the queue too.
            let _ = self.link.call_within(disconnect_entry(), CommandTransfer::None, DISCONNECT_TIMEOUT);
        }
        self.session.release_number(self.number);
    }
}
