//! The software portal: a device of this process that takes descriptors and injects faults.
//!
//! Input: descriptors, and a [`FaultSource`] that decides what goes wrong. Output: real copies and real completion records, by
//! one thread. Invariant: after [`stop`](SubmissionPortal::stop) the thread has ended, so that nothing is written any more. It
//! is no DMA engine, saves no CPU time, and shows nothing about the speed of one.

use super::descriptor::{DsaDescriptor, DsaOpcode};
use super::discovery::{DsaOpcodeSet, WorkQueueMode};
use super::portal::{PortalRefusal, SubmissionPortal};
use super::queue::QueueLimits;
use super::software_engine::{EngineEnd, SoftwareEngine};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// The fault of a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PortalFault {
    /// None.
    #[default]
    None,
    /// A page is missing behind so many bytes. A batch cannot read its list.
    PageFault {
        /// The bytes that are done before.
        done: u32,
        /// True if the page was to be written.
        is_write: bool,
    },
    /// It ends with a status of this code, and what it had to write is half written with other bytes.
    Status(u8),
    /// It is never done, and gets no record.
    Lost,
    /// It is done only when a drain or the stop waits for it; one of a batch, at the end of its batch. A drain is lost.
    Late,
    /// It is done behind the next one, if there is one. A drain is lost.
    Reordered,
    /// A bit of the bytes that arrive, or are read for a CRC or a comparison, is another one.
    Corrupted,
    /// The device dies before it.
    Dies,
}

/// The decisions about faults. `nth` counts from 0.
pub trait FaultSource: Send + 'static {
    /// Returns true if the queue says that it has no room for the `nth` submission.
    fn refuses(&mut self, nth: u64) -> bool {
        let _ = nth;
        false
    }

    /// Returns the fault of the `nth` descriptor, those of batches and the batches themselves included.
    fn fault(&mut self, nth: u64, opcode: Option<DsaOpcode>) -> PortalFault {
        let _ = (nth, opcode);
        PortalFault::None
    }
}

/// No faults.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFaults;

impl FaultSource for NoFaults {}

/// The kind of the work queue that a software portal stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortalKind {
    /// Its users. A dedicated one drops a descriptor for which it has no room; a shared one answers.
    pub mode: WorkQueueMode,
    /// The descriptors that it holds.
    pub size: usize,
    /// The most bytes of a descriptor.
    pub transfer_bytes_max: u32,
    /// The most descriptors of a batch; 1 if it takes none.
    pub batch_max: usize,
    /// The opcodes that it permits. Each other ends with the status of an unknown one.
    pub opcodes: DsaOpcodeSet,
}

/// The state that owner and thread share.
pub(super) struct PortalState {
    pub(super) queue: VecDeque<DsaDescriptor>,
    /// Descriptors that have not ended: waiting, running, late and lost ones.
    pub(super) held: usize,
    pub(super) faults: Box<dyn FaultSource>,
    /// Descriptors that the thread has begun.
    pub(super) begun: u64,
    submissions: u64,
    overflows: u64,
    pub(super) is_stopping: bool,
}

/// The state, and the condition that wakes the thread.
pub(super) struct SharedPortal {
    state: Mutex<PortalState>,
    changed: Condvar,
}

impl SharedPortal {
    pub(super) fn lock(&self) -> MutexGuard<'_, PortalState> {
        // Each change of the state is complete before the next call that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wait<'a>(&self, state: MutexGuard<'a, PortalState>) -> MutexGuard<'a, PortalState> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

/// A device of this process.
pub struct SoftwarePortal {
    shared: Arc<SharedPortal>,
    kind: PortalKind,
    thread: Option<JoinHandle<EngineEnd>>,
}

impl SoftwarePortal {
    /// Starts the device.
    ///
    /// # Errors
    /// The system has no thread.
    pub fn start(kind: PortalKind, faults: impl FaultSource) -> io::Result<Self> {
        let state = PortalState {
            queue: VecDeque::new(),
            held: 0,
            faults: Box::new(faults),
            begun: 0,
            submissions: 0,
            overflows: 0,
            is_stopping: false,
        };
        let shared = Arc::new(SharedPortal { state: Mutex::new(state), changed: Condvar::new() });
        let engine = SoftwareEngine::new(Arc::clone(&shared), kind);
        let thread = std::thread::Builder::new().name("dsa".into()).spawn(move || engine.serve())?;
        Ok(Self { shared, kind, thread: Some(thread) })
    }

    /// Returns the opcodes that the device knows and its queue permits.
    #[must_use]
    pub fn opcodes(&self) -> DsaOpcodeSet {
        self.kind.opcodes
    }

    /// Returns the limits, as a queue of a device has them.
    pub(super) fn limits(&self) -> QueueLimits {
        QueueLimits {
            entries: self.kind.size.saturating_sub(1).max(1),
            transfer_bytes_max: self.kind.transfer_bytes_max,
            batch_max: if self.allows_batches() { self.kind.batch_max } else { 1 },
            // What its thread wrote has arrived.
            can_read_back: true,
        }
    }
}

impl SubmissionPortal for SoftwarePortal {
    unsafe fn submit(&mut self, descriptor: &DsaDescriptor) -> Result<(), PortalRefusal> {
        let mut state = self.shared.lock();
        if state.is_stopping {
            return Err(PortalRefusal::Gone);
        }
        let nth = state.submissions;
        state.submissions += 1;
        if state.faults.refuses(nth) {
            return Err(PortalRefusal::Full);
        }
        if state.held >= self.kind.size {
            if self.kind.mode == WorkQueueMode::Shared {
                return Err(PortalRefusal::Full);
            }
            // The device drops it without an answer: its user should have counted.
            state.overflows += 1;
            return Ok(());
        }
        state.held += 1;
        state.queue.push_back(*descriptor);
        self.shared.changed.notify_one();
        Ok(())
    }

    fn stop(&mut self) {
        self.shared.lock().is_stopping = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // The thread ends when it has done what is late and what waits; a panic of it ends it too.
            let _ = thread.join();
        }
    }

    fn allows_batches(&self) -> bool {
        self.kind.batch_max > 1 && self.kind.opcodes.contains(DsaOpcode::Batch)
    }
}

impl Drop for SoftwarePortal {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for SoftwarePortal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.lock();
        write!(f, "SoftwarePortal({:?}, {} begun, {} overflows)", self.kind, state.begun, state.overflows)
    }
}
