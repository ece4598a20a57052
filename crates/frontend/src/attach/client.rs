//! One attached client: its socket, what it holds, what it waits for.
//!
//! In: what the control plane did for it. Out: whether it is in trouble. Invariant: everything it holds stands in its
//! tables, so forgetting them forgets it.

use super::policy::Person;
use super::{SWEEP_EVERY, SWEEPS_MAX};
use headwater_dma::iova::Revocation;
use headwater_host::clock::Nanos;
use headwater_host::ring_memory::ForeignWords;
use headwater_host::wake_line::WakeLine;
use headwater_io::attach::admin::{ClientFacts, Grant};
use headwater_io::attach::connection::send_message;
use headwater_io::attach::protocol::{Reply, encode};
use headwater_nvme::controller::{QueueId, QueueState};
use headwater_ssd::nvme::rings::{ClientId, ClientRings};
use rustix::event::epoll;
use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Names a client of this face; never given out twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ClientKey(pub(super) u64);

/// What an event of the control plane is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Somebody wants to come in.
    Listener,
    /// A client's socket.
    Control(ClientKey),
    /// The line of a client's queue.
    Line(ClientKey, u16),
}

impl Place {
    pub(super) fn data(self) -> epoll::EventData {
        epoll::EventData::new_u64(match self {
            Self::Listener => u64::MAX,
            Self::Control(ClientKey(key)) => key << 16,
            Self::Line(ClientKey(key), queue) => (key << 16) | u64::from(queue),
        })
    }

    pub(super) fn of(data: epoll::EventData) -> Self {
        let number = data.u64();
        let key = ClientKey(number >> 16);
        match u16::try_from(number & 0xFFFF) {
            _ if number == u64::MAX => Self::Listener,
            Ok(queue @ 1..) => Self::Line(key, queue),
            _ => Self::Control(key),
        }
    }
}

/// A queue of a client.
#[derive(Debug)]
pub(super) struct HeldQueue {
    pub(super) line: WakeLine,
    /// Bytes of ring memory, which count as the client's.
    pub(super) bytes: u64,
    /// Looks in a row that found answers it does not take.
    stuck: u32,
}

impl HeldQueue {
    pub(super) fn new(line: WakeLine, bytes: u64) -> Self {
        Self { line, bytes, stuck: 0 }
    }
}

/// A request whose answer must wait.
#[derive(Debug)]
pub(super) enum Waiting {
    /// For a region to be quiet.
    Release(Revocation),
    /// For a queue to be drained.
    Delete(QueueId),
    /// For a queue of the hardware's, by the token of the wish.
    Lend {
        /// The token.
        token: u64,
        /// Our end of its line.
        line: WakeLine,
        /// The other.
        theirs: OwnedFd,
    },
    /// For the hardware to have deleted a queue.
    TakeBack(u16),
    /// For the device's answer to a change of namespaces.
    Namespace {
        /// The device's token.
        token: u64,
        /// Which one is changed; 0 when one is made.
        id: u8,
    },
}

/// One client.
#[derive(Debug)]
pub(super) struct AttachedClient {
    pub(super) socket: OwnedFd,
    pub(super) peer: Person,
    pub(super) since: Nanos,
    /// After its hello: what it may do.
    pub(super) grant: Option<Grant>,
    /// After its hello: how the rings know it.
    pub(super) rings: Option<ClientId>,
    /// It drives queues of the hardware's, and has no others.
    pub(super) is_direct: bool,
    pub(super) queues: BTreeMap<u16, HeldQueue>,
    /// Bytes by first address.
    pub(super) regions: BTreeMap<u64, u64>,
    pub(super) waiting: Option<Waiting>,
}

impl AttachedClient {
    pub(super) fn new(socket: OwnedFd, peer: Person, since: Nanos) -> Self {
        Self {
            socket,
            peer,
            since,
            grant: None,
            rings: None,
            is_direct: false,
            queues: BTreeMap::new(),
            regions: BTreeMap::new(),
            waiting: None,
        }
    }

    /// Bytes that count against its grant.
    pub(super) fn memory(&self) -> u64 {
        let rings = self.queues.values().map(|queue| queue.bytes);
        self.regions.values().copied().chain(rings).fold(0, u64::saturating_add)
    }

    /// Whether its grant has room for ring memory.
    pub(super) fn check_rings(&self, bytes: u64) -> Result<(), String> {
        let most = self.grant.as_ref().map_or(0, |grant| grant.memory);
        if self.memory().saturating_add(bytes) > most {
            return Err(format!("{bytes} bytes of rings are above the limit of {most}"));
        }
        Ok(())
    }

    pub(super) fn facts(&self) -> ClientFacts {
        ClientFacts {
            pid: self.peer.pid,
            uid: self.peer.uid,
            gid: self.peer.gid,
            queues: u32::try_from(self.queues.len()).unwrap_or(u32::MAX),
            memory: self.memory(),
        }
    }

    /// Lets go of a queue's line.
    pub(super) fn forget_queue(&mut self, queue: u16, epoll: &OwnedFd) {
        if let Some(held) = self.queues.remove(&queue) {
            // Closing removes it anyway.
            let _ = epoll::delete(epoll, &held.line);
        }
    }

    /// Whether a request of its waits for the device.
    pub(super) fn is_waited_for(&self) -> bool {
        self.waiting.is_some()
    }

    /// Whether the next sweep must look at it.
    pub(super) fn is_suspect(&self, rings: &ClientRings<ForeignWords>) -> bool {
        self.grant.is_none() || self.has_suspect_queues(rings)
    }

    /// Queues of the hardware's are not ours to look into.
    fn has_suspect_queues(&self, rings: &ClientRings<ForeignWords>) -> bool {
        let failed = |id| matches!(rings.queue_state(id), Some(QueueState::Failed(_)));
        !self.is_direct
            && self.queues.keys().any(|&id| rings.unposted(QueueId(id)) > 0 || failed(QueueId(id)))
    }

    /// Why the client must be reclaimed, if it must.
    pub(super) fn trouble(&mut self, rings: &ClientRings<ForeignWords>, now: Nanos) -> Option<&'static str> {
        if self.grant.is_none() && now.since(self.since).0 >= SWEEP_EVERY.0 * u64::from(SWEEPS_MAX) {
            return Some("no hello came");
        }
        for (&id, queue) in self.queues.iter_mut().filter(|_| !self.is_direct) {
            let id = QueueId(id);
            if matches!(rings.queue_state(id), Some(QueueState::Failed(_))) {
                return Some("a doorbell holds what no client writes");
            }
            queue.stuck = if rings.unposted(id) > 0 { queue.stuck + 1 } else { 0 };
            if queue.stuck >= SWEEPS_MAX {
                return Some("answers are not taken");
            }
        }
        None
    }
}

/// Sends a reply without descriptors to somebody who may not listen.
pub(super) fn say(socket: BorrowedFd<'_>, reply: &Reply) {
    if let Ok(message) = encode(reply) {
        // Whoever does not read it does not need it.
        let _ = send_message(socket, &message, &[]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_comes_back_from_its_event() {
        for place in [
            Place::Listener,
            Place::Control(ClientKey(0)),
            Place::Control(ClientKey(70_000)),
            Place::Line(ClientKey(70_000), 1),
            Place::Line(ClientKey(3), u16::MAX),
        ] {
            assert_eq!(Place::of(place.data()), place);
        }
    }
}
