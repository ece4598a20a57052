//! Clients that drive queues of the hardware's: their part of the control plane.
//!
//! In: requests of clients whose grant says `direct`. Out: queues that the [`Lending`] device made, and news of them. Invariant:
//! only such a client gets the device's file; it is told of a queue at most as long as the hardware knows it.

use super::AttachFace;
use super::client::{ClientKey, HeldQueue, Place, Waiting};
use super::control::{Answer, GONE};
use super::executor::Executor;
use super::lending::Lent;
use headwater_dma::iova::Iova;
use headwater_host::wake::WakeDescriptor;
use headwater_host::wake_line::WakeLine;
use headwater_io::attach::admin::Grant;
use headwater_io::attach::protocol::{DirectRules, QueueTrouble, Reply};
use rustix::event::epoll;
use std::os::fd::{AsFd as _, OwnedFd};

const NO_LENDING: &str = "this node's device has no queues to lend; attach without direct=1";

/// How a client drives queues, if it may.
pub(super) fn direct_rules<E: Executor>(
    executor: &mut E,
    device: &E::Device,
    grant: &Grant,
) -> Result<DirectRules, String> {
    let lending = executor.lending().ok_or(NO_LENDING)?;
    if !grant.direct {
        return Err(format!(
            "queues of the hardware's are not granted to {}; ask for `headwater attach grant --direct`, or attach \
             without direct=1",
            grant.who
        ));
    }
    lending.rules(device)
}

impl<E: Executor> AttachFace<E> {
    /// Tells where the hardware knows a region that was registered.
    pub(super) fn lend_region(&mut self, key: ClientKey, start: u64, bytes: u64) -> Answer {
        let rings = self.clients.get(&key).and_then(|client| client.rings).ok_or(GONE)?;
        let lending = self.executor.lending().ok_or(NO_LENDING)?;
        Ok(Reply::Region { address: lending.lend_region(rings, Iova(start), bytes)? })
    }

    /// Begins to make a queue; its client is told when it is there.
    pub(super) fn lend_queue(
        &mut self,
        device: &mut E::Device,
        key: ClientKey,
        depth: u32,
    ) -> Result<(), String> {
        let client = self.clients.get_mut(&key).ok_or(GONE)?;
        let rings = client.rings.ok_or(GONE)?;
        let lending = self.executor.lending().ok_or(NO_LENDING)?;
        client.check_rings(lending.queue_bytes(device, depth)?)?;
        let (line, theirs) = WakeLine::pair().map_err(|error| error.to_string())?;
        let theirs = theirs.as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
        let token = lending.lend_queue(device, rings, depth, line.clone())?;
        client.waiting = Some(Waiting::Lend { token, line, theirs });
        Ok(())
    }

    /// Tells clients of queues that were made, and hangs up on those that are no more.
    pub(super) fn settle_lent(&mut self) -> bool {
        let mut moved = false;
        while let Some((token, made)) = self.executor.lending().and_then(|lending| lending.next_made()) {
            moved = true;
            let waits = |waiting: &mut Waiting| matches!(waiting, Waiting::Lend { token: waited, .. } if *waited == token);
            let found = self
                .clients
                .iter_mut()
                .find_map(|(&key, client)| Some((key, client.waiting.take_if(|waiting| waits(waiting))?)));
            match (found, made) {
                (Some((key, Waiting::Lend { line, theirs, .. })), Ok(lent)) => {
                    self.hand_over(key, lent, line, &theirs);
                }
                (Some((key, _)), Err(reason)) => self.reply(key, &Reply::Refused { reason }, &[]),
                // Its client went meanwhile.
                (_, Ok(lent)) => self.take_back(lent.id),
                (None, Err(_)) => {}
            }
        }
        while let Some(queue) = self.executor.lending().and_then(|lending| lending.next_lost()) {
            moved = true;
            let owner = |client: &&mut super::client::AttachedClient| {
                client.is_direct && client.queues.contains_key(&queue)
            };
            if let Some(client) = self.clients.values_mut().find(owner) {
                client.forget_queue(queue, &self.epoll);
            }
        }
        moved
    }

    fn hand_over(&mut self, key: ClientKey, lent: Lent, line: WakeLine, theirs: &OwnedFd) {
        let Lent { id, bytes, text, memory, device } = lent;
        let place = Place::Line(key, id).data();
        if let Err(errno) = epoll::add(&self.epoll, &line, place, epoll::EventFlags::IN) {
            self.take_back(id);
            let reason = format!("no descriptor is left to watch the queue: {errno}");
            return self.reply(key, &Reply::Refused { reason }, &[]);
        }
        if let Some(client) = self.clients.get_mut(&key) {
            client.queues.insert(id, HeldQueue::new(line, bytes));
        }
        self.reply(key, &Reply::Queue { id, bytes, lent: Some(text) }, &[&memory, theirs, &device]);
    }

    /// Begins to take a queue back.
    pub(super) fn take_back(&mut self, queue: u16) {
        if let Some(lending) = self.executor.lending() {
            lending.take_back(queue);
        }
    }

    /// Lets a queue of the client ring its bell.
    pub(super) fn connect(&mut self, key: ClientKey, queue: u16, bell: OwnedFd) -> Answer {
        self.check_owner(key, queue)?;
        let bell = WakeDescriptor::adopt(bell).map_err(|error| error.to_string())?;
        self.executor.lending().ok_or(NO_LENDING)?.connect(queue, bell)?;
        Ok(Reply::Done)
    }

    /// Does what helps a queue of the client.
    pub(super) fn help(
        &mut self,
        device: &mut E::Device,
        key: ClientKey,
        queue: u16,
        trouble: QueueTrouble,
    ) -> Answer {
        self.check_owner(key, queue)?;
        self.executor.lending().ok_or(NO_LENDING)?.help(device, queue, trouble)?;
        Ok(Reply::Done)
    }

    fn check_owner(&self, key: ClientKey, queue: u16) -> Result<(), String> {
        let client = self.clients.get(&key).ok_or(GONE)?;
        if client.is_direct && client.queues.contains_key(&queue) {
            return Ok(());
        }
        Err(format!("queue {queue} is not one of the hardware's that this client drives"))
    }
}
