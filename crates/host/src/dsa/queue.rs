//! A work queue, and the work that is on it.
//!
//! ```text
//!  submit --> in flight --record written--> ended --poll--> caller
//!                 |  drain done, no record: lost  -----> ended
//!                 |  stop begun, then done        -----> ended
//! ```
//! Input: work, which owns its memory, and operations on it. Output: the work, with one outcome an operation. Invariant: work
//! returns only when the device cannot write to it any more: its record is written, a drain that was submitted behind it has
//! ended, or the device was stopped. Work that is in flight when the queue is dropped is freed after the device was stopped.

use super::completion::{DsaOutcome, DsaStatus};
use super::descriptor::DsaDescriptor;
use super::discovery::WorkQueueInfo;
use super::instructions::DsaInstructions;
use super::portal::{OpenQueueError, PortalRefusal, SubmissionPortal, SubmissionWay, open_portal};
use super::software_portal::SoftwarePortal;
use super::work::{OperationFence, QueuedOperation, descriptor_of};
use crate::shared_memory::SharedMemory;
use crate::width::to_usize;
use crate::work_memory::{OperationError, WorkAddresses, WorkMemory};
use queue_portal::QueuePortal;
use rustix::io::Errno;
use std::fmt;
use std::ptr::NonNull;

mod queue_portal;
mod record_cell;
#[cfg(test)]
mod tests;

pub(super) use record_cell::RecordCell;

/// The limits of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// The most descriptors in flight, a batch counting as one. One more is kept for a drain.
    pub entries: usize,
    /// The most bytes of an operation.
    pub transfer_bytes_max: u32,
    /// The most operations that are submitted together as a batch; 1 without batches.
    pub batch_max: usize,
    /// True if the device reads back what an operation wrote, where it asks for that.
    pub can_read_back: bool,
}

/// The outcome of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationOutcome {
    /// The device ended it.
    Ended(DsaOutcome),
    /// The device wrote no record of it: it was not begun, or was lost. Any bytes of its target may be written.
    NoRecord,
}

impl OperationOutcome {
    /// Returns the outcome, if the operation succeeded.
    #[must_use]
    pub fn success(&self) -> Option<&DsaOutcome> {
        match self {
            Self::Ended(outcome)
                if matches!(outcome.status, DsaStatus::Success | DsaStatus::SuccessUnexpected) =>
            {
                Some(outcome)
            }
            Self::Ended(_) | Self::NoRecord => None,
        }
    }
}

/// Work that the device is done with.
#[derive(Debug)]
pub struct EndedWork<W> {
    /// The token that it was submitted with.
    pub token: u64,
    /// The work.
    pub work: W,
    /// The outcome of each operation, in their order.
    pub outcomes: Vec<OperationOutcome>,
}

/// The reason that a queue takes no work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkRefusal {
    /// The queue has no room.
    #[error("the work queue is full: poll it, or do the work by the CPU")]
    Full,
    /// The device was stopped.
    #[error("the work queue was stopped: do the work by the CPU")]
    Stopped,
    /// The kernel refused the descriptor.
    #[error("the kernel refused a descriptor ({0}): do the work by the CPU, and check the kernel's log")]
    Kernel(Errno),
    /// An operation does not fit the memory.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// There are no operations.
    #[error("work without operations: there is nothing to do for a device")]
    Empty,
}

/// Work that was not submitted.
#[derive(Debug)]
pub struct RefusedWork<W> {
    /// The work, unchanged.
    pub work: W,
    /// The reason.
    pub reason: WorkRefusal,
}

/// Everything that the device has addresses of. It stays where it is until the device is done.
struct WorkFrame<W> {
    work: W,
    /// Handles to the shared regions of the work.
    kept: Vec<SharedMemory>,
    descriptors: Vec<DsaDescriptor>,
    /// One for each operation, and one for the batch.
    records: Vec<RecordCell>,
}

/// The form in which operations were submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkForm {
    /// Each by itself.
    Direct,
    /// As a batch.
    Batch,
}

/// Work on the device.
struct SubmittedWork<W> {
    token: u64,
    /// Its place among all descriptors of the queue.
    sequence: u64,
    frame: NonNull<WorkFrame<W>>,
    form: WorkForm,
    /// The operations that the device has: all of them, or the first ones.
    submitted: usize,
}

/// A drain on the device.
struct SubmittedDrain {
    /// Work before this place is covered.
    sequence: u64,
    frame: NonNull<WorkFrame<()>>,
}

/// A work queue of a device, or of a software portal.
pub struct DsaQueue<W: WorkMemory> {
    portal: QueuePortal,
    limits: QueueLimits,
    way: SubmissionWay,
    works: Vec<SubmittedWork<W>>,
    drain: Option<SubmittedDrain>,
    /// Work before this place that has no record was lost.
    drained: u64,
    sequence: u64,
}

// SAFETY: bounds and alignment: not concerned. Lifetime: the frames belong to the queue and are freed by it. Aliasing: the
// pointers to them are used by the owner of the queue only; the work may be sent by the bound on `WorkMemory`.
unsafe impl<W: WorkMemory> Send for DsaQueue<W> {}

impl<W: WorkMemory> DsaQueue<W> {
    /// Opens a work queue of a device. Not yet run on silicon.
    ///
    /// # Errors
    /// [`OpenQueueError`] names the cause and the remedy.
    pub fn open(queue: &WorkQueueInfo, instructions: DsaInstructions) -> Result<Self, OpenQueueError> {
        let (portal, way) = open_portal(queue, instructions)?;
        let size = match queue.threshold {
            // A dedicated queue has no threshold.
            0 => queue.size,
            threshold => threshold.min(queue.size),
        };
        let batch_max = if portal.allows_batches() { queue.batch_max } else { 1 };
        let limits = QueueLimits {
            entries: to_usize(u64::from(size.saturating_sub(1).max(1))),
            transfer_bytes_max: queue.transfer_bytes_max,
            batch_max: to_usize(u64::from(batch_max)),
            can_read_back: queue.can_read_back,
        };
        Ok(Self::new(portal, limits, way))
    }

    /// Takes a software portal as the device.
    #[must_use]
    pub fn software(portal: SoftwarePortal) -> Self {
        let limits = portal.limits();
        Self::new(Box::new(portal), limits, SubmissionWay::Software)
    }

    fn new(portal: Box<dyn SubmissionPortal>, limits: QueueLimits, way: SubmissionWay) -> Self {
        let portal = QueuePortal::Open(portal);
        Self { portal, limits, way, works: Vec::new(), drain: None, drained: 0, sequence: 0 }
    }

    /// Returns the limits.
    #[must_use]
    pub fn limits(&self) -> QueueLimits {
        self.limits
    }

    /// Returns the way by which descriptors reach the device.
    #[must_use]
    pub fn way(&self) -> SubmissionWay {
        self.way
    }

    /// Returns the number of descriptors in flight.
    #[must_use]
    pub fn entries_in_use(&self) -> usize {
        self.works.iter().map(|work| if work.form == WorkForm::Batch { 1 } else { work.submitted }).sum()
    }

    /// Returns true if no work is in flight.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.works.is_empty()
    }

    /// Submits work: as one descriptor, as a batch if that is allowed and short enough, or one by one. One by one, operations
    /// from the first one with a fence on are left out, and those that find no room; they get no record.
    ///
    /// # Errors
    /// [`RefusedWork`] returns the work, if the device has none of it.
    pub fn submit(
        &mut self,
        token: u64,
        work: W,
        operations: &[QueuedOperation],
    ) -> Result<(), RefusedWork<W>> {
        let refuse = |work, reason| Err(RefusedWork { work, reason });
        let room = self.limits.entries.saturating_sub(self.entries_in_use());
        if self.is_stopped() {
            return refuse(work, WorkRefusal::Stopped);
        }
        if operations.is_empty() {
            return refuse(work, WorkRefusal::Empty);
        }
        if room == 0 {
            return refuse(work, WorkRefusal::Full);
        }
        let is_batch = operations.len() > 1 && operations.len() <= self.limits.batch_max;
        let form = if is_batch { WorkForm::Batch } else { WorkForm::Direct };
        let (frame, prepared) = prepare(work, operations, form);
        let sent = match prepared {
            Ok(()) if is_batch => self.send_batch(frame).map(|()| operations.len()),
            Ok(()) => self.send_each(frame, operations, room),
            Err(error) => Err(error.into()),
        };
        match sent {
            Ok(submitted) => {
                let sequence = self.sequence;
                self.works.push(SubmittedWork { token, sequence, frame, form, submitted });
                Ok(())
            }
            Err(reason) => {
                // SAFETY: the frame came from a box, and the device has no descriptor of it.
                let frame = unsafe { Box::from_raw(frame.as_ptr()) };
                refuse(frame.work, reason)
            }
        }
    }

    fn send_batch(&mut self, frame: NonNull<WorkFrame<W>>) -> Result<(), WorkRefusal> {
        // SAFETY: bounds and alignment: a frame from a box. Lifetime: it is freed when the work has ended. Aliasing: the device
        // only reads the list and writes records, which are atomics; the work, whose bytes it may write, is not borrowed.
        let descriptors = unsafe { &(*frame.as_ptr()).descriptors };
        // SAFETY: as above.
        let records = unsafe { &(*frame.as_ptr()).records };
        let list = descriptors.as_ptr().expose_provenance() as u64;
        // The length is at most `batch_max`, which fits.
        let count = u32::try_from(descriptors.len()).map_err(|_| WorkRefusal::Full)?;
        let record = records.last().map_or(0, RecordCell::address);
        self.send(&DsaDescriptor::batch(list, count).with_record(record))
    }

    /// Sends the operations up to the first one with a fence. Returns how many of them the device took, at least one.
    fn send_each(
        &mut self,
        frame: NonNull<WorkFrame<W>>,
        operations: &[QueuedOperation],
        room: usize,
    ) -> Result<usize, WorkRefusal> {
        // SAFETY: as in `send_batch`.
        let descriptors = unsafe { &(*frame.as_ptr()).descriptors };
        let mut sent = 0;
        for (descriptor, queued) in descriptors.iter().zip(operations).take(room) {
            if sent > 0 && queued.fence == OperationFence::AfterEarlier {
                break;
            }
            match self.send(descriptor) {
                Ok(()) => sent += 1,
                Err(reason) if sent == 0 => return Err(reason),
                Err(_) => break,
            }
        }
        Ok(sent)
    }

    fn send(&mut self, descriptor: &DsaDescriptor) -> Result<(), WorkRefusal> {
        let QueuePortal::Open(portal) = &mut self.portal else { return Err(WorkRefusal::Stopped) };
        // SAFETY: the descriptor names ranges of the frame's work, which were checked, and its lists and records. The frame
        // moves to `works`, where nothing accesses the work until the device is done, as the invariant of this file says.
        let sent = unsafe { portal.submit(descriptor) };
        sent.map_err(|refusal| match refusal {
            PortalRefusal::Full => WorkRefusal::Full,
            PortalRefusal::Gone => WorkRefusal::Stopped,
            PortalRefusal::Kernel(errno) => WorkRefusal::Kernel(errno),
        })?;
        self.sequence += 1;
        Ok(())
    }

    /// Returns the next work that the device is done with. Never blocks.
    pub fn poll(&mut self) -> Option<EndedWork<W>> {
        self.poll_drain();
        let is_stopped = self.portal.poll_stop();
        if is_stopped {
            self.free_drain();
        }
        let at = self
            .works
            .iter()
            .position(|work| is_stopped || work.sequence <= self.drained || work.has_ended())?;
        Some(self.works.remove(at).end())
    }

    /// Submits a drain: when it has ended, work from before it that has no record was lost, and returns too. Does nothing if
    /// one is on its way.
    ///
    /// # Errors
    /// [`WorkRefusal`] if the device does not take it.
    pub fn drain(&mut self) -> Result<(), WorkRefusal> {
        if self.is_stopped() {
            return Err(WorkRefusal::Stopped);
        }
        if self.drain.is_some() {
            return Ok(());
        }
        let frame = WorkFrame {
            work: (),
            kept: Vec::new(),
            descriptors: Vec::new(),
            records: vec![RecordCell::default()],
        };
        let record = frame.records[0].address();
        let frame = NonNull::from(Box::leak(Box::new(frame)));
        let sequence = self.sequence;
        if let Err(reason) = self.send(&DsaDescriptor::drain().with_record(record)) {
            // SAFETY: the frame came from a box, and the device has no descriptor of it.
            drop(unsafe { Box::from_raw(frame.as_ptr()) });
            return Err(reason);
        }
        self.drain = Some(SubmittedDrain { sequence, frame });
        Ok(())
    }

    /// Returns true if a drain is on its way.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.drain.is_some()
    }

    fn poll_drain(&mut self) {
        let Some(SubmittedDrain { sequence, frame }) = self.drain else { return };
        // SAFETY: as in `send_batch`.
        let Some(outcome) = unsafe { frame.as_ref() }.records[0].load() else { return };
        self.drain = None;
        // SAFETY: the frame came from a box, and its record is written: the device is done with it.
        drop(unsafe { Box::from_raw(frame.as_ptr()) });
        if outcome.status == DsaStatus::Success {
            self.drained = sequence;
        }
    }

    /// Stops the device. Blocks until it accesses nothing any more; all work in flight has ended then.
    fn stop(&mut self) {
        if self.portal.stop() {
            self.free_drain();
        }
    }

    /// Begins to stop the device, on a thread of its own, and returns at once: the kernel waits for a device that does not
    /// answer. From now on the queue takes no work. Work in flight returns as it ends, and all of it when the device accesses
    /// nothing any more. Where the system has no thread left, this blocks until the device accesses nothing.
    pub fn begin_stop(&mut self) {
        self.portal.begin_stop();
    }

    /// Frees the drain of a device that is stopped.
    fn free_drain(&mut self) {
        if let Some(SubmittedDrain { frame, .. }) = self.drain.take() {
            // SAFETY: the frame came from a box, and the device is stopped.
            drop(unsafe { Box::from_raw(frame.as_ptr()) });
        }
    }

    /// Returns true if the device was stopped, or its stop has begun: the queue takes no work.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        !matches!(self.portal, QueuePortal::Open(_))
    }
}

/// Puts work into a frame, and makes the descriptors of its operations.
fn prepare<W: WorkMemory>(
    work: W,
    operations: &[QueuedOperation],
    form: WorkForm,
) -> (NonNull<WorkFrame<W>>, Result<(), OperationError>) {
    let records = operations.len() + usize::from(form == WorkForm::Batch);
    let records = (0..records).map(|_| RecordCell::default()).collect();
    let frame = WorkFrame { work, kept: Vec::new(), descriptors: Vec::new(), records };
    // From here on the work stays at its address.
    let mut place = NonNull::from(Box::leak(Box::new(frame)));
    // SAFETY: bounds and alignment: a frame from a box. Lifetime: the caller frees it. Aliasing: the device has nothing of it
    // yet, and this is the only reference.
    let frame = unsafe { place.as_mut() };
    let addresses = WorkAddresses::of(&mut frame.work);
    for (nth, queued) in operations.iter().enumerate() {
        match descriptor_of(&addresses, nth, queued) {
            Ok(descriptor) => {
                frame.descriptors.push(descriptor.with_record(frame.records[nth].address()));
            }
            Err(error) => return (place, Err(error)),
        }
    }
    frame.kept = addresses.into_kept();
    (place, Ok(()))
}

impl<W> SubmittedWork<W> {
    /// Returns the records of the operations, and that of the batch.
    fn records(&self) -> &[RecordCell] {
        // SAFETY: bounds and alignment: a frame from a box. Lifetime: it is freed when `self` ends. Aliasing: records are
        // atomics, which the device may write at any time; the work is not touched.
        unsafe { &(*self.frame.as_ptr()).records }
    }

    fn has_ended(&self) -> bool {
        match self.form {
            WorkForm::Direct => self.records()[..self.submitted].iter().all(|record| record.load().is_some()),
            // The device writes the record of a batch when each descriptor of it has ended or is not begun any more.
            WorkForm::Batch => self.records().last().is_some_and(|record| record.load().is_some()),
        }
    }

    /// Takes the work from its frame. The device is done with it.
    fn end(self) -> EndedWork<W> {
        // SAFETY: the frame came from a box; the device writes nothing to it any more, as `poll` found.
        let frame = unsafe { Box::from_raw(self.frame.as_ptr()) };
        let WorkFrame { work, records, descriptors, .. } = *frame;
        let outcomes = records.iter().take(descriptors.len());
        let outcomes = outcomes
            .map(|record| record.load().map_or(OperationOutcome::NoRecord, OperationOutcome::Ended))
            .collect();
        EndedWork { token: self.token, work, outcomes }
    }
}

impl<W: WorkMemory> Drop for DsaQueue<W> {
    fn drop(&mut self) {
        self.stop();
        while let Some(ended) = self.poll() {
            drop(ended);
        }
    }
}

impl<W: WorkMemory> fmt::Debug for DsaQueue<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DsaQueue")
            .field("way", &self.way)
            .field("limits", &self.limits)
            .field("works", &self.works.len())
            .field("is_stopped", &self.is_stopped())
            .finish_non_exhaustive()
    }
}
