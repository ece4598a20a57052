//! A queue whose rings lie in memory that the device has mapped too.
//!
//! In: commands. Out: completions. The data pointer of a command is the address of its buffer in the client's own
//! numbering (PRP Entry 1; PRP Entry 2 is zero). Invariant: of every command in flight the entry is kept, so that it can
//! be sent again to a device that came back.

use crate::backend::Transport;
use crate::command::Command;
use crate::error::{IoError, SubmitError};
use crate::queue::Completion;
use headwater_host::clock::Nanos;
use headwater_host::ring_memory::ForeignWords;
use headwater_host::wake::{WakeDescriptor, WakeError};
use headwater_host::wake_line::{Line, WakeLine};
use headwater_nvme::queue_pair::{QueuePair, Sleep};
use headwater_nvme::ring::Wake;
use headwater_nvme::spec::command::SubmissionEntry;
use zerocopy::little_endian::U64;

/// How the two sides of a queue wake each other.
#[derive(Debug)]
pub enum Bells {
    /// Sides that trust each other.
    Descriptors {
        /// What this side sleeps on.
        own: WakeDescriptor,
        /// What the device sleeps on.
        device: WakeDescriptor,
    },
    /// Sides that do not.
    Line(WakeLine),
}

impl Bells {
    fn wake_device(&self) -> Result<(), WakeError> {
        match self {
            Self::Descriptors { device, .. } => device.wake(),
            Self::Line(line) => line.wake(),
        }
    }

    fn wait(&self, longest: Option<Nanos>) -> Result<Line, WakeError> {
        match self {
            Self::Descriptors { own, .. } => own.wait(longest).map(|_| Line::Called),
            Self::Line(line) => line.wait(longest),
        }
    }
}

/// A command in flight.
#[derive(Clone, Debug)]
pub struct Unanswered {
    /// The caller's token.
    pub token: u64,
    /// The entry with its data pointer.
    pub entry: SubmissionEntry,
    /// Its place in the order of submission.
    order: u64,
}

impl Unanswered {
    /// Its place in the order of submission.
    #[must_use]
    pub fn order(&self) -> u64 {
        self.order
    }
}

/// The client's half of a queue pair.
#[derive(Debug)]
pub struct RingQueue {
    pair: QueuePair<ForeignWords>,
    bells: Bells,
    /// By slot.
    unanswered: Vec<Option<Unanswered>>,
    submitted: u64,
    /// Submitted since the device was last shown.
    submitted_news: bool,
    /// Reaped since the device was last shown. It goes with the next submission, or when nothing more is to be reaped: a
    /// fence for every completion would cost more than the completion.
    reaped_news: bool,
    hung_up: bool,
}

impl RingQueue {
    /// A queue over its half of a pair.
    #[must_use]
    pub fn new(pair: QueuePair<ForeignWords>, bells: Bells) -> Self {
        let slots = usize::try_from(pair.depth()).unwrap_or(0);
        let unanswered = (0..slots).map(|_| None).collect();
        Self {
            pair,
            bells,
            unanswered,
            submitted: 0,
            submitted_news: false,
            reaped_news: false,
            hung_up: false,
        }
    }

    /// Submits an entry whose data pointer is set.
    ///
    /// # Errors
    /// [`SubmitError::Full`].
    #[inline]
    pub fn submit_entry(&mut self, entry: SubmissionEntry, token: u64) -> Result<(), SubmitError> {
        let id = self.pair.submit(entry).map_err(|_full| SubmitError::Full)?;
        self.submitted += 1;
        self.unanswered[self.pair.slot(id)] = Some(Unanswered { token, entry, order: self.submitted });
        self.submitted_news = true;
        Ok(())
    }

    /// Takes the next completion together with the command it answers.
    ///
    /// # Errors
    /// [`IoError::Controller`] for an answer that no correct device gives.
    #[inline]
    pub fn reap_with(&mut self) -> Result<Option<(Completion, Unanswered)>, IoError> {
        let Some(answer) = self.pair.reap()? else {
            if self.reaped_news {
                self.show();
            }
            return Ok(None);
        };
        self.reaped_news = true;
        let Some(command) = self.unanswered.get_mut(answer.slot).and_then(Option::take) else {
            return Ok(None);
        };
        let completion = Completion { token: command.token, result: answer.result, status: answer.status };
        Ok(Some((completion, command)))
    }

    /// Shows the device what was submitted, and gives reaped slots back.
    #[inline]
    fn show(&mut self) {
        self.submitted_news = false;
        self.reaped_news = false;
        if self.pair.ring() == Wake::Needed && self.bells.wake_device().is_err() {
            self.hung_up = true;
        }
    }

    /// Everything that was submitted and not answered, in the order of submission.
    pub fn take_unanswered(&mut self) -> Vec<Unanswered> {
        let mut all: Vec<Unanswered> = self.unanswered.iter_mut().filter_map(Option::take).collect();
        all.sort_by_key(|command| command.order);
        all
    }

    /// Whether the other side was found to have closed its end.
    #[must_use]
    pub fn has_hung_up(&self) -> bool {
        self.hung_up
    }

    /// Whether the other side has closed its end; looks, which is a call into the kernel.
    #[must_use]
    pub fn look_for_hang_up(&mut self) -> bool {
        if let Bells::Line(line) = &self.bells {
            self.hung_up |= line.take() == Line::HungUp;
        }
        self.hung_up
    }
}

/// The entry of a command with its data pointer.
#[inline]
pub(crate) fn entry_of(command: &Command) -> SubmissionEntry {
    let mut entry = command.entry;
    if let Some(buffer) = command.buffer() {
        entry.prp1 = U64::new(buffer.address());
    }
    entry
}

impl Transport for RingQueue {
    #[inline]
    fn submit(&mut self, command: &Command, token: u64) -> Result<(), SubmitError> {
        self.submit_entry(entry_of(command), token)
    }

    #[inline]
    fn ring(&mut self) -> Result<(), IoError> {
        if self.submitted_news {
            self.show();
        }
        Ok(())
    }

    #[inline]
    fn reap(&mut self) -> Result<Option<Completion>, IoError> {
        Ok(self.reap_with()?.map(|(completion, _)| completion))
    }

    fn sleep(&mut self, longest: Option<Nanos>) -> Result<(), IoError> {
        let (wake, sleep) = self.pair.prepare_sleep();
        self.submitted_news = false;
        self.reaped_news = false;
        if wake == Wake::Needed && self.bells.wake_device().is_err() {
            self.hung_up = true;
        }
        if sleep == Sleep::Until && !self.hung_up {
            self.hung_up = self.bells.wait(longest)? == Line::HungUp;
            self.pair.awake();
        }
        Ok(())
    }

    fn in_flight(&self) -> u32 {
        self.pair.in_flight()
    }

    fn depth(&self) -> u32 {
        self.pair.depth()
    }
}
