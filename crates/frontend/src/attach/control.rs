//! The control plane: requests of clients, one at a time.
//!
//! In: datagrams with descriptors, from whoever connected. Out: regions, queues and replies. Invariant: a request changes
//! nothing that its client's grant does not cover; a descriptor that is not wanted is closed.

use super::client::{ClientKey, HeldQueue, Place, Waiting, say};
use super::direct::direct_rules;
use super::executor::{Changed, Executor};
use super::policy::rights_of;
use super::{AttachFace, REGIONS_MAX, REGIONS_OF_ALL_MAX};
use headwater_dma::iova::Iova;
use headwater_host::foreign::Foreign;
use headwater_host::ring_memory::ForeignWords;
use headwater_host::wake_line::WakeLine;
use headwater_io::attach::admin::AdminAnswer;
use headwater_io::attach::connection::{receive_message, send_message};
use headwater_io::attach::protocol::{Reply, Request, VERSION, decode_request, encode};
use headwater_io::facts::NamespaceFacts;
use headwater_nvme::controller::{QueueId, QueueKind};
use headwater_nvme::queue_pair::{DeviceEnd, words_for};
use headwater_ssd::command::NamespaceId;
use headwater_ssd::nvme::rings::Bell;
use headwater_ssd::nvme::rings::rights::Access;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::os::fd::{AsFd as _, OwnedFd};

/// Requests of one client in one look.
const REQUESTS_MAX: usize = 8;
/// Bytes of a page.
const PAGE_BYTES: usize = 4_096;

/// Whether a look at the control plane goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// There is time for more.
    On,
    /// What else has come waits for the next look.
    Enough,
}

/// What became of a request.
pub(super) type Answer = Result<Reply, String>;

/// A range of a client's file, and where the client knows it.
struct Range {
    start: u64,
    bytes: u64,
    offset: u64,
}

impl<E: Executor> AttachFace<E> {
    /// Takes what a client sent. A region can take the kernel milliseconds, so after one the rings have their turn.
    pub(super) fn receive(&mut self, device: &mut E::Device, key: ClientKey) -> Look {
        for _ in 0..REQUESTS_MAX {
            let Some(client) = self.clients.get(&key) else {
                return Look::On;
            };
            if client.is_waited_for() {
                // Replies come in order: this client is not heard until the one it waits for is sent, unless it is gone.
                self.look_for_end(key);
                return Look::On;
            }
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let (bytes, descriptors) = match receive_message(client.socket.as_fd(), &mut self.room, flags) {
                Ok(received @ (1.., _)) => received,
                Err(Errno::AGAIN | Errno::INTR) => return Look::On,
                other => {
                    let too_long = matches!(other, Err(Errno::MSGSIZE));
                    self.evict(key, too_long.then_some("the message is too long"));
                    return Look::On;
                }
            };
            let request = decode_request(self.room.get(..bytes).unwrap_or_default());
            match request {
                Ok(request) => {
                    let is_long = matches!(request, Request::Region { .. } | Request::Release { .. });
                    self.serve(device, key, request, descriptors);
                    if is_long {
                        return Look::Enough;
                    }
                }
                Err(error) => {
                    if let Some(client) = self.clients.get(&key) {
                        say(client.socket.as_fd(), &Reply::Refused { reason: error.reason });
                    }
                    self.evict(key, Some("the message makes no sense"));
                    return Look::On;
                }
            }
        }
        Look::On
    }

    fn look_for_end(&mut self, key: ClientKey) {
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
        request: Request,
        mut descriptors: Vec<OwnedFd>,
    ) {
        let greeted = self.clients.get(&key).is_some_and(|client| client.grant.is_some());
        let answer = match request {
            Request::Hello { version, direct } => self.greet(device, key, version, direct),
            _ if !greeted => Err("say hello first".to_owned()),
            Request::Namespaces => Ok(self.namespaces(device, key)),
            Request::Region { start, bytes, offset } => match descriptors.pop() {
                Some(descriptor) => self.add_region(key, &descriptor, &Range { start, bytes, offset }),
                None => Err("a region comes with its descriptor".to_owned()),
            },
            Request::Queue { depth } => match self.make_queue(device, key, depth) {
                Ok(()) => return,
                Err(reason) => Err(reason),
            },
            Request::Release { start } => match self.release(key, start) {
                Ok(()) => return,
                Err(reason) => Err(reason),
            },
            Request::DeleteQueue { id } => match self.delete_queue(key, id) {
                Ok(()) => return,
                Err(reason) => Err(reason),
            },
            Request::Interrupts { queue } => match descriptors.pop() {
                Some(bell) => self.connect(key, queue, bell),
                None => Err("an interrupt comes with its eventfd".to_owned()),
            },
            Request::Trouble { queue, trouble } => self.help(device, key, queue, trouble),
            Request::Admin(request) => match self.administer(device, key, request) {
                Ok(None) => return,
                Ok(Some(answer)) => Ok(Reply::Admin(answer)),
                Err(reason) => Err(reason),
            },
        };
        let refused_at_the_door = !greeted && answer.is_err();
        self.reply(key, &answer.unwrap_or_else(|reason| Reply::Refused { reason }), &[]);
        if refused_at_the_door {
            self.evict(key, None);
        }
    }

    /// Sends a reply. A client that does not take it is given up: it would miss every later one too.
    pub(super) fn reply(&mut self, key: ClientKey, reply: &Reply, descriptors: &[&OwnedFd]) {
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

    fn greet(&mut self, device: &E::Device, key: ClientKey, version: u32, direct: bool) -> Answer {
        if version != VERSION {
            return Err(format!("version {version} is unknown here; this daemon speaks version {VERSION}"));
        }
        let Some(client) = self.clients.get_mut(&key) else {
            return Err(GONE.to_owned());
        };
        if client.grant.is_some() {
            return Err("hello was said before".to_owned());
        }
        let person = client.peer;
        let Some(grant) = self.policy.find(person) else {
            self.refused += 1;
            return Err(format!(
                "nothing is granted to uid {} or gid {}; ask for `headwater attach grant --uid {}`",
                person.uid, person.gid, person.uid
            ));
        };
        let rules = if direct { Some(direct_rules(&mut self.executor, device, grant)?) } else { None };
        client.rings = Some(self.executor.rings_mut().add_client_with(rights_of(grant)));
        client.grant = Some(grant.clone());
        client.is_direct = direct;
        let data = self.executor.data_rules(device);
        Ok(Reply::Welcome {
            version: VERSION,
            queues: grant.queues,
            memory: grant.memory,
            data,
            direct: rules,
        })
    }

    fn namespaces(&self, device: &E::Device, key: ClientKey) -> Reply {
        let rights = self.clients.get(&key).and_then(|client| client.grant.as_ref()).map(rights_of);
        let facts = self.executor.namespaces(device).into_iter().filter_map(|whole| {
            let own = rights.as_ref()?.of(NamespaceId(u8::try_from(whole.id).ok()?))?;
            let blocks = own.blocks.as_ref().map(|blocks| (blocks.start, blocks.end));
            Some(NamespaceFacts { writable: whole.writable && own.access == Access::Write, blocks, ..whole })
        });
        Reply::Namespaces(facts.collect())
    }

    fn add_region(&mut self, key: ClientKey, descriptor: &OwnedFd, range: &Range) -> Answer {
        let &Range { start, bytes, offset } = range;
        if self.clients.values().map(|client| client.regions.len()).sum::<usize>() >= REGIONS_OF_ALL_MAX {
            return Err(format!("all clients together have at most {REGIONS_OF_ALL_MAX} regions"));
        }
        let Some(client) = self.clients.get_mut(&key) else {
            return Err(GONE.to_owned());
        };
        let most = client.grant.as_ref().map_or(0, |grant| grant.memory);
        let have = client.memory();
        if have.saturating_add(bytes) > most {
            return Err(format!("{bytes} bytes more than {have} are above the limit of {most}"));
        }
        if client.regions.len() >= REGIONS_MAX {
            return Err(format!("a client has at most {REGIONS_MAX} regions; register larger ones"));
        }
        let length = usize::try_from(bytes).map_err(|error| error.to_string())?;
        let region = Foreign::take(descriptor.as_fd(), offset, length).map_err(|error| error.to_string())?;
        self.executor.register(client.rings.ok_or(GONE)?, Iova(start), region)?;
        client.regions.insert(start, bytes);
        if client.is_direct { self.lend_region(key, start, bytes) } else { Ok(Reply::Done) }
    }

    fn make_queue(&mut self, device: &mut E::Device, key: ClientKey, depth: u32) -> Result<(), String> {
        if !self.has_descriptors() {
            return Err("clients have as many queues as the node has descriptors for".to_owned());
        }
        let client = self.clients.get(&key).ok_or(GONE)?;
        let grant = client.grant.as_ref().ok_or(GONE)?;
        if client.queues.len() >= usize::try_from(grant.queues).unwrap_or(usize::MAX) {
            return Err(format!("a client has at most {} queues here", grant.queues));
        }
        if client.is_direct { self.lend_queue(device, key, depth) } else { self.add_queue(key, depth) }
    }

    fn add_queue(&mut self, key: ClientKey, depth: u32) -> Result<(), String> {
        let client = self.clients.get_mut(&key).ok_or(GONE)?;
        let words = words_for(depth).map_err(|error| error.to_string())?;
        let length = (words * 8).next_multiple_of(PAGE_BYTES);
        let bytes = u64::try_from(length).unwrap_or(u64::MAX);
        client.check_rings(bytes)?;
        let (region, memory) = Foreign::memfd(length).map_err(|error| error.to_string())?;
        let words = ForeignWords::new(region, 0, words).map_err(|error| error.to_string())?;
        let end = DeviceEnd::over(words, depth).map_err(|error| error.to_string())?;
        let (ours, theirs) = WakeLine::pair().map_err(|error| error.to_string())?;
        let rings = client.rings.ok_or(GONE)?;
        let id = self
            .executor
            .rings_mut()
            .add_queue(rings, end, QueueKind::Uio, Bell::Line(ours.clone()))
            .map_err(|error| error.to_string())?;
        if let Err(errno) =
            epoll::add(&self.epoll, &ours, Place::Line(key, id.0).data(), epoll::EventFlags::IN)
        {
            self.executor.rings_mut().abandon_queue(id);
            return Err(format!("no descriptor is left to watch the queue: {errno}"));
        }
        client.queues.insert(id.0, HeldQueue::new(ours, bytes));
        let theirs = theirs.as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
        self.reply(key, &Reply::Queue { id: id.0, bytes, lent: None }, &[&memory, &theirs]);
        Ok(())
    }

    fn release(&mut self, key: ClientKey, start: u64) -> Result<(), String> {
        let client = self.clients.get_mut(&key).ok_or(GONE)?;
        let memory = client.rings.and_then(|rings| self.executor.rings_mut().memory(rings)).ok_or(GONE)?;
        let revocation = memory.revoke(Iova(start)).map_err(|error| error.to_string())?;
        client.regions.remove(&start);
        if let (Some(rings), Some(lending)) = (client.rings, self.executor.lending()) {
            lending.end_region(rings, Iova(start));
        }
        client.waiting = Some(Waiting::Release(revocation));
        self.settle_client(key);
        Ok(())
    }

    fn delete_queue(&mut self, key: ClientKey, id: u16) -> Result<(), String> {
        let client = self.clients.get_mut(&key).ok_or(GONE)?;
        if !client.queues.contains_key(&id) {
            return Err(format!("queue {id} is not this client's"));
        }
        if client.is_direct {
            client.waiting = Some(Waiting::TakeBack(id));
            self.take_back(id);
            return Ok(());
        }
        self.executor.rings_mut().delete_queue(QueueId(id)).map_err(|error| error.to_string())?;
        client.waiting = Some(Waiting::Delete(QueueId(id)));
        self.settle_client(key);
        Ok(())
    }

    /// Answers requests that waited for the device. Returns whether one was answered.
    pub(super) fn settle(&mut self, device: &mut E::Device) -> bool {
        let mut moved = false;
        while let Some(Changed { token, made }) = self.executor.next_changed(device) {
            moved = true;
            let waits = |waiting: &Option<Waiting>| match waiting {
                Some(Waiting::Namespace { token: waited, id }) if *waited == token => Some(*id),
                _ => None,
            };
            let found = self.clients.iter_mut().find_map(|(&key, client)| {
                let id = waits(&client.waiting)?;
                client.waiting = None;
                Some((key, id))
            });
            let Some((key, id)) = found else {
                continue;
            };
            let reply = match made {
                Ok(made) => Reply::Admin(AdminAnswer::Namespace(if id == 0 { made } else { id })),
                Err(status) => Reply::Refused { reason: status.to_string() },
            };
            self.reply(key, &reply, &[]);
        }
        moved |= self.settle_lent();
        let waiting: Vec<ClientKey> =
            self.clients.iter().filter(|(_, client)| client.is_waited_for()).map(|(&key, _)| key).collect();
        for key in waiting {
            moved |= self.settle_client(key);
        }
        moved
    }

    fn settle_client(&mut self, key: ClientKey) -> bool {
        let Some(client) = self.clients.get_mut(&key) else {
            return false;
        };
        let done = match &client.waiting {
            Some(Waiting::Release(revocation)) => revocation.is_quiet(),
            Some(Waiting::Delete(id)) if self.executor.rings().queue_state(*id).is_none() => {
                let id = id.0;
                client.forget_queue(id, &self.epoll);
                true
            }
            &Some(Waiting::TakeBack(id))
                if self.executor.lending().is_none_or(|lent| !lent.has_queue(id)) =>
            {
                client.forget_queue(id, &self.epoll);
                true
            }
            _ => false,
        };
        if done {
            client.waiting = None;
            self.reply(key, &Reply::Done, &[]);
        }
        done
    }
}

pub(super) const GONE: &str = "the client is gone";
