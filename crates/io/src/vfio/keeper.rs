//! Who looks after the controller of a queue: this process, or one that lent the queue to it.
//!
//! In: what a queue cannot do for itself. Out: queues, and what becomes of them. Invariant: a queue whose fate is lost is one
//! that the controller touches no memory of; nothing here is called for a command in its normal course but
//! [`device_addresses`](Keeper::device_addresses).

use super::control::Control;
use super::facts_of;
use crate::error::{IoError, SubmitError};
use crate::facts::NamespaceFacts;
use headwater_dma::iova::IovaRange;
use headwater_host::clock::Nanos;
use headwater_host::registers::Registers;
use headwater_host::ring_memory::RingMemory;
use headwater_host::wake::WakeDescriptor;
use headwater_nvme::controller::Priority;
use headwater_nvme::driver::{
    Fate, Function, HostMemory, IoQueue, Overdue, QueueFault, QueueSpec, RequestError, Trouble,
};
use headwater_nvme::queue_pair::CommandId;
use std::fmt;
use std::sync::Arc;

/// A queue of a keeper.
pub type Kept<K> = IoQueue<<K as Keeper>::Words, <K as Keeper>::Registers>;

/// It looks after a controller, for one queue.
pub trait Keeper: Send + fmt::Debug {
    /// How rings are touched.
    type Words: RingMemory + Send;
    /// How doorbells are rung.
    type Registers: Registers + Send;

    /// The time, from some beginning.
    fn now(&self) -> Nanos;

    /// The namespaces as they are now.
    fn namespaces(&mut self) -> Vec<NamespaceFacts>;

    /// Makes the queue, over a reset if one comes between. Not before the one before is deleted, lost or dead.
    ///
    /// # Errors
    /// [`IoError`] when the controller has no more, takes none so deep, or is gone.
    fn make_queue(&mut self, depth: u32) -> Result<Box<Kept<Self>>, IoError>;

    /// Puts the controller's addresses in place of those that buffers have.
    ///
    /// # Errors
    /// [`SubmitError::Unfit`] for memory that the controller does not reach.
    fn device_addresses(&mut self, runs: &mut [IovaRange]) -> Result<(), SubmitError>;

    /// Looks at the controller, whose answers do not come or whose queue does not stand.
    fn look(&mut self, now: Nanos);

    /// A command takes too long. What cannot be asked for now is asked for as a reset, a timeout later.
    fn overdue(&mut self, queue: u16, overdue: Overdue, now: Nanos);

    /// The controller breaks the protocol on this queue.
    fn broken(&mut self, queue: u16, fault: QueueFault, now: Nanos);

    /// Asks the controller to give a command up.
    ///
    /// # Errors
    /// [`IoError::Refused`]: nothing was asked.
    fn abort(&mut self, queue: u16, command: CommandId) -> Result<(), IoError>;

    /// Whether a dead controller certainly touches no memory.
    fn is_quiet(&self) -> bool;

    /// Deletes the queue; whether the controller is certainly done with it.
    fn delete_queue(&mut self, queue: &Kept<Self>) -> bool;

    /// Whether completions can ring a bell.
    fn has_interrupts(&self) -> bool;

    /// Lets the completions of a queue ring this bell from now on; if they cannot,
    /// [`has_interrupts`](Self::has_interrupts) says so from now on.
    ///
    /// # Errors
    /// [`IoError`] when the interrupt cannot be had.
    fn connect(&mut self, queue: u16, bell: &WakeDescriptor) -> Result<(), IoError>;
}

/// This process drives the controller.
pub struct OwnController<F: Function, H: HostMemory> {
    control: Arc<Control<F, H>>,
    priority: Priority,
    vector: Option<u16>,
    connected: bool,
}

impl<F: Function, H: HostMemory> OwnController<F, H> {
    /// For one queue, which gets an interrupt vector of its own if there is one left.
    #[must_use]
    pub fn new(control: &Arc<Control<F, H>>) -> Self {
        let (control, vector) = (Arc::clone(control), control.take_vector());
        Self { control, priority: Priority::Medium, vector, connected: false }
    }

    /// The queue's class, where the controller serves its queues by classes.
    #[must_use]
    pub fn of_class(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }
}

impl<F, H> Keeper for OwnController<F, H>
where
    F: Function + Send,
    F::Registers: Registers + Send,
    H: HostMemory + Send,
    H::Words: Send,
{
    type Words = H::Words;
    type Registers = F::Registers;

    fn now(&self) -> Nanos {
        self.control.now()
    }

    fn namespaces(&mut self) -> Vec<NamespaceFacts> {
        self.control.namespaces().iter().filter_map(facts_of).collect()
    }

    fn make_queue(&mut self, depth: u32) -> Result<Box<Kept<Self>>, IoError> {
        self.control.make_queue(QueueSpec { depth, vector: self.vector, priority: self.priority })
    }

    #[inline]
    fn device_addresses(&mut self, _runs: &mut [IovaRange]) -> Result<(), SubmitError> {
        // Buffers have them.
        Ok(())
    }

    fn look(&mut self, now: Nanos) {
        self.control.driver().poll(now);
    }

    fn overdue(&mut self, queue: u16, overdue: Overdue, now: Nanos) {
        let mut driver = self.control.driver();
        match overdue {
            Overdue::Abort(command) => drop(driver.abort(queue, command, now)),
            Overdue::Stuck(command) => driver.report(Trouble::Stuck { queue, command }, now),
        }
    }

    fn broken(&mut self, queue: u16, fault: QueueFault, now: Nanos) {
        self.control.driver().report(Trouble::Queue { queue, fault }, now);
    }

    fn abort(&mut self, queue: u16, command: CommandId) -> Result<(), IoError> {
        match self.control.driver().abort(queue, command, self.control.now()) {
            // A reset that goes on answers the command too.
            Ok(()) | Err(RequestError::NotReady) => Ok(()),
            Err(error) => Err(IoError::Refused { reason: error.to_string() }),
        }
    }

    fn is_quiet(&self) -> bool {
        self.control.driver().is_quiet()
    }

    fn delete_queue(&mut self, queue: &Kept<Self>) -> bool {
        self.control.delete_queue(queue.id(), || matches!(queue.fate(), Fate::Lost | Fate::Dead))
    }

    fn has_interrupts(&self) -> bool {
        self.vector.is_some()
    }

    fn connect(&mut self, _queue: u16, bell: &WakeDescriptor) -> Result<(), IoError> {
        let Some(vector) = self.vector.filter(|_| !self.connected) else { return Ok(()) };
        self.control.vectors().connect(vector, Some(bell)).map_err(|error| {
            self.control.failed(&format!("interrupt vector {vector} cannot be used: {error}"))
        })?;
        self.connected = true;
        Ok(())
    }
}

impl<F: Function, H: HostMemory> Drop for OwnController<F, H> {
    fn drop(&mut self) {
        let Some(vector) = self.vector else { return };
        if self.connected {
            // A vector that stays connected wakes nobody: its descriptor is closed with the queue.
            let _ = self.control.vectors().connect(vector, None);
        }
        self.control.give_vector_back(vector);
    }
}

impl<F: Function, H: HostMemory> fmt::Debug for OwnController<F, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnController")
            .field("control", &self.control)
            .field("vector", &self.vector)
            .finish_non_exhaustive()
    }
}
