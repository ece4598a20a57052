//! The control plane: requests of clients, one at a time.
//!
//! Input: datagrams with descriptors from untrusted clients. Output: regions, queues and replies. Invariant: a request
//! changes nothing that its client's grant does not cover; an unexpected descriptor is closed.

use super::admission::PlaceLimit;
use super::client::{
    AttachedClient, ClientKey, ControlEventSource, DeferredReply, HeldQueue, send_best_effort,
};
use super::direct::direct_rules;
use super::executor::{CompletedChange, EntryExecutor};
use super::policy::rights_of;
use super::{AttachFrontEnd, REGIONS_MAX, REGIONS_OF_ALL_MAX};
use headwater_dma::iova::Iova;
use headwater_host::ring_memory::SharedMemoryWords;
use headwater_host::shared_memory::SharedMemory;
use headwater_host::wake_line::WakeLine;
use headwater_io::attach::admin::AdminAnswer;
use headwater_io::attach::connection::{receive_message, send_message};
use headwater_io::attach::protocol::{AttachReply, AttachRequest, VERSION, decode_request, encode};
use headwater_io::client_namespace::ClientNamespace;
use headwater_nvme::controller::{QueueId, QueueKind};
use headwater_nvme::queue_pair::{ControllerEnd, words_for};
use headwater_ssd::command::NamespaceId;
use headwater_ssd::nvme::rings::ClientWakeup;
use headwater_ssd::nvme::rings::rights::AccessLevel;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::os::fd::{AsFd as _, OwnedFd};

/// Maximum requests of one client in one poll.
const REQUESTS_MAX: usize = 8;
/// Bytes of a page.
const PAGE_BYTES: usize = 4_096;

/// The decision to continue or to end a poll of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PollDecision {
    /// Continue with the next client.
    Continue,
    /// End: further events wait for the next poll.
    Stop,
}

/// The result of a request.
pub(super) type ControlResult = Result<AttachReply, String>;

/// A range of a client's memfd, and its first address in the client.
struct RegionRange {
    start: u64,
    bytes: u64,
    offset: u64,
}

impl<E: EntryExecutor> AttachFrontEnd<E> {
    /// Receives and serves requests of a client. A region can take the kernel milliseconds, so the poll ends after one
    /// and the rings are polled.
    pub(super) fn receive(&mut self, device: &mut E::Device, key: ClientKey) -> PollDecision {
        for _ in 0..REQUESTS_MAX {
            let Some(client) = self.clients.get(&key) else {
                return PollDecision::Continue;
            };
            if client.has_pending_reply() {
                // Replies are in order: nothing is received from this client until the pending reply is sent. Only its
                // end is detected.
                self.evict_if_closed(key);
                return PollDecision::Continue;
            }
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let (bytes, descriptors) =
                match receive_message(client.socket.as_fd(), &mut self.receive_buffer, flags) {
                    Ok(received @ (1.., _)) => received,
                    Err(Errno::AGAIN | Errno::INTR) => return PollDecision::Continue,
                    other => {
                        let too_long = matches!(other, Err(Errno::MSGSIZE));
                        self.evict(key, too_long.then_some("the message is too long"));
                        return PollDecision::Continue;
                    }
                };
            let request = decode_request(self.receive_buffer.get(..bytes).unwrap_or_default());
            match request {
                Ok(request) => {
                    let is_long = matches!(
                        request,
                        AttachRequest::Region { .. }
                            | AttachRequest::Memory { .. }
                            | AttachRequest::Release { .. }
                    );
                    self.serve(device, key, request, descriptors);
                    if is_long {
                        return PollDecision::Stop;
                    }
                }
                Err(error) => {
                    if let Some(client) = self.clients.get(&key) {
                        send_best_effort(
                            client.socket.as_fd(),
                            &AttachReply::Refused { reason: error.reason },
                        );
                    }
                    self.evict(key, Some("the message is malformed"));
                    return PollDecision::Continue;
                }
            }
        }
        PollDecision::Continue
    }

    fn evict_if_closed(&mut self, key: ClientKey) {
        let Some(client) = self.clients.get(&key) else {
            return;
        };
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        if matches!(receive_message(client.socket.as_fd(), &mut [0; 1], flags), Ok((0, _)))
            || matches!(rustix::net::sockopt::socket_error(&client.socket), Ok(Err(_)) | Err(_))
        {
            self.evict(key, None);
        }
    }

    fn serve(
        &mut self,
        device: &mut E::Device,
        key: ClientKey,
        request: AttachRequest,
        mut descriptors: Vec<OwnedFd>,
    ) {
        let greeted = self.clients.get(&key).is_some_and(|client| {
            assert!(client.grant.is_some() == client.rings.is_some(), "only a client with a grant has rings");
            client.grant.is_some()
        });
        let answer = match request {
            AttachRequest::Hello { version, direct } => self.accept_hello(device, key, version, direct),
            _ if !greeted => Err("the first request must be hello".to_owned()),
            AttachRequest::Namespaces => Ok(self.namespaces(device, key)),
            AttachRequest::Region { start, bytes, offset } => match descriptors.pop() {
                Some(descriptor) => self.add_region(key, &descriptor, &RegionRange { start, bytes, offset }),
                None => Err("the region request carries no file; send its descriptor with it".to_owned()),
            },
            AttachRequest::Memory { start, bytes } => match self.make_memory(key, start, bytes) {
                Ok(()) => return,
                Err(reason) => Err(reason),
            },
            AttachRequest::Queue { depth } => match self.create_queue(device, key, depth) {
                Ok(()) => return,
                Err(reason) => Err(reason),
            },
            AttachRequest::Release { start } => match self.release(key, start) {
                Ok(()) => return,
                Err(reason) => Err(reason),
            },
            AttachRequest::DeleteQueue { id } => match self.delete_queue(key, id) {
                Ok(()) => return,
                Err(reason) => Err(reason),
            },
            AttachRequest::Interrupts { queue } => match descriptors.pop() {
                Some(eventfd) => self.connect_interrupt(key, queue, eventfd),
                None => {
                    Err("the interrupts request carries no eventfd; send its descriptor with it".to_owned())
                }
            },
            AttachRequest::Trouble { queue, trouble } => self.correct_fault(device, key, queue, trouble),
            AttachRequest::Admin(request) => match self.administer(device, key, request) {
                Ok(None) => return,
                Ok(Some(answer)) => Ok(AttachReply::Admin(answer)),
                Err(reason) => Err(reason),
            },
        };
        let hello_refused = !greeted && answer.is_err();
        self.reply(key, &answer.unwrap_or_else(|reason| AttachReply::Refused { reason }), &[]);
        if hello_refused {
            self.evict(key, None);
        }
    }

    /// Sends a reply. A client that does not receive it is evicted: replies must stay in order.
    pub(super) fn reply(&mut self, key: ClientKey, reply: &AttachReply, descriptors: &[&OwnedFd]) {
        let Some(client) = self.clients.get(&key) else {
            return;
        };
        let borrowed: Vec<_> = descriptors.iter().map(|descriptor| descriptor.as_fd()).collect();
        let sent = encode(reply)
            .is_ok_and(|message| send_message(client.socket.as_fd(), &message, &borrowed).is_ok());
        if !sent {
            self.evict(key, None);
        }
    }

    fn accept_hello(
        &mut self,
        device: &E::Device,
        key: ClientKey,
        version: u32,
        direct: bool,
    ) -> ControlResult {
        if version != VERSION {
            return Err(format!(
                "version {version} is not supported; this daemon supports version {VERSION}"
            ));
        }
        let Some(client) = self.clients.get_mut(&key) else {
            return Err(CLIENT_GONE.to_owned());
        };
        if client.grant.is_some() {
            return Err("hello was sent before; send it once".to_owned());
        }
        let peer = client.peer;
        if let Some(reason) = self.policy.refusal(peer) {
            self.refused += 1;
            return Err(reason);
        }
        let grant = self.policy.find(peer).ok_or(CLIENT_GONE)?;
        let rules = if direct { Some(direct_rules(&mut self.executor, device, grant)?) } else { None };
        client.rings = Some(self.executor.rings_mut().add_client_with(rights_of(grant)));
        client.grant = Some(grant.clone());
        client.is_direct = direct;
        let data = self.executor.data_rules(device);
        Ok(AttachReply::Welcome {
            version: VERSION,
            queues: grant.queues,
            memory: grant.memory,
            data,
            segments: self.executor.segments_max(),
            direct: rules,
        })
    }

    fn namespaces(&self, device: &E::Device, key: ClientKey) -> AttachReply {
        let rights = self.clients.get(&key).and_then(|client| client.grant.as_ref()).map(rights_of);
        let facts = self.executor.namespaces(device).into_iter().filter_map(|whole| {
            let own = rights.as_ref()?.rights_in(NamespaceId(u8::try_from(whole.id).ok()?))?;
            let blocks = own.blocks.as_ref().map(|blocks| (blocks.start, blocks.end));
            Some(ClientNamespace {
                writable: whole.writable && own.access == AccessLevel::Write,
                blocks,
                ..whole
            })
        });
        AttachReply::Namespaces(facts.collect())
    }

    /// Returns the client, if it may register a region of this length.
    fn client_with_room(&mut self, key: ClientKey, bytes: u64) -> Result<&mut AttachedClient, String> {
        let limit = PlaceLimit { total: REGIONS_OF_ALL_MAX, trusted_max: REGIONS_OF_ALL_MAX };
        if !self.has_place(key, limit, |client| client.regions.len()) {
            return Err(format!(
                "the clients of this user have their share of {REGIONS_OF_ALL_MAX} regions; register larger ones"
            ));
        }
        let client = self.clients.get_mut(&key).ok_or(CLIENT_GONE)?;
        let max = client.memory_max();
        let used = client.memory();
        if used.saturating_add(bytes) > max {
            return Err(format!("{bytes} bytes in addition to {used} exceed the limit of {max} bytes"));
        }
        if client.regions.len() >= REGIONS_MAX {
            return Err(format!("a client is limited to {REGIONS_MAX} regions; register larger ones"));
        }
        Ok(client)
    }

    fn add_region(&mut self, key: ClientKey, descriptor: &OwnedFd, range: &RegionRange) -> ControlResult {
        let &RegionRange { start, bytes, offset } = range;
        let client = self.client_with_room(key, bytes)?;
        let length = usize::try_from(bytes).map_err(|error| error.to_string())?;
        let region = SharedMemory::map_client(descriptor.as_fd(), offset, length, &client.lost)
            .map_err(|error| error.to_string())?;
        if self.register(key, start, region)?.is_direct {
            return self.lend_region(key, start, bytes);
        }
        Ok(AttachReply::Done)
    }

    /// Registers a region and counts it against the grant. Returns the client.
    fn register(
        &mut self,
        key: ClientKey,
        start: u64,
        region: SharedMemory,
    ) -> Result<&AttachedClient, String> {
        let bytes = region.bytes() as u64;
        let client = self.clients.get_mut(&key).ok_or(CLIENT_GONE)?;
        self.executor.register(client.rings.ok_or(CLIENT_GONE)?, Iova(start), region)?;
        let earlier = client.regions.insert(start, bytes);
        let is_counted_once = earlier.is_none() && client.memory() <= client.memory_max();
        assert!(is_counted_once, "a region is counted against the grant once");
        Ok(client)
    }

    /// Makes memory, registers it and sends its descriptor.
    fn make_memory(&mut self, key: ClientKey, start: u64, bytes: u64) -> Result<(), String> {
        let unit = PAGE_BYTES as u64;
        let bytes =
            bytes.checked_next_multiple_of(unit).ok_or("the memory is longer than the address space")?;
        if self.client_with_room(key, bytes)?.is_direct {
            return Err(
                "hardware queues access memory of the client; register a memfd with `region`".to_owned()
            );
        }
        let length = usize::try_from(bytes).map_err(|error| error.to_string())?;
        let (region, memory) = SharedMemory::memfd(length).map_err(|error| error.to_string())?;
        self.register(key, start, region)?;
        self.reply(key, &AttachReply::Memory { bytes }, &[&memory]);
        Ok(())
    }

    fn create_queue(&mut self, device: &mut E::Device, key: ClientKey, depth: u32) -> Result<(), String> {
        let limit = self.descriptor_limit();
        if !self.has_place(key, limit, AttachedClient::descriptors) {
            return Err(format!(
                "the clients of this user have their share of {} descriptors, and none is left for another queue; raise \
                 the node's limit of open files",
                limit.total
            ));
        }
        let client = self.clients.get(&key).ok_or(CLIENT_GONE)?;
        let grant = client.grant.as_ref().ok_or(CLIENT_GONE)?;
        if client.queues.len() >= grant.queues as usize {
            return Err(format!("this client is limited to {} queues by its grant", grant.queues));
        }
        if client.is_direct {
            self.lend_queue(device, key, depth)
        } else {
            self.create_ring_queue(key, depth)
        }
    }

    fn create_ring_queue(&mut self, key: ClientKey, depth: u32) -> Result<(), String> {
        let client = self.clients.get_mut(&key).ok_or(CLIENT_GONE)?;
        let words = words_for(depth).map_err(|error| error.to_string())?;
        let length = (words * 8).next_multiple_of(PAGE_BYTES);
        let bytes = length as u64;
        client.check_ring_memory(bytes)?;
        let (region, memory) = SharedMemory::memfd(length).map_err(|error| error.to_string())?;
        let words = SharedMemoryWords::new(region, 0, words).map_err(|error| error.to_string())?;
        let end = ControllerEnd::over(words, depth).map_err(|error| error.to_string())?;
        let (ours, theirs) = WakeLine::pair().map_err(|error| error.to_string())?;
        let rings = client.rings.ok_or(CLIENT_GONE)?;
        let id = self
            .executor
            .rings_mut()
            .add_queue(rings, end, QueueKind::Uio, ClientWakeup::Line(ours.clone()))
            .map_err(|error| error.to_string())?;
        if let Err(errno) = epoll::add(
            &self.epoll,
            &ours,
            ControlEventSource::WakeLine(key, id.0).to_epoll_data(),
            epoll::EventFlags::IN,
        ) {
            self.executor.rings_mut().abandon_queue(id);
            return Err(format!("no descriptor is left to watch the queue: {errno}"));
        }
        let earlier = client.queues.insert(id.0, HeldQueue::new(ours, bytes));
        assert!(earlier.is_none() && client.memory() <= client.memory_max(), "a queue is counted once");
        let theirs = theirs.as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
        self.reply(key, &AttachReply::Queue { id: id.0, bytes, lent: None }, &[&memory, &theirs]);
        Ok(())
    }

    fn release(&mut self, key: ClientKey, start: u64) -> Result<(), String> {
        let client = self.clients.get_mut(&key).ok_or(CLIENT_GONE)?;
        let memory =
            client.rings.and_then(|rings| self.executor.rings_mut().memory(rings)).ok_or(CLIENT_GONE)?;
        let revocation = memory.revoke(Iova(start)).map_err(|error| error.to_string())?;
        client.regions.remove(&start);
        if let (Some(rings), Some(lending)) = (client.rings, self.executor.queue_lender()) {
            lending.return_region(rings, Iova(start));
        }
        client.pending_reply = Some(DeferredReply::Release(revocation));
        self.complete_pending_of(key);
        Ok(())
    }

    fn delete_queue(&mut self, key: ClientKey, id: u16) -> Result<(), String> {
        let client = self.clients.get_mut(&key).ok_or(CLIENT_GONE)?;
        if !client.queues.contains_key(&id) {
            return Err(format!("queue {id} does not belong to this client"));
        }
        if client.is_direct {
            client.pending_reply = Some(DeferredReply::Reclaim(id));
            self.reclaim_queue(id);
            return Ok(());
        }
        self.executor.rings_mut().delete_queue(QueueId(id)).map_err(|error| error.to_string())?;
        client.pending_reply = Some(DeferredReply::Delete(QueueId(id)));
        self.complete_pending_of(key);
        Ok(())
    }

    /// Replies to requests that waited for the device. Returns true if there was one.
    pub(super) fn complete_pending(&mut self, device: &mut E::Device) -> bool {
        let mut moved = false;
        while let Some(CompletedChange { token, result: made }) = self.executor.next_completed_change(device)
        {
            moved = true;
            let waits = |waiting: &Option<DeferredReply>| match waiting {
                Some(DeferredReply::Namespace { token: waited, id }) if *waited == token => Some(*id),
                _ => None,
            };
            let found = self.clients.iter_mut().find_map(|(&key, client)| {
                let id = waits(&client.pending_reply)?;
                client.pending_reply = None;
                Some((key, id))
            });
            let Some((key, id)) = found else {
                continue;
            };
            let reply = match made {
                Ok(made) => AttachReply::Admin(AdminAnswer::Namespace(if id == 0 { made } else { id })),
                Err(status) => AttachReply::Refused { reason: status.to_string() },
            };
            self.reply(key, &reply, &[]);
        }
        moved |= self.complete_lent();
        let waiting: Vec<ClientKey> = self
            .clients
            .iter()
            .filter(|(_, client)| client.has_pending_reply())
            .map(|(&key, _)| key)
            .collect();
        for key in waiting {
            moved |= self.complete_pending_of(key);
        }
        moved
    }

    fn complete_pending_of(&mut self, key: ClientKey) -> bool {
        let Some(client) = self.clients.get_mut(&key) else {
            return false;
        };
        let done = match &client.pending_reply {
            Some(DeferredReply::Release(revocation)) => revocation.is_drained(),
            Some(DeferredReply::Delete(id)) if self.executor.rings().queue_state(*id).is_none() => {
                let id = id.0;
                client.remove_queue(id, &self.epoll);
                true
            }
            &Some(DeferredReply::Reclaim(id))
                if self.executor.queue_lender().is_none_or(|lent| !lent.has_queue(id)) =>
            {
                client.remove_queue(id, &self.epoll);
                true
            }
            _ => false,
        };
        if done {
            client.pending_reply = None;
            self.reply(key, &AttachReply::Done, &[]);
        }
        done
    }
}

pub(super) const CLIENT_GONE: &str = "the client is gone";
