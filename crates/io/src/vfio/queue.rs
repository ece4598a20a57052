//! A hardware queue of an NVMe controller, driven by this process.
//!
//! In: commands. Out: one answer for each: the controller's, or, when a reset or the end of the controller takes it,
//! [`Status::ABORTED_BY_HOST`] or [`Status::HOST_PATHING_ERROR`]. In its normal course a command takes no lock, no system
//! call and no look at the clock. Invariant: the data of a command is held until the controller has answered it or
//! certainly touches it no more.
//!
//! # After a reset
//! The queue is made again with the next command. Nobody knows whether what was in flight was done; who sent it decides
//! whether to send it again.

use super::entry::check;
use super::keeper::{Keeper, Kept};
use crate::backend::{Answer, Armed, Limits, Transport};
use crate::buffer::Buffer;
use crate::command::{Command, Data};
use crate::error::{IoError, Rejected, SubmitError};
use crate::facts::NamespaceFacts;
use crate::queue::Completion;
use headwater_dma::iova::{Iova, IovaRange};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::wake::WakeDescriptor;
use headwater_nvme::driver::{DescribeError, Fate, SubmitFault};
use headwater_nvme::queue_pair::CommandId;
use headwater_nvme::spec::status::Status;
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd as _, BorrowedFd};

/// Most buffers of one command.
const SEGMENTS_MAX: usize = 256;
/// What addresses of data are multiples of (NVMe Base 2.0 section 4.1.1).
const MEMORY_ALIGN: usize = 4;
/// Looks that found nothing between two looks at the clock; a power of two.
const IDLE_LOOKS: u32 = 256;
/// Between two looks at the controller itself while commands are in flight.
const CONTROLLER_LOOK: Nanos = Nanos::from_millis(20);
/// Longest sleep with commands in flight: then the controller is looked at, however quiet it is.
const SLEEP_MAX: Nanos = Nanos::from_millis(500);
/// A sleep without interrupts.
const NAP: Nanos = Nanos::from_micros(50);

/// A command in flight.
#[derive(Debug)]
struct Slot {
    token: u64,
    data: Data,
    command: CommandId,
}

/// The queue.
pub struct NvmeQueue<K: Keeper> {
    keeper: K,
    /// `None` after a reset, until the next command.
    queue: Option<Box<Kept<K>>>,
    depth: u32,
    slots: Vec<Option<Slot>>,
    /// Answers to what the controller will not answer.
    lost: VecDeque<Answer>,
    namespaces: Vec<NamespaceFacts>,
    transfer_bytes_max: usize,
    runs: Vec<IovaRange>,
    bell: WakeDescriptor,
    connected: bool,
    idle: u32,
    next_look: Nanos,
}

impl<K: Keeper> NvmeQueue<K> {
    /// Makes a queue for up to `depth` commands in flight.
    ///
    /// # Errors
    /// [`IoError::Device`] when the controller has no more, takes none so deep, or is gone.
    pub fn open(mut keeper: K, depth: u32) -> Result<Self, IoError> {
        let bell = WakeDescriptor::new()?;
        let queue = keeper.make_queue(depth)?;
        Ok(Self {
            depth,
            slots: (0..depth).map(|_| None).collect(),
            lost: VecDeque::new(),
            namespaces: keeper.namespaces(),
            transfer_bytes_max: usize::try_from(queue.transfer_bytes_max()).unwrap_or(usize::MAX),
            queue: Some(queue),
            keeper,
            runs: Vec::new(),
            bell,
            connected: false,
            idle: 0,
            next_look: Nanos::ZERO,
        })
    }

    /// Whether the command may go to the controller; namespaces are looked up again before one is refused.
    #[inline]
    fn judge(&mut self, command: &Command) -> Result<(), SubmitError> {
        if check(command, &self.namespaces).is_ok() {
            return Ok(());
        }
        self.namespaces = self.keeper.namespaces();
        check(command, &self.namespaces)
    }

    /// Makes the queue again after a reset, once every command of the old one is answered for.
    fn remake(&mut self) -> Result<(), SubmitError> {
        self.settle();
        if self.queue.is_some() {
            return Ok(());
        }
        self.queue = Some(self.keeper.make_queue(self.depth).map_err(|_| SubmitError::Gone)?);
        self.connected = false;
        Ok(())
    }

    /// Follows what became of the controller until this queue stands or is given up.
    fn settle(&mut self) {
        while let Some(queue) = &self.queue {
            match queue.fate() {
                Fate::Live => return,
                Fate::Waiting => {
                    self.keeper.look(self.keeper.now());
                    Clock::sleep(NAP);
                }
                Fate::Lost | Fate::Dead => self.give_up(),
            }
        }
    }

    /// Answers every command of a queue that is lost: first by what the controller said before the end.
    fn give_up(&mut self) {
        let Some(mut queue) = self.queue.take() else { return };
        let is_dead = queue.fate() == Fate::Dead;
        while let Some(done) = queue.reap() {
            let answer = answer_of(&mut self.slots, done.slot, done.result, done.status);
            self.lost.extend(answer);
        }
        let slots = match queue.abandon() {
            Ok(slots) => slots,
            Err(queue) => {
                self.queue = Some(queue);
                return;
            }
        };
        let status = if is_dead { Status::HOST_PATHING_ERROR } else { Status::ABORTED_BY_HOST };
        let is_quiet = !is_dead || self.keeper.is_quiet();
        for slot in slots {
            if !is_quiet && let Some(Some(slot)) = self.slots.get(slot) {
                // The caller gets its handle; the memory is never used for anything else.
                slot.data.clone().forget();
            }
            let answer = answer_of(&mut self.slots, slot, 0, status);
            self.lost.extend(answer);
        }
    }

    /// Nothing came for a while: is the controller still there, and is a command late?
    #[cold]
    fn look(&mut self, now: Nanos) {
        self.next_look = now.after(CONTROLLER_LOOK);
        let Self { queue: Some(queue), keeper, .. } = self else { return };
        match queue.fate() {
            Fate::Live => {
                let id = queue.id();
                queue.watch(now, |overdue| keeper.overdue(id, overdue, now));
                if let Some(fault) = queue.fault() {
                    keeper.broken(id, fault, now);
                }
                keeper.look(now);
            }
            Fate::Waiting => {
                self.next_look = now;
                keeper.look(now);
            }
            Fate::Lost | Fate::Dead => self.give_up(),
        }
    }

    /// Called by a look that found nothing: now and then, looks at more.
    #[inline]
    fn found_nothing(&mut self) {
        self.idle = self.idle.wrapping_add(1);
        if !self.idle.is_multiple_of(IDLE_LOOKS) || self.commands() == 0 {
            return;
        }
        let now = self.keeper.now();
        let stands = self.queue.as_ref().is_some_and(|queue| queue.fate() == Fate::Live);
        if !stands || now >= self.next_look {
            self.look(now);
        }
    }

    /// Lets completions ring the bell, from the first wait on.
    fn connect(&mut self) -> Result<bool, IoError> {
        if !self.keeper.has_interrupts() {
            return Ok(false);
        }
        if let Some(queue) = &self.queue
            && !self.connected
        {
            self.keeper.connect(queue.id(), &self.bell)?;
            self.connected = true;
        }
        Ok(self.keeper.has_interrupts())
    }

    /// Commands accepted and not yet answered.
    #[inline]
    fn commands(&self) -> u32 {
        let lost = u32::try_from(self.lost.len()).unwrap_or(u32::MAX);
        self.queue.as_ref().map_or(0, |queue| queue.in_flight()).saturating_add(lost)
    }

    #[inline]
    fn has_work(&self) -> bool {
        !self.lost.is_empty() || self.queue.as_ref().is_none_or(|queue| queue.has_work())
    }
}

#[inline]
fn answer_of(slots: &mut [Option<Slot>], slot: usize, result: u32, status: Status) -> Option<Answer> {
    let Slot { token, data, .. } = slots.get_mut(slot)?.take()?;
    Some(Answer { completion: Completion { token, result, status }, data })
}

#[inline]
fn run_of(buffer: &Buffer) -> Option<IovaRange> {
    Some(IovaRange { start: Iova(buffer.address()), bytes: u32::try_from(buffer.bytes()).ok()? })
}

fn reason_of(fault: SubmitFault) -> SubmitError {
    let what = match fault {
        SubmitFault::Full => return SubmitError::Full,
        SubmitFault::NotLive => return SubmitError::Gone,
        SubmitFault::TooLong { .. } | SubmitFault::Data(DescribeError::TooLong { .. }) => {
            "more data than the queue's transfer_bytes_max; split the command"
        }
        SubmitFault::Data(DescribeError::Gap { .. }) => {
            "several buffers that do not join at pages, for a controller without SGLs; send a command for each"
        }
        _ => "a buffer does not lie at a multiple of the queue's memory_align",
    };
    SubmitError::Unfit { what }
}

impl<K: Keeper> Transport for NvmeQueue<K> {
    fn limits(&self) -> Limits {
        Limits {
            transfer_bytes_max: self.transfer_bytes_max,
            segments_max: SEGMENTS_MAX,
            memory_align: MEMORY_ALIGN,
        }
    }

    fn submit(&mut self, command: Command, token: u64) -> Result<(), Rejected> {
        if self.commands() >= self.depth {
            return Err(Rejected { command, reason: SubmitError::Full });
        }
        if let Err(reason) = self.judge(&command) {
            return Err(Rejected { command, reason });
        }
        let buffers = command.data.buffers();
        self.runs.clear();
        self.runs.extend(buffers.iter().filter(|buffer| buffer.bytes() > 0).map_while(run_of));
        if buffers.len() > SEGMENTS_MAX {
            let what = "more buffers than the queue's segments_max";
            return Err(Rejected { command, reason: SubmitError::Unfit { what } });
        }
        if let Err(reason) = self.keeper.device_addresses(&mut self.runs) {
            return Err(Rejected { command, reason });
        }
        loop {
            let submitted = match &mut self.queue {
                Some(queue) => queue.submit(command.entry, &self.runs).map(|id| (queue.slot(id), id)),
                None => Err(SubmitFault::NotLive),
            };
            match submitted {
                Ok((slot, id)) => {
                    self.slots[slot] = Some(Slot { token, data: command.data, command: id });
                    return Ok(());
                }
                Err(SubmitFault::NotLive) => {
                    if let Err(reason) = self.remake() {
                        return Err(Rejected { command, reason });
                    }
                }
                Err(fault) => return Err(Rejected { command, reason: reason_of(fault) }),
            }
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
    fn reap(&mut self) -> Result<Option<Answer>, IoError> {
        if let Some(queue) = &mut self.queue
            && let Some(done) = queue.reap()
        {
            return Ok(answer_of(&mut self.slots, done.slot, done.result, done.status));
        }
        if let Some(answer) = self.lost.pop_front() {
            return Ok(Some(answer));
        }
        self.found_nothing();
        Ok(self.lost.pop_front())
    }

    fn sleep(&mut self, longest: Option<Nanos>) -> Result<(), IoError> {
        let longest = longest.unwrap_or(SLEEP_MAX).min(SLEEP_MAX);
        match self.connect()? {
            true => {
                if self.arm()? == Armed::Waiting {
                    self.bell.wait(Some(longest))?;
                }
            }
            false if self.has_work() => {}
            false => Clock::sleep(longest.min(NAP)),
        }
        if !self.has_work() {
            let now = self.keeper.now();
            if now >= self.next_look {
                self.look(now);
            }
        }
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.keeper.has_interrupts().then(|| self.bell.as_fd())
    }

    fn arm(&mut self) -> Result<Armed, IoError> {
        self.ring()?;
        if !self.connect()? {
            return Err(IoError::Refused {
                reason: "the controller has no interrupt vector left for this queue; poll it".to_owned(),
            });
        }
        // What rang so far is old news; what comes behind the look rings again.
        self.bell.take()?;
        Ok(if self.has_work() { Armed::Ready } else { Armed::Waiting })
    }

    fn cancel(&mut self, token: u64) -> Result<(), IoError> {
        let slot = self.slots.iter().flatten().find(|slot| slot.token == token);
        let (Some(slot), Some(queue)) = (slot, &mut self.queue) else {
            let answered = self.lost.iter().any(|answer| answer.completion.token == token);
            let reason = format!("no command of token {token} is in flight");
            return if answered { Ok(()) } else { Err(IoError::Refused { reason }) };
        };
        queue.ring();
        self.keeper.abort(queue.id(), slot.command)
    }

    fn in_flight(&self) -> u32 {
        self.commands()
    }

    fn depth(&self) -> u32 {
        self.depth
    }
}

impl<K: Keeper> Drop for NvmeQueue<K> {
    /// Deletes the queue at the controller. What that does not answer keeps its memory for ever.
    fn drop(&mut self) {
        let is_over = self.queue.as_ref().is_none_or(|queue| self.keeper.delete_queue(queue));
        if !is_over {
            let held = self.slots.iter_mut().filter_map(Option::take);
            held.for_each(|slot| slot.data.forget());
        }
    }
}

impl<K: Keeper> fmt::Debug for NvmeQueue<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NvmeQueue")
            .field("keeper", &self.keeper)
            .field("depth", &self.depth)
            .finish_non_exhaustive()
    }
}
