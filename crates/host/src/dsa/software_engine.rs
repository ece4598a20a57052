//! The thread of a software portal: does descriptors as a device does.
//!
//! Input: descriptors. Output: copies, and completion records. Invariant: it accesses only what a descriptor of the queue
//! names, before it writes the record of that descriptor, and nothing after it has ended.
//!
//! It computes CRCs bit by bit, by the definition, so that tests compare the kernels of this crate with it.

use super::completion::{DsaOutcome, DsaStatus};
use super::descriptor::{DESCRIPTOR_BYTES, DsaDescriptor, DsaFlags, DsaOpcode};
use super::queue::RecordCell;
use super::software_portal::{PortalFault, PortalKind, PortalState, SharedPortal};
use crate::copy::copy_untrusted;
use crate::width::to_usize;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::Arc;

/// Bytes that are moved at a time.
const CHUNK_BYTES: usize = 4_096;
/// The polynomial of CRC-32C, reflected.
const POLYNOMIAL: u32 = 0x82F6_3B78;
/// The low bits in which the targets of a dualcast are alike.
const DUALCAST_BITS: u64 = 0xFFF;

/// The reason that the thread ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EngineEnd {
    /// The portal was stopped.
    Stopped,
    /// The device died by a fault.
    Died,
}

/// The progress of a descriptor.
enum Progress {
    /// It has ended; `false` if it failed.
    Ended { is_success: bool },
    /// It gets no record.
    Lost,
    /// It waits.
    Deferred,
    /// The device died.
    Died,
}

/// The entry of the queue that a descriptor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueEntry {
    /// One of its own.
    Held,
    /// None: it is in the list of a batch, or its entry was given back before.
    None,
}

pub(super) struct SoftwareEngine {
    shared: Arc<SharedPortal>,
    kind: PortalKind,
    /// Descriptors that wait for a drain or the stop.
    late: Vec<DsaDescriptor>,
    /// A descriptor that waits for the next one.
    behind_next: Option<DsaDescriptor>,
}

impl SoftwareEngine {
    pub(super) fn new(shared: Arc<SharedPortal>, kind: PortalKind) -> Self {
        Self { shared, kind, late: Vec::new(), behind_next: None }
    }

    pub(super) fn serve(mut self) -> EngineEnd {
        loop {
            let Some(descriptor) = self.next() else {
                self.do_late();
                return EngineEnd::Stopped;
            };
            let has_ended = match self.run(&descriptor) {
                Progress::Ended { .. } => true,
                Progress::Lost | Progress::Deferred => false,
                Progress::Died => return EngineEnd::Died,
            };
            if let Some(deferred) = self.behind_next.take_if(|_| has_ended) {
                self.finish(&deferred, PortalFault::None, QueueEntry::Held);
            }
        }
    }

    /// Returns the next descriptor; `None` when the portal stops and none waits. Does what waits for a next one if there is
    /// none.
    fn next(&mut self) -> Option<DsaDescriptor> {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        loop {
            if let Some(next) = state.queue.pop_front() {
                return Some(next);
            }
            if let Some(deferred) = self.behind_next.take() {
                drop(state);
                self.finish(&deferred, PortalFault::None, QueueEntry::Held);
                state = shared.lock();
                continue;
            }
            if state.is_stopping {
                return None;
            }
            state = shared.wait(state);
        }
    }

    fn do_late(&mut self) {
        let late = std::mem::take(&mut self.late);
        self.shared.lock().held -= late.len();
        for descriptor in late {
            self.finish(&descriptor, PortalFault::None, QueueEntry::None);
        }
    }

    /// Runs a descriptor of the queue.
    fn run(&mut self, descriptor: &DsaDescriptor) -> Progress {
        let permits_drain = self.kind.opcodes.contains(DsaOpcode::Drain);
        let is_drain = permits_drain && descriptor.opcode() == Some(DsaOpcode::Drain);
        match self.draw_fault(descriptor) {
            PortalFault::Lost => Progress::Lost,
            PortalFault::Late | PortalFault::Reordered if is_drain => Progress::Lost,
            PortalFault::Late => {
                self.late.push(*descriptor);
                Progress::Deferred
            }
            PortalFault::Reordered if self.behind_next.is_none() => {
                self.behind_next = Some(*descriptor);
                Progress::Deferred
            }
            PortalFault::Dies => Progress::Died,
            fault => {
                if is_drain {
                    self.late.extend(self.behind_next.take());
                    self.do_late();
                }
                self.finish(descriptor, fault, QueueEntry::Held)
            }
        }
    }

    /// Does a descriptor now, gives its entry back, and writes its record: the owner may use the entry as soon as it sees the
    /// record.
    fn finish(&mut self, descriptor: &DsaDescriptor, fault: PortalFault, entry: QueueEntry) -> Progress {
        let outcome = if let Err(status) = check(descriptor, self.kind) {
            DsaOutcome::of(status)
        } else if descriptor.opcode() == Some(DsaOpcode::Batch) {
            match self.run_batch(descriptor, fault) {
                Some(outcome) => outcome,
                None => return Progress::Died,
            }
        } else {
            execute(descriptor, fault)
        };
        if entry == QueueEntry::Held {
            self.shared.lock().held -= 1;
        }
        write_record(descriptor, &outcome);
        Progress::Ended { is_success: outcome.status == DsaStatus::Success }
    }

    fn draw_fault(&self, descriptor: &DsaDescriptor) -> PortalFault {
        let mut state = self.shared.lock();
        let PortalState { begun, faults, .. } = &mut *state;
        let fault = faults.fault(*begun, descriptor.opcode());
        *begun += 1;
        fault
    }

    /// Runs the descriptors of a batch; `None` if the device died in it.
    fn run_batch(&mut self, batch: &DsaDescriptor, fault: PortalFault) -> Option<DsaOutcome> {
        match fault {
            PortalFault::PageFault { .. } => {
                let fault_address = batch.source();
                return Some(DsaOutcome { fault_address, ..DsaOutcome::of(DsaStatus::BatchPageFault) });
            }
            PortalFault::Status(code) => return Some(DsaOutcome::of(status_of(code))),
            _ => {}
        }
        let (mut completed, mut has_failed) = (0, false);
        let mut deferred: Vec<DsaDescriptor> = Vec::new();
        for nth in 0..batch.length() {
            let descriptor = list_entry(batch.source(), nth);
            if descriptor.flags().has(DsaFlags::FENCE) {
                for earlier in deferred.drain(..) {
                    has_failed |= !matches!(
                        self.finish(&earlier, PortalFault::None, QueueEntry::None),
                        Progress::Ended { is_success: true }
                    );
                    completed += 1;
                }
                if has_failed {
                    break;
                }
            }
            match self.draw_fault(&descriptor) {
                PortalFault::Lost => has_failed = true,
                PortalFault::Late | PortalFault::Reordered => deferred.push(descriptor),
                PortalFault::Dies => return None,
                fault => {
                    has_failed |= !matches!(
                        self.finish(&descriptor, fault, QueueEntry::None),
                        Progress::Ended { is_success: true }
                    );
                    completed += 1;
                }
            }
        }
        for last in deferred {
            has_failed |= !matches!(
                self.finish(&last, PortalFault::None, QueueEntry::None),
                Progress::Ended { is_success: true }
            );
            completed += 1;
        }
        let status = if has_failed { DsaStatus::BatchFailed } else { DsaStatus::Success };
        Some(DsaOutcome { completed, result: u8::from(has_failed), ..DsaOutcome::of(status) })
    }
}

/// Checks a descriptor as a device does before it begins.
fn check(descriptor: &DsaDescriptor, kind: PortalKind) -> Result<(), DsaStatus> {
    let opcode = descriptor.opcode().ok_or(DsaStatus::UnknownOpcode)?;
    if !kind.opcodes.contains(opcode) {
        return Err(DsaStatus::UnknownOpcode);
    }
    let (length, has_length) = (descriptor.length(), !matches!(opcode, DsaOpcode::NoOp | DsaOpcode::Drain));
    if !descriptor.flags().is_allowed_for(opcode) {
        return Err(DsaStatus::InvalidFlags);
    }
    if !descriptor.has_clear_reserve() || !has_length && length != 0 {
        return Err(DsaStatus::ReservedField);
    }
    if opcode == DsaOpcode::Batch {
        if length < 2 || to_usize(u64::from(length)) > kind.batch_max {
            return Err(DsaStatus::BatchLength);
        }
        let is_aligned = descriptor.source().is_multiple_of(DESCRIPTOR_BYTES as u64);
        return if is_aligned { Ok(()) } else { Err(DsaStatus::ListAlignment) };
    }
    if has_length && (length == 0 || length > kind.transfer_bytes_max) {
        return Err(DsaStatus::TransferLength);
    }
    let meets = |one: u64, other: u64| one < other + u64::from(length) && other < one + u64::from(length);
    let (source, target, second) = (descriptor.source(), descriptor.target(), descriptor.second_target());
    match opcode {
        DsaOpcode::Dualcast if target & DUALCAST_BITS != second & DUALCAST_BITS => {
            Err(DsaStatus::DualcastAlignment)
        }
        DsaOpcode::Dualcast if meets(source, target) || meets(source, second) || meets(target, second) => {
            Err(DsaStatus::Overlap)
        }
        DsaOpcode::CopyCrc if meets(source, target) => Err(DsaStatus::Overlap),
        _ => Ok(()),
    }
}

fn status_of(code: u8) -> DsaStatus {
    DsaStatus::of(code).unwrap_or(DsaStatus::HardwareError)
}

/// Does a descriptor that moves or reads bytes, and returns its outcome.
fn execute(descriptor: &DsaDescriptor, fault: PortalFault) -> DsaOutcome {
    let length = descriptor.length();
    let blocks = descriptor.flags().has(DsaFlags::BLOCK_ON_FAULT);
    match fault {
        PortalFault::Status(code) => {
            for target in targets(descriptor) {
                store(target, &vec![0xEE; to_usize(u64::from(length / 2))]);
            }
            DsaOutcome::of(status_of(code))
        }
        PortalFault::PageFault { done, is_write } if !blocks && length > 0 => {
            let done = done.min(length - 1);
            let mut outcome = transfer(descriptor, done, false);
            if outcome.result != 0 {
                // A difference was found before the missing page.
                return outcome;
            }
            let start = if is_write { descriptor.target() } else { descriptor.source() };
            outcome.status = DsaStatus::PageFault;
            outcome.is_write_fault = is_write;
            outcome.completed = done;
            outcome.fault_address = start + u64::from(done);
            outcome
        }
        fault => transfer(descriptor, length, fault == PortalFault::Corrupted),
    }
}

/// Returns the addresses that an operation writes to.
fn targets(descriptor: &DsaDescriptor) -> Vec<u64> {
    match descriptor.opcode() {
        Some(DsaOpcode::MemoryMove | DsaOpcode::Fill | DsaOpcode::CopyCrc) => vec![descriptor.target()],
        Some(DsaOpcode::Dualcast) => vec![descriptor.target(), descriptor.second_target()],
        _ => Vec::new(),
    }
}

/// Moves or reads the first `bytes` bytes of an operation.
fn transfer(descriptor: &DsaDescriptor, bytes: u32, is_corrupted: bool) -> DsaOutcome {
    let mut outcome = DsaOutcome::of(DsaStatus::Success);
    let bytes = to_usize(u64::from(bytes));
    let targets = targets(descriptor);
    let opcode = descriptor.opcode().unwrap_or(DsaOpcode::NoOp);
    if matches!(opcode, DsaOpcode::NoOp | DsaOpcode::Drain | DsaOpcode::Batch | DsaOpcode::CacheFlush) {
        return outcome;
    }
    let mut state = !descriptor.seed();
    for start in (0..bytes).step_by(CHUNK_BYTES) {
        let here = CHUNK_BYTES.min(bytes - start);
        let mut chunk = if opcode == DsaOpcode::Fill {
            vec![descriptor.fill_value(); here]
        } else {
            load(descriptor.source() + start as u64, here)
        };
        if is_corrupted && (start..start + here).contains(&(bytes / 2)) {
            chunk[bytes / 2 - start] ^= 1;
        }
        if opcode == DsaOpcode::Compare {
            let other = load(descriptor.target() + start as u64, here);
            if let Some(at) = chunk.iter().zip(&other).position(|(one, other)| one != other) {
                outcome.result = 1;
                // The length of an operation fits its field.
                outcome.completed = u32::try_from(start + at).unwrap_or(u32::MAX);
                return outcome;
            }
        }
        if matches!(opcode, DsaOpcode::CrcGeneration | DsaOpcode::CopyCrc) {
            state = chunk.iter().fold(state, |state, byte| crc_of_byte(state, *byte));
        }
        for target in &targets {
            store(target + start as u64, &chunk);
        }
    }
    outcome.completed = u32::try_from(bytes).unwrap_or(u32::MAX);
    if matches!(opcode, DsaOpcode::CrcGeneration | DsaOpcode::CopyCrc) {
        outcome.crc = !state;
    }
    outcome
}

fn crc_of_byte(state: u32, byte: u8) -> u32 {
    (0..8).fold(state ^ u32::from(byte), |crc, _| (crc >> 1) ^ (POLYNOMIAL & 0_u32.wrapping_sub(crc & 1)))
}

/// Reads bytes at an address that a descriptor names.
fn load(address: u64, bytes: usize) -> Vec<u8> {
    let mut into = vec![0; bytes];
    let from = with_exposed_provenance::<u8>(to_usize(address));
    // SAFETY: bounds and lifetime: the address and the length are of a descriptor, whose submitter promised the range until
    // the record is written, which it is not yet. Alignment: the copy needs none. Aliasing: `into` is a value of this function;
    // the copy tolerates other accesses to the source.
    unsafe { copy_untrusted(into.as_mut_ptr(), from, bytes) };
    into
}

/// Writes bytes at an address that a descriptor names.
fn store(address: u64, bytes: &[u8]) {
    let to = with_exposed_provenance_mut::<u8>(to_usize(address));
    // SAFETY: as for `load`; nothing but this device accesses a private target, as the submitter promised, and the copy
    // tolerates other accesses to a shared one.
    unsafe { copy_untrusted(to, bytes.as_ptr(), bytes.len()) };
}

/// Reads a descriptor of a batch.
fn list_entry(list: u64, nth: u32) -> DsaDescriptor {
    let address = to_usize(list + u64::from(nth) * DESCRIPTOR_BYTES as u64);
    let entry = with_exposed_provenance::<DsaDescriptor>(address);
    // SAFETY: bounds and lifetime: the list has as many descriptors as its batch says, until the record of the batch is
    // written. Alignment: that of the list was checked. Aliasing: nothing writes to the list.
    unsafe { entry.read() }
}

fn write_record(descriptor: &DsaDescriptor, outcome: &DsaOutcome) {
    if !descriptor.flags().has(DsaFlags::RECORD_VALID) {
        return;
    }
    let record = with_exposed_provenance::<RecordCell>(to_usize(descriptor.record()));
    // SAFETY: bounds, alignment, lifetime: the queue gave the address of a record, which stays until the record is written;
    // nothing here touches it after. Aliasing: a record is of atomics.
    let record = unsafe { &*record };
    record.store(outcome);
}
