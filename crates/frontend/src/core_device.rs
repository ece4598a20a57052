//! The traits through which the core loop, the front ends and the `kv --data` commands use a device.
//!
//! Input: commands and time. Output: completions and counters. The users take a type parameter, so that front ends can
//! be tested against a model with the same contract, and the core loop also runs devices that take no such commands.

use crate::counters::{RequestTrace, TraceStage};
use headwater_host::clock::{Clock, Nanos, UnixMillis};
use headwater_nvme::queue_pair::SleepDecision;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    FrontEndId, NamespaceId, ReceiptStep, SsdCommand, SsdCompletion, SubmitError, ValueReceipt,
};
use headwater_ssd::engine::{DeviceStats, KeyedBatch, SsdDevice};
use headwater_ssd::media::{Media, PageAddress};
use headwater_ssd::namespace::NamespaceKind;
use std::io::{self, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::path::Path;

/// Work that the core loop polls.
pub trait CoreWork {
    /// Runs every stage until it has no more work; never blocks. Returns true if there was any work.
    fn poll(&mut self, now: Nanos, wall: UnixMillis) -> bool;

    /// Returns the time of the device's next timed work: the end of a durability interval, or the expiry of a key.
    fn next_deadline(&self, now: Nanos, wall: UnixMillis) -> Option<Nanos> {
        let _ = (now, wall);
        None
    }

    /// Returns true if there are keys that have expired and are not removed yet.
    fn is_expiring(&self, wall: UnixMillis) -> bool {
        let _ = wall;
        false
    }

    /// Returns the trace of the last sampled request.
    fn trace(&self) -> Option<RequestTrace> {
        None
    }

    /// Returns a descriptor that becomes readable when the medium has a completion.
    fn wake_descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns descriptors that become readable when a channel that moves bytes for the device has ended a job. They stay the
    /// same from the first turn on.
    fn move_descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// Prepares a sleep on the descriptors of [`move_descriptors`](Self::move_descriptors). Returns
    /// [`SleepDecision::WorkPending`] if a job has ended, or no descriptor says its end: poll again.
    fn prepare_sleep(&mut self) -> SleepDecision {
        SleepDecision::UntilWoken
    }

    /// Returns the device's counters.
    fn stats(&self) -> DeviceStats;

    /// Returns the file beneath a page of the medium and the offset of the page in it, in bytes; `None` without a file.
    fn file_place(&self, page: PageAddress) -> Option<(&Path, u64)> {
        let _ = page;
        None
    }

    /// Makes all data durable in every durability mode and writes a checkpoint. Blocks.
    ///
    /// # Errors
    /// When the medium fails.
    fn shutdown(&mut self, clock: &Clock) -> Result<(), String>;
}

/// A device that executes commands of front ends.
pub trait CoreDevice: CoreWork {
    /// Submits a command. After `Ok` exactly one completion follows; after `Err` none does.
    ///
    /// # Errors
    /// [`SubmitError::Busy`] to submit again later, [`SubmitError::Refused`] for a command that can never succeed.
    fn submit(
        &mut self,
        front_end: FrontEndId,
        namespace: NamespaceId,
        token: u64,
        command: SsdCommand,
    ) -> Result<(), SubmitError>;

    /// Submits a batch that a front end built in parts. After `Ok` exactly one completion follows; after `Err` none does.
    ///
    /// # Errors
    /// Those of [`submit`](Self::submit).
    fn submit_batch(
        &mut self,
        front_end: FrontEndId,
        token: u64,
        batch: KeyedBatch,
    ) -> Result<(), SubmitError> {
        let namespace = batch.namespace();
        self.submit(front_end, namespace, token, SsdCommand::Batch { writes: batch.into_writes() })
    }

    /// Hashes the keys of the writes that were appended to a batch since the last call, so that the batch need not be checked
    /// behind its submission, if the device can.
    fn hash_keys(&self, batch: &mut KeyedBatch) {
        let _ = batch;
    }

    /// Returns true if a command that is submitted now is not refused as [`SubmitError::Busy`].
    fn has_room(&self, namespace: NamespaceId, command: &SsdCommand) -> bool;

    /// Returns an estimate of the length of a key's value, in bytes, that is too low only if two keys have the same hash;
    /// 0 if there is no such key. Commands that were submitted and not executed do not count.
    fn value_bytes(&self, namespace: NamespaceId, key: &[u8]) -> usize;

    /// Returns true if every value of a namespace has less than [`SHORT_RECORD_BYTES`](headwater_ssd::limits::SHORT_RECORD_BYTES) bytes, known without a search.
    fn has_only_short_values(&self, namespace: NamespaceId) -> bool {
        let _ = namespace;
        false
    }

    /// Returns true if a namespace has blocks: it is no key space, and [`submit`](Self::submit) refuses to clear it.
    fn is_block_namespace(&self, namespace: NamespaceId) -> bool {
        let _ = namespace;
        false
    }

    /// Returns the maximum of the bytes of all writes of a batch, as [`bytes`](headwater_ssd::command::BatchWrite::bytes) counts
    /// them.
    fn batch_bytes_max(&self) -> usize;

    /// Begins to receive a value of this length for a namespace in the device, which then takes its bytes through [`receive`](Self::receive);
    /// `None` if the front end is to receive it.
    fn begin_receipt(&mut self, namespace: NamespaceId, value_bytes: usize) -> Option<ValueReceipt> {
        let _ = (namespace, value_bytes);
        None
    }

    /// Receives the next bytes of a value from a source, which is called at most once, fills the slices in order and returns
    /// how many bytes it wrote.
    ///
    /// # Errors
    /// Those of the source.
    fn receive(
        &mut self,
        receipt: &ValueReceipt,
        source: &mut dyn FnMut(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> io::Result<ReceiptStep> {
        let _ = (receipt, source);
        Ok(ReceiptStep::NoRoom)
    }

    /// Takes the next completion that may be returned to the front end.
    fn next_completion(&mut self, front_end: FrontEndId) -> Option<SsdCompletion>;
}

/// The longest sleep until an expiry, one day: the wall clock may be set during the sleep.
const EXPIRY_MS_MAX: u64 = 86_400_000;

impl<M: Media> CoreDevice for SsdDevice<M> {
    #[inline]
    fn submit(
        &mut self,
        front_end: FrontEndId,
        namespace: NamespaceId,
        token: u64,
        command: SsdCommand,
    ) -> Result<(), SubmitError> {
        // FLUSHALL must not clear a block namespace: it is not a Redis database.
        if matches!(command, SsdCommand::Clear) && self.is_block_namespace(namespace) {
            return Err(SubmitError::Refused(Status::INVALID_NAMESPACE));
        }
        Self::submit(self, front_end, namespace, token, command)
    }

    fn submit_batch(
        &mut self,
        front_end: FrontEndId,
        token: u64,
        batch: KeyedBatch,
    ) -> Result<(), SubmitError> {
        Self::submit_batch(self, front_end, token, batch)
    }

    fn hash_keys(&self, batch: &mut KeyedBatch) {
        Self::hash_keys(self, batch);
    }

    fn has_room(&self, namespace: NamespaceId, command: &SsdCommand) -> bool {
        Self::has_room(self, namespace, command)
    }

    #[inline]
    fn value_bytes(&self, namespace: NamespaceId, key: &[u8]) -> usize {
        self.record_bytes(namespace, key)
    }

    #[inline]
    fn has_only_short_values(&self, namespace: NamespaceId) -> bool {
        self.has_only_short_records(namespace)
    }

    fn is_block_namespace(&self, namespace: NamespaceId) -> bool {
        self.namespace(namespace).is_some_and(|made| matches!(made.kind, NamespaceKind::Block(_)))
    }

    fn batch_bytes_max(&self) -> usize {
        Self::batch_bytes_max(self)
    }

    fn begin_receipt(&mut self, namespace: NamespaceId, value_bytes: usize) -> Option<ValueReceipt> {
        Self::begin_receipt(self, namespace, value_bytes)
    }

    fn receive(
        &mut self,
        receipt: &ValueReceipt,
        source: &mut dyn FnMut(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> io::Result<ReceiptStep> {
        Self::receive(self, receipt, source)
    }

    #[inline]
    fn next_completion(&mut self, front_end: FrontEndId) -> Option<SsdCompletion> {
        Self::next_completion(self, front_end)
    }
}

impl<M: Media> CoreWork for SsdDevice<M> {
    #[inline]
    fn poll(&mut self, now: Nanos, wall: UnixMillis) -> bool {
        Self::poll(self, now, wall)
    }

    fn next_deadline(&self, now: Nanos, wall: UnixMillis) -> Option<Nanos> {
        let expiry = self
            .next_expiry()
            .map(|at| now.after(Nanos::from_millis(at.0.saturating_sub(wall.0).min(EXPIRY_MS_MAX))));
        Self::next_deadline(self).into_iter().chain(expiry).min()
    }

    fn is_expiring(&self, wall: UnixMillis) -> bool {
        Self::is_expiring(self, wall)
    }

    fn wake_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.media().wake_descriptor()
    }

    fn move_descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Self::move_descriptors(self).collect()
    }

    fn prepare_sleep(&mut self) -> SleepDecision {
        if Self::prepare_sleep(self) { SleepDecision::UntilWoken } else { SleepDecision::WorkPending }
    }

    fn stats(&self) -> DeviceStats {
        Self::stats(self)
    }

    fn file_place(&self, page: PageAddress) -> Option<(&Path, u64)> {
        self.media().file_place(page)
    }

    fn trace(&self) -> Option<RequestTrace> {
        let trace = Self::trace(self)?;
        let stages = [
            ("queued", trace.queue_time),
            ("executed", trace.execution_time),
            ("durable", trace.durability_time),
        ];
        Some(RequestTrace {
            command: trace.command,
            total_ns: stages.iter().map(|(_, time)| time.0).sum(),
            stages: stages.into_iter().map(|(stage, time)| TraceStage { stage, ns: time.0 }).collect(),
        })
    }

    fn shutdown(&mut self, clock: &Clock) -> Result<(), String> {
        Self::shutdown(self, clock.now(), clock.wall()).map(|_time| ()).map_err(|error| error.to_string())
    }
}

/// Waits until the medium has a completion or a deadline has passed. For callers that have no other work.
///
/// # Errors
/// When `poll` fails.
pub fn wait_for(device: &impl CoreWork, now: Nanos, wall: UnixMillis) -> io::Result<()> {
    use rustix::event::{PollFd, PollFlags, poll};
    // The bound of 100 ms limits the wait for a device that returns neither a descriptor nor a deadline.
    let max = Nanos::from_millis(100);
    let span = device.next_deadline(now, wall).map_or(max, |at| at.since(now).min(max));
    let mut descriptors: Vec<PollFd<'_>> = device
        .wake_descriptor()
        .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN))
        .into_iter()
        .collect();
    match poll(&mut descriptors, Some(&span.to_timespec())) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_ssd::engine::{DeviceConfig, StartTime};
    use headwater_ssd::media::FlashGeometry;
    use headwater_ssd::media::memory::MemoryMedia;
    use headwater_ssd::namespace::{BlockFormat, Namespace, NamespaceChange};

    #[test]
    fn clear_of_a_block_namespace_is_refused() {
        let media = MemoryMedia::erased(FlashGeometry::with_blocks(32)).unwrap();
        let start = StartTime { now: Nanos::ZERO, wall: UnixMillis(0) };
        let mut device = SsdDevice::open(media, DeviceConfig::default(), start, &mut |_| {}).unwrap();
        let kind = NamespaceKind::Block(BlockFormat::B512);
        let create = NamespaceChange::Create(Namespace { kind, size: 8, ..Namespace::IMPLICIT });
        let (front_end, first, disk) = (FrontEndId(0), NamespaceId::FIRST, NamespaceId(2));
        CoreDevice::submit(&mut device, front_end, first, 1, SsdCommand::Namespace(create)).unwrap();
        while CoreDevice::next_completion(&mut device, front_end).is_none() {
            device.poll(Nanos::ZERO, UnixMillis(0));
        }
        let refused = Err(SubmitError::Refused(Status::INVALID_NAMESPACE));
        assert_eq!(CoreDevice::submit(&mut device, front_end, disk, 2, SsdCommand::Clear), refused);
        assert_eq!(CoreDevice::submit(&mut device, front_end, first, 3, SsdCommand::Clear), Ok(()));
    }
}
