//! Queues of the hardware's, lent to clients who are trusted with them.
//!
//! In: wishes of clients whose grant says `direct`. Out: queues over memory that such a client shares, and what becomes of them.
//! Invariant: the memory of a lent queue, and every region of its client, stays the hardware's until the hardware is done with
//! the queue; only then is the client's line hung up.

use headwater_dma::iova::Iova;
use headwater_host::wake::WakeDescriptor;
use headwater_host::wake_line::WakeLine;
use headwater_io::attach::protocol::{DirectRules, LentText, QueueTrouble};
use headwater_ssd::nvme::rings::ClientId;
use std::os::fd::OwnedFd;

/// A queue that was made, as its client is to be told.
#[derive(Debug)]
pub struct Lent {
    /// Its number at the hardware.
    pub id: u16,
    /// Bytes of its memory.
    pub bytes: u64,
    /// Where everything is.
    pub text: LentText,
    /// The memfd of its rings.
    pub memory: OwnedFd,
    /// The device's file.
    pub device: OwnedFd,
}

/// What became of a wish, by its token.
pub type Made = (u64, Result<Lent, String>);

/// It lends queues of a device `D`.
pub trait Lending<D> {
    /// How clients drive them.
    ///
    /// # Errors
    /// Says why there are none.
    fn rules(&self, device: &D) -> Result<DirectRules, String>;

    /// The device's address of a region that the client has just registered; it stays the hardware's for the client's queues.
    ///
    /// # Errors
    /// Says why there is none.
    fn lend_region(&mut self, client: ClientId, start: Iova, bytes: u64) -> Result<u64, String>;

    /// The client names a region no more.
    fn end_region(&mut self, client: ClientId, start: Iova);

    /// Bytes of memory of a queue.
    ///
    /// # Errors
    /// Says why there can be none so deep.
    fn queue_bytes(&self, device: &D, depth: u32) -> Result<u64, String>;

    /// Begins to make a queue; `line` is hung up when it is over. Returns a token.
    ///
    /// # Errors
    /// Says why there can be none.
    fn lend_queue(
        &mut self,
        device: &mut D,
        client: ClientId,
        depth: u32,
        line: WakeLine,
    ) -> Result<u64, String>;

    /// The next wish that is fulfilled, or cannot be.
    fn next_made(&mut self) -> Option<Made>;

    /// Begins to take a queue back.
    fn take_back(&mut self, queue: u16);

    /// Whether the hardware may still know a queue.
    fn has_queue(&self, queue: u16) -> bool;

    /// The next queue that the hardware forgot of its own accord.
    fn next_lost(&mut self) -> Option<u16>;

    /// Lets completions of a queue ring a bell.
    ///
    /// # Errors
    /// Says why they cannot.
    fn connect(&mut self, queue: u16, bell: WakeDescriptor) -> Result<(), String>;

    /// Does what helps a queue in trouble.
    ///
    /// # Errors
    /// Says why nothing was done.
    fn help(&mut self, device: &mut D, queue: u16, trouble: QueueTrouble) -> Result<(), String>;

    /// A client is gone: what it borrowed is taken back.
    fn remove_client(&mut self, client: ClientId);
}
