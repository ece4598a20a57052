//! Doorbells in a file that another process maps, as a borrower of a queue does.
//!
//! Input: stores to the file. Output: doorbells that changed. A repeated store of the same value is not seen; a correct
//! driver never rings a doorbell with its present value.

use headwater_host::registers::{DeviceRegisters, MappedRegisters};
use headwater_host::shared_memory::SharedMemory;
use headwater_nvme::controller::QueueId;
use std::os::fd::{AsFd, OwnedFd};

/// Queues whose doorbells are polled.
const QUEUES: usize = 64;

/// A doorbell that was rung.
pub(super) enum RungDoorbell {
    Tail(QueueId, u32),
    Head(QueueId, u32),
}

pub(super) struct DoorbellPage {
    file: OwnedFd,
    registers: MappedRegisters,
    seen: [u32; 2 * QUEUES],
}

impl DoorbellPage {
    pub(super) fn new(bar_bytes: usize) -> Self {
        let (_, file) = SharedMemory::memfd(bar_bytes).unwrap();
        let registers = MappedRegisters::map(file.as_fd(), 0, bar_bytes).unwrap();
        Self { file, registers, seen: [0; 2 * QUEUES] }
    }

    pub(super) fn file(&self) -> OwnedFd {
        self.file.try_clone().unwrap()
    }

    /// Zeroes the doorbells of a new queue.
    pub(super) fn clear(&mut self, queue: QueueId) {
        for doorbell in [2 * usize::from(queue.0), 2 * usize::from(queue.0) + 1] {
            self.seen[doorbell] = 0;
            self.registers.store32(super::DOORBELLS + 4 * doorbell, 0);
        }
    }

    pub(super) fn rung(&mut self) -> Vec<RungDoorbell> {
        let mut rung = Vec::new();
        for (doorbell, seen) in self.seen.iter_mut().enumerate() {
            let value = self.registers.load32(super::DOORBELLS + 4 * doorbell);
            if std::mem::replace(seen, value) == value {
                continue;
            }
            let queue = QueueId(u16::try_from(doorbell / 2).unwrap());
            rung.push(if doorbell % 2 == 0 {
                RungDoorbell::Tail(queue, value)
            } else {
                RungDoorbell::Head(queue, value)
            });
        }
        rung
    }
}
