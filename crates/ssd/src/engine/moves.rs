//! Operations that wait for jobs of the mover, and the sleep of a core while jobs are in flight.
//!
//! Input: the stall of an operation whose call started jobs, and the ends of the jobs. Output: the operation's next run, with the
//! bytes that they copied. Invariant: an operation that waits for jobs is in no queue, so that nothing runs or ends it before
//! the last of them; its slot stays its own until then.

use super::SsdDevice;
use super::operation::{DeviceOperation, OperationWork};
use crate::command::{SsdCommand, ValueSink};
use crate::log::flash_log::EndedCopy;
use crate::media::Media;
use headwater_dma::mover::Mover;
use std::ops::Range;
use std::os::fd::BorrowedFd;

impl DeviceOperation {
    /// Makes the operation wait for `left` jobs, which copy a range of its value. Returns true if it may run again: there are
    /// none, and the range is copied.
    pub(super) fn begin_moves(&mut self, left: usize, range: Range<usize>) -> bool {
        self.moves.get_or_insert_default().begin(left, range);
        self.finish_moves()
    }

    /// Ends a job, which returns the sink if it is a vector. Returns true if the operation may run again: none is left.
    ///
    /// # Panics
    /// It waits for none.
    fn end_move(&mut self, returned: Option<Vec<u8>>) -> bool {
        if let (Some(returned), OperationWork::Command(command)) = (returned, &mut self.work) {
            match command {
                SsdCommand::Retrieve { sink: ValueSink::Bytes(sink), .. }
                | SsdCommand::ReadPart { sink, .. } => *sink = returned,
                _ => unreachable!("a job returns the vector of a command that has none"),
            }
        }
        self.moves.as_mut().expect("a job ended that its operation does not wait for").end_one();
        self.finish_moves()
    }

    fn finish_moves(&mut self) -> bool {
        let end = self.moves.as_mut().and_then(|moves| moves.finish());
        if let (Some(end), Some(progress)) = (end, &mut self.value_progress) {
            progress.bytes_done = end;
        }
        end.is_some()
    }
}

impl<M: Media> SsdDevice<M> {
    /// Sets the mover of the bytes of values in extents, as one with channels. A new device has one without any. Its counters
    /// begin with it.
    ///
    /// # Panics
    /// Jobs of the present mover are in flight: a device gets its mover before its commands.
    pub fn set_mover(&mut self, mover: Mover) {
        self.ftl.set_mover(mover);
    }

    /// Notifies the operations whose jobs have ended.
    pub(super) fn notify_moved(&mut self) {
        for EndedCopy { operation: at, sink } in self.ftl.take_ended_copies() {
            if self.operations[at].end_move(sink) {
                // It proves its next part in a turn of its own.
                self.schedule.in_parts.push_back(at);
            }
        }
    }

    /// Returns the descriptors that become readable when a channel of the mover has ended a job, behind
    /// [`prepare_sleep`](Self::prepare_sleep). They stay the same; without channels there are none.
    pub fn move_descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.ftl.move_descriptors()
    }

    /// Prepares the core for a sleep on the [descriptors](Self::move_descriptors) of the mover. Returns false if a job has ended,
    /// or is in flight on a channel that must be polled: the core does not sleep then.
    pub fn prepare_sleep(&mut self) -> bool {
        self.ftl.prepare_sleep()
    }
}
