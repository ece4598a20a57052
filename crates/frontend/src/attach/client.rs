//! One attached client: its socket, its resources and its pending request.
//!
//! Input: changes by the control plane. Output: the reason to evict it, if there is one. Invariant: its tables list all
//! its resources, so dropping them releases the client.

use super::policy::PeerCredentials;
use super::{SWEEP_PERIOD, SWEEPS_MAX};
use headwater_dma::iova::RegionRevocation;
use headwater_host::clock::Nanos;
use headwater_host::fault_guard::LostPages;
use headwater_host::ring_memory::SharedMemoryWords;
use headwater_host::wake_line::WakeLine;
use headwater_host::width::narrow;
use headwater_io::attach::admin::{AccessGrant, ClientInfo};
use headwater_io::attach::connection::send_message;
use headwater_io::attach::protocol::{AttachReply, encode};
use headwater_nvme::controller::{QueueId, QueueState};
use headwater_ssd::nvme::rings::{ClientId, ClientRings};
use rustix::event::epoll;
use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};

/// The identifier of a client; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ClientKey(pub(super) u64);

/// The source of an event of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ControlEventSource {
    /// The listening socket: a new connection.
    Listener,
    /// A client's socket.
    Control(ClientKey),
    /// The wake line of a client's queue.
    WakeLine(ClientKey, u16),
}

impl ControlEventSource {
    pub(super) fn to_epoll_data(self) -> epoll::EventData {
        epoll::EventData::new_u64(match self {
            Self::Listener => u64::MAX,
            Self::Control(ClientKey(key)) => key << 16,
            Self::WakeLine(ClientKey(key), queue) => (key << 16) | u64::from(queue),
        })
    }

    pub(super) fn from_epoll_data(data: epoll::EventData) -> Self {
        let number = data.u64();
        let key = ClientKey(number >> 16);
        match u16::try_from(number & 0xFFFF) {
            _ if number == u64::MAX => Self::Listener,
            Ok(queue @ 1..) => Self::WakeLine(key, queue),
            _ => Self::Control(key),
        }
    }
}

/// A queue of a client.
#[derive(Debug)]
pub(super) struct HeldQueue {
    pub(super) line: WakeLine,
    /// Bytes of ring memory, which count against the client's grant.
    pub(super) bytes: u64,
    /// Consecutive sweeps that found completions which the client does not reap.
    stuck_sweeps: u32,
}

impl HeldQueue {
    pub(super) fn new(line: WakeLine, bytes: u64) -> Self {
        Self { line, bytes, stuck_sweeps: 0 }
    }
}

/// A request whose reply is pending.
#[derive(Debug)]
pub(super) enum DeferredReply {
    /// Until no command in flight uses a region.
    Release(RegionRevocation),
    /// Until a queue is drained.
    Delete(QueueId),
    /// Until a hardware queue is created.
    Lend {
        /// The token of the request.
        token: u64,
        /// The node's end of the wake line.
        line: WakeLine,
        /// The client's end.
        client_line: OwnedFd,
    },
    /// Until the hardware has deleted a queue.
    Reclaim(u16),
    /// Until the device has completed a change of namespaces.
    Namespace {
        /// The device's token.
        token: u64,
        /// The namespace to change; 0 to create one.
        id: u8,
    },
}

/// A connected client.
#[derive(Debug)]
pub(super) struct AttachedClient {
    pub(super) socket: OwnedFd,
    pub(super) peer: PeerCredentials,
    pub(super) connected_at: Nanos,
    /// Its grant; `None` before its hello.
    pub(super) grant: Option<AccessGrant>,
    /// Its identifier in the rings; `None` before its hello.
    pub(super) rings: Option<ClientId>,
    /// True if it drives hardware queues; it has no other queues.
    pub(super) is_direct: bool,
    pub(super) queues: BTreeMap<u16, HeldQueue>,
    /// Bytes of each region, by first address.
    pub(super) regions: BTreeMap<u64, u64>,
    /// Set when an access to one of its regions found no page.
    pub(super) lost: LostPages,
    pub(super) pending_reply: Option<DeferredReply>,
}

impl AttachedClient {
    pub(super) fn new(socket: OwnedFd, peer: PeerCredentials, connected_at: Nanos) -> Self {
        Self {
            socket,
            peer,
            connected_at,
            grant: None,
            rings: None,
            is_direct: false,
            queues: BTreeMap::new(),
            regions: BTreeMap::new(),
            lost: LostPages::default(),
            pending_reply: None,
        }
    }

    /// Returns the number of its descriptors in the node: its connection and its queues.
    pub(super) fn descriptors(&self) -> usize {
        1 + self.queues.len()
    }

    /// Returns the bytes that count against its grant.
    pub(super) fn memory(&self) -> u64 {
        let rings = self.queues.values().map(|queue| queue.bytes);
        self.regions.values().copied().chain(rings).fold(0, u64::saturating_add)
    }

    /// Returns the most bytes of regions and rings that its grant allows.
    pub(super) fn memory_max(&self) -> u64 {
        self.grant.as_ref().map_or(0, |grant| grant.memory)
    }

    /// Checks that its grant has room for ring memory.
    pub(super) fn check_ring_memory(&self, bytes: u64) -> Result<(), String> {
        let max = self.memory_max();
        if self.memory().saturating_add(bytes) > max {
            return Err(format!("{bytes} bytes of rings exceed the limit of {max} bytes"));
        }
        Ok(())
    }

    pub(super) fn client_info(&self) -> ClientInfo {
        ClientInfo {
            pid: self.peer.pid,
            uid: self.peer.uid,
            gid: self.peer.gid,
            queues: narrow(self.queues.len()),
            memory: self.memory(),
        }
    }

    /// Removes a queue and closes its wake line.
    pub(super) fn remove_queue(&mut self, queue: u16, epoll: &OwnedFd) {
        if let Some(held) = self.queues.remove(&queue) {
            // Closing the descriptor removes it anyway.
            let _ = epoll::delete(epoll, &held.line);
        }
    }

    /// Returns true if one of its requests waits for the device.
    pub(super) fn has_pending_reply(&self) -> bool {
        self.pending_reply.is_some()
    }

    /// Returns true if the next sweep must check it.
    pub(super) fn is_suspect(&self, rings: &ClientRings<SharedMemoryWords>) -> bool {
        self.grant.is_none() || self.has_suspect_queues(rings)
    }

    /// Returns true if a queue has unreaped completions or failed. Hardware queues cannot be inspected here.
    fn has_suspect_queues(&self, rings: &ClientRings<SharedMemoryWords>) -> bool {
        let failed = |id| matches!(rings.queue_state(id), Some(QueueState::Failed(_)));
        !self.is_direct
            && self.queues.keys().any(|&id| rings.unposted(QueueId(id)) > 0 || failed(QueueId(id)))
    }

    /// Returns the reason to evict the client, if there is one.
    pub(super) fn eviction_reason(
        &mut self,
        rings: &ClientRings<SharedMemoryWords>,
        now: Nanos,
    ) -> Option<&'static str> {
        if self.grant.is_none() && now.since(self.connected_at).0 >= SWEEP_PERIOD.0 * u64::from(SWEEPS_MAX) {
            return Some("the client sent no hello");
        }
        for (&id, queue) in self.queues.iter_mut().filter(|_| !self.is_direct) {
            let id = QueueId(id);
            if matches!(rings.queue_state(id), Some(QueueState::Failed(_))) {
                return Some("a doorbell holds an invalid value");
            }
            queue.stuck_sweeps = if rings.unposted(id) > 0 { queue.stuck_sweeps + 1 } else { 0 };
            if queue.stuck_sweeps >= SWEEPS_MAX {
                return Some("the client does not reap completions");
            }
        }
        None
    }
}

/// Sends a reply without descriptors, best effort.
pub(super) fn send_best_effort(socket: BorrowedFd<'_>, reply: &AttachReply) {
    if let Ok(message) = encode(reply) {
        // The connection ends: a client that does not read the reply does not need it.
        let _ = send_message(socket, &message, &[]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_sources_survive_a_round_trip_through_epoll_data() {
        for place in [
            ControlEventSource::Listener,
            ControlEventSource::Control(ClientKey(0)),
            ControlEventSource::Control(ClientKey(70_000)),
            ControlEventSource::WakeLine(ClientKey(70_000), 1),
            ControlEventSource::WakeLine(ClientKey(3), u16::MAX),
        ] {
            assert_eq!(ControlEventSource::from_epoll_data(place.to_epoll_data()), place);
        }
    }
}
