//! The admission of connections: each user has its share of them, judged by the credentials that the kernel reports.
//!
//! Input: connections that wait. Output: clients that have not sent a hello yet, and refusals with their reason. A
//! connection of a user without a grant holds no place: it is refused at once.

use super::admission::{PlaceLimit, PlaceUsage};
use super::client::{AttachedClient, ClientKey, ControlEventSource, send_best_effort};
use super::executor::EntryExecutor;
use super::policy::PeerCredentials;
use super::{AttachFrontEnd, CLIENTS_MAX, CLIENTS_PER_USER_MAX};
use headwater_host::clock::Nanos;
use headwater_io::attach::protocol::AttachReply;
use rustix::event::epoll;
use rustix::net::{RecvFlags, Shutdown, recv, shutdown};
use std::os::fd::{AsFd as _, OwnedFd};

/// Connections that are accepted in one turn.
const ACCEPTS_MAX: usize = 32;
/// Time until the next turn that accepts, if more wait: a flood of connections takes no more of the core.
const FLOOD_PAUSE: Nanos = Nanos::from_millis(1);

impl<E: EntryExecutor> AttachFrontEnd<E> {
    /// Accepts new clients.
    pub(super) fn accept(&mut self, now: Nanos) {
        if now < self.accept_at {
            return;
        }
        // At the first connection of the turn.
        let mut usage = None;
        for _ in 0..ACCEPTS_MAX {
            let Some(listener) = &self.listener else {
                return;
            };
            let (socket, peer) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) => {
                    let epoll = self.epoll.as_fd();
                    return self.accept_pause.handle_error(epoll, listener.as_fd(), &error, now);
                }
            };
            let (connections, descriptors) =
                usage.get_or_insert_with(|| (self.usage(|_| 1), self.usage(AttachedClient::descriptors)));
            if let Some(reply) = self.refusal(connections, descriptors, peer) {
                self.refused += 1;
                refuse(&socket, &reply);
                continue;
            }
            let key = ClientKey(self.next_client);
            self.next_client += 1;
            let place = ControlEventSource::Control(key).to_epoll_data();
            if epoll::add(&self.epoll, &socket, place, epoll::EventFlags::IN).is_err() {
                self.refused += 1;
                continue;
            }
            connections.add(&self.policy, peer, 1);
            descriptors.add(&self.policy, peer, 1);
            self.connected += 1;
            self.clients.insert(key, AttachedClient::new(socket, peer, now));
        }
        self.accept_at = now.after(FLOOD_PAUSE);
    }

    /// Returns the reply to a peer that is turned away.
    fn refusal(
        &self,
        connections: &PlaceUsage,
        descriptors: &PlaceUsage,
        peer: PeerCredentials,
    ) -> Option<AttachReply> {
        if let Some(reason) = self.policy.refusal(peer) {
            return Some(AttachReply::Refused { reason });
        }
        let limit = PlaceLimit { total: CLIENTS_MAX, trusted_max: CLIENTS_PER_USER_MAX };
        let full = if !limit.admits(&self.policy, connections, peer) {
            "connections"
        } else if !self.descriptor_limit().admits(&self.policy, descriptors, peer) {
            "descriptors"
        } else {
            return None;
        };
        let reason = format!("too many clients: those of uid {} have their share of {full}", peer.uid);
        Some(AttachReply::Gone { reason })
    }

    /// Returns what clients hold, by what each of them holds.
    fn usage(&self, held: impl Fn(&AttachedClient) -> usize) -> PlaceUsage {
        let mut usage = PlaceUsage::default();
        self.clients.values().for_each(|client| usage.add(&self.policy, client.peer, held(client)));
        usage
    }

    /// Returns the limit of descriptors for clients and their queues.
    pub(super) fn descriptor_limit(&self) -> PlaceLimit {
        PlaceLimit { total: self.descriptors_max, trusted_max: self.descriptors_max }
    }

    /// Returns true if a client may take one more place.
    pub(super) fn has_place(
        &self,
        key: ClientKey,
        limit: PlaceLimit,
        held: impl Fn(&AttachedClient) -> usize,
    ) -> bool {
        let peer = self.clients.get(&key).map(|client| client.peer);
        peer.is_some_and(|peer| limit.admits(&self.policy, &self.usage(held), peer))
    }
}

/// Sends a connection the reason why it is closed. Closing one with an unread request would make the kernel report a
/// reset instead.
fn refuse(socket: &OwnedFd, reply: &AttachReply) {
    let _ = shutdown(socket, Shutdown::Read);
    let _ = recv(socket, &mut [0_u8; 1], RecvFlags::DONTWAIT);
    send_best_effort(socket.as_fd(), reply);
}
