//! A queue whose rings lie in memory shared with the device.
//!
//! Input: commands. Output: completions. The data pointer of a command is the address of its buffer in the client's
//! numbering (PRP Entry 1; PRP Entry 2 is zero), or an SGL with the addresses of several. Invariant: the entry of every
//! command in flight is kept, with the list that it points to, so that it can be resubmitted to a device that returns.

use crate::backend::{ArmResult, CompletedCommand, IoLimits, QueueTransport};
use crate::buffer::Buffer;
use crate::command::TRANSFER_BYTES_MAX;
use crate::command::{Command, TransferData};
use crate::error::{IoError, RejectedCommand, SubmitError};
use crate::queue::Completion;
use headwater_dma::pool::Pool;
use headwater_host::clock::Nanos;
use headwater_host::ring_memory::SharedMemoryWords;
use headwater_host::wake::{WakeDescriptor, WakeError};
use headwater_host::wake_line::{WakeEvent, WakeLine};
use headwater_host::width::narrow;
use headwater_nvme::queue_pair::{QueuePair, SleepDecision};
use headwater_nvme::ring::WakeDecision;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::sgl::{SGL_DESCRIPTOR_BYTES, SglDescriptor, SglKind};
use std::os::fd::{AsFd as _, BorrowedFd};
use zerocopy::IntoBytes as _;
use zerocopy::little_endian::U64;

/// The most buffers of a command.
pub const RING_SEGMENTS_MAX: u32 = 64;
/// The most commands in flight with several buffers: their lists take 4 KiB, a slot of the static tier.
const LISTS_MAX: u8 = 4;
/// Bytes of the list of a command's buffers.
const LIST_BYTES: usize = RING_SEGMENTS_MAX as usize * SGL_DESCRIPTOR_BYTES;

/// The mechanism by which the two sides of a queue wake each other.
#[derive(Debug)]
pub enum QueueWakeups {
    /// Wake-up for sides that trust each other.
    Descriptors {
        /// The descriptor that this side sleeps on.
        own: WakeDescriptor,
        /// The descriptor that the device sleeps on.
        device: WakeDescriptor,
    },
    /// Wake-up for sides that do not trust each other.
    WakeLine(WakeLine),
}

impl QueueWakeups {
    fn wake_device(&self) -> Result<(), WakeError> {
        match self {
            Self::Descriptors { device, .. } => device.wake(),
            Self::WakeLine(line) => line.wake(),
        }
    }

    fn wait(&self, longest: Option<Nanos>) -> Result<WakeEvent, WakeError> {
        match self {
            Self::Descriptors { own, .. } => own.wait(longest).map(|_| WakeEvent::Woken),
            Self::WakeLine(line) => line.wait(longest),
        }
    }

    /// Consumes pending wake-ups, so that the descriptor is no longer readable.
    fn take_wakeups(&self) -> Result<WakeEvent, WakeError> {
        match self {
            Self::Descriptors { own, .. } => own.take().map(|_| WakeEvent::Woken),
            Self::WakeLine(line) => Ok(line.take()),
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            Self::Descriptors { own, .. } => own.as_fd(),
            Self::WakeLine(line) => line.as_fd(),
        }
    }
}

/// A command in flight.
#[derive(Debug)]
pub struct InFlightCommand {
    /// The caller's token.
    pub token: u64,
    /// The entry with its data pointer.
    pub entry: SubmissionEntry,
    /// The data it moves.
    pub data: TransferData,
    /// The number of the list of data in several buffers.
    list: Option<u8>,
    /// The submission order.
    order: u64,
}

impl InFlightCommand {
    /// Returns its position in the order of submission.
    #[must_use]
    pub fn order(&self) -> u64 {
        self.order
    }
}

/// The client's end of a queue pair, which keeps the commands in flight.
pub type ClientPair = QueuePair<SharedMemoryWords, InFlightCommand>;

/// The client's side of a queue pair.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "four independent flags, read separately on the hot path")]
pub struct RingQueue {
    pair: ClientPair,
    /// The pool of the lists of commands with several buffers, and the most buffers of a command; `None` if it has one.
    list_pool: Option<(Pool, u32)>,
    /// The memory of each list; none before the first command with several buffers.
    lists: Vec<Buffer>,
    /// The numbers of lists that no command has.
    free_lists: Vec<u8>,
    wakeups: QueueWakeups,
    submitted: u64,
    /// True if commands were submitted since the last doorbell.
    unrung_submissions: bool,
    /// True if completions were reaped since the last doorbell. They are shown with the next submission, or when a poll
    /// finds nothing more: a fence for every completion would cost more than the completion.
    unrung_reaps: bool,
    /// True if the device was requested to make the descriptor readable.
    armed: bool,
    hung_up: bool,
}

impl RingQueue {
    /// Returns a queue over the client's side of a pair.
    #[must_use]
    pub fn new(pair: ClientPair, wakeups: QueueWakeups) -> Self {
        Self {
            pair,
            list_pool: None,
            lists: Vec::new(),
            free_lists: Vec::new(),
            wakeups,
            submitted: 0,
            unrung_submissions: false,
            unrung_reaps: false,
            armed: false,
            hung_up: false,
        }
    }

    /// Lets commands have up to `segments_max` buffers, at most [`RING_SEGMENTS_MAX`]. Their lists lie in memory of a pool that the
    /// device may read, which the first of them takes.
    #[must_use]
    pub fn with_lists(mut self, pool: &Pool, segments_max: u32) -> Self {
        self.list_pool = Some((pool.clone(), segments_max.clamp(1, RING_SEGMENTS_MAX)));
        self
    }

    /// Moves the lists to another queue, which has the commands of this one, and whose commands may have as many buffers.
    pub(crate) fn move_lists(&mut self, other: &mut Self) {
        other.lists = std::mem::take(&mut self.lists);
        other.free_lists = std::mem::take(&mut self.free_lists);
        other.list_pool = self.list_pool.take();
    }

    /// Takes the data of a command that was reaped. Its list can be used again.
    #[inline]
    pub fn finish_command(&mut self, command: InFlightCommand) -> TransferData {
        self.free_lists.extend(command.list);
        command.data
    }

    /// Submits a command.
    ///
    /// # Errors
    /// [`RejectedCommand`] when the queue is full, or the command's data is in more buffers than
    /// [`limits`](QueueTransport::limits) permits, or there is no memory for their list.
    #[inline]
    pub fn submit_command(&mut self, command: Command, token: u64) -> Result<(), RejectedCommand> {
        let (pointed, list) = if command.data.buffers().len() > 1 {
            match self.take_list(&command) {
                Ok((entry, list)) => (entry, Some(list)),
                Err(reason) => return Err(RejectedCommand { command, reason }),
            }
        } else {
            (entry_of(&command), None)
        };
        let Command { entry, data } = command;
        self.push(InFlightCommand { token, entry: pointed, data, list, order: 0 }).map_err(|refused| {
            let command = Command { entry, data: self.finish_command(refused) };
            RejectedCommand { command, reason: SubmitError::Full }
        })
    }

    /// Returns the entry of a command with several buffers, and the list that it points to.
    #[cold]
    fn take_list(&mut self, command: &Command) -> Result<(SubmissionEntry, u8), SubmitError> {
        let buffers = command.data.buffers();
        if buffers.len() > self.limits().segments_max {
            return Err(SubmitError::TOO_MANY_BUFFERS);
        }
        if self.lists.is_empty() {
            self.make_lists()?;
        }
        // Those that are missing return with the commands in flight.
        let number = self.free_lists.pop().ok_or(SubmitError::Full)?;
        let list = &self.lists[usize::from(number)];
        let descriptors = buffers
            .iter()
            .map(|buffer| SglDescriptor::new(SglKind::DataBlock, buffer.address(), narrow(buffer.bytes())));
        let descriptors: Vec<SglDescriptor> = descriptors.collect();
        list.write(0, descriptors.as_bytes()).expect("a list has room for the most buffers");
        let bytes = narrow(size_of_val(&descriptors[..]));
        Ok((command.entry.with_sgl(SglDescriptor::new(SglKind::LastSegment, list.address(), bytes)), number))
    }

    fn make_lists(&mut self) -> Result<(), SubmitError> {
        let what = "no memory of the pool is free for the lists of commands with several buffers; \
                    release a buffer, or send a command for each";
        let (pool, _) = self.list_pool.as_ref().ok_or(SubmitError::TOO_MANY_BUFFERS)?;
        let count = usize::from(LISTS_MAX);
        let memory = pool.buffer(count * LIST_BYTES).map_err(|_| SubmitError::Unsupported { what })?;
        let memory = Buffer::from_pool(memory);
        let list =
            |at| memory.slice(at * LIST_BYTES, LIST_BYTES).expect("the memory is as long as the lists");
        self.lists = (0..count).map(list).collect();
        self.free_lists = (0..LISTS_MAX).collect();
        Ok(())
    }

    /// Submits a command with its entry; returns it if the queue is full.
    #[inline]
    fn push(&mut self, command: InFlightCommand) -> Result<(), InFlightCommand> {
        let order = self.submitted + 1;
        self.pair.submit(command.entry, InFlightCommand { order, ..command }).map_err(|full| full.context)?;
        self.submitted = order;
        self.unrung_submissions = true;
        Ok(())
    }

    /// Resubmits the commands of another queue in their order.
    ///
    /// # Errors
    /// [`SubmitError::Full`], with the remaining commands.
    pub fn resubmit(
        &mut self,
        commands: Vec<InFlightCommand>,
    ) -> Result<(), (Vec<InFlightCommand>, SubmitError)> {
        let mut rest = commands.into_iter();
        while let Some(command) = rest.next() {
            if let Err(command) = self.push(command) {
                return Err((std::iter::once(command).chain(rest).collect(), SubmitError::Full));
            }
        }
        Ok(())
    }

    /// Returns the next completion together with its command.
    ///
    /// # Errors
    /// [`IoError::Controller`] for a completion that violates the protocol.
    #[inline]
    pub fn reap_command(&mut self) -> Result<Option<(Completion, InFlightCommand)>, IoError> {
        if self.armed {
            self.disarm();
        }
        let Some(answer) = self.pair.reap()? else {
            if self.unrung_reaps {
                self.ring_doorbells();
            }
            return Ok(None);
        };
        self.unrung_reaps = true;
        let command = answer.context;
        let completion = Completion { token: command.token, result: answer.result, status: answer.status };
        Ok(Some((completion, command)))
    }

    /// Rings, and requests a wake-up with the next completion.
    fn prepare_sleep(&mut self) -> SleepDecision {
        let (wake, sleep) = self.pair.prepare_sleep();
        self.unrung_submissions = false;
        self.unrung_reaps = false;
        if wake == WakeDecision::Needed && self.wakeups.wake_device().is_err() {
            self.hung_up = true;
        }
        sleep
    }

    #[cold]
    fn disarm(&mut self) {
        self.armed = false;
        self.pair.disarm();
        self.hung_up |= !matches!(self.wakeups.take_wakeups(), Ok(WakeEvent::Woken | WakeEvent::Empty));
    }

    /// Shows the device submitted commands and reaped completions.
    #[inline]
    fn ring_doorbells(&mut self) {
        self.unrung_submissions = false;
        self.unrung_reaps = false;
        if self.pair.ring() == WakeDecision::Needed && self.wakeups.wake_device().is_err() {
            self.hung_up = true;
        }
    }

    /// Removes and returns the commands in flight, in the order of submission.
    pub fn take_in_flight(&mut self) -> Vec<InFlightCommand> {
        let mut all: Vec<InFlightCommand> = self.pair.take_contexts().collect();
        all.sort_by_key(|command| command.order);
        all
    }

    /// Returns true if the other side is already known to have closed its end.
    #[must_use]
    pub fn has_hung_up(&self) -> bool {
        self.hung_up
    }

    /// Checks, by a system call, whether the other side has closed its end.
    #[must_use]
    pub fn check_hang_up(&mut self) -> bool {
        if let QueueWakeups::WakeLine(line) = &self.wakeups {
            self.hung_up |= line.take() == WakeEvent::HungUp;
        }
        self.hung_up
    }
}

/// Returns the entry of a command with its data pointer.
#[inline]
pub(crate) fn entry_of(command: &Command) -> SubmissionEntry {
    let mut entry = command.entry;
    if let Some(buffer) = command.buffer() {
        entry.prp1 = U64::new(buffer.address());
    }
    entry
}

impl QueueTransport for RingQueue {
    fn limits(&self) -> IoLimits {
        let segments_max = self.list_pool.as_ref().map_or(1, |(_, segments_max)| *segments_max as usize);
        IoLimits { transfer_bytes_max: TRANSFER_BYTES_MAX, segments_max, memory_align: 1 }
    }

    #[inline]
    fn submit(&mut self, command: Command, token: u64) -> Result<(), RejectedCommand> {
        self.submit_command(command, token)
    }

    #[inline]
    fn ring(&mut self) -> Result<(), IoError> {
        if self.unrung_submissions {
            self.ring_doorbells();
        }
        Ok(())
    }

    #[inline]
    fn reap(&mut self) -> Result<Option<CompletedCommand>, IoError> {
        let reaped = self.reap_command()?;
        Ok(reaped.map(|(completion, command)| {
            let data = self.finish_command(command);
            CompletedCommand { completion, data }
        }))
    }

    fn sleep(&mut self, longest: Option<Nanos>) -> Result<(), IoError> {
        if self.prepare_sleep() == SleepDecision::UntilWoken && !self.hung_up {
            self.hung_up = self.wakeups.wait(longest)? == WakeEvent::HungUp;
            self.pair.disarm();
        }
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wakeups.descriptor())
    }

    fn arm(&mut self) -> Result<ArmResult, IoError> {
        if self.prepare_sleep() == SleepDecision::WorkPending || self.hung_up {
            return Ok(ArmResult::Ready);
        }
        self.armed = true;
        Ok(ArmResult::Armed)
    }

    fn visit_tokens(&mut self, visit: &mut dyn FnMut(&mut u64)) {
        self.pair.commands_mut().for_each(|(_, command)| visit(&mut command.token));
    }

    fn in_flight(&self) -> u32 {
        self.pair.in_flight()
    }

    fn depth(&self) -> u32 {
        self.pair.depth()
    }
}

impl Drop for RingQueue {
    fn drop(&mut self) {
        // The device may still access these buffers.
        let mut has_list = false;
        for command in self.pair.take_contexts() {
            has_list |= command.list.is_some();
            command.data.leak();
        }
        if has_list {
            self.lists.drain(..).for_each(Buffer::leak);
        }
    }
}
