//! The owner of a queue whose controller this process drives.
//!
//! Input: the operations that a queue cannot do itself. Output: queues, and their state. Invariant: the controller
//! accesses no memory of a queue whose state is lost.

use super::client_namespace;
use super::queue::{OwnedQueue, QueueOwner};
use super::shared_controller::SharedController;
use crate::client_namespace::ClientNamespace;
use crate::error::IoError;
use headwater_host::clock::Nanos;
use headwater_host::registers::DeviceRegisters;
use headwater_host::wake::WakeDescriptor;
use headwater_nvme::driver::{
    HostMemory, IoQueueState, OverdueCommand, PciFunction, QueueFault, QueueSpec, RequestError, ResetCause,
};
use headwater_nvme::queue_pair::CommandId;
use headwater_nvme::spec::priority::QueuePriority;
use std::fmt;
use std::sync::Arc;

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
        self.control.namespaces().iter().filter_map(client_namespace).collect()
    }

    fn create_queue(&mut self, depth: u32) -> Result<Box<OwnedQueue<Self>>, IoError> {
        let spec = QueueSpec { depth, vector: self.vector, priority: self.priority };
        Ok(Box::new(self.control.create_queue(spec)?.carrying()))
    }

    fn poll_controller(&mut self, now: Nanos) {
        self.control.driver().poll(now);
    }

    fn report_overdue(&mut self, queue: u16, overdue: OverdueCommand, now: Nanos) {
        let mut driver = self.control.driver();
        match overdue {
            OverdueCommand::Abort(command) => drop(driver.abort(queue, command, now)),
            OverdueCommand::Stuck(command) => {
                driver.reset_for(ResetCause::CommandTimeout { queue, command }, now);
            }
        }
    }

    fn report_fault(&mut self, queue: u16, fault: QueueFault, now: Nanos) {
        self.control.driver().reset_for(ResetCause::QueueViolation { queue, fault }, now);
    }

    fn abort(&mut self, queue: u16, command: CommandId) -> Result<(), IoError> {
        match self.control.driver().abort(queue, command, self.control.now()) {
            // A reset in progress completes the command too.
            Ok(()) | Err(RequestError::NotReady) => Ok(()),
            // No queue entry is free for the abort.
            Err(error) => {
                let number = command.number();
                Err(IoError::Limit {
                    reason: format!("command {number} of queue {queue} is not aborted: {error}"),
                })
            }
        }
    }

    fn is_quiet(&self) -> bool {
        self.control.driver().is_dma_stopped()
    }

    fn delete_queue(&mut self, queue: &OwnedQueue<Self>) -> bool {
        self.control
            .delete_queue(queue.id(), || matches!(queue.state(), IoQueueState::Lost | IoQueueState::Dead))
    }

    fn has_interrupts(&self) -> bool {
        self.vector.is_some()
    }

    fn connect_interrupt(&mut self, _queue: u16, wake: &WakeDescriptor) -> Result<(), IoError> {
        let Some(vector) = self.vector.filter(|_| !self.connected) else { return Ok(()) };
        self.control.vectors().connect(vector, Some(wake)).map_err(|error| {
            self.control.device_error(&format!("cannot connect interrupt vector {vector}: {error}"))
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
        self.control.release_vector(vector);
    }
}

impl<F: PciFunction, H: HostMemory> fmt::Debug for LocalQueueOwner<F, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalQueueOwner")
            .field("control", &self.control)
            .field("vector", &self.vector)
            .finish_non_exhaustive()
    }
}
