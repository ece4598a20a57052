//! The interface of devices that lend hardware queues to trusted clients.
//!
//! Input: requests of clients with a `direct` grant. Output: queues in memory shared with such a client, and their end.
//! Invariant: the memory of a lent queue and every region of its client stay mapped for the hardware until it has
//! released the queue; only then is the client's wake line closed.

use headwater_dma::iova::Iova;
use headwater_host::wake::WakeDescriptor;
use headwater_host::wake_line::WakeLine;
use headwater_io::attach::protocol::{DirectRules, LentQueueLayout, QueueTrouble};
use headwater_ssd::nvme::rings::ClientId;
use std::os::fd::OwnedFd;

/// A created queue, as its client receives it.
#[derive(Debug)]
pub struct LentQueueHandover {
    /// Its number in the hardware.
    pub id: u16,
    /// Bytes of its memory.
    pub bytes: u64,
    /// The layout of its memory.
    pub layout: LentQueueLayout,
    /// The memfd of its rings.
    pub memory: OwnedFd,
    /// The device file.
    pub device: OwnedFd,
}

/// The token of a request for a queue, and its result.
pub type LendResult = (u64, Result<LentQueueHandover, String>);

/// A lender of queues of a device `D`.
pub trait QueueLender<D> {
    /// Returns the rules by which clients drive the queues.
    ///
    /// # Errors
    /// The reason why no queue can be lent.
    fn rules(&self, device: &D) -> Result<DirectRules, String>;

    /// Returns the device's address of a region that the client has just registered; the region stays mapped for the
    /// client's queues.
    ///
    /// # Errors
    /// The reason why it has no address.
    fn lend_region(&mut self, client: ClientId, start: Iova, bytes: u64) -> Result<u64, String>;

    /// Ends the loan of a region that the client released.
    fn return_region(&mut self, client: ClientId, start: Iova);

    /// Returns the bytes of memory of a queue.
    ///
    /// # Errors
    /// The reason why no queue can have this depth.
    fn queue_bytes(&self, device: &D, depth: u32) -> Result<u64, String>;

    /// Begins the creation of a queue; `line` is closed when the queue ends. Returns a token.
    ///
    /// # Errors
    /// The reason of the refusal.
    fn lend_queue(
        &mut self,
        device: &mut D,
        client: ClientId,
        depth: u32,
        line: WakeLine,
    ) -> Result<u64, String>;

    /// Returns the next finished request for a queue.
    fn next_lend_result(&mut self) -> Option<LendResult>;

    /// Begins to reclaim a queue.
    fn reclaim_queue(&mut self, queue: u16);

    /// Returns true if the hardware may still hold the queue.
    fn has_queue(&self, queue: u16) -> bool;

    /// Returns the next queue that a reset or the end of the controller deleted.
    fn next_lost_queue(&mut self) -> Option<u16>;

    /// Connects completions of a queue to an eventfd.
    ///
    /// # Errors
    /// The reason why they cannot be connected.
    fn connect_interrupt(&mut self, queue: u16, eventfd: WakeDescriptor) -> Result<(), String>;

    /// Corrects a fault of a queue: aborts a command, or resets the controller.
    ///
    /// # Errors
    /// The reason why nothing was done.
    fn correct_fault(&mut self, device: &mut D, queue: u16, trouble: QueueTrouble) -> Result<(), String>;

    /// Reclaims everything lent to a client that is gone.
    fn remove_client(&mut self, client: ClientId);
}
