//! The owner of a queue, which manages its controller: this process, or the daemon that lent the queue.
//!
//! Input: the operations that a queue cannot do itself. Output: queues, and their state. Invariant: the controller
//! accesses no memory of a queue whose state is lost; the fast path of a command calls only
//! [`device_addresses`](Keeper::device_addresses).

use super::facts_of;
use super::shared_controller::SharedController;
use crate::client_namespace::ClientNamespace;
use crate::backend::CommandContext;
use crate::error::{IoError, SubmitError};
use headwater_dma::iova::IovaRange;
use headwater_host::clock::Nanos;
use headwater_host::registers::DeviceRegisters;
use headwater_host::ring_memory::RingMemory;
use headwater_host::wake::WakeDescriptor;
use headwater_nvme::driver::{
    HostMemory, IoQueue, IoQueueState, OverdueCommand, PciFunction, QueueFault, QueueSpec, RequestError,
    ResetCause,
};
use headwater_nvme::queue_pair::CommandId;
use headwater_nvme::spec::priority::QueuePriority;
use std::fmt;
use std::sync::Arc;

/// A queue of an owner.
pub type OwnedQueue<K> = IoQueue<<K as QueueOwner>::Words, <K as QueueOwner>::Registers, CommandContext>;

/// The owner of one queue, which manages the queue's controller.
pub trait QueueOwner: Send + fmt::Debug {
    /// The memory of the rings.
    type Words: RingMemory + Send;
    /// The doorbell registers.
    type Registers: DeviceRegisters + Send;

    /// Returns the time since an arbitrary origin.
    fn now(&self) -> Nanos;

    /// Returns the present namespaces.
    fn namespaces(&mut self) -> Vec<ClientNamespace>;

    /// Creates the queue, and retries if a reset intervenes. The previous queue must be deleted, lost or dead.
    ///
    /// # Errors
    /// [`IoError`] when the controller has no free queue, does not support the depth, or is gone.
    fn make_queue(&mut self, depth: u32) -> Result<Box<OwnedQueue<Self>>, IoError>;

    /// Replaces the addresses of buffers with the controller's addresses.
    ///
    /// # Errors
    /// [`SubmitError::Unfit`] for memory that the controller cannot access.
    fn device_addresses(&mut self, runs: &mut [IovaRange]) -> Result<(), SubmitError>;

    /// Polls the controller when completions stay away or the queue was invalidated by a reset.
    fn look(&mut self, now: Nanos);

    /// Reports an overdue command. An abort that cannot be sent now becomes a reset one timeout later.
    fn overdue(&mut self, queue: u16, overdue: OverdueCommand, now: Nanos);

    /// Reports that the controller breaks the protocol on this queue.
    fn broken(&mut self, queue: u16, fault: QueueFault, now: Nanos);

    /// Sends an abort of a command to the controller.
    ///
    /// # Errors
    /// [`IoError::Refused`]: no abort was sent.
    fn abort(&mut self, queue: u16, command: CommandId) -> Result<(), IoError>;

    /// Returns true if a dead controller certainly accesses no memory.
    fn is_quiet(&self) -> bool;

    /// Deletes the queue. Returns true if the controller certainly no longer accesses it.
    fn delete_queue(&mut self, queue: &OwnedQueue<Self>) -> bool;

    /// Returns true if completions can signal a wake descriptor.
    fn has_interrupts(&self) -> bool;

    /// Connects the completions of a queue to a wake descriptor; if that is impossible,
    /// [`has_interrupts`](Self::has_interrupts) returns false afterwards.
    ///
    /// # Errors
    /// [`IoError`] when the interrupt cannot be connected.
    fn connect(&mut self, queue: u16, wake: &WakeDescriptor) -> Result<(), IoError>;
}

/// The owner of a queue whose controller this process drives.
pub struct LocalQueueOwner<F: PciFunction, H: HostMemory> {
    control: Arc<SharedController<F, H>>,
    priority: QueuePriority,
    vector: Option<u16>,
    connected: bool,
}

impl<F: PciFunction, H: HostMemory> LocalQueueOwner<F, H> {
    /// Creates the owner of one queue, and takes an interrupt vector for it if one is free.
    #[must_use]
    pub fn new(control: &Arc<SharedController<F, H>>) -> Self {
        let (control, vector) = (Arc::clone(control), control.take_vector());
        Self { control, priority: QueuePriority::Medium, vector, connected: false }
    }

    /// Sets the queue's class, where the controller arbitrates between classes.
    #[must_use]
    pub fn of_class(mut self, priority: QueuePriority) -> Self {
        self.priority = priority;
        self
    }
}

impl<F, H> QueueOwner for LocalQueueOwner<F, H>
where
    F: PciFunction + Send,
    F::Registers: DeviceRegisters + Send,
    H: HostMemory + Send,
    H::Words: Send,
{
    type Words = H::Words;
    type Registers = F::Registers;

    fn now(&self) -> Nanos {
        self.control.now()
    }

    fn namespaces(&mut self) -> Vec<ClientNamespace> {
        self.control.namespaces().iter().filter_map(facts_of).collect()
    }

    fn make_queue(&mut self, depth: u32) -> Result<Box<OwnedQueue<Self>>, IoError> {
        let spec = QueueSpec { depth, vector: self.vector, priority: self.priority };
        Ok(Box::new(self.control.make_queue(spec)?.carrying()))
    }

    #[inline]
    fn device_addresses(&mut self, _runs: &mut [IovaRange]) -> Result<(), SubmitError> {
        // Buffers already hold the controller's addresses.
        Ok(())
    }

    fn look(&mut self, now: Nanos) {
        self.control.driver().poll(now);
    }

    fn overdue(&mut self, queue: u16, overdue: OverdueCommand, now: Nanos) {
        let mut driver = self.control.driver();
        match overdue {
            OverdueCommand::Abort(command) => drop(driver.abort(queue, command, now)),
            OverdueCommand::Stuck(command) => driver.report(ResetCause::Stuck { queue, command }, now),
        }
    }

    fn broken(&mut self, queue: u16, fault: QueueFault, now: Nanos) {
        self.control.driver().report(ResetCause::Queue { queue, fault }, now);
    }

    fn abort(&mut self, queue: u16, command: CommandId) -> Result<(), IoError> {
        match self.control.driver().abort(queue, command, self.control.now()) {
            // A reset in progress completes the command too.
            Ok(()) | Err(RequestError::NotReady) => Ok(()),
            Err(error) => Err(IoError::Refused { reason: error.to_string() }),
        }
    }

    fn is_quiet(&self) -> bool {
        self.control.driver().is_quiet()
    }

    fn delete_queue(&mut self, queue: &OwnedQueue<Self>) -> bool {
        self.control
            .delete_queue(queue.id(), || matches!(queue.fate(), IoQueueState::Lost | IoQueueState::Dead))
    }

    fn has_interrupts(&self) -> bool {
        self.vector.is_some()
    }

    fn connect(&mut self, _queue: u16, wake: &WakeDescriptor) -> Result<(), IoError> {
        let Some(vector) = self.vector.filter(|_| !self.connected) else { return Ok(()) };
        self.control.vectors().connect(vector, Some(wake)).map_err(|error| {
            self.control.failed(&format!("cannot connect interrupt vector {vector}: {error}"))
        })?;
        self.connected = true;
        Ok(())
    }
}

impl<F: PciFunction, H: HostMemory> Drop for LocalQueueOwner<F, H> {
    fn drop(&mut self) {
        let Some(vector) = self.vector else { return };
        if self.connected {
            // A vector that stays connected wakes no thread: its descriptor is closed with the queue.
            let _ = self.control.vectors().connect(vector, None);
        }
        self.control.give_vector_back(vector);
    }
}

impl<F: PciFunction, H: HostMemory> fmt::Debug for LocalQueueOwner<F, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnController")
            .field("control", &self.control)
            .field("vector", &self.vector)
            .finish_non_exhaustive()
    }
}
