//! An I/O queue, which outlives the connection that it is.
//!
//! In: commands with tokens. Out: one completion each, with the same tokens. When the device is gone the queue finds it again
//! through its session and sends what was not answered once more, in the order of submission.
//!
//! ```text
//!   connected --connection over, or a new controller--> (session connects, unanswered sent again) --> connected
//!       |                                                     | nobody answers in time, or it refuses
//!       +<-- completions                                      v
//!                                                         given up: every call says so
//! ```

use super::NvmeTcpTarget;
use super::control::{Control, connect_command, refused};
use super::link::{Done, Link};
use super::session::Session;
use crate::backend::{Answer, Armed, Limits, Transport};
use crate::command::{Command, Data};
use crate::device::TRANSFER_BYTES_MAX;
use crate::error::{IoError, Rejected, SubmitError};
use crate::queue::Completion;
use headwater_host::clock::Nanos;
use headwater_nvme::spec::fabrics::disconnect_entry;
use headwater_nvme::tcp::Transfer;
use headwater_nvme::tcp::initiator::Untaken;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Longest sleep between two looks whether the session has found another controller.
const LOOK_EVERY: Nanos = Nanos::from_millis(500);
/// How long a device may take to answer that a queue is over; who leaves does not wait for long.
const FAREWELL_WITHIN: Nanos = Nanos::from_millis(500);

/// A command in flight.
#[derive(Debug)]
struct Unanswered {
    command: Command,
    token: u64,
    /// Its place in the order of submission.
    order: u64,
}

/// The queue.
#[derive(Debug)]
pub(super) struct TcpQueue {
    session: Arc<Session>,
    epoch: u64,
    number: u16,
    depth: u32,
    link: Link,
    /// By place.
    unanswered: Vec<Option<Unanswered>>,
    free: Vec<usize>,
    submitted: u64,
    given_up: bool,
}

/// Connects queue `number` of a controller. Blocks.
pub(super) fn open_link(
    target: &NvmeTcpTarget,
    control: &Control,
    number: u16,
    depth: u32,
) -> Result<Link, IoError> {
    // A queue of n entries holds n - 1 commands.
    let entries = u16::try_from(depth + 1)
        .ok()
        .filter(|&entries| depth > 0 && u32::from(entries) <= control.entries_max);
    let entries = entries.ok_or_else(|| IoError::Refused {
        reason: format!("a queue of {depth} commands; the device takes 1 to {}", control.entries_max - 1),
    })?;
    let mut link = Link::open(target, entries - 1, control.in_capsule_max)?;
    let (entry, data) = connect_command(target, number, entries, control.controller)?;
    let status = link.call(entry, data)?.status();
    if status.is_success() { Ok(link) } else { Err(refused(target, status)) }
}

impl TcpQueue {
    /// Connects another queue. Blocks.
    pub(super) fn open(session: Arc<Session>, depth: u32) -> Result<Self, IoError> {
        let number = session.take_number()?;
        let before = session.epoch();
        let linked = match session.link(number, depth) {
            Err(IoError::Gone { .. }) => session.link_again(before, number, depth),
            linked => linked,
        };
        if linked.is_err() {
            session.give_number(number);
        }
        let (link, epoch) = linked?;
        let places = usize::try_from(depth).unwrap_or(0);
        Ok(Self {
            session,
            epoch,
            number,
            depth,
            link,
            unanswered: (0..places).map(|_| None).collect(),
            free: (0..places).rev().collect(),
            submitted: 0,
            given_up: false,
        })
    }

    /// Finds the device again and sends what was not answered.
    #[cold]
    fn find_again(&mut self) -> Result<(), IoError> {
        let found = self.session.link_again(self.epoch, self.number, self.depth);
        self.given_up = found.is_err();
        let (link, epoch) = found?;
        (self.link, self.epoch) = (link, epoch);
        let mut places: Vec<(u64, usize)> = (0..)
            .zip(&self.unanswered)
            .filter_map(|(place, command)| command.as_ref().map(|command| (command.order, place)))
            .collect();
        places.sort_unstable();
        for (_, place) in places {
            if let Some(Unanswered { command, .. }) = &self.unanswered[place] {
                // A new connection has room for all; if it is over again, the next look finds out.
                let _ = hand_over(&mut self.link, command, place);
            }
        }
        // As above.
        let _ = self.link.flush();
        Ok(())
    }

    fn complete(&mut self, done: &Done) -> Option<Answer> {
        let place = usize::try_from(done.token).ok()?;
        let command = self.unanswered.get_mut(place)?.take()?;
        self.free.push(place);
        let completion =
            Completion { token: command.token, result: done.entry.result.get(), status: done.entry.status() };
        Some(Answer { completion, data: command.command.data })
    }
}

/// Queues a command on a connection under the number of its place.
#[inline]
fn hand_over(link: &mut Link, command: &Command, place: usize) -> Result<(), SubmitError> {
    let transfer = match &command.data {
        Data::None => Transfer::None,
        Data::ToDevice(buffer) => Transfer::Out(buffer.clone()),
        Data::FromDevice(buffer) => Transfer::In(buffer.clone()),
        Data::Gather(_) | Data::Scatter(_) => return Err(SubmitError::IN_PIECES),
    };
    match link.submit(command.entry, transfer, place as u64) {
        Ok(()) => Ok(()),
        Err(Untaken::Full(_)) => Err(SubmitError::Full),
        Err(Untaken::NotOpen(_)) => Err(SubmitError::Gone),
    }
}

impl Transport for TcpQueue {
    fn limits(&self) -> Limits {
        Limits { transfer_bytes_max: TRANSFER_BYTES_MAX, segments_max: 1, memory_align: 1 }
    }

    fn submit(&mut self, command: Command, token: u64) -> Result<(), Rejected> {
        if self.given_up {
            return Err(Rejected { command, reason: SubmitError::Gone });
        }
        let Some(&place) = self.free.last() else {
            return Err(Rejected { command, reason: SubmitError::Full });
        };
        match hand_over(&mut self.link, &command, place) {
            // A connection that is over takes nothing: the command goes with all others to the next one.
            Ok(()) | Err(SubmitError::Gone) => {}
            Err(reason) => return Err(Rejected { command, reason }),
        }
        self.free.pop();
        self.submitted += 1;
        self.unanswered[place] = Some(Unanswered { command, token, order: self.submitted });
        Ok(())
    }

    fn ring(&mut self) -> Result<(), IoError> {
        // That the connection is over is found when answers are looked for: some may have come before its end.
        let _ = self.link.flush();
        Ok(())
    }

    fn reap(&mut self) -> Result<Option<Answer>, IoError> {
        let looked = self.link.reap();
        let over = looked.is_err() || self.epoch != self.session.epoch();
        if let Some(done) = looked.unwrap_or(None).or_else(|| self.link.take_done()) {
            return Ok(self.complete(&done));
        }
        if over {
            self.find_again()?;
        }
        // What an R2T asked for leaves with the next look at the latest; a failure is found by the one after.
        let _ = self.link.flush();
        Ok(None)
    }

    fn sleep(&mut self, longest: Option<Nanos>) -> Result<(), IoError> {
        // A failure is found by the next look.
        let _ = self.link.sleep(Some(longest.map_or(LOOK_EVERY, |longest| longest.min(LOOK_EVERY))));
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.link.descriptor())
    }

    fn arm(&mut self) -> Result<Armed, IoError> {
        // A failure is found by the next look. The socket is readable while there is something to take.
        let _ = self.link.flush();
        Ok(if self.link.has_done() { Armed::Ready } else { Armed::Waiting })
    }

    fn in_flight(&self) -> u32 {
        u32::try_from(self.unanswered.len() - self.free.len()).unwrap_or(u32::MAX)
    }

    fn depth(&self) -> u32 {
        self.depth
    }
}

impl Drop for TcpQueue {
    fn drop(&mut self) {
        let at_rest = !self.given_up && self.in_flight() == 0 && self.epoch == self.session.epoch();
        if at_rest && self.session.disconnects() {
            // Closing the connection says the same, less politely.
            let _ = self.link.call_within(disconnect_entry(), Transfer::None, FAREWELL_WITHIN);
        }
        self.session.give_number(self.number);
    }
}
