//! A hardware queue of an NVMe controller, driven by this process.
//!
//! Input: commands. Output: one completion each: the controller's, or the status `ABORTED_BY_HOST` after a reset, or
//! `HOST_PATHING_ERROR` after the end of the controller. The fast path of a command takes no lock, makes no system call
//! and does not read the clock. Invariant: the data of a command is held until the controller has completed it or
//! certainly no longer accesses it; no command is accepted whose data pointer would end before the data does, for a
//! controller would read whatever lies behind it as addresses.
//!
//! # After a reset
//! The next command creates the queue again. The outcome of the commands that were in flight is unknown; the caller
//! decides whether to send them again.

mod recovery;

use crate::backend::{ArmResult, CommandContext, CompletedCommand, IoLimits, QueueTransport};
use crate::buffer::Buffer;
use crate::client_namespace::ClientNamespace;
use crate::command::{Command, TransferData};
use crate::error::{IoError, RejectedCommand, SubmitError};
use headwater_dma::iova::{Iova, IovaRange};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::registers::DeviceRegisters;
use headwater_host::ring_memory::RingMemory;
use headwater_host::wake::WakeDescriptor;
use headwater_host::width::{narrow, to_usize};
use headwater_nvme::driver::{
    DataPointerError, IoQueue, IoQueueState, OverdueCommand, QueueFault, SubmitFault,
};
use headwater_nvme::queue_pair::CommandId;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::nvm::DatasetRange;
use headwater_nvme::spec::opcode::{IoOpcode, NvmOpcode};
use headwater_nvme::spec::transfer::{CommandTransfer, LengthRule};
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd as _, BorrowedFd};
use zerocopy::{FromZeros as _, IntoBytes as _};

/// Maximum buffers of one command.
const SEGMENTS_MAX: usize = 256;
/// Alignment of data addresses (NVMe Base 2.0 section 4.1.1).
const MEMORY_ALIGN: usize = 4;
/// Empty polls between two readings of the clock; a power of two.
const IDLE_POLLS: u32 = 256;
/// Longest sleep with commands in flight: the controller is polled at least this often.
const SLEEP_MAX: Nanos = Nanos::from_millis(500);
/// Duration of one sleep without interrupts.
const POLL_SLEEP: Nanos = Nanos::from_micros(50);

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
    fn create_queue(&mut self, depth: u32) -> Result<Box<OwnedQueue<Self>>, IoError>;

    /// Replaces the addresses of buffers with the controller's addresses. By default the buffers hold them already.
    ///
    /// # Errors
    /// [`SubmitError::Unsupported`] for memory that the controller cannot access.
    #[inline]
    fn translate_addresses(&mut self, runs: &mut [IovaRange]) -> Result<(), SubmitError> {
        let _ = runs;
        Ok(())
    }

    /// Polls the controller when completions stay away or the queue was invalidated by a reset.
    fn poll_controller(&mut self, now: Nanos);

    /// Reports an overdue command. An abort that cannot be sent now becomes a reset one timeout later.
    fn report_overdue(&mut self, queue: u16, overdue: OverdueCommand, now: Nanos);

    /// Reports that the controller breaks the protocol on this queue.
    fn report_fault(&mut self, queue: u16, fault: QueueFault, now: Nanos);

    /// Sends an abort of a command to the controller.
    ///
    /// # Errors
    /// [`IoError`]: no abort was sent.
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
    fn connect_interrupt(&mut self, queue: u16, wake: &WakeDescriptor) -> Result<(), IoError>;
}

/// A hardware queue of a controller.
pub struct NvmeQueue<K: QueueOwner> {
    owner: K,
    /// `None` after a reset, until the next command.
    queue: Option<Box<OwnedQueue<K>>>,
    depth: u32,
    /// Completions of commands that the controller will not complete.
    lost_completions: VecDeque<CompletedCommand>,
    namespaces: Vec<ClientNamespace>,
    transfer_bytes_max: usize,
    runs: Vec<IovaRange>,
    wake: WakeDescriptor,
    connected: bool,
    idle_polls: u32,
    next_poll: Nanos,
}

impl<K: QueueOwner> NvmeQueue<K> {
    /// Creates a queue for up to `depth` commands in flight.
    ///
    /// # Errors
    /// [`IoError::Device`] when the controller has no free queue, does not support the depth, or is gone.
    pub fn open(mut owner: K, depth: u32) -> Result<Self, IoError> {
        let wake = WakeDescriptor::new()?;
        let queue = owner.create_queue(depth)?;
        Ok(Self {
            depth,
            lost_completions: VecDeque::new(),
            namespaces: owner.namespaces(),
            transfer_bytes_max: to_usize(queue.transfer_bytes_max()),
            queue: Some(queue),
            owner,
            runs: Vec::new(),
            wake,
            connected: false,
            idle_polls: 0,
            next_poll: Nanos::ZERO,
        })
    }

    /// Validates a command; the namespaces are read again before it is refused.
    #[inline]
    fn validate(&mut self, command: &Command) -> Result<(), SubmitError> {
        if validate_command(command, &self.namespaces).is_ok() {
            return Ok(());
        }
        self.namespaces = self.owner.namespaces();
        validate_command(command, &self.namespaces)
    }

    /// Counts an empty poll, and polls the controller now and then.
    #[inline]
    fn count_empty_poll(&mut self) {
        self.idle_polls = self.idle_polls.wrapping_add(1);
        if !self.idle_polls.is_multiple_of(IDLE_POLLS) || self.command_count() == 0 {
            return;
        }
        let now = self.owner.now();
        let is_live = self.queue.as_ref().is_some_and(|queue| queue.state() == IoQueueState::Live);
        if !is_live || now >= self.next_poll {
            self.poll_controller(now);
        }
    }

    /// Connects completions to the wake descriptor, at the first wait. Returns false if there are no interrupts.
    fn connect_interrupts(&mut self) -> Result<bool, IoError> {
        if !self.owner.has_interrupts() {
            return Ok(false);
        }
        if let Some(queue) = &self.queue
            && !self.connected
        {
            self.owner.connect_interrupt(queue.id(), &self.wake)?;
            self.connected = true;
        }
        Ok(self.owner.has_interrupts())
    }

    /// Returns the number of accepted commands without a completion.
    #[inline]
    fn command_count(&self) -> u32 {
        let live = self.queue.as_ref().map_or(0, |queue| queue.in_flight());
        if self.lost_completions.is_empty() {
            live
        } else {
            live + narrow::<_, u32>(self.lost_completions.len())
        }
    }

    #[inline]
    fn has_work(&self) -> bool {
        !self.lost_completions.is_empty() || self.queue.as_ref().is_none_or(|queue| queue.has_work())
    }
}

#[inline]
fn run_of(buffer: &Buffer) -> Option<IovaRange> {
    Some(IovaRange { start: Iova(buffer.address()), bytes: u32::try_from(buffer.bytes()).ok()? })
}

fn reason_of(fault: SubmitFault) -> SubmitError {
    let what = match fault {
        SubmitFault::Full => return SubmitError::Full,
        SubmitFault::NotLive => return SubmitError::Gone,
        SubmitFault::TooLong { .. } | SubmitFault::Data(DataPointerError::TooLong { .. }) => {
            "more data than the queue's transfer_bytes_max; split the command"
        }
        SubmitFault::Data(DataPointerError::Gap { .. }) => {
            "several buffers that do not meet at page boundaries, for a controller without SGLs; send one at a time"
        }
        _ => "the address of a buffer is not a multiple of the queue's memory_align",
    };
    SubmitError::Unsupported { what }
}

impl<K: QueueOwner> QueueTransport for NvmeQueue<K> {
    fn limits(&self) -> IoLimits {
        IoLimits {
            transfer_bytes_max: self.transfer_bytes_max,
            segments_max: SEGMENTS_MAX,
            memory_align: MEMORY_ALIGN,
        }
    }

    fn submit(&mut self, command: Command, token: u64) -> Result<(), RejectedCommand> {
        if self.command_count() >= self.depth {
            return Err(RejectedCommand { command, reason: SubmitError::Full });
        }
        if let Err(reason) = self.validate(&command) {
            return Err(RejectedCommand { command, reason });
        }
        let buffers = command.data.buffers();
        self.runs.clear();
        self.runs.extend(buffers.iter().filter(|buffer| buffer.bytes() > 0).map_while(run_of));
        if buffers.len() > SEGMENTS_MAX {
            return Err(RejectedCommand { command, reason: SubmitError::TOO_MANY_BUFFERS });
        }
        if let Err(reason) = self.owner.translate_addresses(&mut self.runs) {
            return Err(RejectedCommand { command, reason });
        }
        let Command { entry, data } = command;
        let mut context = CommandContext { token, data };
        loop {
            let submitted = match &mut self.queue {
                Some(queue) => queue.submit(entry, &self.runs, context),
                None => Err((SubmitFault::NotLive, context)),
            };
            let (fault, refused) = match submitted {
                Ok(_) => return Ok(()),
                Err(refused) => refused,
            };
            let reason = match fault {
                SubmitFault::NotLive => match self.recreate_queue() {
                    Ok(()) => {
                        context = refused;
                        continue;
                    }
                    Err(reason) => reason,
                },
                fault => reason_of(fault),
            };
            return Err(RejectedCommand { command: Command { entry, data: refused.data }, reason });
        }
    }

    #[inline]
    fn ring(&mut self) -> Result<(), IoError> {
        if let Some(queue) = &mut self.queue {
            queue.ring();
        }
        Ok(())
    }

    #[inline]
    fn reap(&mut self) -> Result<Option<CompletedCommand>, IoError> {
        if let Some(queue) = &mut self.queue
            && let Some(done) = queue.reap()
        {
            return Ok(Some(done.context.complete(done.result, done.status)));
        }
        if let Some(answer) = self.lost_completions.pop_front() {
            return Ok(Some(answer));
        }
        self.count_empty_poll();
        Ok(self.lost_completions.pop_front())
    }

    fn sleep(&mut self, longest: Option<Nanos>) -> Result<(), IoError> {
        let longest = longest.unwrap_or(SLEEP_MAX).min(SLEEP_MAX);
        match self.connect_interrupts()? {
            true => {
                if self.arm()? == ArmResult::Armed {
                    self.wake.wait(Some(longest))?;
                }
            }
            false if self.has_work() => {}
            false => Clock::sleep(longest.min(POLL_SLEEP)),
        }
        if !self.has_work() {
            let now = self.owner.now();
            if now >= self.next_poll {
                self.poll_controller(now);
            }
        }
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.owner.has_interrupts().then(|| self.wake.as_fd())
    }

    fn arm(&mut self) -> Result<ArmResult, IoError> {
        self.ring()?;
        if !self.connect_interrupts()? {
            return Err(IoError::Limit {
                reason: "the controller has no interrupt vector left for this queue; poll it".to_owned(),
            });
        }
        // Discards earlier notifications; a completion that arrives after the check below signals again.
        self.wake.take()?;
        Ok(if self.has_work() { ArmResult::Ready } else { ArmResult::Armed })
    }

    fn cancel(&mut self, token: u64) -> Result<(), IoError> {
        let named = |queue: &OwnedQueue<K>| {
            queue.commands().find(|(_, context)| context.token == token).map(|(command, _)| command)
        };
        let command = self.queue.as_deref().and_then(named);
        let (Some(command), Some(queue)) = (command, &mut self.queue) else {
            let answered = self.lost_completions.iter().any(|answer| answer.completion.token == token);
            let reason =
                format!("token {token} cannot be cancelled: no command of it is in flight on this queue");
            return if answered { Ok(()) } else { Err(IoError::Unsupported { reason }) };
        };
        queue.ring();
        self.owner.abort(queue.id(), command)
    }

    fn visit_tokens(&mut self, visit: &mut dyn FnMut(&mut u64)) {
        if let Some(queue) = &mut self.queue {
            queue.commands_mut().for_each(|(_, command)| visit(&mut command.token));
        }
        self.lost_completions.iter_mut().for_each(|done| visit(&mut done.completion.token));
    }

    fn in_flight(&self) -> u32 {
        self.command_count()
    }

    fn depth(&self) -> u32 {
        self.depth
    }
}

impl<K: QueueOwner> Drop for NvmeQueue<K> {
    /// Deletes the queue at the controller. Commands that remain in flight after that keep their memory forever.
    fn drop(&mut self) {
        let is_over = self.queue.as_ref().is_none_or(|queue| self.owner.delete_queue(queue));
        if !is_over {
            let held = self.queue.iter_mut().flat_map(|queue| queue.take_contexts());
            held.for_each(|command| command.data.leak());
        }
    }
}

impl<K: QueueOwner> fmt::Debug for NvmeQueue<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NvmeQueue")
            .field("owner", &self.owner)
            .field("depth", &self.depth)
            .finish_non_exhaustive()
    }
}

const WRONG_LENGTH: SubmitError =
    SubmitError::Unsupported { what: "the command's data differs from its entry in length or direction" };
const UNSUPPORTED: SubmitError = SubmitError::Unsupported {
    what: "this queue does not support the command: the length of its data is unknown",
};
const NO_NAMESPACE: SubmitError =
    SubmitError::Unsupported { what: "the command's namespace does not exist, or cannot be used" };

/// Validates a command.
#[inline]
fn validate_command(command: &Command, namespaces: &[ClientNamespace]) -> Result<(), SubmitError> {
    let Command { entry, data } = command;
    let id = entry.namespace.get();
    if entry.opcode == IoOpcode::Flush.number() {
        return check_data(data, &CommandTransfer::NONE);
    }
    let found = namespaces.iter().find(|found| found.id == id).ok_or(NO_NAMESPACE)?;
    if found.is_key_space() {
        // Only Headwater devices accept the UIO put and get, whose data the entry names elsewhere.
        check_data(data, &entry.kv_transfer().ok_or(UNSUPPORTED)?)
    } else {
        check_blocks(entry, data, found)
    }
}

/// Checks that a command's data has the direction and a length of this transfer.
#[inline]
fn check_data(data: &TransferData, transfer: &CommandTransfer) -> Result<(), SubmitError> {
    let bytes = data.bytes() as u64;
    let is_long = match transfer.length {
        LengthRule::Exact => bytes == transfer.bytes,
        LengthRule::AtLeast => bytes >= transfer.bytes,
    };
    // Data of zero bytes has no direction.
    let is_empty = bytes == 0 && transfer.bytes == 0;
    if is_long && (is_empty || data.direction() == transfer.direction) { Ok(()) } else { Err(WRONG_LENGTH) }
}

fn check_blocks(
    entry: &SubmissionEntry,
    data: &TransferData,
    namespace: &ClientNamespace,
) -> Result<(), SubmitError> {
    let range = |blocks: u64| {
        let first = entry.nvm_start();
        match first.checked_add(blocks) {
            Some(end) if end <= namespace.size => Ok(()),
            _ => Err(SubmitError::BlocksOutOfRange { first, blocks, size: namespace.size }),
        }
    };
    let opcode = NvmOpcode::from_number(entry.opcode).ok_or(UNSUPPORTED)?;
    let transfer = entry.nvm_transfer(namespace.block_bytes).ok_or(UNSUPPORTED)?;
    match opcode {
        NvmOpcode::Read
        | NvmOpcode::Write
        | NvmOpcode::Compare
        | NvmOpcode::WriteZeroes
        | NvmOpcode::Verify => {
            range(entry.nvm_blocks().into())?;
            check_data(data, &transfer)
        }
        NvmOpcode::DatasetManagement => {
            check_data(data, &transfer)?;
            ranges_inside(data, entry.nvm_dataset_ranges(), namespace)
        }
        NvmOpcode::Flush | NvmOpcode::Copy => check_data(data, &transfer),
    }
}

/// Checks that every range of a discard lies in the namespace.
fn ranges_inside(data: &TransferData, ranges: u16, namespace: &ClientNamespace) -> Result<(), SubmitError> {
    let [list] = data.buffers() else { return Err(SubmitError::SINGLE_BUFFER_ONLY) };
    let mut range = DatasetRange::new_zeroed();
    for index in 0..usize::from(ranges) {
        list.read(index * size_of::<DatasetRange>(), range.as_mut_bytes()).map_err(|_| WRONG_LENGTH)?;
        let (first, blocks) = (range.start.get(), u64::from(range.blocks.get()));
        if first.checked_add(blocks).is_none_or(|end| end > namespace.size) {
            return Err(SubmitError::BlocksOutOfRange { first, blocks, size: namespace.size });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
