//! The control plane for clients that drive hardware queues.
//!
//! Input: requests of clients with a `direct` grant. Output: queues that the [`QueueLender`](super::lending::QueueLender)
//! creates, and changes of their state. Invariant: only such a client receives the device file, and a queue at most
//! while the hardware holds it.

use super::AttachFrontEnd;
use super::client::{ClientKey, ControlEventSource, DeferredReply, HeldQueue};
use super::control::{CLIENT_GONE, ControlResult};
use super::executor::EntryExecutor;
use super::lending::LentQueueHandover;
use headwater_dma::iova::Iova;
use headwater_host::wake::WakeDescriptor;
use headwater_host::wake_line::WakeLine;
use headwater_io::attach::admin::AccessGrant;
use headwater_io::attach::protocol::{AttachReply, DirectRules, QueueTrouble};
use rustix::event::epoll;
use std::os::fd::{AsFd as _, OwnedFd};

const NO_LENT_QUEUES: &str = "this node's device has no queues to lend; attach without direct=1";

/// Returns the rules for driving hardware queues, if the grant allows it.
pub(super) fn direct_rules<E: EntryExecutor>(
    executor: &mut E,
    device: &E::Device,
    grant: &AccessGrant,
) -> Result<DirectRules, String> {
    let lending = executor.queue_lender().ok_or(NO_LENT_QUEUES)?;
    if !grant.direct {
        return Err(format!(
            "hardware queues are not granted to {}; ask an administrator for `headwater attach grant --direct`, \
             or attach without direct=1",
            grant.who
        ));
    }
    lending.rules(device)
}

impl<E: EntryExecutor> AttachFrontEnd<E> {
    /// Returns the hardware's address of a registered region.
    pub(super) fn lend_region(&mut self, key: ClientKey, start: u64, bytes: u64) -> ControlResult {
        let rings = self.clients.get(&key).and_then(|client| client.rings).ok_or(CLIENT_GONE)?;
        let lending = self.executor.queue_lender().ok_or(NO_LENT_QUEUES)?;
        Ok(AttachReply::Region { address: lending.lend_region(rings, Iova(start), bytes)? })
    }

    /// Begins the creation of a queue; the reply follows when it exists.
    pub(super) fn lend_queue(
        &mut self,
        device: &mut E::Device,
        key: ClientKey,
        depth: u32,
    ) -> Result<(), String> {
        let client = self.clients.get_mut(&key).ok_or(CLIENT_GONE)?;
        let rings = client.rings.ok_or(CLIENT_GONE)?;
        let lending = self.executor.queue_lender().ok_or(NO_LENT_QUEUES)?;
        client.check_ring_memory(lending.queue_bytes(device, depth)?)?;
        let (line, theirs) = WakeLine::pair().map_err(|error| error.to_string())?;
        let theirs = theirs.as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
        let token = lending.lend_queue(device, rings, depth, line.clone())?;
        client.pending_reply = Some(DeferredReply::Lend { token, line, client_line: theirs });
        Ok(())
    }

    /// Replies to clients whose queues were created, and closes the wake lines of lost queues.
    pub(super) fn complete_lent(&mut self) -> bool {
        let mut moved = false;
        while let Some((token, made)) =
            self.executor.queue_lender().and_then(|lending| lending.next_lend_result())
        {
            moved = true;
            let waits = |waiting: &mut DeferredReply| matches!(waiting, DeferredReply::Lend { token: waited, .. } if *waited == token);
            let found = self.clients.iter_mut().find_map(|(&key, client)| {
                Some((key, client.pending_reply.take_if(|waiting| waits(waiting))?))
            });
            match (found, made) {
                (Some((key, DeferredReply::Lend { line, client_line: theirs, .. })), Ok(lent)) => {
                    self.deliver_queue(key, lent, line, &theirs);
                }
                (Some((key, _)), Err(reason)) => self.reply(key, &AttachReply::Refused { reason }, &[]),
                // Its client disconnected before.
                (_, Ok(lent)) => self.reclaim_queue(lent.id),
                (None, Err(_)) => {}
            }
        }
        while let Some(queue) = self.executor.queue_lender().and_then(|lending| lending.next_lost_queue()) {
            moved = true;
            let owner = |client: &&mut super::client::AttachedClient| {
                client.is_direct && client.queues.contains_key(&queue)
            };
            if let Some(client) = self.clients.values_mut().find(owner) {
                client.remove_queue(queue, &self.epoll);
            }
        }
        moved
    }

    fn deliver_queue(&mut self, key: ClientKey, lent: LentQueueHandover, line: WakeLine, theirs: &OwnedFd) {
        let LentQueueHandover { id, bytes, layout: text, memory, device } = lent;
        let place = ControlEventSource::WakeLine(key, id).to_epoll_data();
        if let Err(errno) = epoll::add(&self.epoll, &line, place, epoll::EventFlags::IN) {
            self.reclaim_queue(id);
            let reason = format!("no descriptor is left to watch the queue: {errno}");
            return self.reply(key, &AttachReply::Refused { reason }, &[]);
        }
        if let Some(client) = self.clients.get_mut(&key) {
            assert!(
                client.is_direct,
                "queue {id} of the hardware is delivered to a client without the right to it"
            );
            client.queues.insert(id, HeldQueue::new(line, bytes));
        }
        self.reply(key, &AttachReply::Queue { id, bytes, lent: Some(text) }, &[&memory, theirs, &device]);
    }

    /// Begins to reclaim a queue.
    pub(super) fn reclaim_queue(&mut self, queue: u16) {
        if let Some(lending) = self.executor.queue_lender() {
            lending.reclaim_queue(queue);
        }
    }

    /// Connects completions of the client's queue to its eventfd.
    pub(super) fn connect_interrupt(
        &mut self,
        key: ClientKey,
        queue: u16,
        eventfd: OwnedFd,
    ) -> ControlResult {
        self.check_owner(key, queue)?;
        let eventfd = WakeDescriptor::adopt(eventfd).map_err(|error| error.to_string())?;
        self.executor.queue_lender().ok_or(NO_LENT_QUEUES)?.connect_interrupt(queue, eventfd)?;
        Ok(AttachReply::Done)
    }

    /// Corrects a fault that the client reports of its queue.
    pub(super) fn correct_fault(
        &mut self,
        device: &mut E::Device,
        key: ClientKey,
        queue: u16,
        trouble: QueueTrouble,
    ) -> ControlResult {
        self.check_owner(key, queue)?;
        self.executor.queue_lender().ok_or(NO_LENT_QUEUES)?.correct_fault(device, queue, trouble)?;
        Ok(AttachReply::Done)
    }

    fn check_owner(&self, key: ClientKey, queue: u16) -> Result<(), String> {
        let client = self.clients.get(&key).ok_or(CLIENT_GONE)?;
        if client.is_direct && client.queues.contains_key(&queue) {
            return Ok(());
        }
        Err(format!("queue {queue} is not a hardware queue of this client"))
    }
}
