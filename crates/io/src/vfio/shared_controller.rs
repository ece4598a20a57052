//! The state shared by the queues of a controller: its driver, behind a lock that the fast path never takes.
//!
//! Input: blocking requests. Output: their results. Invariant: the lock is never held while waiting; every wait is
//! bounded, because the driver's recovery is.

use super::vectors::VectorSource;
use crate::error::IoError;
use headwater_host::clock::{Clock, Nanos};
use headwater_host::pinning::vfio::{KernelIommu, VfioContainer};
use headwater_nvme::driver::{
    ControllerInfo, DriverPhase, HostMemory, IoQueue, NvmeDriver, PciFunction, QueueError, QueueSpec,
    RequestError, ScannedNamespace,
};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Interval between two polls of a controller while waiting for it.
const POLL_INTERVAL: Nanos = Nanos::from_micros(50);
/// Longest wait for a request, which only an error that the driver did not detect exceeds.
const REQUEST_TIMEOUT: Nanos = Nanos::from_millis(120_000);
/// Longest wait for the shutdown.
const SHUTDOWN_TIMEOUT: Nanos = Nanos::from_millis(10_000);

/// A queue as the driver creates it.
pub(super) type DriverQueue<F, H> = IoQueue<<H as HostMemory>::Words, <F as PciFunction>::Registers>;

/// The driver of a controller, shared by its queues.
pub struct SharedController<F: PciFunction, H: HostMemory> {
    name: String,
    clock: Clock,
    driver: Mutex<NvmeDriver<F, H>>,
    vectors: Box<dyn VectorSource>,
    /// Vectors not assigned to a queue.
    free_vectors: Mutex<BTreeSet<u16>>,
    /// The container, held so that the pool's mappings outlive the controller's use of them.
    _container: Option<Arc<VfioContainer<KernelIommu>>>,
}

impl<F: PciFunction, H: HostMemory> SharedController<F, H> {
    /// Wraps a driver that was not started.
    #[must_use]
    pub fn new(
        name: &str,
        driver: NvmeDriver<F, H>,
        vectors: Box<dyn VectorSource>,
        container: Option<Arc<VfioContainer<KernelIommu>>>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            clock: Clock::start(),
            driver: Mutex::new(driver),
            free_vectors: Mutex::new((1..=vectors.count()).collect()),
            vectors,
            _container: container,
        }
    }

    /// Brings the controller up.
    ///
    /// # Errors
    /// [`IoError::Device`] with the reason if the controller does not become ready.
    pub fn start(&self) -> Result<(), IoError> {
        self.driver().start(self.clock.now());
        self.wait_until_ready()
    }

    pub(super) fn driver(&self) -> MutexGuard<'_, NvmeDriver<F, H>> {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> Nanos {
        self.clock.now()
    }

    pub(super) fn vectors(&self) -> &dyn VectorSource {
        self.vectors.as_ref()
    }

    /// Waits until the controller accepts commands.
    ///
    /// # Errors
    /// [`IoError::Device`] when it is dead.
    pub fn wait_until_ready(&self) -> Result<(), IoError> {
        let found = self.wait(|driver, now| match driver.poll(now) {
            DriverPhase::Ready => Some(Ok(())),
            DriverPhase::Dead => Some(Err(())),
            DriverPhase::Starting | DriverPhase::Recovering => None,
        });
        match found {
            Some(Ok(())) => Ok(()),
            Some(Err(())) => Err(self.death_error()),
            None => Err(self.device_error("the controller did not become ready in 120 s; reset the device")),
        }
    }

    /// Returns the controller's identify data.
    ///
    /// # Errors
    /// [`IoError::Device`] before it was ever ready.
    pub fn facts(&self) -> Result<ControllerInfo, IoError> {
        self.driver().info().cloned().ok_or_else(|| self.death_error())
    }

    /// Returns its namespaces as of the driver's last identify.
    #[must_use]
    pub fn namespaces(&self) -> Vec<ScannedNamespace> {
        self.driver().namespaces().to_vec()
    }

    /// Resets the controller and blocks until it is ready.
    ///
    /// # Errors
    /// [`IoError::Device`] when it is dead.
    pub fn reset(&self) -> Result<(), IoError> {
        self.driver().reset(self.now());
        self.wait_until_ready()
    }

    /// Creates a queue pair, and retries if a reset intervenes.
    pub(super) fn create_queue(&self, spec: QueueSpec) -> Result<Box<DriverQueue<F, H>>, IoError> {
        loop {
            self.wait_until_ready()?;
            let asked = self.wait(|driver, now| {
                driver.poll(now);
                match driver.request_queue(spec, now) {
                    Err(RequestError::Busy) => None,
                    other => Some(other),
                }
            });
            let ticket = match asked {
                Some(Ok(ticket)) => ticket,
                Some(Err(RequestError::NotReady)) => continue,
                Some(Err(error)) => return Err(self.device_error(&error.to_string())),
                None => return Err(self.device_error("the admin queue stays full")),
            };
            let made = self.wait(|driver, now| {
                driver.poll(now);
                driver.take_queue(ticket)
            });
            match made {
                Some(Ok(queue)) => return Ok(queue),
                Some(Err(QueueError::Reset)) => {}
                Some(Err(error)) => return Err(self.device_error(&error.to_string())),
                None => return Err(self.device_error("the creation of a queue did not complete in 120 s")),
            }
        }
    }

    /// Deletes a queue. Returns true if the controller certainly no longer accesses it.
    pub(super) fn delete_queue(&self, queue: u16, is_over: impl Fn() -> bool) -> bool {
        let deleted = self.wait(|driver, now| {
            driver.poll(now);
            if is_over() || !driver.has_queue(queue) {
                return Some(());
            }
            // Busy is temporary, and a reset ends the queue.
            let _ = driver.delete_queue(queue, now);
            None
        });
        let driver = self.driver();
        deleted.is_some() && (driver.death_cause().is_none() || driver.is_dma_stopped())
    }

    /// Takes a vector for a queue, if one is free.
    pub(super) fn take_vector(&self) -> Option<u16> {
        self.free_vectors.lock().unwrap_or_else(PoisonError::into_inner).pop_first()
    }

    pub(super) fn release_vector(&self, vector: u16) {
        self.free_vectors.lock().unwrap_or_else(PoisonError::into_inner).insert(vector);
    }

    pub(super) fn death_error(&self) -> IoError {
        match self.driver().death_cause() {
            Some(death) => self.device_error(&death.to_string()),
            None => self.device_error("the controller is not ready"),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn device_error(&self, reason: &str) -> IoError {
        IoError::Device { reason: format!("{}: {reason}", self.name) }
    }

    /// Calls `poll` until it returns a result or the wait times out. The lock is free between two calls.
    fn wait<T>(&self, mut poll: impl FnMut(&mut NvmeDriver<F, H>, Nanos) -> Option<T>) -> Option<T> {
        let started = self.now();
        loop {
            let now = self.now();
            if let Some(found) = poll(&mut self.driver(), now) {
                return Some(found);
            }
            if now.since(started) > REQUEST_TIMEOUT {
                return None;
            }
            Clock::sleep(POLL_INTERVAL);
        }
    }
}

impl<F: PciFunction, H: HostMemory> Drop for SharedController<F, H> {
    /// Shuts the controller down, so that acknowledged writes are durable.
    fn drop(&mut self) {
        let started = self.now();
        self.driver().close(started);
        while self.driver().poll(self.now()) != DriverPhase::Dead
            && self.now().since(started) < SHUTDOWN_TIMEOUT
        {
            Clock::sleep(POLL_INTERVAL);
        }
    }
}

impl<F: PciFunction, H: HostMemory> fmt::Debug for SharedController<F, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedController({})", self.name)
    }
}
