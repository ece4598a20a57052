//! A queue of the null device: its controller's end runs when the doorbell is rung, on the same thread.
//!
//! Input: commands. Output: completions, available at once. Invariant: entries pass through a submission ring and a
//! completion ring; command ids and statuses pass through the code that validates those of any other controller.

use super::contents::validate;
use crate::backend::{ArmResult, CommandContext, CompletedCommand, IoLimits, QueueTransport};
use crate::command::{Command, TransferData};
use crate::error::{IoError, RejectedCommand, SubmitError};
use headwater_host::clock::Nanos;
use headwater_host::ring_memory::HeapWords;
use headwater_nvme::controller::{ControllerQueuePair, QueueId, QueueKind};
use headwater_nvme::queue_pair::QueuePair;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::status::Status;
use std::os::fd::BorrowedFd;
use zerocopy::little_endian::U64;

/// The index of PRP Entry 1 in the words of an entry.
const DATA_POINTER_WORD: usize = 3;

/// Returns the entry of a command with its data pointer.
#[inline]
pub(super) fn entry_of(command: &Command) -> SubmissionEntry {
    let mut entry = command.entry;
    if let Some(buffer) = command.buffer() {
        entry.prp1 = U64::new(buffer.address());
    }
    entry
}

/// Checks a command against the limits.
#[inline]
pub(super) fn check_limits(command: &Command, limits: &IoLimits) -> Result<(), SubmitError> {
    match &command.data {
        TransferData::FromDevice(buffer) | TransferData::ToDevice(buffer)
            if buffer.bytes() <= limits.transfer_bytes_max =>
        {
            Ok(())
        }
        _ => check_all_limits(command, limits),
    }
}

#[cold]
fn check_all_limits(command: &Command, limits: &IoLimits) -> Result<(), SubmitError> {
    let buffers = command.data.buffers();
    if buffers.len() > 1 && buffers.len() > limits.segments_max {
        return Err(SubmitError::TOO_MANY_BUFFERS);
    }
    if command.data.bytes() > limits.transfer_bytes_max {
        let what = "more bytes than the queue's transfer_bytes_max; send several commands";
        return Err(SubmitError::Unsupported { what });
    }
    Ok(())
}

#[derive(Debug)]
pub(super) struct NullQueue {
    host: QueuePair<HeapWords, CommandContext>,
    device: ControllerQueuePair<HeapWords>,
    limits: IoLimits,
    size: u64,
    /// True if a command was submitted since the doorbell was rung.
    doorbell_pending: bool,
}

impl NullQueue {
    pub(super) fn new(depth: u32, limits: IoLimits, size: u64) -> Result<Self, IoError> {
        let (host, end) = QueuePair::new(depth)?;
        let device = ControllerQueuePair::new(QueueId(1), QueueKind::Standard, end);
        Ok(Self { host, device, limits, size, doorbell_pending: false })
    }

    /// Runs the controller's end.
    #[inline]
    fn serve(&mut self) {
        let size = self.size;
        self.device.complete_each(|entry| (0, validate(entry, size).err().unwrap_or(Status::SUCCESS)));
    }
}

impl QueueTransport for NullQueue {
    fn limits(&self) -> IoLimits {
        self.limits
    }

    #[inline]
    fn submit(&mut self, command: Command, token: u64) -> Result<(), RejectedCommand> {
        if let Err(reason) = check_limits(&command, &self.limits) {
            return Err(RejectedCommand { command, reason });
        }
        if !self.host.has_room() {
            return Err(RejectedCommand { command, reason: SubmitError::Full });
        }
        let mut words = command.entry.to_words();
        if let Some(buffer) = command.buffer() {
            words[DATA_POINTER_WORD] = buffer.address();
        }
        self.host.push_words(words, CommandContext { token, data: command.data });
        self.doorbell_pending = true;
        Ok(())
    }

    #[inline]
    fn ring(&mut self) -> Result<(), IoError> {
        if self.doorbell_pending {
            self.doorbell_pending = false;
            let _ = self.host.ring();
            self.serve();
        }
        Ok(())
    }

    #[inline]
    fn reap(&mut self) -> Result<Option<CompletedCommand>, IoError> {
        self.host.reap_with(|done| done.context.complete(done.result, done.status))
    }

    fn sleep(&mut self, _longest: Option<Nanos>) -> Result<(), IoError> {
        self.ring()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn arm(&mut self) -> Result<ArmResult, IoError> {
        self.ring()?;
        Ok(ArmResult::Ready)
    }

    fn visit_tokens(&mut self, visit: &mut dyn FnMut(&mut u64)) {
        self.host.commands_mut().for_each(|(_, command)| visit(&mut command.token));
    }

    fn in_flight(&self) -> u32 {
        self.host.in_flight()
    }

    fn depth(&self) -> u32 {
        self.host.depth()
    }
}
