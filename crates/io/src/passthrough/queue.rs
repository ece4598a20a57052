//! A queue of a namespace that the kernel drives.
//!
//! In: commands. Out: one answer for each, with the status that the device gave. Invariant: a command goes as it was judged, its
//! list of ranges in memory that only this queue has.

use super::device_file::DeviceFile;
use super::judge::{Fit, judge};
use crate::backend::{Answer, Armed, Limits, Transport};
use crate::buffer::Buffer;
use crate::command::{Command, Data};
use crate::error::{IoError, Rejected, SubmitError};
use crate::queue::Completion;
use crate::uring::translate::{Way, extents_of, status_of};
use headwater_dma::pool::Pool;
use headwater_host::clock::Nanos;
use headwater_host::device_ring::{DeviceRing, Done, Extents, NvmeWork};
use headwater_nvme::spec::opcode::DataTransfer;
use headwater_nvme::spec::status::Status;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// What data pointers are a multiple of.
const MEMORY_ALIGN: usize = 4;

#[derive(Debug)]
struct Slot {
    token: u64,
    opcode: u8,
    data: Data,
}

/// A queue.
#[derive(Debug)]
pub(super) struct PassthroughQueue {
    ring: DeviceRing<NvmeWork>,
    file: Arc<DeviceFile>,
    pool: Pool,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    /// Answers of commands that the device never saw.
    ready: VecDeque<Answer>,
}

impl PassthroughQueue {
    pub(super) fn new(ring: DeviceRing<NvmeWork>, file: Arc<DeviceFile>, pool: Pool) -> Self {
        let depth = ring.depth();
        let slots = (0..depth).map(|_| None).collect();
        Self { ring, file, pool, slots, free: (0..depth).rev().collect(), ready: VecDeque::new() }
    }

    #[inline]
    fn check(&self, data: &Data) -> Result<(), SubmitError> {
        let buffers = data.buffers();
        if buffers.len() > self.file.segments_max {
            return Err(SubmitError::Unfit { what: "more buffers than the queue's segments_max" });
        }
        if data.bytes() > self.file.transfer_bytes_max {
            return Err(SubmitError::Unfit {
                what: "more bytes than the queue's transfer_bytes_max; send several commands",
            });
        }
        let lies = |buffer: &Buffer| buffer.process_address().is_multiple_of(MEMORY_ALIGN);
        if !buffers.iter().all(lies) {
            return Err(SubmitError::Unfit {
                what: "a buffer does not lie at a multiple of the queue's memory_align",
            });
        }
        Ok(())
    }

    /// What a command that may go moves.
    #[inline]
    fn extents(&self, fit: &Fit, data: &Data) -> Result<Extents, Status> {
        let Some(ranges) = &fit.ranges else {
            return Ok(if data.bytes() == 0 { Extents::None } else { extents_of(data, 0) });
        };
        let bytes = ranges.concat();
        let list = self.pool.buffer(bytes.len()).map(Buffer::pooled).map_err(|_| Status::INTERNAL_ERROR)?;
        list.write(0, &bytes).map_err(|_| Status::INTERNAL_ERROR)?;
        Ok(extents_of(&Data::ToDevice(list), 0))
    }

    #[inline]
    fn finish(&mut self, done: Done) -> Option<Answer> {
        let index = usize::try_from(done.token).ok()?;
        let slot = self.slots.get_mut(index)?.take()?;
        self.free.push(index);
        let status = match done.result {
            Ok(field) => decoded(field),
            Err(errno) => {
                let reads = DataTransfer::of(slot.opcode) == DataTransfer::ControllerToHost;
                status_of(errno, if reads { Way::Read } else { Way::Change })
            }
        };
        let [a, b, c, d, ..] = done.value.to_le_bytes();
        let result = u32::from_le_bytes([a, b, c, d]);
        Some(Answer { completion: Completion { token: slot.token, result, status }, data: slot.data })
    }
}

/// The status field as the driver gives it: without the phase bit.
#[inline]
fn decoded(field: u32) -> Status {
    let [code, kind, ..] = field.to_le_bytes();
    Status { code, code_type: kind & 0b111, do_not_retry: kind & 0x40 != 0 }
}

impl Transport for PassthroughQueue {
    fn limits(&self) -> Limits {
        Limits {
            transfer_bytes_max: self.file.transfer_bytes_max,
            segments_max: self.file.segments_max,
            memory_align: MEMORY_ALIGN,
        }
    }

    #[inline]
    fn submit(&mut self, command: Command, token: u64) -> Result<(), Rejected> {
        let Some(&index) = self.free.last().filter(|_| self.ready.len() < self.free.len()) else {
            return Err(Rejected { command, reason: SubmitError::Full });
        };
        let judged =
            self.check(&command.data).and_then(|()| judge(&command, &self.file.facts, self.file.window));
        let judged = match judged {
            Ok(judged) => judged,
            Err(reason) => return Err(Rejected { command, reason }),
        };
        let Command { entry, data } = command;
        let sent = judged.and_then(|fit| {
            let work = NvmeWork { command: fit.command, data: self.extents(&fit, &data)? };
            self.ring.submit(index as u64, work).map_err(|_| Status::INTERNAL_ERROR)
        });
        match sent {
            Ok(()) => {
                self.free.pop();
                self.slots[index] = Some(Slot { token, opcode: entry.opcode, data });
            }
            Err(status) => {
                self.ready.push_back(Answer { completion: Completion { token, result: 0, status }, data });
            }
        }
        Ok(())
    }

    #[inline]
    fn ring(&mut self) -> Result<(), IoError> {
        self.ring.kick();
        Ok(())
    }

    #[inline]
    fn reap(&mut self) -> Result<Option<Answer>, IoError> {
        if let Some(answer) = self.ready.pop_front() {
            return Ok(Some(answer));
        }
        while let Some(done) = self.ring.reap() {
            if let Some(answer) = self.finish(done) {
                return Ok(Some(answer));
            }
        }
        Ok(None)
    }

    fn sleep(&mut self, longest: Option<Nanos>) -> Result<(), IoError> {
        if self.ready.is_empty() {
            self.ring.wait(longest);
        }
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.ring.descriptor()
    }

    fn arm(&mut self) -> Result<Armed, IoError> {
        self.ring.kick();
        if self.ring.descriptor().is_none() {
            return Err(IoError::Refused {
                reason: "a polled queue has no descriptor; open it without poll=1".to_owned(),
            });
        }
        Ok(if self.ready.is_empty() { Armed::Waiting } else { Armed::Ready })
    }

    fn in_flight(&self) -> u32 {
        u32::try_from(self.slots.len() - self.free.len() + self.ready.len()).unwrap_or(u32::MAX)
    }

    fn depth(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_status_field_is_the_devices_status() {
        assert_eq!(decoded(0), Status::SUCCESS);
        assert_eq!(decoded(0x4080), Status::LBA_OUT_OF_RANGE);
        assert_eq!(decoded(0x0285), Status::COMPARE_FAILURE);
        assert_eq!(decoded(0x4087), Status::KEY_DOES_NOT_EXIST);
        assert_eq!(decoded(0x1 << 13 | 0x0006), Status::INTERNAL_ERROR, "more information is no part of it");
    }
}
