//! The copy engines of one GPU, and the work that is on them.
//!
//! ```text
//!  submit --> in flight --events ended--> done -----------poll--> caller
//!                 |  a call failed, or the caller stops the engine:
//!                 +--> context destroyed, on a thread --> not done --poll--> caller
//! ```
//! Input: work, which owns its memory, and transfers in it. Output: the work, done or not. Invariant: work returns only when the
//! GPU cannot access it any more: the events behind its transfers have ended, or the context was destroyed. Work that is in
//! flight when the engine is dropped is freed after the context was destroyed.

use super::context::{ContextEvent, EngineContext};
use super::driver::GpuDriver;
use super::gpu_error::{CudaFailure, OpenGpuError};
use super::registration::HostRegistrations;
use super::slot_plan::{SlotPlan, SlotSource, SlotUse};
use crate::shared_memory::SharedMemory;
use crate::work_memory::{OperationError, WorkAccess, WorkAddresses, WorkMemory, WorkPlace};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread::JoinHandle;

/// The most slots of an engine.
const SLOTS_MAX: usize = 64;
/// The bounds of a slot, in bytes.
const SLOT_BYTES: [usize; 2] = [64, 1 << 28];
/// The most works in flight.
const DEPTH_MAX: usize = 1_024;

/// The settings of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuEngineConfig {
    /// The slots of GPU memory, each with a stream: so many transfers overlap.
    pub slots: usize,
    /// The bytes of a slot, which are the most of a transfer.
    pub slot_bytes: usize,
    /// The most works in flight.
    pub depth: usize,
}

impl Default for GpuEngineConfig {
    /// Returns four slots of a mebibyte: two for each direction of the bus.
    fn default() -> Self {
        Self { slots: 4, slot_bytes: 1 << 20, depth: 8 }
    }
}

impl GpuEngineConfig {
    fn check(&self) -> Result<(), OpenGpuError> {
        let [least_bytes, most_bytes] = SLOT_BYTES;
        for (field, found, least, most) in [
            ("slots", self.slots, 1, SLOTS_MAX),
            ("slot_bytes", self.slot_bytes, least_bytes, most_bytes),
            ("depth", self.depth, 1, DEPTH_MAX),
        ] {
            if !(least..=most).contains(&found) {
                return Err(OpenGpuError::Setting { field, found, least, most });
            }
        }
        Ok(())
    }
}

/// The source of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferSource {
    /// Bytes of the work.
    Copy(WorkPlace),
    /// Bytes of this value.
    Fill(u8),
}

/// A transfer through the memory of the GPU. Each range has `bytes` bytes, and lies in one consecutive piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuTransfer {
    /// The bytes to write.
    pub source: TransferSource,
    /// The place to write them to.
    pub to: WorkPlace,
    /// A second place. The source is read once.
    pub also_to: Option<WorkPlace>,
    /// The length: at least 1, at most that of a slot.
    pub bytes: usize,
}

/// Work that the GPU is done with.
#[derive(Debug)]
pub struct EndedTransfers<W> {
    /// The token that it was submitted with.
    pub token: u64,
    /// The work.
    pub work: W,
    /// True if all transfers were made; else any bytes of their targets may be written.
    pub is_done: bool,
}

/// The reason that an engine takes no work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferRefusal {
    /// It has as many works as its depth.
    #[error("the engine is full: poll it, or do the work by the CPU")]
    Full,
    /// It was stopped.
    #[error("the engine was stopped: do the work by the CPU")]
    Stopped,
    /// A range does not fit the memory.
    #[error(transparent)]
    Range(#[from] OperationError),
    /// A transfer has no bytes, or more than a slot.
    #[error("transfer {transfer} has {bytes} bytes: 1 to {slot_bytes} fit a slot")]
    Length {
        /// The transfer, counted from 0.
        transfer: usize,
        /// Its length.
        bytes: usize,
        /// The length of a slot.
        slot_bytes: usize,
    },
    /// A range is not registered.
    #[error("{bytes} bytes at {address:#x} are not in one registered range: register them, or use the CPU")]
    NotRegistered {
        /// The first address.
        address: usize,
        /// The length.
        bytes: usize,
    },
    /// There are no transfers.
    #[error("work without transfers: there is nothing to do for a GPU")]
    Empty,
}

/// Work that was not submitted.
#[derive(Debug)]
pub struct RefusedTransfers<W> {
    /// The work, unchanged.
    pub work: W,
    /// The reason.
    pub reason: TransferRefusal,
}

/// Everything that the GPU has addresses of. It stays where it is until the GPU is done.
struct TransferFrame<W> {
    work: W,
    /// Handles to the shared regions of the work.
    kept: Vec<SharedMemory>,
}

/// Work on the GPU.
struct SubmittedTransfers<W> {
    token: u64,
    frame: NonNull<TransferFrame<W>>,
    /// Events behind its transfers that have not ended; empty if some transfers were not started.
    events: Vec<ContextEvent>,
    is_whole: bool,
}

/// The state of the context.
enum EngineState {
    Running(EngineContext),
    /// The context is being destroyed.
    Stopping(JoinHandle<()>),
    Stopped,
}

/// The copy engines of a GPU.
pub struct GpuEngine<W: WorkMemory> {
    state: EngineState,
    registrations: HostRegistrations,
    config: GpuEngineConfig,
    works: Vec<SubmittedTransfers<W>>,
    next_slot: usize,
    failure: Option<CudaFailure>,
}

// SAFETY: bounds and alignment: not concerned. Lifetime: the frames belong to the engine and are freed by it. Aliasing: the
// pointers to them are used by the owner of the engine only; the work may be sent by the bound on `WorkMemory`.
unsafe impl<W: WorkMemory> Send for GpuEngine<W> {}

impl<W: WorkMemory> GpuEngine<W> {
    /// Opens an engine with a context of its own on a GPU. Not yet run on a GPU.
    ///
    /// # Errors
    /// [`OpenGpuError`] names the cause and the remedy.
    pub fn open(
        driver: &Arc<GpuDriver>,
        gpu: usize,
        registrations: HostRegistrations,
        config: GpuEngineConfig,
    ) -> Result<Self, OpenGpuError> {
        config.check()?;
        let device = driver.gpu(gpu)?.device;
        let context = EngineContext::create(driver, device, config.slots, config.slot_bytes)?;
        Ok(Self {
            state: EngineState::Running(context),
            registrations,
            config,
            works: Vec::new(),
            next_slot: 0,
            failure: None,
        })
    }

    /// Returns the settings.
    #[must_use]
    pub fn config(&self) -> GpuEngineConfig {
        self.config
    }

    /// Returns the memory that the engine can move.
    #[must_use]
    pub fn registrations(&self) -> &HostRegistrations {
        &self.registrations
    }

    /// Returns the call that failed, behind which the engine stopped.
    #[must_use]
    pub fn failure(&self) -> Option<&CudaFailure> {
        self.failure.as_ref()
    }

    /// Returns true if no work is in flight.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.works.is_empty()
    }

    /// Returns true if the engine takes no work any more.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        !matches!(self.state, EngineState::Running(_))
    }

    /// Submits work. Transfers run in no order: none needs what another one writes. If the driver fails, the engine stops, and
    /// the work returns by [`poll`](Self::poll), not done.
    ///
    /// # Errors
    /// [`RefusedTransfers`] returns the work, if the GPU has none of it.
    pub fn submit(
        &mut self,
        token: u64,
        work: W,
        transfers: &[GpuTransfer],
    ) -> Result<(), RefusedTransfers<W>> {
        let reason = if self.is_stopped() {
            Some(TransferRefusal::Stopped)
        } else if transfers.is_empty() {
            Some(TransferRefusal::Empty)
        } else if self.works.len() >= self.config.depth {
            Some(TransferRefusal::Full)
        } else {
            None
        };
        if let Some(reason) = reason {
            return Err(RefusedTransfers { work, reason });
        }
        // From here on the work stays at its address.
        let mut frame = NonNull::from(Box::leak(Box::new(TransferFrame { work, kept: Vec::new() })));
        // SAFETY: bounds and alignment: a frame from a box. Lifetime: it is freed when the work has ended. Aliasing: the GPU has
        // nothing of it yet, and this is the only reference.
        let prepared = self.prepare(unsafe { frame.as_mut() }, transfers);
        match prepared {
            Ok(uses) => {
                let (events, is_whole) = self.start(&uses);
                self.works.push(SubmittedTransfers { token, frame, events, is_whole });
                Ok(())
            }
            Err(reason) => {
                // SAFETY: the frame came from a box, and the GPU has nothing of it.
                let frame = unsafe { Box::from_raw(frame.as_ptr()) };
                Err(RefusedTransfers { work: frame.work, reason })
            }
        }
    }

    /// Takes the addresses of the work, and packs its transfers into slots.
    fn prepare(
        &self,
        frame: &mut TransferFrame<W>,
        transfers: &[GpuTransfer],
    ) -> Result<Vec<SlotUse>, TransferRefusal> {
        let addresses = WorkAddresses::of(&mut frame.work);
        let slot_bytes = self.config.slot_bytes;
        let registered = self.registrations.lookup();
        let mut plan = SlotPlan::new(slot_bytes, |address| registered.bytes_from(address));
        for (nth, transfer) in transfers.iter().enumerate() {
            let GpuTransfer { source, to, also_to, bytes } = *transfer;
            let short = u32::try_from(bytes).ok().filter(|_| (1..=slot_bytes).contains(&bytes));
            let short = short.ok_or(TransferRefusal::Length { transfer: nth, bytes, slot_bytes })?;
            let address = |place, access| -> Result<usize, TransferRefusal> {
                // Addresses of this process have the width of a `usize`.
                Ok(crate::width::to_usize(addresses.address(nth, place, short, access)?))
            };
            let source = match source {
                TransferSource::Copy(from) => SlotSource::Host(address(from, WorkAccess::Read)?),
                TransferSource::Fill(value) => SlotSource::Value(value),
            };
            let first = address(to, WorkAccess::Write)?;
            let second = also_to.map(|place| address(place, WorkAccess::Write)).transpose()?;
            let added = plan.add(source, std::iter::once(first).chain(second), bytes);
            added.map_err(|range| TransferRefusal::NotRegistered {
                address: range.address,
                bytes: range.bytes,
            })?;
        }
        let uses = plan.into_uses();
        frame.kept = addresses.into_kept();
        Ok(uses)
    }

    /// Starts the transfers of some work, whose frame the caller keeps until they have ended. Returns the events behind them,
    /// and true if all were started; else the engine has begun to stop.
    fn start(&mut self, uses: &[SlotUse]) -> (Vec<ContextEvent>, bool) {
        let EngineState::Running(context) = &mut self.state else { return (Vec::new(), false) };
        let first = self.next_slot;
        self.next_slot = (first + uses.len()) % context.slots();
        match start_uses(context, first, uses) {
            Ok(events) => (events, true),
            Err(failure) => {
                self.fail(failure);
                (Vec::new(), false)
            }
        }
    }

    fn fail(&mut self, failure: CudaFailure) {
        self.failure.get_or_insert(failure);
        self.stop();
    }

    /// Stops the engine: destroys its context on a thread, so that the caller need not wait for it. What is in flight returns by
    /// [`poll`](Self::poll), not done, when the GPU makes no transfer any more.
    pub fn stop(&mut self) {
        if let EngineState::Running(context) = std::mem::replace(&mut self.state, EngineState::Stopped) {
            let thread = std::thread::Builder::new().name("gpu-stop".into());
            // Without a thread the context is destroyed here: the closure is dropped with it.
            if let Ok(thread) = thread.spawn(move || drop(context)) {
                self.state = EngineState::Stopping(thread);
            }
        }
    }

    /// Returns the next work that the GPU is done with. Never blocks.
    pub fn poll(&mut self) -> Option<EndedTransfers<W>> {
        self.end_stop();
        if let EngineState::Running(context) = &mut self.state {
            match ended_work(context, &mut self.works) {
                Ok(at) => return at.map(|at| self.works.remove(at).end(true)),
                Err(failure) => self.fail(failure),
            }
        }
        if matches!(self.state, EngineState::Stopped) && !self.works.is_empty() {
            let ended = self.works.remove(0);
            // Its events had all ended before the stop.
            let is_done = ended.is_whole && ended.events.is_empty();
            return Some(ended.end(is_done));
        }
        None
    }

    /// Notes that the context was destroyed.
    fn end_stop(&mut self) {
        match std::mem::replace(&mut self.state, EngineState::Stopped) {
            EngineState::Stopping(thread) if thread.is_finished() => {
                // The thread has no code that panics.
                let _ = thread.join();
            }
            other => self.state = other,
        }
    }
}

/// Starts transfers, each slot in its turn, and records an event behind the last one of each slot.
fn start_uses(
    context: &mut EngineContext,
    first: usize,
    uses: &[SlotUse],
) -> Result<Vec<ContextEvent>, CudaFailure> {
    let slots = context.slots();
    let _current = context.enter()?;
    for (nth, slot_use) in uses.iter().enumerate() {
        let slot = (first + nth) % slots;
        for run in &slot_use.reads {
            // SAFETY: bounds: the plan cut the run out of checked ranges of the work, and packed it into a slot. Lifetime and
            // aliasing: the frame of the work, which nothing touches, stays in `works` until the events have ended or the
            // context was destroyed.
            unsafe { context.copy_in((slot, run.offset), run.address, run.bytes) }?;
        }
        for run in &slot_use.fills {
            context.fill_slot((slot, run.offset), run.bytes, run.value)?;
        }
        for run in &slot_use.writes {
            // SAFETY: as for the reads; a written range belongs to the work alone, or is shared memory.
            unsafe { context.copy_out((slot, run.offset), run.address, run.bytes) }?;
        }
    }
    (first..first + uses.len().min(slots)).map(|slot| context.record(slot % slots)).collect()
}

/// Returns the place of a work whose events have all ended.
fn ended_work<W>(
    context: &mut EngineContext,
    works: &mut [SubmittedTransfers<W>],
) -> Result<Option<usize>, CudaFailure> {
    if works.is_empty() {
        return Ok(None);
    }
    let _current = context.enter()?;
    for (at, work) in works.iter_mut().enumerate() {
        while let Some(event) = work.events.last() {
            if !context.has_ended(event)? {
                break;
            }
            work.events.pop().into_iter().for_each(|event| context.keep_event(event));
        }
        if work.events.is_empty() {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

impl<W> SubmittedTransfers<W> {
    /// Takes the work from its frame. The GPU is done with it.
    fn end(self, is_done: bool) -> EndedTransfers<W> {
        // SAFETY: the frame came from a box; the GPU does not access its memory any more, as `poll` found.
        let frame = unsafe { Box::from_raw(self.frame.as_ptr()) };
        let TransferFrame { work, kept } = *frame;
        drop(kept);
        EndedTransfers { token: self.token, work, is_done }
    }
}

impl<W: WorkMemory> Drop for GpuEngine<W> {
    fn drop(&mut self) {
        // Waits until the context is destroyed, and so for the GPU.
        match std::mem::replace(&mut self.state, EngineState::Stopped) {
            EngineState::Running(context) => drop(context),
            EngineState::Stopping(thread) => drop(thread.join()),
            EngineState::Stopped => {}
        }
        while let Some(ended) = self.poll() {
            drop(ended);
        }
    }
}

impl<W: WorkMemory> fmt::Debug for GpuEngine<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuEngine")
            .field("config", &self.config)
            .field("works", &self.works.len())
            .field("is_stopped", &self.is_stopped())
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}
